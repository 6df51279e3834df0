"""The rules for reads and writes of registers: one cell for each register, the last write wins, ordered by epochs.

A replica is a value, and each function returns the next one. The caller provides messages, time and a disk.

- **Epochs in messages.** A message names the last epoch that affects it. It waits until the replica has reached that
  epoch through its own log, because a replica never trusts another process about the log. The message also names the id
  of that epoch's state, and the newest epoch of its sender. The replica refuses both if they belong to a different
  history. A replica that is ahead answers if it is a member at its own epoch, and names that epoch. The coordinator
  then checks the epochs in between.
- **Writes are answered when they are on disk.** Between admission and that time, a write is *pending*. A crash loses
  it.
- **Reads are answered as of the lookup.** The answer names the epoch at the lookup, not at the admission. The cell may
  have been written in between, under a later epoch and too late for the snapshot of a new owner. A coordinator that
  judged such an answer by the older epoch would consider it safe.
- **Acknowledgement.** ``acknowledgeable`` returns the newest adopted epoch that has no pending writes from before it.
  An adopted epoch is durable, so a restarted replica answers nothing below it.
- **Streaming.** A source must have adopted the streaming stage, and must have no writes pending from before it. Its
  snapshot then contains every write that did not go to the gaining node. The gaining node takes rows only after it has
  adopted the stage too, so it is a member by then. A stream of closed work (``ringlog.protocol.nodes.stream_work``) is
  refused.
- **Leaving.** A replica keeps a range if it is a member now and became one no later than its previous epoch. Otherwise
  the cells are dropped when the epoch is adopted. Reads admitted before are answered first; pending writes are refused.
  Cells of a cancelled operation are dropped by the same rule, and a node that returns begins without cells.

Invariant: every stored cell belongs to the node under the state that it serves. So an epoch needs to be checked only
for the ranges whose groups it changed.

Source: CEP-21, sections on replicas, streaming and the progress barrier. ``ringlog.client.data.plans`` is the
coordinator's side.
"""

from __future__ import annotations

from ringlog.kernel.history import contradicts, state_id_at
from ringlog.kernel.model.state import EMPTY_STATE, ClusterState, Placement, RangeGroup, Replica
from ringlog.kernel.model.tablet_map import TabletMap
from ringlog.kernel.ring.ranges import Range
from ringlog.kernel.values import Epoch, NodeId, Value, field, replace
from ringlog.node.registers.cells import CellMap, CellSnapshot
from ringlog.node.registers.spans import NO_SPANS, WHOLE, Spans
from ringlog.protocol.nodes.stream_work import (
    StreamingWork,
    changed_ranges,
    creation_epoch,
    merge_epoch,
    placement_of_space,
    replicas_of_token,
    spaces,
    spaces_under,
    work_by_name,
    works_for_node,
)
from ringlog.wire.data import (
    BAD_STREAM,
    BEHIND,
    NOT_MEMBER,
    NOT_READY,
    OTHER_HISTORY,
    Cells,
    Key,
    ReadReply,
    RegisterCell,
    WriteReply,
    digest_of,
)


class Durable(Value):
    """The content of the disk: the newest adopted epoch and the cells that belong to it, written together.

    Attributes:
        state_id: The id of the state at that epoch; empty if it was not recorded.
    """

    epoch: Epoch = 0
    cells: CellMap = field(default_factory=CellMap)
    state_id: str = ""


class PendingWrite(Value):
    """A write that was admitted at ``epoch`` and is not on disk yet.

    Attributes:
        number: Identifies the request among the open ones.
    """

    number: int
    key: Key
    cell: RegisterCell
    epoch: Epoch


class PendingRead(Value):
    """A read that was admitted and is not answered yet."""

    number: int
    key: Key


class Reply(Value):
    """The answer to request ``number``.

    Attributes:
        cell: The result of a read.
        refused: The code of a refusal, or an empty string. ``detail`` explains it.
    """

    number: int
    epoch: Epoch
    cell: RegisterCell | None = None
    refused: str = ""
    detail: str = ""


class Behind(Value):
    """The request is undecided: this replica must adopt ``epoch`` first."""

    epoch: Epoch


class RegisterFetch(Value):
    """A stream that a gaining node needs: cells of ``ranges`` under ``replication`` from ``source``.

    Attributes:
        operation: The name of the work: the id of an operation, or the name of a session.
        epoch: The epoch of the stage.
    """

    operation: str
    epoch: Epoch
    source: NodeId
    replication: str
    ranges: tuple[Range, ...]


