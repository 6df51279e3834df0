"""What a replica decides on the path of reads and writes by epoch: registers, one cell each, the last write wins.

A value, and functions from it to the next one; who calls them brings messages, time and a disk. The rules:

- **Epochs on the wire.** A message names the last epoch that mattered for it, and waits until this replica has caught
  up with that by its own log: nobody's word is taken for what the log has. It names that epoch's state, too, and the
  newest one that its sender knows: what this replica knows to be of another history is refused. Where it is ahead it
  answers only if it is a member at its own epoch, and names that one: the coordinator checks what lies between.
- **A write is answered when it is on disk.** Between its admission and that it is *pending*, and lost by a crash.
- **A read is answered as of the look-up.** Its answer names the epoch adopted by then, not that of the admission. What
  it finds may have been written in between, under a later epoch than it was admitted at, and too late for the snapshot
  that a new owner was given: a coordinator who judged that by the older epoch would take for safe what is not.
- **Acknowledging.** ``acknowledgeable`` is the newest epoch below which nothing is pending. The epoch itself is durable
  from the moment it is adopted: a replica that restarts answers nothing below it.
- **Streaming.** A source must have adopted the stage in which the rows are streamed and have nothing pending from
  before that; then its snapshot holds whatever was written without the gaining node. The receiver takes rows only after
  it has adopted it too, being a member by then; a stream of a work that is not open any more
  (``ringlog.node.stream_work``) is refused.
- **Leaving.** A replica is a member of a range without a gap if it is one now, since no later than the epoch it had
  adopted before. Where that does not hold, the rows are of another time: they go when the epoch is adopted, after the
  reads that were admitted have been answered from them. A cancelled operation's rows go that way, too; a node that
  comes back begins empty. What was pending there is refused, not applied. What is held belongs to the node under the
  state that it serves; so an epoch is asked about those ranges only whose groups it changed.

Source: CEP-21, sections on replicas, streaming and the progress barrier; ``ringlog.client.data.plans`` is the other
half.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ringlog.kernel.history import contradicts, state_id_at
from ringlog.kernel.model.state import EMPTY_STATE, ClusterState, Placement, RangeGroup, Replica
from ringlog.kernel.model.tablet_map import TabletMap
from ringlog.kernel.ring.ranges import Range
from ringlog.kernel.values import Epoch, NodeId
from ringlog.node.registers.cells import CellMap, Excerpt
from ringlog.node.registers.spans import NOWHERE, WHOLE, Spans
from ringlog.node.stream_work import (
    StreamingWork,
    changed_ranges,
    group_in,
    joined_at,
    made_at,
    placed,
    spaces,
    spaces_under,
    work_of,
    works_of,
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


@dataclass(frozen=True, slots=True)
class Durable:
    """What is on disk: the newest adopted epoch and, in one piece with it, the cells that belong to it.

    ``state_id``: of the state at that epoch; empty where it was not kept.
    """

    epoch: Epoch = 0
    cells: CellMap = field(default_factory=CellMap)
    state_id: str = ""


@dataclass(frozen=True, slots=True)
class PendingWrite:
    """A write, admitted at ``epoch`` and not on disk yet. ``number`` is the request's, unique among those open."""

    number: int
    key: Key
    cell: RegisterCell
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class PendingRead:
    """A read, admitted and not answered yet."""

    number: int
    key: Key


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to request ``number``. ``cell``: what a read found; ``refused``: why there is none."""

    number: int
    epoch: Epoch
    cell: RegisterCell | None = None
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Behind:
    """Not decided: this replica must have adopted ``epoch`` first."""

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class RegisterFetch:
    """Cells of ``ranges`` under ``replication`` that a gaining node needs from ``source``; ``epoch``: of the stage.

    ``operation``: the name of the work, an operation's id or that of a session.
    """

    operation: str
    epoch: Epoch
    source: NodeId
    replication: str
    ranges: tuple[Range, ...]


@dataclass(frozen=True, slots=True)
class RegisterReplica:
    """One replica. ``state``: the adopted one; it is below the durable epoch only while a restarted replica catches up.

    ``fetching``: streams that it waits for; ``fetched``: those that are over, of works that are open; ``received``:
    works of which everything is there.
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
"""The parts of the state that say whose rows and registers are."""

