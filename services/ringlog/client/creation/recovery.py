"""Recovery of a lost log: a copy becomes the log again, and a recovery entry marks its end.

``planned`` decides everything in memory. It replays the copy to its end and appends new entries:

- ``EnterRecovery``, unless a recovery is already active.

- ``RecordArchive`` with epoch 0 if the log refers to an archive, because an archive belongs to one topic.

- ``ConfirmSnapshot`` if the copy begins with a snapshot whose witnesses the log does not name yet. It names the member
  and this command: the operator vouches for the copy.

- ``TruncateLog`` if the copy begins with a snapshot above the position that the log allows.

- ``ForceState`` with the state sections that an operator provides.

Each entry is applied exactly as every reader will apply it. The final state must satisfy all invariants.
The snapshot is stored and read back in memory. Then ``RecoveryPlace.check`` verifies that topics and note can be
written. Only then does ``rebuild`` change anything. It replaces a log that has records only on request.

Invariant: records keep their offsets, because snapshots, archive and log bounds in the state refer to them. Fillers
take the offsets of missing records. They are deleted after the snapshot is stored under the id of the new topic,
confirmed by the witnesses that the log names.

No other process of the cluster may run during a recovery. An interrupted rebuild is restarted by the same call
(``ringlog.client.creation.recovery_place`` describes how that is detected).

Source: CEP-21, "Failure Recovery"; decision 81.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from itertools import takewhile
from typing import Final

from ringlog.client.creation.recovery_place import FoundLog, RecoveryPlace
from ringlog.client.errors import ClientError
from ringlog.kernel.commands.cluster.truncation import ConfirmSnapshot, RecordArchive, TruncateLog
from ringlog.kernel.commands.control.recovery import EnterRecovery, ForcedPart, ForceState
from ringlog.kernel.encoding.encoder import digest
from ringlog.kernel.fold import fold
from ringlog.kernel.history import ARCHIVED, allowed_begin
from ringlog.kernel.invariants.check import violations
from ringlog.kernel.model.outcome import OutcomeKind
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.service import in_recovery
from ringlog.kernel.values import Command, Value
from ringlog.log.archive.copies import CopyEnd, LogCopy, end_of
from ringlog.log.author import Author
from ringlog.log.errors import LogForked, LogNotEmpty
from ringlog.log.memory import MemoryKeyed
from ringlog.log.port import LogRecord, MetadataLog
from ringlog.log.replicas.replica import LogReplica
from ringlog.log.replicas.start_point import SnapshotTopic, StartPointFinder
from ringlog.protocol.effects import Draw
from ringlog.runtime.clock import Clock, SystemClock
from ringlog.runtime.draw import SystemDraw, draw_uuid
from ringlog.wire.entries import EncodedEntry
from ringlog.wire.records import SnapshotConfirmation

SUBMITTER: Final = "recover"
FILLER: Final = b""
BATCH_RECORDS: Final = 20_000
BATCH_BYTES: Final = 16 << 20


class RecoveryRefused(ClientError):
    """The copy, or an entry to append, breaks a rule. ``code`` and ``detail`` are those of the rule."""

    def __init__(self, code: str, detail: str, hint: str = "") -> None:
        super().__init__(detail, hint)
        self.code = code


class RecoveryPlan(Value):
    """A copy, its end, the entries to append and the resulting state.

    ``fillers``: number of empty records, one for each offset without a record.
    """

    copy: LogCopy
    end: CopyEnd
    entries: tuple[EncodedEntry, ...]
    after: ClusterState
    fillers: int

    @property
    def commands(self) -> tuple[str, ...]:
        """The kinds of the entries to append."""
        return tuple(one.entry.kind for one in self.entries)


def planned(
    copy: LogCopy,
    operator: str,
    reason: str,
    forced: Callable[[ClusterState], tuple[ForcedPart, ...]] = lambda _: (),
    *,
    clock: Clock | None = None,
    draw: Draw | None = None,
) -> RecoveryPlan:
    """Plan the content of the new log in memory. ``forced``: returns the state sections to replace at the copy's end.

    Raises RecoveryRefused, LogForked, CopyRefused, ArchiveRefused, ReplicaHalted.
    """
    clock = clock or SystemClock()
    author = Author(SUBMITTER, clock, draw or SystemDraw(), warns=False)
    end = end_of(copy)
    state, entries = end.at.state, list[EncodedEntry]()
    for command in _commands(state, copy, operator, reason, forced(state)):
        made = author.entry(state, command)
        folded = fold(state, made.entry)
        if folded.outcome.kind is not OutcomeKind.APPLIED:
            raise RecoveryRefused(folded.outcome.code, f"{made.entry.kind}: {folded.outcome.detail}")
        state = folded.state
        entries.append(made)
    if broken := violations(state):
        detail = "; ".join(f"{one.invariant}: {one.detail}" for one in broken[:3])
        raise RecoveryRefused(
            "state_unsound", detail, "export the state with --export, fix it, and pass it with --state"
        )
    plan = RecoveryPlan(copy, end, tuple(entries), state, end.at.position - sum(1 for _ in _kept(copy, end)))
    if copy.begin:
        _rehearse_snapshot(plan, clock.now_us())
    return plan


def _rehearse_snapshot(plan: RecoveryPlan, now: int) -> None:
    """Store the snapshot in memory and read it back. A failure after the old log is deleted would be too late."""
    topic = SnapshotTopic(MemoryKeyed())
    store_again(topic, "rehearsed", plan, now, "rehearsed")
    found = next(topic.newest(), None)
    if found is None or found.code or digest(topic.state(found.head)) != digest(plan.copy.start.state):
        why = (
            "the snapshot was not stored"
            if found is None
            else found.why or "the stored snapshot contains another state"
        )
        raise RecoveryRefused("snapshot_unusable", f"{plan.copy.place}: epoch {plan.copy.start.state.epoch}: {why}")


def _commands(
    state: ClusterState, copy: LogCopy, operator: str, reason: str, forced: tuple[ForcedPart, ...]
) -> Iterator[Command]:
    # The rules accept ``ForceState`` only in a recovery, so ``EnterRecovery`` comes first.
    if in_recovery(state) is None:
        yield EnterRecovery(reason, operator)
    if ARCHIVED in state.log_bounds:
        yield RecordArchive(0, 0, "")
    start = copy.start
    mark = state.snapshots.get(str(start.state.epoch))
    if copy.begin and mark is not None and not mark.witnesses:
        known = start.state.epoch, start.state.state_id, start.position, digest(start.state)
        yield ConfirmSnapshot(*known, ("member", SUBMITTER))
    if copy.begin > allowed_begin(state):
        yield TruncateLog(copy.start.state.epoch)
    if forced:
        yield ForceState(reason, operator, forced)


# ------------------------------------------------------------------------------------------------------- the log


def rebuild(
    place: RecoveryPlace,
    plan: RecoveryPlan,
    *,
    replace: bool = False,
    clock: Clock | None = None,
    draw: Draw | None = None,
) -> str:
    """Write the planned log, read it back and return the id of its topic.

    ``replace``: also delete a log that has records. An unfinished rebuild of the same copy is replaced without it.
    Raises LogNotEmpty or RecoveryRefused (nothing was changed), LogForked if the log reads back as another state,
    OSError, and the errors of topic creation.
    """
    if plan.after.name != place.name:
        raise RecoveryRefused(
            "other_cluster", f"{plan.copy.place} belongs to cluster {plan.after.name}, not to {place.name}"
        )
    there = place.found()
    if there is not None and there.records and not (replace or _is_begun(place, plan, there)):
        raise LogNotEmpty(place.log.name, there.records, there.cluster_id)
    # The last step that changes nothing. After it, the old log may be deleted.
    place.check()
    if there is not None and there.end:
        place.make_room()
    place.make()
    topic_id = place.log.identity()
    # The note precedes the first record, so an interrupted rebuild is recognised (``_is_begun``).
    place.note(topic_id)
    fill(place.log, plan)
    if plan.copy.begin:
        with closing(place.snapshots()) as topic:
            now = (clock or SystemClock()).now_us()
            store_again(topic, topic_id, plan, now, draw_uuid(draw or SystemDraw()))
        # Readers need the snapshot before the fillers are gone.
        place.delete_before(plan.copy.begin)
    read_back(place.log, plan, StartPointFinder(place.snapshots, warns=False))
    place.note("")
    return topic_id


def _is_begun(place: RecoveryPlace, plan: RecoveryPlan, there: FoundLog) -> bool:
    """Return whether the existing records come from an interrupted rebuild, without additions of another process."""
    return there.topic_id == place.unfinished() and there.end <= plan.end.at.position + len(plan.entries)


def fill(log: MetadataLog, plan: RecoveryPlan) -> None:
    """Append the planned records to an empty log, each at its offset. Raises LogUnavailable."""
    batch, size = list[bytes](), 0
    for data in _data(plan):
        batch.append(data)
        size += len(data)
        if len(batch) >= BATCH_RECORDS or size >= BATCH_BYTES:
            log.append(batch)
            batch, size = [], 0
    log.append(batch)


def _data(plan: RecoveryPlan) -> Iterator[bytes]:
    """The copy up to its last applied entry, then the new entries.

    Records after the last applied entry have no effect and may belong to another history.
    """
    at = 0
    for record in _kept(plan.copy, plan.end):
        yield from _fillers(record.offset - at)
        yield record.data
        at = record.offset + 1
    yield from (one.data for one in plan.entries)


def _kept(copy: LogCopy, end: CopyEnd) -> Iterator[LogRecord]:
    return takewhile(lambda one: one.offset < end.at.position, copy.records())


def _fillers(count: int) -> Iterable[bytes]:
    assert count >= 0, "the epochs of a copy's records ascend"
    return (FILLER for _ in range(count))


def store_again(topic: SnapshotTopic, topic_id: str, plan: RecoveryPlan, now: int, snapshot_id: str) -> None:
    """Store the snapshot at the beginning of the copy for the new topic.

    Raises RecoveryRefused, LogUnavailable, RecordTooLarge.
    """
    start = plan.copy.start
    mark = plan.after.snapshots.get(str(start.state.epoch))
    if mark is None or not mark.witnesses:
        raise RecoveryRefused(
            "snapshot_unknown", f"epoch {start.state.epoch}: the log does not name the agents that confirmed it"
        )
    first, second, *_ = mark.witnesses
    head = topic.store(start, topic_id, first, now, snapshot_id, plan.copy.begin)
    state = start.state
    said = state.cluster_id, topic_id, state.epoch, state.state_id, start.position, head.digest
    topic.confirm(SnapshotConfirmation(*said, second, now))


def read_back(log: MetadataLog, plan: RecoveryPlan, start_finder: StartPointFinder) -> None:
    """Check that a reader reaches the final state of the plan. Raises LogForked."""
    with LogReplica(log, start_finder=start_finder) as replica:
        found = replica.read_barrier()
    if digest(found) != digest(plan.after):
        raise LogForked(
            (f"{log.name} ends with epoch {found.epoch} after the recovery; the plan ends with {plan.after.epoch}"),
            "recover again",
        )