class RegisterReplica(Value):
    """The registers of one node.

    Attributes:
        state: The adopted state. It is below the durable epoch only while a restarted replica catches up.
        fetching: Streams that are not complete.
        fetched: Complete streams of open work.
        received: Names of open work with all streams complete.
    """

    node: NodeId
    durable: Durable = field(default_factory=Durable)
    state: ClusterState = EMPTY_STATE
    pending: tuple[PendingWrite, ...] = ()
    reading: tuple[PendingRead, ...] = ()
    fetching: tuple[RegisterFetch, ...] = ()
    received: tuple[str, ...] = ()
    fetched: tuple[RegisterFetch, ...] = ()


PLACED_BY = ("placements", "keyspaces", "tablets", "tables")
"""The state sections that determine the owners of rows and registers."""

Newest = tuple[Epoch, str]
"""The newest epoch that the sender of a request knows, and the id of its state."""
UNNAMED: Newest = (0, "")
Admission = int | Reply | Behind
"""The result of a request: the number of a write that is answered later, or an immediate answer."""
Step = tuple[RegisterReplica, tuple[Reply, ...]]
"""The replica after a step, and its answers."""


# ---------------------------------------------------------------------------------------------------- epochs


def restarted(node: NodeId, durable: Durable) -> RegisterReplica:
    """Return a replica with the content of its disk."""
    return RegisterReplica(node, durable)


def is_ready(replica: RegisterReplica) -> bool:
    """Return False until a restarted replica has reached its last adopted epoch."""
    return replica.state.epoch >= max(replica.durable.epoch, 1)


def is_of_another_log(replica: RegisterReplica, state: ClusterState) -> bool:
    """Return True if ``state`` does not descend from the last adopted state. The replica must not adopt it then."""
    return contradicts(state, replica.durable.epoch, replica.durable.state_id)


def is_newer(replica: RegisterReplica, state: ClusterState) -> bool:
    """Return True if ``state`` is newer than the present state and not below the durable epoch."""
    return state.epoch >= replica.durable.epoch and state.epoch > replica.state.epoch


def adopt(replica: RegisterReplica, state: ClusterState, lost: Spans | None = None) -> Step:
    """Return the replica that serves under ``state``, and its answers. Changes nothing unless ``state`` is newer.

    The caller writes ``durable`` to disk before it uses the replica. Reads of lost registers are answered, writes to
    them refused.

    Args:
        lost: The result of ``lost_under``, if it is known.
    """
    if not is_newer(replica, state):
        return replica, ()
    lost = lost_under(replica, state) if lost is None else lost
    # Admitted reads of lost registers are answered now, from the cells that the node still has.
    answered = tuple(_read_answer(replica, reading) for reading in replica.reading if reading.key in lost)
    refused = tuple(
        Reply(write.number, state.epoch, refused=NOT_MEMBER) for write in replica.pending if write.key in lost
    )
    wanted = works_for_node(state, replica.node)
    after = RegisterReplica(
        replica.node,
        Durable(state.epoch, replica.durable.cells.without(lost), state.state_id),
        state,
        tuple(write for write in replica.pending if write.key not in lost),
        tuple(reading for reading in replica.reading if reading.key not in lost),
        tuple(fetch for fetch in replica.fetching if fetch.operation in wanted),
        tuple(name for name in replica.received if name in wanted),
        tuple(fetch for fetch in replica.fetched if fetch.operation in wanted),
    )
    for work in wanted.values():
        after = _with_fetches(after, work)
    return after, (*answered, *refused)


def acknowledgeable(replica: RegisterReplica) -> Epoch:
    """Return the newest epoch that is adopted and has every write admitted below it on disk."""
    if not is_ready(replica):
        return 0
    return min((write.epoch for write in replica.pending), default=replica.state.epoch)


def _member(group: tuple[Replica, ...], node: NodeId) -> Replica | None:
    return next((replica for replica in group if replica.node == node), None)


def lost_under(replica: RegisterReplica, state: ClusterState) -> Spans:
    """Return the registers that the node loses under ``state``: those that it has not replicated continuously.

    Considers the registers that it may have: all after a restart, otherwise those of the present state.
    """
    old = replica.state if is_ready(replica) else None
    if old is not None and all(getattr(state, part) is getattr(old, part) for part in PLACED_BY):
        return NO_SPANS
    names = replica.durable.cells.keyspaces() if old is None else spaces(old)
    ranges_lost: dict[tuple[int, int, Epoch], tuple[Range, ...]] = {}
    lost: dict[str, tuple[Range, ...]] = {}
    for name in names:
        # The space was created again under the same name, so any stored cells belong to the dropped one.
        if creation_epoch(state, name) > replica.durable.epoch:
            lost[name] = (WHOLE,)
            continue
        now = placement_of_space(state, name)
        was = None if old is None else placement_of_space(old, name)
        before = max(replica.durable.epoch, merge_epoch(state, name))
        if (id(was), id(now), before) not in ranges_lost:  # Most keyspaces share a placement.
            ranges_lost[id(was), id(now), before] = _lost_ranges(was, now, replica.node, before)
        lost[name] = ranges_lost[id(was), id(now), before]
    return Spans(lost)


