"""A replica's answer to a read of rows: ``ringlog.client.row_reads`` is the other half.

It is given under the node's lock: the epoch, the positions and the rows of one answer belong together. Who is behind,
in epochs or positions, is given a moment first (``ringlog.node.protocol.requests``).

=============  =====================================================================================
``not_ready``  the node was started again and does not know yet what it knew before
``behind``     it has not adopted the epoch that mattered last, or not judged what is below a position asked for
``not_member`` at its epoch it is no replica of the key, or the table of that id is gone
=============  =====================================================================================
"""

from __future__ import annotations

from ringlog.kernel.history import contradicts
from ringlog.node.checks import token_of_partition
from ringlog.node.holder import Holder
from ringlog.node.store import RowVersion
from ringlog.wire.data import (
    BAD_POSITION,
    BEHIND,
    NOT_MEMBER,
    NOT_READY,
    OTHER_HISTORY,
    PARTITION_BYTES_MAX,
    TOO_LARGE,
    ReadRowsReply,
    ReadRowsRequest,
    digest_of_writes,
)


def is_behind(holder: Holder, request: ReadRowsRequest) -> bool:
    """True if the node lacks an epoch or a position that the request names."""
    return _refusal(holder, request) == BEHIND


def answered(holder: Holder, request: ReadRowsRequest) -> ReadRowsReply:
    """The answer, as things are, to a request that is sound as such."""
    with holder.lock:
        state = holder.state
        refused, versions = _refusal(holder, request), list[RowVersion]()
        if not refused and not request.position:
            versions = holder.partition(request.table, request.partition_key)
            if sum(len(one.value) for one in versions) > PARTITION_BYTES_MAX:
                refused = TOO_LARGE
        positions = tuple(sorted(holder.positions.items()))
    head = holder.node, state.epoch
    if refused:
        return ReadRowsReply(*head, refused, state_id=state.state_id)
    writes = tuple(sorted({one.value for one in versions}))
    if request.digest:
        return ReadRowsReply(*head, "", positions, (), digest_of_writes(writes), state.state_id)
    return ReadRowsReply(*head, "", positions, writes, b"", state.state_id)


def _refusal(holder: Holder, request: ReadRowsRequest) -> str:
    """Why the request is not answered as things are; empty if it is."""
    state = holder.state
    if not holder.caught_up:
        return NOT_READY
    if state.epoch < request.epoch:
        return BEHIND
    if contradicts(state, request.epoch, request.state_id) or contradicts(state, request.newest, request.newest_id):
        return OTHER_HISTORY
    table = state.tables.get(request.table)
    token = token_of_partition(request.partition_key)
    if table is None or table.id != request.table_id or not holder.has(request.table, token, request.position):
        return NOT_MEMBER
    if not holder.positions.keys() >= {partition for partition, _ in request.at}:
        return BAD_POSITION
    if any(holder.positions[partition] < offset for partition, offset in request.at):
        return BEHIND
    return ""
