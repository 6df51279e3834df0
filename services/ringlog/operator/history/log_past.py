"""Replay of the log: the state at a past epoch, and a check of stored snapshots against it.

A replay starts with the first record of the log. If older records were truncated, it starts with the archive. Without
an archive it starts with the oldest usable snapshot, and earlier states are not available. A caller that needs one
epoch only passes ``near``; the replay then starts with the newest snapshot that is not later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager

from msgspec import structs

from ringlog.kernel.encoding.encoder import digest
from ringlog.kernel.history import ARCHIVED
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Epoch, Value
from ringlog.log.archive.archive import Archive, SegmentHead, all_records
from ringlog.log.folding import BEGINNING, FoldedRecord, Start, follow
from ringlog.log.kafka.adapter import KafkaLog
from ringlog.log.opening import open_snapshots
from ringlog.log.port import LogRecord, MetadataLog
from ringlog.log.replicas.identity import check_begin
from ringlog.log.replicas.start_point import SnapshotTopic, StartPointFinder
from ringlog.operator.errors import Refused
from ringlog.runtime.context import ClusterContext
from ringlog.wire.records import StoredSnapshot


class CheckedSnapshot(Value):
    """A stored snapshot and the replayed digest at its epoch. ``why``: the differences, empty if there are none."""

    head: StoredSnapshot
    folded: str
    why: str


class Past(Value):
    """Records, and the state and position before the first of them."""

    records: Iterable[LogRecord]
    start: Start = BEGINNING

    def lines(self) -> Iterator[FoldedRecord]:
        """Fold the records and yield each with its outcome."""
        return follow(self.records, self.start.state)


@contextmanager
def past_of(context: ClusterContext, archive: Archive | None = None, near: Epoch | None = None) -> Iterator[Past]:
    """Open the history of a cluster's log up to its current end.

    ``near``: the epoch that the caller needs; the replay may start shortly before it. An archive disables this.

    Raises LogUnavailable, LogTruncated. Reading the records also raises ArchiveRefused, ArchiveUnavailable.
    """
    place = context.bootstrap, context.cluster
    with closing(KafkaLog(*place)) as log:
        yield past(log, lambda: open_snapshots(*place), archive, near)


def past(
    log: MetadataLog,
    open_topic: Callable[[], SnapshotTopic],
    archive: Archive | None,
    near: Epoch | None = None,
) -> Past:
    """Return the history of an open log; see ``past_of``."""
    begin = log.begin_offset()
    if near is not None and archive is None:
        start = StartPointFinder(open_topic, near).start(log, log.identity(), lambda _: ())
        if start.position >= begin:
            return Past(all_records(log, None, start.position), start)
    if archive is not None or begin == 0:
        return Past(all_records(log, archive))
    start = StartPointFinder(open_topic, oldest=True).start(log, log.identity(), lambda _: ())
    check_begin(log.name, begin, start.position, "no snapshot covers that offset. Pass --archive, if an archive exists")
    return Past(all_records(log, None, start.position), start)


def states(past: Past) -> Iterator[ClusterState]:
    """Yield each state, beginning with the start. Raises Refused."""
    state = past.start.state
    yield state
    for made in past.lines():
        _raise_if_halted(made)
        if made.after is not state:
            state = made.after
            yield state


def state_at(past: Past, epoch: Epoch) -> ClusterState:
    """Return the state at ``epoch``. Raises Refused."""
    state = past.start.state
    for state in states(past):
        if state.epoch >= epoch:
            break
    if state.epoch == epoch:
        return state
    problem, more = ("begins", ". Pass --archive to read earlier entries") if state.epoch > epoch else ("ends", "")
    raise Refused("epoch_unknown", f"the log {problem} with epoch {state.epoch}{more}")


def checked(
    past: Past, topic_id: str, heads: Iterable[StoredSnapshot]
) -> tuple[ClusterState, tuple[CheckedSnapshot, ...]]:
    """Compare every stored snapshot with the replayed state at its epoch. Earlier snapshots than the start are left
    out.

    Returns (last state, results by epoch). Raises Refused.
    """
    wanted = {head.epoch: head for head in heads}
    found: dict[Epoch, CheckedSnapshot] = {}
    state, first = past.start.state, past.start.state.epoch
    if (head := wanted.get(first)) is not None:
        found[first] = _compare(head, past.start, topic_id)
    for made in past.lines():
        _raise_if_halted(made)
        state = made.after
        head = wanted.get(state.epoch)
        if head is not None and made.after is not made.before:
            found[head.epoch] = _compare(head, made.next, topic_id)
    missing = f"the log ends with epoch {state.epoch}"
    problem = {epoch: head for epoch, head in wanted.items() if epoch >= first}
    rows = (found.get(epoch, CheckedSnapshot(problem[epoch], "", missing)) for epoch in sorted(problem))
    return state, tuple(rows)


def archive_fault(state: ClusterState, heads: Sequence[SegmentHead]) -> str:
    """Return why the archive is not the one that the log has recorded; empty if it matches, or if none is recorded."""
    problem = state.log_bounds.get(ARCHIVED)
    if problem is None or any((head.last, head.next, head.digest) == structs.astuple(problem) for head in heads):
        return ""
    return (
        f"the log records an archive up to epoch {problem.epoch} with digest {problem.digest}, this is another archive"
    )


def _compare(head: StoredSnapshot, at: Start, topic_id: str) -> CheckedSnapshot:
    state, folded = at.state, digest(at.state)
    pairs = {
        "cluster": (head.cluster_id, state.cluster_id),
        "topic": (head.topic_id, topic_id),
        "state id": (head.state_id, state.state_id),
        "position": (head.position, at.position),
        "digest": (head.digest, folded),
    }
    wrong = [f"{name} {stored}, and the log has {is_}" for name, (stored, is_) in pairs.items() if stored != is_]
    return CheckedSnapshot(head, folded, "; ".join(wrong))


def _raise_if_halted(made: FoldedRecord) -> None:
    """Raise Refused for a record that halts a replica, because no state is defined after it."""
    if made.is_halt:
        raise Refused("replica_halted", f"offset {made.offset}: {made.outcome.code}: {made.outcome.detail}")