def _lost_ranges(
    was: Placement | TabletMap | None, now: Placement | TabletMap | None, node: NodeId, before: Epoch
) -> tuple[Range, ...]:
    """Return the ranges that ``node`` stops replicating from placement ``was`` to ``now``.

    Args:
        was: The earlier placement, or None if the node may have any cells.
    """
    if now is None or not now.ends:
        return (WHOLE,)
    if now is was:
        return ()
    changed = changed_ranges(was, now)
    return tuple(one for one, group in changed if not _replicated_since(group, node, before))


def _replicated_since(group: RangeGroup, node: NodeId, before: Epoch) -> bool:
    """Return True if the node has been a write replica since ``before``."""
    member = _member(group.write, node)
    return member is not None and member.since <= before


# ------------------------------------------------------------------------------------------- reads and writes


def admit_write(
    replica: RegisterReplica,
    number: int,
    key: Key,
    cell: RegisterCell,
    epoch: Epoch,
    state_id: str = "",
    newest: Newest = UNNAMED,
) -> tuple[RegisterReplica, Reply | Behind | None]:
    """Admit a write. A verdict of None means that its answer comes from ``apply``.

    Args:
        epoch: The last epoch that affects the write.
        state_id: The id of the state at ``epoch``.
    """
    verdict = _admitted(replica, key, epoch, (state_id, newest), is_read=False, number=number)
    if verdict is not None:
        return replica, verdict
    write = PendingWrite(number, key, cell, replica.state.epoch)
    return replace(replica, pending=(*replica.pending, write)), None


def apply(replica: RegisterReplica, number: int) -> Step:
    """Apply the pending write ``number``, if it exists. Its reply may be sent once ``durable`` is on disk."""
    write = next((write for write in replica.pending if write.number == number), None)
    if write is None:
        return replica, ()
    rest = tuple(other for other in replica.pending if other is not write)
    return _with(replace(replica, pending=rest), {write.key: write.cell}), (Reply(number, write.epoch),)


def admit_read(
    replica: RegisterReplica, number: int, key: Key, epoch: Epoch, state_id: str = "", newest: Newest = UNNAMED
) -> tuple[RegisterReplica, Reply | Behind | None]:
    """Admit a read. A verdict of None means that its answer comes from ``answer_read``.

    Args:
        epoch: The last epoch that affects the read.
        state_id: The id of the state at ``epoch``.
    """
    verdict = _admitted(replica, key, epoch, (state_id, newest), is_read=True, number=number)
    if verdict is not None:
        return replica, verdict
    return replace(replica, reading=(*replica.reading, PendingRead(number, key))), None


def answer_read(replica: RegisterReplica, number: int) -> Step:
    """Answer the open read ``number``, if it exists."""
    reading = next((reading for reading in replica.reading if reading.number == number), None)
    if reading is None:
        return replica, ()
    rest = tuple(other for other in replica.reading if other is not reading)
    return replace(replica, reading=rest), (_read_answer(replica, reading),)


def write_reply(replica: RegisterReplica, done: Reply | Behind) -> WriteReply:
    """Return the message that answers a write."""
    if isinstance(done, Behind):
        return WriteReply(replica.node, replica.state.epoch, BEHIND)
    return WriteReply(replica.node, done.epoch, done.refused, state_id_at(replica.state, done.epoch), done.detail)


def read_reply(replica: RegisterReplica, found: Reply | Behind, is_digest: bool) -> ReadReply:
    """Return the message that answers a read. If ``is_digest``, it contains a digest in place of the value."""
    if isinstance(found, Behind):
        return ReadReply(replica.node, replica.state.epoch, BEHIND)
    cell, state_id = found.cell, state_id_at(replica.state, found.epoch)
    if not is_digest or cell is None:
        return ReadReply(replica.node, found.epoch, found.refused, cell, b"", state_id, found.detail)
    shown = RegisterCell(cell.timestamp, b"", cell.deleted)
    return ReadReply(replica.node, found.epoch, found.refused, shown, digest_of(cell), state_id)