Newest = tuple[Epoch, str]
"""The newest epoch that the sender of a request knows, and the id of its state."""
UNNAMED: Newest = (0, "")
Taken = int | Reply | Behind
"""What becomes of a request that comes in: the number of a write that is answered later, or what is said at once."""
Step = tuple[RegisterReplica, tuple[Reply, ...]]
"""The replica after a step, and what it answers."""


# ---------------------------------------------------------------------------------------------------- epochs


def restarted(node: NodeId, durable: Durable) -> RegisterReplica:
    """A replica that begins with what its disk holds."""
    return RegisterReplica(node, durable)


def is_ready(replica: RegisterReplica) -> bool:
    """False until a restarted replica has caught up with what it had adopted before."""
    return replica.state.epoch >= max(replica.durable.epoch, 1)


def is_of_another_log(replica: RegisterReplica, state: ClusterState) -> bool:
    """True if ``state`` does not descend from the one that the replica adopted last: it must not be adopted."""
    return contradicts(state, replica.durable.epoch, replica.durable.state_id)


def is_news(replica: RegisterReplica, state: ClusterState) -> bool:
    """True if ``state`` is one to adopt: newer than the present one, and not below what is on disk."""
    return state.epoch >= replica.durable.epoch and state.epoch > replica.state.epoch


def adopt(replica: RegisterReplica, state: ClusterState, lost: Spans | None = None) -> Step:
    """Serve under ``state`` from now on, if it is newer; ``durable`` must be on disk before anything is done under it.

    Reads of rows that go are answered, writes to them refused. ``lost``: what ``lost_under`` gave, if it was asked.
    """
    if not is_news(replica, state):
        return replica, ()
    lost = lost_under(replica, state) if lost is None else lost
    answered = tuple(_read_answer(replica, reading) for reading in replica.reading if reading.key in lost)
    refused = tuple(
        Reply(write.number, state.epoch, refused=NOT_MEMBER) for write in replica.pending if write.key in lost
    )
    wanted = works_of(state, replica.node)
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
        after = _begun(after, work)
    return after, (*answered, *refused)


def acknowledgeable(replica: RegisterReplica) -> Epoch:
    """The newest epoch that this replica may acknowledge: adopted, and every write admitted below it on disk."""
    if not is_ready(replica):
        return 0
    return min((write.epoch for write in replica.pending), default=replica.state.epoch)


def _member(group: tuple[Replica, ...], node: NodeId) -> Replica | None:
    return next((replica for replica in group if replica.node == node), None)


def lost_under(replica: RegisterReplica, state: ClusterState) -> Spans:
    """The registers that the node takes no writes of under ``state``, or has not without a gap since before.

    Of those that it may hold: after a restart any, else those that belong to it under the present state.
    """
    old = replica.state if is_ready(replica) else None
    if old is not None and all(getattr(state, part) is getattr(old, part) for part in PLACED_BY):
        return NOWHERE
    names = replica.durable.cells.keyspaces() if old is None else spaces(old)
    ranges_lost: dict[tuple[int, int, Epoch], tuple[Range, ...]] = {}
    lost: dict[str, tuple[Range, ...]] = {}
    for name in names:
        if made_at(state, name) > replica.durable.epoch:
            lost[name] = (WHOLE,)  # those that it may hold are of another one of that name
            continue
        now = placed(state, name)
        was = None if old is None else placed(old, name)
        before = max(replica.durable.epoch, joined_at(state, name))
        if (id(was), id(now), before) not in ranges_lost:  # most keyspaces share one
            ranges_lost[id(was), id(now), before] = _lost_ranges(was, now, replica.node, before)
        lost[name] = ranges_lost[id(was), id(now), before]
    return Spans(lost)


