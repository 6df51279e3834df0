"""A replica's answer to a read of rows. ``ringlog.client.data.row_reads`` is the client's side.

The answer is composed under the node's lock, so its epoch, positions and rows belong together. A large partition is
read page by page before that (``ringlog.node.rows.compaction``). A node that is behind waits a limited time first
(``ringlog.node.protocol.requests``).

==============  ====================================================================================
``not_ready``   The node has restarted and has not recovered its earlier state.
``behind``      The node has not adopted the epoch, or not validated the records below a position.
``not_member``  The node is not a replica of the key at its epoch, or the table of this id is gone.
==============  ====================================================================================
"""

from __future__ import annotations

from time import thread_time_ns

from ringlog.kernel.history import contradicts
from ringlog.node.checks import token_of_partition
from ringlog.node.rows.compaction import partition_read
from ringlog.node.rows.replica import RowReplica
from ringlog.wire.data import (
    BEHIND,
    NOT_MEMBER,
    NOT_READY,
    OTHER_HISTORY,
    PARTITION_BYTES_MAX,
    TOO_LARGE,
    ReadRowsReply,
    ReadRowsRequest,
    RowVersion,
    digest_of_writes,
)


def is_behind(row_replica: RowReplica, request: ReadRowsRequest) -> bool:
    """Return True if the node lacks an epoch or a position that the request names."""
    return _refusal(row_replica, request) == BEHIND


def answered(row_replica: RowReplica, request: ReadRowsRequest) -> ReadRowsReply:
    """Return the answer to a well-formed request under the present state."""
    with row_replica.lock:
        if request.position or _refusal(row_replica, request):
            return _reply(row_replica, request, [])
    began = thread_time_ns()
    with partition_read(row_replica, (request.table, request.partition_key), PARTITION_BYTES_MAX) as versions:
        reply = _reply(row_replica, request, versions)
        row_replica.count_read(request.table, request.partition_key, began)
        return reply


def _reply(row_replica: RowReplica, request: ReadRowsRequest, versions: list[RowVersion] | None) -> ReadRowsReply:
    """Return the answer with these versions, or a refusal if they are None. The caller holds the node's lock."""
    state, positions = row_replica.state, tuple(sorted(row_replica.positions.items()))
    refused = _refusal(row_replica, request) or (TOO_LARGE if versions is None else "")
    head = row_replica.node, state.epoch
    if refused or versions is None:
        return ReadRowsReply(*head, refused, state_id=state.state_id)
    writes = tuple(sorted({one.value for one in versions}))
    if request.digest:
        return ReadRowsReply(*head, "", positions, (), digest_of_writes(writes), state.state_id)
    return ReadRowsReply(*head, "", positions, writes, b"", state.state_id)


def _refusal(row_replica: RowReplica, request: ReadRowsRequest) -> str:
    """Return the code that refuses the request under the present state, or an empty string."""
    state = row_replica.state
    if not row_replica.caught_up:
        return NOT_READY
    if state.epoch < request.epoch:
        return BEHIND
    if contradicts(state, request.epoch, request.state_id) or contradicts(state, request.newest, request.newest_id):
        return OTHER_HISTORY
    table = state.tables.get(request.table)
    token = token_of_partition(request.partition_key)
    if table is None or table.id != request.table_id or not row_replica.has(request.table, token, request.position):
        return NOT_MEMBER
    if any(row_replica.positions.get(partition, 0) < offset for partition, offset in request.at):
        return BEHIND
    return ""