def _admitted(
    replica: RegisterReplica, key: Key, epoch: Epoch, ids: tuple[str, Newest], is_read: bool, number: int
) -> Reply | Behind | None:
    """Return None if the request is admitted at the adopted epoch.

    Args:
        ids: The id of the state at ``epoch``, and the newest epoch of the sender with its id.
    """
    if not is_ready(replica):
        return Reply(number, replica.state.epoch, refused=NOT_READY)
    if replica.state.epoch < epoch:
        return Behind(epoch)
    state_id, newest = ids
    if contradicts(replica.state, epoch, state_id) or contradicts(replica.state, *newest):
        return Reply(number, replica.state.epoch, refused=OTHER_HISTORY)
    group = replicas_of_token(placement_of_space(replica.state, key.keyspace), key.token)
    members = () if group is None else group.read if is_read else group.write
    if _member(members, replica.node) is None or creation_epoch(replica.state, key.keyspace) > epoch:
        return Reply(number, replica.state.epoch, refused=NOT_MEMBER)
    return None


def _read_answer(replica: RegisterReplica, reading: PendingRead) -> Reply:
    return Reply(reading.number, replica.state.epoch, replica.durable.cells.get(reading.key))


def _with(replica: RegisterReplica, cells: dict[Key, RegisterCell]) -> RegisterReplica:
    """Return the replica with each of these cells that wins over the present one."""
    durable = replica.durable
    return replace(replica, durable=replace(durable, cells=durable.cells.with_newest(cells.items())))


# -------------------------------------------------------------------------------------------------- streaming


def snapshot(replica: RegisterReplica, fetch: RegisterFetch, newest: Epoch = 0) -> CellSnapshot | Behind | str:
    """Return the cells of a stream as a source, Behind until they are available, or the code of a refusal.

    Args:
        newest: The newest epoch that the receiver has adopted.
    """
    needed = max(fetch.epoch, newest)
    if not is_ready(replica) or replica.state.epoch < needed:
        return Behind(needed)
    work = work_by_name(replica.state, fetch.operation)
    if work is None or not work.ranges_from(replica.node, fetch.replication).issuperset(fetch.ranges):
        return BAD_STREAM
    # Writes admitted before the stage may not go to the gaining node, so the snapshot must contain them.
    if acknowledgeable(replica) < work.epoch:
        return Behind(fetch.epoch)
    made = {space: creation_epoch(replica.state, space) for space in spaces_under(replica.state, fetch.replication)}
    return CellSnapshot(replica.durable.cells, spans_of(replica.state, fetch), made)


def receive(replica: RegisterReplica, fetch: RegisterFetch, cells: dict[Key, RegisterCell]) -> RegisterReplica | None:
    """Keep the last cells of a stream and complete it. Return None if the stream is no longer wanted.

    The caller uses ``received`` only after the cells are on disk.
    """
    if fetch not in replica.fetching:
        return None
    rest = tuple(other for other in replica.fetching if other != fetch)
    after = replace(_with(replica, cells), fetching=rest, fetched=(*replica.fetched, fetch))
    if all(other.operation != fetch.operation for other in rest):
        after = replace(after, received=(*after.received, fetch.operation))
    return after


def receive_page(
    replica: RegisterReplica, fetch: RegisterFetch, cells: dict[Key, RegisterCell]
) -> RegisterReplica | None:
    """Keep some cells of a stream that continues. Return None if the stream is no longer wanted."""
    return _with(replica, cells) if fetch in replica.fetching else None


def page_matches_fetch(state: ClusterState, fetch: RegisterFetch, page: Cells) -> bool:
    """Return True if all cells of a page belong to the fetch under ``state``.

    Cells of a dropped keyspace or table do not belong to it, even if a new one has the same name.
    """
    wanted, made = spans_of(state, fetch), dict(page.made)
    return all(key in wanted for key, _ in page.cells) and all(
        made.get(space) == creation_epoch(state, space) for space in {key.keyspace for key, _ in page.cells}
    )


def spans_of(state: ClusterState, fetch: RegisterFetch) -> Spans:
    """Return the registers that the fetch covers."""
    return Spans(dict.fromkeys(spaces_under(state, fetch.replication), fetch.ranges))


def _with_fetches(replica: RegisterReplica, work: StreamingWork) -> RegisterReplica:
    """Return the replica that also waits for the incomplete streams of ``work``, from its present sources."""
    if work.name in replica.received:
        return replica
    wanted = (
        RegisterFetch(work.name, work.epoch, source, replication, ranges)
        for (source, replication), ranges in work.ranges_to(replica.node).items()
    )
    fetches = tuple(fetch for fetch in wanted if fetch not in replica.fetched)
    if not fetches:
        return replace(replica, received=(*replica.received, work.name))
    others = tuple(fetch for fetch in replica.fetching if fetch.operation != work.name)
    return replace(replica, fetching=(*others, *fetches))
