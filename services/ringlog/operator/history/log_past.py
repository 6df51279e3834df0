"""The log folded anew: the state at an epoch of the past, and whether what is stored of it is what the log says.

The past begins with the log's first record. Where that was let go, it begins with the archive's, or else with a
snapshot that the log still follows: what lies before is not there then. Who wants no more than what is behind an epoch
begins with the newest snapshot that is not later, if there is one (``near``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import astuple, dataclass

from ringlog.kernel.encoding.encoder import digest
from ringlog.kernel.history import ARCHIVED
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Epoch
from ringlog.log.archive.archive import Archive, SegmentHead, whole
from ringlog.log.folding import BEGINNING, FoldedRecord, Start, follow
from ringlog.log.kafka.adapter import KafkaLog
from ringlog.log.opening import open_snapshots
from ringlog.log.port import LogRecord, MetadataLog
from ringlog.log.replicas.identity import check_begin
from ringlog.log.replicas.start_point import Beginning, SnapshotTopic
from ringlog.operator.errors import Refused
from ringlog.runtime.context import ClusterContext
from ringlog.wire.records import StoredSnapshot


@dataclass(frozen=True, slots=True)
class CheckedSnapshot:
    """A stored snapshot, and the digest that the log folds to at its epoch; ``why``: what does not fit, empty: all
    does.
    """

    head: StoredSnapshot
    folded: str
    why: str


@dataclass(frozen=True, slots=True)
class Past:
    """Records, and the state and position that they follow."""

    records: Iterable[LogRecord]
    start: Start = BEGINNING

    def lines(self) -> Iterator[FoldedRecord]:
        """The records, folded."""
        return follow(self.records, self.start.state)


@contextmanager
def past_of(context: ClusterContext, archive: Archive | None = None, near: Epoch | None = None) -> Iterator[Past]:
    """All that is there of a cluster's log up to now; from a snapshot on, if it must be.

    ``near``: what is behind that epoch is enough, unless an archive is named.

    Raises LogUnavailable, LogTruncated; reading the records raises ArchiveRefused, ArchiveUnavailable, too.
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
    """See ``past_of``."""
    begin = log.begin_offset()
    if near is not None and archive is None:
        start = Beginning(open_topic, near).start(log, log.identity(), lambda _: ())
        if start.position >= begin:
            return Past(whole(log, None, start.position), start)
    if archive is not None or begin == 0:
        return Past(whole(log, archive))
    start = Beginning(open_topic, oldest=True).start(log, log.identity(), lambda _: ())
    check_begin(log.name, begin, start.position, "no snapshot is behind that; name the archive, if there is one")
    return Past(whole(log, None, start.position), start)


def states(past: Past) -> Iterator[ClusterState]:
    """Each state, from that of the start on. Raises Refused."""
    state = past.start.state
    yield state
    for made in past.lines():
        _raise_if_halted(made)
        if made.after is not state:
            state = made.after
            yield state


def state_at(past: Past, epoch: Epoch) -> ClusterState:
    """The state at ``epoch``. Raises Refused."""
    state = past.start.state
    for state in states(past):
        if state.epoch >= epoch:
            break
    if state.epoch == epoch:
        return state
    problem, more = ("begins", ": name the archive of what was before") if state.epoch > epoch else ("ends", "")
    raise Refused("epoch_unknown", f"the log {problem} with epoch {state.epoch}{more}")


def checked(
    past: Past, topic_id: str, heads: Iterable[StoredSnapshot]
) -> tuple[ClusterState, tuple[CheckedSnapshot, ...]]:
    """The last state, and every snapshot beside what the log says of its epoch, by epoch. Raises Refused."""
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
    """Why the archive is not the one that the log knows of; empty: it is, or the log knows of none."""
    problem = state.log_bounds.get(ARCHIVED)
    if problem is None or any((head.last, head.next, head.digest) == astuple(problem) for head in heads):
        return ""
    return f"the log knows of an archive up to epoch {problem.epoch} with digest {problem.digest}; that is not here"


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
    if made.is_halt:
        raise Refused("replica_halted", f"offset {made.offset}: {made.outcome.code}: {made.outcome.detail}")
