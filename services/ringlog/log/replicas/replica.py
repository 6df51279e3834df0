"""The replica: a thread that tails the metadata log and folds it. A process that needs the state has one of these.

It is assigned the partition and joins no group; it rebuilds by replay, from the first record or from a state that was
stored with its position. What it publishes (state and position) only moves forward, record by record, and equals the
fold of the log up to the position. Counters live here, outside the state.

It *halts*, for good and loudly, when going on would be a guess: an entry of a later release, another topic under the
same name, a log shorter than what was read or without its beginning, one whose epochs are other states than those that
were seen, another cluster than the configured one. A halted replica still answers with its last
state, but every wait on it raises. A broker that does not answer is no reason to halt: the replica stays where it is.

A log may begin later than with its first entry, as far as a ``TruncateLog`` in the state allows. A replica then begins
with a snapshot; one that finds none halts, and so does one at the log's end that finds it begin later than allowed.

A log that is cut and grows again behind the back of a running replica shows by entries whose authors decided on states
that this replica does not know. Then it looks whether the entry that it applied last is still where it was.
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
from ringlog.log.folding import BEGINNING, FoldedRecord, Founder, GapWatch, ReadAhead, Start, follow
from ringlog.log.port import LogRecord, LogTail, MetadataLog
from ringlog.log.reading import bounds_of_what_is_there
from ringlog.log.replicas.identity import (
    Memory,
    Recorded,
    RecordFile,
    Seen,
    Topic,
    check_begin,
    check_identity,
    check_still_there,
    compared,
)
from ringlog.log.replicas.poll_policy import LooksToSpare, Pace
from ringlog.log.replicas.recent import LAST_ALONE, RecentEntries
from ringlog.log.replicas.start_point import Beginning
from ringlog.log.replicas.subscribers import Follower, Halt, Subscribers, Subscription
from ringlog.protocol.effects import LogEnd, Now, ReadUpTo, carry_out, read_barrier
from ringlog.runtime.logs import Seldom, get_logger

POLL_S, WATCH_S, NOTE_S = 0.2, 5.0, 1.0
"""``NOTE_S``: how often a replica records its position. A power cut loses at most this much."""
RETRY_S, ASK_S, SUSPECT_S, MISSING_S = 0.05, 2.0, 0.5, 10.0

T = TypeVar("T")
log = get_logger(__name__)
_ALARMS = (OutcomeKind.UNREADABLE, OutcomeKind.FOREIGN, OutcomeKind.REFUSED)
_OFF_THE_CHAIN = (OutcomeKind.STALE, OutcomeKind.EXPIRED)


class LogReplica:
    """Tails one metadata log. Safe from threads; ``start`` once, ``stop`` once.

    ``cluster_id``: the configured id, only compared. ``record``: what remembers the log over restarts, so that another
    one is noticed then, too: a file, or a ``Memory``. ``seen``: epochs that others remember, compared when folded.
    ``start``: a state of this very log, and the position behind it, from where it folds; without it, the beginning.
    ``beginning``: finds such a start when the replica starts; ``began``: the one with which it then did.
    ``foreseen``: for an author of this process, who folds what it sends; ``recent``: the entries applied last.
    ``pace``: who waits for the log says so there, or waits a little longer where this replica is at ease.
    ``known_end``: where the log ended when it was last asked, and when that was (monotonic seconds); None before.
    """

    def __init__(
        self,
        metadata: MetadataLog,
        *,
        cluster_id: str | None = None,
        record: Path | Memory | None = None,
        seen: Iterable[Seen] = (),
        start: Start = BEGINNING,
        beginning: Beginning | None = None,
        watch_s: float = WATCH_S,
    ) -> None:
        self.log = metadata
        self.decisions = threading.Lock()
        self.foreseen, self.recent, self.pace = ReadAhead(), RecentEntries(LAST_ALONE), Pace()
        self.known_end: tuple[int, float] | None = None
        self._cluster_id = cluster_id
        self._memory = RecordFile(record) if isinstance(record, Path) else record
        self._kafka = ""
        self._seen = tuple(seen)
        self._watch_s = watch_s
        self._identity, self._beginning = "", beginning
        self._begin_with(start)
        self._founder: Founder | None = None
        self._newest: LogRecord | None = None
        self._arrived: LogRecord | None = None
        self._noted, self._is_contradicted, self._note_failed = -1, False, False
        self._noting = threading.Lock()
        self._halted: Halt | None = None
        self._alarm = Seldom(log)
        self._counts: Counter[OutcomeKind] = Counter()
        self._version = 0
        self._changed = threading.Condition()
        self._turn = threading.RLock()
        self._followers = Subscribers(metadata.name, self._turn)
        self._stopping = threading.Event()
        self._threads: tuple[threading.Thread, ...] = ()

    def start(self) -> LogReplica:
        """Verify the topic, compare it with what was recorded, and begin to fold; returns at once, while it replays.

        Where it raises nothing has begun, and it may be called again. Raises TopicMissing, TopicMisconfigured,
        LogReplaced, LogTruncated, LogUnavailable.
        """
        assert not self._threads, "a replica starts once"
        self.log.verify()
        self._identity = self.log.identity()
        begin, end = self.log.begin_offset(), self.log.end_offset()
        self.known_end = (end, time.monotonic())
        self._gaps = GapWatch(end)
        if self._memory is not None:
            self._kafka = self.log.kafka_id()
            self._memory.meet(Topic(self.log.name, self._identity, self._kafka, end))
        if self._beginning is not None:
            self._begin_with(self._beginning.start(self.log, self._identity, self._remembered))
        check_begin(self.log.name, begin, self._position)
        check_identity(self.log.name, Recorded(self._identity, self._position), self._identity, end)
        if self._state.epoch > 0 and self._is_expected(self._state, self._position):
            self._agrees(self._state, self._position)
        self.remember()
        self._threads = (
            threading.Thread(target=self._run, name=f"replica-{self.log.name}", daemon=True),
            threading.Thread(target=self._watch, name=f"watch-{self.log.name}", daemon=True),
        )
        for thread in self._threads:
            thread.start()
        return self

    def _begin_with(self, start: Start) -> None:
        self.began = Seen(start.state.epoch, start.state.state_id, "its beginning", start.position)
        self._state, self._position = start.state, start.position

    def _remembered(self, cluster_id: str) -> tuple[Seen, ...]:
        """What is to be compared of a cluster. Raises LogDamaged."""
        seen = None if self._memory is None else self._memory.seen_of(cluster_id)
        return self._seen if seen is None else (*self._seen, seen)

    def expect(self, seen: Iterable[Seen]) -> None:
        """Compare these, too, when they are folded. Before the start."""
        assert not self._threads, "what was folded cannot be compared any more"
        self._seen += tuple(seen)

    def stop(self, timeout_s: float = 5.0) -> None:
        """Stop folding; all that wait get ReplicaStopped. The log itself stays open: it belongs to the caller."""
        self._stopping.set()
        with self._changed:
            self._changed.notify_all()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(timeout_s)
        if self._threads:
            self.remember()

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
        """The offset that will be folded next: everything before it is in ``state``."""
        return self._position

    @property
    def has_begun(self) -> bool:
        """True once it folds."""
        return bool(self._threads)

    @property
    def identity(self) -> str:
        """The topic's id."""
        return self._identity

    @property
    def founder(self) -> Founder | None:
        """Who founded the cluster, once that is folded; None for a replica that began with a later state."""
        return self._founder

    @property
    def halted(self) -> Halt | None:
        """Why it stopped for good, if it did."""
        return self._halted

    @property
    def counts(self) -> Mapping[OutcomeKind, int]:
        """How many records had which outcome since the start; 0 for the others."""
        with self._turn:
            return Counter(self._counts)

    def read_barrier(self, timeout_s: float = 30.0) -> ClusterState:
        """A state that contains every entry which was in the log when this was called.

        As fresh as the partition's leader. Raises LogUnavailable, TopicMissing, and as ``wait_for``.
        """
        return carry_out(read_barrier(round(timeout_s * 1e6)), self._perform)

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
        """The first value other than None (or False) that ``predicate`` gives on the newest state.

        It is called again after each batch of records; states that came and went within one are not shown. ``what``
        completes "waited 3 s for". Raises WaitTimedOut, ReplicaHalted, ReplicaStopped.
        """
        started = time.monotonic()
        while True:
            with self._changed:
                self._raise_if_over()
                version = self._version
            found = predicate(self._state)
            if found is not None and found is not False:
                return found
            left = timeout_s - (time.monotonic() - started)
            if left <= 0:
                hint = f"the replica is at epoch {self._state.epoch}, offset {self._position}"
                raise WaitTimedOut(what, time.monotonic() - started, hint)
            with self._changed:
                if self._version == version and not self._is_over():
                    self._changed.wait(left)

    def subscribe(self, follower: Follower, on_failure: Callable[[Exception], None] | None = None) -> Subscription:
        """Call ``follower`` for every record from now on, in log order, in the replica's thread, behind ``state``.

        It must be quick and must not wait for the replica. One that raises is removed; its exception is logged, kept in
        ``Subscription.failure`` and given to ``on_failure``. What needs every record passes ``halt_on_defect``.
        """
        with self._turn:
            following = self._followers.add(follower, on_failure)
            return Subscription(self._state, self._position, lambda: self._followers.remove(following), following)

    # ------------------------------------------------------------------------------------------- folding

    def _run(self) -> None:
        while self._folds():
            pass

    def _folds(self) -> bool:
        """Fold until that is over; True: the log begins later now, and so does this replica, if it can."""
        tail: LogTail | None = None
        try:
            tail = self.log.tail(self._position)
            for made in follow(self._arriving(tail), self._state, self.foreseen.judge):
                if not self._take(made):
                    break
        except LogDamaged as error:
            if isinstance(error, LogTruncated) and self._begins_again():
                return True
            self.halt_on(error)
        except Exception as error:
            self.halt_on_defect(error)
        finally:
            if tail is not None:
                tail.close()
        return False

    def _begins_again(self) -> bool:
        """Take a later snapshot, where nobody follows who would miss a record; of a broker that is away, later."""
        begins = self._beginning
        try:
            start = None if begins is None else begins.start(self.log, self._identity, self._remembered)
        except LogUnavailable:
            return not self._stopping.wait(RETRY_S)
        with self._turn:
            if start is None or start.position <= self._position or not self._agrees(start.state, start.position):
                return False
            if self._followers:
                self.halt_on(LogPassed(self.log.name, self._position))
                return False
            self._begin_with(start)
        log.info("begins_again", log=self.log.name, epoch=start.state.epoch, offset=start.position)
        return True

    def _arriving(self, tail: LogTail) -> Iterator[LogRecord]:
        """The records as they come. After a batch its end is published, not where a broker just says: that is all."""
        looks = LooksToSpare()
        while not self._is_over():
            records = tail.poll(POLL_S)
            for record in records:
                self._arrived = record
                yield record
            if records or tail.position != self._position:
                self._publish(tail.position)
            self.pace.rest(looks, records)

    def _take(self, made: FoldedRecord) -> bool:
        """Go on to one record and tell the followers; False if the replica is over, be it while it was folded."""
        offset, item, outcome, before, after = made.offset, made.item, made.outcome, made.before, made.after
        with self._turn:
            if self._is_over():
                return False
            self._counts[kind := outcome.kind] += 1
            if made.is_halt:
                hint = "this release does not know the entry: install one that does"
                self._halt(Halt(outcome.code or "unknown_command", outcome.detail, offset, hint))
                return False
            self._gaps.saw(made)
            if kind in _ALARMS:
                self._alarm.warn("entry_" + kind.value, offset=offset, code=outcome.code, detail=outcome.detail)
            if before.epoch == 0 and (founder := made.founder) is not None:
                self._founder = founder
                if not self._is_expected(after, offset):
                    return False
            if self._seen and not self._agrees(after, offset + 1):
                return False
            if after is not before and self._arrived is not None:
                self._newest = self._arrived
                self.recent.add(after.epoch, self._arrived.data, made.next if is_mark(before, after) else None)
            elif kind in _OFF_THE_CHAIN and isinstance(item, Entry) and contradicts_history(before, item):
                self._is_contradicted = True
            self._state = after
            self._position = offset + 1
            self._followers.tell(before, after, item, outcome, offset)
        return not self._is_over()

    def _is_expected(self, state: ClusterState, offset: int) -> bool:
        """The cluster is known now: False, and halted, if it is not the one that was meant, or remembered."""
        if self._cluster_id is not None and self._cluster_id != state.cluster_id:
            detail = f"this is cluster {state.cluster_id}, configured is {self._cluster_id}"
            self._halt(Halt("cluster_mismatch", detail, offset, "correct the configured id, or the cluster's name"))
            return False
        try:
            self._seen = self._remembered(state.cluster_id)
        except LogDamaged as error:
            self.halt_on(error)
            return False
        return True

    def _agrees(self, state: ClusterState, position: int) -> bool:
        """False, and halted, if this log at ``position`` is not the one that somebody saw."""
        try:
            self._seen = compared(self._seen, state, position)
        except LogForked as error:
            self.halt_on(error)
            return False
        return True

    def _publish(self, position: int) -> None:
        if not self._agrees(self._state, position):
            return
        with self._changed:
            if position >= self._position:
                self._position = position
                self._version += 1
                self._changed.notify_all()

    # ------------------------------------------------------------------------------------------ watching

    def _watch(self) -> None:
        """Look now and then whether this is still the same topic.

        What looks damaged must look so twice in a row. A topic that is missing must be seen to stay so for
        ``MISSING_S``, and a broker that gives no answer shows nothing: one that has just started, or woken up, may not
        know all its topics yet.
        """
        suspected, missing_since = False, None
        pause = self._watch_s
        while self._rests(pause):
            try:
                self._look()
                suspected, missing_since = False, None
            except LogUnavailable:
                missing_since = None
                continue
            except TopicMissing as error:
                missing_since = missing_since if missing_since is not None else time.monotonic()
                if time.monotonic() - missing_since >= MISSING_S:
                    self._halt(
                        Halt(error.code, error.message, self._position, "the topic was deleted: see ringlog recover")
                    )
            except LogDamaged as error:
                if suspected:
                    self.halt_on(error)
                suspected = True
            in_doubt = suspected or missing_since is not None
            pause = min(SUSPECT_S, self._watch_s) if in_doubt else self._watch_s

    def _rests(self, pause_s: float) -> bool:
        """Let time go by, and note meanwhile how far the replica is; False when it is over."""
        until = time.monotonic() + pause_s
        while (left := until - time.monotonic()) > 0:
            if self._stopping.wait(min(left, NOTE_S)) or self._is_over():
                return False
            self.remember()
        return not self._is_over()

    def _look(self) -> None:
        recorded = Recorded(self._identity, self._position)
        identity = self.log.identity()
        begin, end = bounds_of_what_is_there(self.log)
        self.known_end = (end, time.monotonic())
        check_identity(self.log.name, recorded, identity, end)
        if self._position >= end:
            check_begin(self.log.name, begin, allowed_begin(self._state), "no entry allows that")
        if self._is_contradicted and self._newest is not None:
            self._is_contradicted = False  # before the check: entries that arrive meanwhile set it again
            try:
                check_still_there(self.log, self._newest, ASK_S)
            except LogError:
                self._is_contradicted = True
                raise

    def remember(self) -> None:
        """Note durably how far this log was read, if there is a memory and that is news."""
        with self._noting:
            with self._turn:
                state, position = self._state, self._position
                if self._memory is None or self._halted is not None or position == self._noted:
                    return
            whose = state.cluster_id, state.name, self._kafka
            try:
                self._memory.keep(Recorded(self._identity, position, state.epoch, state.state_id, *whose))
                self._noted, self._note_failed = position, False
            except (OSError, LogDamaged) as error:
                if not self._note_failed:
                    log.warning("position_not_recorded", log=self.log.name, error=str(error))
                self._note_failed = True

    def end_offset(self, timeout_s: float) -> int:
        """The offset after the last record that is in the log now. Raises as ``read_barrier`` does."""
        deadline = time.monotonic() + timeout_s
        while True:
            self._raise_if_over()
            try:
                return self.log.end_offset(min(ASK_S, max(deadline - time.monotonic(), RETRY_S)))
            except (LogUnavailable, TopicMissing):
                if time.monotonic() + RETRY_S > deadline:
                    raise
                self._stopping.wait(RETRY_S)

    def halt_on_defect(self, error: Exception) -> None:
        """Fold no more: something went wrong that nobody foresaw."""
        why = f"{type(error).__name__}: {error}"
        self._halt(Halt("replica_failed", why, self._position, "a defect: report it"))
        log.error("replica_failed", log=self.log.name, exc_info=error)

    def halt_on(self, error: LogError) -> None:
        """Fold no more, for that reason; all who wait hear of it."""
        self._halt(Halt(error.code, error.message, self._position, error.hint))

    def _halt(self, halt: Halt) -> None:
        """Those who wait hear of it before the log does: a traceback may take seconds to render."""
        with self._changed:
            first, self._halted = self._halted is None, self._halted or halt
            self._version += 1
            self._changed.notify_all()
        if first:
            log.error("replica_halted", log=self.log.name, code=halt.code, detail=halt.detail, offset=halt.offset)

    def _is_over(self) -> bool:
        return self._halted is not None or self._stopping.is_set()

    def _raise_if_over(self) -> None:
        if self._halted is not None:
            halt = self._halted
            raise ReplicaHalted(halt.code, halt.detail, halt.offset, halt.hint)
        if self._stopping.is_set() or not self._threads:
            raise ReplicaStopped(f"the replica of {self.log.name} is not running", "start it, or stop waiting")