def _lost_ranges(
    was: Placement | TabletMap | None, now: Placement | TabletMap | None, node: NodeId, before: Epoch
) -> tuple[Range, ...]:
    """Return the ranges that ``node`` stops replicating from one placement to the next; ``was``: None if anything may
    be held.
    """
    if now is None or not now.ends:
        return (WHOLE,)
    if now is was:
        return ()
    changed = changed_ranges(was, now)
    return tuple(one for one, group in changed if not _stays(group, node, before))


def _stays(group: RangeGroup, node: NodeId, before: Epoch) -> bool:
    """True if the node has been a write replica since ``before``."""
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
    """Take a write for which ``epoch``, of ``state_id``, mattered last; None: its answer comes with ``apply``."""
    verdict = _admitted(replica, key, epoch, (state_id, newest), is_read=False, number=number)
    if verdict is not None:
        return replica, verdict
    write = PendingWrite(number, key, cell, replica.state.epoch)
    return replace(replica, pending=(*replica.pending, write)), None


def apply(replica: RegisterReplica, number: int) -> Step:
    """Write what is pending under ``number``, if it is; the reply may go out when ``durable`` is on disk."""
    write = next((write for write in replica.pending if write.number == number), None)
    if write is None:
        return replica, ()
    rest = tuple(other for other in replica.pending if other is not write)
    return _with(replace(replica, pending=rest), {write.key: write.cell}), (Reply(number, write.epoch),)


def admit_read(
    replica: RegisterReplica, number: int, key: Key, epoch: Epoch, state_id: str = "", newest: Newest = UNNAMED
) -> tuple[RegisterReplica, Reply | Behind | None]:
    """Take a read for which ``epoch``, of ``state_id``, mattered last; None: its answer comes with ``answer_read``."""
    verdict = _admitted(replica, key, epoch, (state_id, newest), is_read=True, number=number)
    if verdict is not None:
        return replica, verdict
    return replace(replica, reading=(*replica.reading, PendingRead(number, key))), None


def answer_read(replica: RegisterReplica, number: int) -> Step:
    """Answer the read that is open under ``number``, if it is."""
    reading = next((reading for reading in replica.reading if reading.number == number), None)
    if reading is None:
        return replica, ()
    rest = tuple(other for other in replica.reading if other is not reading)
    return replace(replica, reading=rest), (_read_answer(replica, reading),)


def write_reply(replica: RegisterReplica, done: Reply | Behind) -> WriteReply:
    """The answer to a write as it travels."""
    if isinstance(done, Behind):
        return WriteReply(replica.node, replica.state.epoch, BEHIND)
    return WriteReply(replica.node, done.epoch, done.refused, state_id_at(replica.state, done.epoch))


def read_reply(replica: RegisterReplica, found: Reply | Behind, is_digest: bool) -> ReadReply:
    """The answer to a read as it travels; if it ``is_digest``, with the digest in the place of the value."""
    if isinstance(found, Behind):
        return ReadReply(replica.node, replica.state.epoch, BEHIND)
    cell, state_id = found.cell, state_id_at(replica.state, found.epoch)
    if not is_digest or cell is None:
        return ReadReply(replica.node, found.epoch, found.refused, cell, state_id=state_id)
    shown = RegisterCell(cell.timestamp, b"", cell.deleted)
    return ReadReply(replica.node, found.epoch, found.refused, shown, digest_of(cell), state_id)


