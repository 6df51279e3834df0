"""The replica: a thread that reads the metadata log and folds it. Each process that needs the state has one.

It reads an assigned partition without a consumer group, and replays from the first record or from a stored state.

Invariants: state and position only move forward, record by record. The state equals the fold up to the position.

The replica *halts* permanently if the log does not determine how to continue. The causes are an entry of a later
release, another topic or cluster, a shorter log, a missing beginning, and different states of known epochs. A halted
replica still returns its last state, but every wait on it raises. If a broker does not answer, the replica waits.

A log may begin as late as a ``TruncateLog`` in the state allows. A replica then begins with a snapshot. It halts if it
finds none, or if it is at the log's end and the log begins later than allowed. If the log is cut and grows again,
entries follow states that this replica does not know. It then checks whether the last applied entry is still at its
offset.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from ringlog.kernel.commands.cluster.snapshots import is_mark
from ringlog.kernel.history import allowed_begin, contradicts_history
from ringlog.kernel.model.outcome import Entry, OutcomeKind
from ringlog.kernel.model.state import ClusterState
from ringlog.log.errors import (
    LogDamaged,
    LogError,
    LogForked,
    LogPassed,
    LogTruncated,
    LogUnavailable,
    ReplicaHalted,
    ReplicaStopped,
    TopicMissing,
    WaitTimedOut,
)
from ringlog.log.folding import BEGINNING, ClusterOrigin, FoldedRecord, GapWatch, ReadAhead, Start, follow
from ringlog.log.port import LogRecord, LogTail, MetadataLog
from ringlog.log.reading import visible_bounds
from ringlog.log.replicas.identity import (
    FileIdentityStore,
    IdentityRecord,
    IdentityStore,
    KnownEpoch,
    Topic,
    check_begin,
    check_epochs,
    check_identity,
    check_record_present,
)
from ringlog.log.replicas.poll_policy import PollBudget, PollPolicy
from ringlog.log.replicas.recent import LAST_ALONE, RecentEntries
from ringlog.log.replicas.start_point import StartPointFinder
from ringlog.log.replicas.subscribers import Follower, Halt, Subscribers, Subscription
from ringlog.protocol.effects import LogEnd, Now, ReadUpTo, read_barrier, run_steps
from ringlog.runtime.logs import RateLimitedWarnings, get_logger

POLL_S, WATCH_S, SAVE_S = 0.2, 5.0, 1.0
"""``SAVE_S``: time between two records of the position, which is the most that a power failure loses."""
RETRY_S, ASK_S, SUSPECT_S, MISSING_S = 0.05, 2.0, 0.5, 10.0

T = TypeVar("T")
log = get_logger(__name__)
_ALARMS = (OutcomeKind.UNREADABLE, OutcomeKind.FOREIGN, OutcomeKind.REFUSED)
_OUTDATED = (OutcomeKind.STALE, OutcomeKind.EXPIRED)


class LogReplica:
    """A replica of one metadata log. Safe from threads; ``start`` once, ``stop`` once.

    Args:
        cluster_id: The configured id. Another cluster halts the replica.
        record: File or ``IdentityStore`` with the log's identity, to detect another log after a restart.
        seen: Epochs that other processes stored, compared when they are folded.
        start: A state of this log and its position. Default: the beginning of the log.
        start_finder: Finds such a start when the replica starts. ``started_from`` is the result.

    ``read_ahead`` caches the folds of an author in this process. ``recent`` contains the newest applied entries.
    Callers that wait for the log mark the wait in ``poll_policy``, or wait longer if this replica is relaxed.
    ``known_end`` is the log's last known end and its monotonic time in seconds; None before the first answer.
    """

    def __init__(
        self,
        metadata: MetadataLog,
        *,
        cluster_id: str | None = None,
        record: Path | IdentityStore | None = None,
        seen: Iterable[KnownEpoch] = (),
        start: Start = BEGINNING,
        start_finder: StartPointFinder | None = None,
        watch_s: float = WATCH_S,
    ) -> None:
        self.log = metadata
        self.decisions = threading.Lock()
        self.read_ahead, self.recent, self.poll_policy = ReadAhead(), RecentEntries(LAST_ALONE), PollPolicy()
        self.known_end: tuple[int, float] | None = None
        self._cluster_id = cluster_id
        self._identity_store = FileIdentityStore(record) if isinstance(record, Path) else record
        self._kafka = ""
        self._seen = tuple(seen)
        self._watch_s = watch_s
        self._identity, self._start_finder = "", start_finder
        self._start_from(start)
        self._origin: ClusterOrigin | None = None
        self._newest: LogRecord | None = None
        self._arrived: LogRecord | None = None
        self._saved_position, self._is_contradicted, self._save_failed = -1, False, False
        self._save_lock = threading.Lock()
        self._halted: Halt | None = None
        self._alarm = RateLimitedWarnings(log)
        self._counts: Counter[OutcomeKind] = Counter()
        self._version = 0
        self._changed = threading.Condition()
        self._turn = threading.RLock()
        self._followers = Subscribers(metadata.name, self._turn)
        self._stopping = threading.Event()
        self._threads: tuple[threading.Thread, ...] = ()

    def start(self) -> LogReplica:
        """Verify the topic, compare it with the stored identity, and start to fold. Returns while the replica replays.

        After an exception the call can be repeated. Raises TopicMissing, TopicMisconfigured, LogReplaced, LogTruncated,
        LogUnavailable.
        """
        assert not self._threads, "a replica starts once"
        self.log.verify()
        self._identity = self.log.identity()
        begin, end = self.log.begin_offset(), self.log.end_offset()
        self.known_end = (end, time.monotonic())
        self._gaps = GapWatch(end)
        if self._identity_store is not None:
            self._kafka = self.log.kafka_id()
            self._identity_store.check_topic(Topic(self.log.name, self._identity, self._kafka, end))
        if self._start_finder is not None:
            self._start_from(self._start_finder.start(self.log, self._identity, self._known_epochs))
        check_begin(self.log.name, begin, self._position)
        check_identity(self.log.name, IdentityRecord(self._identity, self._position), self._identity, end)
        if self._state.epoch > 0 and self._check_cluster_id(self._state, self._position):
            self._check_epochs(self._state, self._position)
        self.save_position()
        self._threads = (
            threading.Thread(target=self._run, name=f"replica-{self.log.name}", daemon=True),
            threading.Thread(target=self._watch, name=f"watch-{self.log.name}", daemon=True),
        )
        for thread in self._threads:
            thread.start()
        return self

    def _start_from(self, start: Start) -> None:
        self.started_from = KnownEpoch(start.state.epoch, start.state.state_id, "its beginning", start.position)
        self._state, self._position = start.state, start.position

    def _known_epochs(self, cluster_id: str) -> tuple[KnownEpoch, ...]:
        """Return the epochs of a cluster to compare with the log. Raises LogDamaged."""
        seen = None if self._identity_store is None else self._identity_store.known_epoch(cluster_id)
        return self._seen if seen is None else (*self._seen, seen)

    def expect_epochs(self, seen: Iterable[KnownEpoch]) -> None:
        """Add epochs to compare when they are folded. Call this before ``start``."""
        assert not self._threads, "the applied entries can no longer be compared"
        self._seen += tuple(seen)

    def stop(self, timeout_s: float = 5.0) -> None:
        """Stop folding. Waiting callers get ReplicaStopped. The log stays open, since the caller owns it."""
        self._stopping.set()
        with self._changed:
            self._changed.notify_all()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(timeout_s)
        if self._threads:
            self.save_position()

    def __enter__(self) -> LogReplica:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    # ------------------------------------------------------------------------------------------- reading

    @property
    def state(self) -> ClusterState:
        """The newest folded state; immutable."""
        return self._state

    @property
    def position(self) -> int:
        """The offset that will be folded next. ``state`` contains all records before it."""
        return self._position

    @property
    def is_started(self) -> bool:
        return bool(self._threads)

    @property
    def identity(self) -> str:
        return self._identity

    @property
    def origin(self) -> ClusterOrigin | None:
        """The cluster's founder, after that entry is folded. None if the replica began with a later state."""
        return self._origin

    @property
    def halted(self) -> Halt | None:
        """The reason of the halt, or None."""
        return self._halted

    @property
    def counts(self) -> Mapping[OutcomeKind, int]:
        with self._turn:
            return Counter(self._counts)

    def read_barrier(self, timeout_s: float = 30.0) -> ClusterState:
        """Wait for a state that contains every entry of the log at the time of the call.

        The result is as fresh as the partition's leader. Raises LogUnavailable, TopicMissing, and as ``wait_for``.
        """
        return run_steps(read_barrier(round(timeout_s * 1e6)), self._perform)

    def _perform(self, effect: Any) -> Any:
        match effect:
            case Now():
                return time.monotonic_ns() // 1_000
            case LogEnd():
                return self.end_offset(effect.timeout / 1e6)
            case ReadUpTo(end, timeout):
                what = f"{self.log.name} to be read up to offset {end}"
                return self.wait_for(lambda _: self._state if self._position >= end else None, timeout / 1e6, what)

    def wait_for(self, predicate: Callable[[ClusterState], T | None], timeout_s: float, what: str) -> T:
        """Return the first value other than None or False that ``predicate`` returns for the newest state.

        ``predicate`` is called after each batch, so it does not see states within a batch. ``what`` completes "waited 3
        s for". Raises WaitTimedOut, ReplicaHalted, ReplicaStopped.
        """
        started = time.monotonic()
        while True:
            with self._changed:
                self.raise_if_ended()
                version = self._version
            found = predicate(self._state)
            if found is not None and found is not False:
                return found
            left = timeout_s - (time.monotonic() - started)
            if left <= 0:
                hint = f"the replica is at epoch {self._state.epoch}, offset {self._position}"
                raise WaitTimedOut(what, time.monotonic() - started, hint)
            with self._changed:
                if self._version == version and not self._has_ended():
                    self._changed.wait(left)

    def subscribe(self, follower: Follower, on_failure: Callable[[Exception], None] | None = None) -> Subscription:
        """Call ``follower`` for every later record, in log order, in the replica's thread, after ``state`` has changed.

        It must return quickly and must not wait for the replica. A follower that raises is removed; the error is
        logged, stored in ``Subscription.failure`` and passed to ``on_failure``. If it needs every record, pass
        ``halt_on_defect``.
        """
        with self._turn:
            registration = self._followers.add(follower, on_failure)
            return Subscription(self._state, self._position, lambda: self._followers.remove(registration), registration)

    # ------------------------------------------------------------------------------------------- folding

    def _run(self) -> None:
        while self._fold_log():
            pass

    def _fold_log(self) -> bool:
        """Fold until the replica is over. True: the log begins later now, and the replica restarts with a snapshot."""
        tail: LogTail | None = None
        try:
            tail = self.log.tail(self._position)
            for made in follow(self._poll_records(tail), self._state, self.read_ahead.judge):
                if not self._apply(made):
                    break
        except LogDamaged as error:
            if isinstance(error, LogTruncated) and self._restart_from_snapshot():
                return True
            self.halt_on(error)
        except Exception as error:
            self.halt_on_defect(error)
        finally:
            if tail is not None:
                tail.close()
        return False

    def _restart_from_snapshot(self) -> bool:
        """Take a later snapshot, unless followers would miss records. Retry if the broker is away."""
        begins = self._start_finder
        try:
            start = None if begins is None else begins.start(self.log, self._identity, self._known_epochs)
        except LogUnavailable:
            return not self._stopping.wait(RETRY_S)
        with self._turn:
            if start is None or start.position <= self._position or not self._check_epochs(start.state, start.position):
                return False
            if self._followers:
                self.halt_on(LogPassed(self.log.name, self._position))
                return False
            self._start_from(start)
        log.info("begins_again", log=self.log.name, epoch=start.state.epoch, offset=start.position)
        return True

    def _poll_records(self, tail: LogTail) -> Iterator[LogRecord]:
        """Yield records as they arrive, and publish the position after each batch or control record."""
        budget = PollBudget()
        while not self._has_ended():
            records = tail.poll(POLL_S)
            for record in records:
                self._arrived = record
                yield record
            if records or tail.position != self._position:
                self._publish(tail.position)
            self.poll_policy.pause(budget, records)

    def _apply(self, made: FoldedRecord) -> bool:
        """Advance past one record and call the followers. Return False if the replica is over."""
        offset, item, outcome, before, after = made.offset, made.item, made.outcome, made.before, made.after
        with self._turn:
            if self._has_ended():
                return False
            self._counts[kind := outcome.kind] += 1
            if made.is_halt:
                hint = "this release does not support the entry: install a release that does"
                self._halt(Halt(outcome.code or "unknown_command", outcome.detail, offset, hint))
                return False
            self._gaps.check(made)
            if kind in _ALARMS:
                self._alarm.warn("entry_" + kind.value, offset=offset, code=outcome.code, detail=outcome.detail)
            if before.epoch == 0 and (origin := made.origin) is not None:
                self._origin = origin
                if not self._check_cluster_id(after, offset):
                    return False
            if self._seen and not self._check_epochs(after, offset + 1):
                return False
            if after is not before and self._arrived is not None:
                self._newest = self._arrived
                self.recent.add(after.epoch, self._arrived.data, made.next if is_mark(before, after) else None)
            elif kind in _OUTDATED and isinstance(item, Entry) and contradicts_history(before, item):
                self._is_contradicted = True
            self._state = after
            self._position = offset + 1
            self._followers.notify(before, after, item, outcome, offset)
        return not self._has_ended()

    def _check_cluster_id(self, state: ClusterState, offset: int) -> bool:
        """Compare the cluster's id with the configured and the stored one. Halt and return False if it differs."""
        if self._cluster_id is not None and self._cluster_id != state.cluster_id:
            detail = f"the log belongs to cluster {state.cluster_id}, but {self._cluster_id} is configured"
            self._halt(Halt("cluster_mismatch", detail, offset, "correct the configured id or the name of the cluster"))
            return False
        try:
            self._seen = self._known_epochs(state.cluster_id)
        except LogDamaged as error:
            self.halt_on(error)
            return False
        return True

    def _check_epochs(self, state: ClusterState, position: int) -> bool:
        """Compare this log at ``position`` with the stored epochs. Halt and return False if it differs."""
        try:
            self._seen = check_epochs(self._seen, state, position)
        except LogForked as error:
            self.halt_on(error)
            return False
        return True

    def _publish(self, position: int) -> None:
        if not self._check_epochs(self._state, position):
            return
        with self._changed:
            if position >= self._position:
                self._position = position
                self._version += 1
                self._changed.notify_all()

    # ------------------------------------------------------------------------------------------ watching

    def _watch(self) -> None:
        """Check regularly that the topic is still the same.

        Damage must appear in two consecutive checks. A topic must be missing for ``MISSING_S``. An unanswered check
        proves nothing: a broker that has just started, or resumed, may not know all its topics yet.
        """
        suspected, missing_since = False, None
        pause = self._watch_s
        while self._pause(pause):
            try:
                self._check_topic()
                suspected, missing_since = False, None
            except LogUnavailable:
                missing_since = None
                continue
            except TopicMissing as error:
                missing_since = missing_since if missing_since is not None else time.monotonic()
                if time.monotonic() - missing_since >= MISSING_S:
                    self._halt(
                        Halt(
                            error.code,
                            error.message,
                            self._position,
                            "the topic was deleted: rebuild it with ringlog recover",
                        )
                    )
            except LogDamaged as error:
                if suspected:
                    self.halt_on(error)
                suspected = True
            in_doubt = suspected or missing_since is not None
            pause = min(SUSPECT_S, self._watch_s) if in_doubt else self._watch_s

    def _pause(self, pause_s: float) -> bool:
        """Pause, and store the position meanwhile. Return False when the replica is over."""
        until = time.monotonic() + pause_s
        while (left := until - time.monotonic()) > 0:
            if self._stopping.wait(min(left, SAVE_S)) or self._has_ended():
                return False
            self.save_position()
        return not self._has_ended()

    def _check_topic(self) -> None:
        recorded = IdentityRecord(self._identity, self._position)
        identity = self.log.identity()
        begin, end = visible_bounds(self.log)
        self.known_end = (end, time.monotonic())
        check_identity(self.log.name, recorded, identity, end)
        if self._position >= end:
            check_begin(self.log.name, begin, allowed_begin(self._state), "no entry allows that deletion")
        if self._is_contradicted and self._newest is not None:
            self._is_contradicted = False  # reset before the check: entries that arrive meanwhile set it again
            try:
                check_record_present(self.log, self._newest, ASK_S)
            except LogError:
                self._is_contradicted = True
                raise

    def save_position(self) -> None:
        """Store the position durably, if it changed and there is a ``record``."""
        with self._save_lock:
            with self._turn:
                state, position = self._state, self._position
                if self._identity_store is None or self._halted is not None or position == self._saved_position:
                    return
            whose = state.cluster_id, state.name, self._kafka, state.chain.hex()
            try:
                self._identity_store.save(IdentityRecord(self._identity, position, state.epoch, state.state_id, *whose))
                self._saved_position, self._save_failed = position, False
            except (OSError, LogDamaged) as error:
                if not self._save_failed:
                    log.warning("position_not_recorded", log=self.log.name, error=str(error))
                self._save_failed = True

    def end_offset(self, timeout_s: float) -> int:
        """Return the offset after the last record of the log. Raises as ``read_barrier`` does."""
        deadline = time.monotonic() + timeout_s
        while True:
            self.raise_if_ended()
            try:
                return self.log.end_offset(min(ASK_S, max(deadline - time.monotonic(), RETRY_S)))
            except (LogUnavailable, TopicMissing):
                if time.monotonic() + RETRY_S > deadline:
                    raise
                self._stopping.wait(RETRY_S)

    def halt_on_defect(self, error: Exception) -> None:
        """Halt because of an unexpected exception."""
        why = f"{type(error).__name__}: {error}"
        self._halt(Halt("replica_failed", why, self._position, "report this defect"))
        log.error("replica_failed", log=self.log.name, exc_info=error)

    def halt_on(self, error: LogError) -> None:
        """Halt for this reason. Waiting callers get ReplicaHalted."""
        self._halt(Halt(error.code, error.message, self._position, error.hint))

    def _halt(self, halt: Halt) -> None:
        """Notify waiting callers before logging: a traceback may take seconds to render."""
        with self._changed:
            first, self._halted = self._halted is None, self._halted or halt
            self._version += 1
            self._changed.notify_all()
        if first:
            log.error("replica_halted", log=self.log.name, code=halt.code, detail=halt.detail, offset=halt.offset)

    def _has_ended(self) -> bool:
        return self._halted is not None or self._stopping.is_set()

    def raise_if_ended(self) -> None:
        if (halt := self._halted) is not None:
            raise ReplicaHalted(halt.code, halt.detail, halt.offset, halt.hint)
        if self._stopping.is_set() or not self._threads:
            raise ReplicaStopped(f"the replica of {self.log.name} is not running", "start the replica, or stop waiting")