def _admitted(
    replica: RegisterReplica, key: Key, epoch: Epoch, ids: tuple[str, Newest], is_read: bool, number: int
) -> Reply | Behind | None:
    """None if the request may be taken at the adopted epoch. ``ids``: of the state at ``epoch``, and of the newest."""
    if not is_ready(replica):
        return Reply(number, replica.state.epoch, refused=NOT_READY)
    if replica.state.epoch < epoch:
        return Behind(epoch)
    state_id, newest = ids
    if contradicts(replica.state, epoch, state_id) or contradicts(replica.state, *newest):
        return Reply(number, replica.state.epoch, refused=OTHER_HISTORY)
    group = group_in(placed(replica.state, key.keyspace), key.token)
    members = () if group is None else group.read if is_read else group.write
    if _member(members, replica.node) is None or made_at(replica.state, key.keyspace) > epoch:
        return Reply(number, replica.state.epoch, refused=NOT_MEMBER)
    return None


def _read_answer(replica: RegisterReplica, reading: PendingRead) -> Reply:
    return Reply(reading.number, replica.state.epoch, replica.durable.cells.get(reading.key))


def _with(replica: RegisterReplica, cells: dict[Key, RegisterCell]) -> RegisterReplica:
    """The replica with these cells where they win."""
    durable = replica.durable
    return replace(replica, durable=replace(durable, cells=durable.cells.with_newest(cells.items())))


# -------------------------------------------------------------------------------------------------- streaming


def snapshot(replica: RegisterReplica, fetch: RegisterFetch, newest: Epoch = 0) -> Excerpt | Behind | str:
    """This replica as a source: the cells as they are now, or Behind until it may give them, or the code of a refusal.

    ``newest``: the newest epoch that the receiver has adopted. The cells are read when the excerpt is iterated.
    """
    needed = max(fetch.epoch, newest)
    if not is_ready(replica) or replica.state.epoch < needed:
        return Behind(needed)
    work = work_of(replica.state, fetch.operation)
    if work is None or not work.given(replica.node, fetch.replication).issuperset(fetch.ranges):
        return BAD_STREAM
    if acknowledgeable(replica) < work.epoch:
        return Behind(fetch.epoch)
    made = {space: made_at(replica.state, space) for space in spaces_under(replica.state, fetch.replication)}
    return Excerpt(replica.durable.cells, spans_of(replica.state, fetch), made)


def receive(replica: RegisterReplica, fetch: RegisterFetch, cells: dict[Key, RegisterCell]) -> RegisterReplica | None:
    """Keep streamed cells; None refuses a stream that nobody wants any more. ``received`` counts once it is on disk."""
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
    """Keep some cells of a stream that goes on; None refuses them as ``receive`` does."""
    return _with(replica, cells) if fetch in replica.fetching else None


def belongs(state: ClusterState, fetch: RegisterFetch, page: Cells) -> bool:
    """True if all cells of a page belong to the fetch under ``state``. Cells of a dropped keyspace or table do not,
    even if another one has its name.
    """
    wanted, made = spans_of(state, fetch), dict(page.made)
    return all(key in wanted for key, _ in page.cells) and all(
        made.get(space) == made_at(state, space) for space in {key.keyspace for key, _ in page.cells}
    )


def spans_of(state: ClusterState, fetch: RegisterFetch) -> Spans:
    """The registers that belong to what is fetched."""
    return Spans(dict.fromkeys(spaces_under(state, fetch.replication), fetch.ranges))


def _begun(replica: RegisterReplica, work: StreamingWork) -> RegisterReplica:
    """The replica with the streams of a work among those that it waits for: of its sources as they are now, without
    what is here.
    """
    if work.name in replica.received:
        return replica
    wanted = (
        RegisterFetch(work.name, work.epoch, source, replication, ranges)
        for (source, replication), ranges in work.taken(replica.node).items()
    )
    fetches = tuple(fetch for fetch in wanted if fetch not in replica.fetched)
    if not fetches:
        return replace(replica, received=(*replica.received, work.name))
    others = tuple(fetch for fetch in replica.fetching if fetch.operation != work.name)
    return replace(replica, fetching=(*others, *fetches))
