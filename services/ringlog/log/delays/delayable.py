"""A log adapter that holds, delays or drops entries for one participant, as test rules require.

A ``DelayableLog`` is placed between one participant and the metadata log. It obeys the rules of a control
(``ringlog.log.delays.control``). Without rules it behaves as the inner log.

Invariants:

- **The log has no holes.** A reader sees a prefix: entries after a held entry are held, too. Its ``position`` stays
  before the held entry.

- **The end offset is correct.** ``end_offset`` is that of the inner log, even for a reader that is held back. So a read
  barrier waits until the entry is released. An earlier answer would claim that the state is complete.

- **A held commit is a record in flight.** Its author waits up to ``timeout_s``, as for a broker that does not answer,
  gets ``LogUnavailable``, and may send the record again. Identical bytes are in flight only once. After the release the
  record arrives, even late. Later records of the same append keep their order; records of other appends may overtake
  it. ``close`` loses records in flight.

``FaultyLog`` is a separate tool. It scripts a broker on any log: the n-th append gets the n-th fault. It knows nothing
of entries and participants.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from ringlog.kernel.model.outcome import Entry, UnreadableEntry
from ringlog.kernel.model.state import EMPTY_STATE
from ringlog.kernel.values import Epoch, Micros
from ringlog.log.delays.control import LOOK_S, DelaysControl
from ringlog.log.delays.rules import COMMIT, DELAY, DROP, PROPAGATION, HeldEntry, Rule
from ringlog.log.errors import LogUnavailable
from ringlog.log.folding import follow
from ringlog.log.port import LOOKUP_TIMEOUT_S, LogRecord, LogTail, MetadataLog, completed_future
from ringlog.runtime.clock import Clock, SystemClock
from ringlog.wire.entries import decode_entry

TIMEOUT_S = 10.0
READ_S = 2.0

_HOLDERS = itertools.count(1)


class _Epochs:
    """An index of offsets and states to epochs, from a separate fold that starts at the first use. Safe
    from threads.
    """

    def __init__(self, inner: MetadataLog) -> None:
        self._inner = inner
        self._lock = threading.Lock()
        self._tail: LogTail | None = None
        self._state = EMPTY_STATE
        self._halted = False
        self._by_offset: dict[int, Epoch] = {}
        self._by_state: dict[str | None, Epoch] = {None: 0}

    def made_by(self, offset: int) -> Epoch | None:
        """Return the epoch made by the entry at an offset of the log, or None if it made none."""
        with self._lock:
            self._read(offset + 1)
            return self._by_offset.get(offset)

    def following(self, entry: Entry) -> Epoch | None:
        """Return the epoch that an entry would make, or None if its predecessor is not known yet.

        The entry then counts as known, so that the entries of a chain can be queried in order.
        """
        with self._lock:
            self._read(self._inner.end_offset())
            before = self._by_state.get(entry.prev_state_id)
            if before is None:
                return None
            return self._by_state.setdefault(entry.state_id, before + 1)

    def close(self) -> None:
        with self._lock:
            if self._tail is not None:
                self._tail.close()

    def _read(self, end: int) -> None:
        if self._tail is None:
            self._tail = self._inner.tail(self._inner.begin_offset())
        deadline = time.monotonic() + READ_S
        while self._tail.position < end and not self._halted:
            for made in follow(self._tail.poll(LOOK_S), self._state):
                self._state, self._halted = made.after, made.is_halt
                if made.after is not made.before:
                    self._by_offset[made.offset] = made.after.epoch
                    self._by_state[made.after.state_id] = made.after.epoch
            if self._tail.position < end and time.monotonic() >= deadline:
                raise LogUnavailable(
                    f"cannot read {self._inner.name} up to offset {end}", "check that the broker is up"
                )


@dataclass(slots=True)
class _HeldCommit:
    """A record whose commit is held.

    ``after`` is the previous record of the same append. ``done`` is set when the record has arrived or failed.
    """

    data: bytes
    item: Entry | UnreadableEntry
    after: _HeldCommit | None
    since: float
    since_us: Micros
    done: threading.Event = field(default_factory=threading.Event)
    failure: LogUnavailable | None = None


class DelayableLog:
    """A view of ``inner`` for one participant. Safe from threads. It owns ``inner`` and closes it.

    Args:
        clock: Its monotonic time measures delays.
        timeout_s: Maximum wait of an append for held records.
    """

    def __init__(
        self,
        inner: MetadataLog,
        control: DelaysControl,
        participant: str,
        *,
        clock: Clock | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self.participant = participant
        self._inner = inner
        self._control = control
        self._clock = clock or SystemClock()
        self._timeout_s = timeout_s
        self._epochs = _Epochs(inner)
        self._lock = threading.Lock()
        self._in_flight: list[_HeldCommit] = []
        self._carrier: threading.Thread | None = None
        self._closed = threading.Event()
        self._dropped: dict[Rule, int] = {}
        self._holder = f"{participant}-{next(_HOLDERS)}".replace("/", "_")

    @property
    def name(self) -> str:
        """The name of the inner log."""
        return self._inner.name

    def append(self, records: Sequence[bytes]) -> None:
        """Append the records that no rule holds, in order, then wait for the held ones.

        Raises:
            LogUnavailable: A record was dropped or is still held after ``timeout_s``, or the inner log raised.
        """
        rules = self._rules(COMMIT)
        if not rules and not self._in_flight:
            self._inner.append(records)
            return
        # Records that no rule holds are appended now. ``newly_held`` are newly held; ``waiting`` are all held ones,
        # including identical bytes of an earlier append. A record after a held one is held, too, to keep the order.
        through: list[bytes] = []
        waiting: list[_HeldCommit] = []
        newly_held: list[_HeldCommit] = []
        unanswered = False
        for data in records:
            item = decode_entry(data)
            dropped = self._dropping(rules, item)
            unanswered = unanswered or dropped is not None
            if dropped is not None and not dropped.answer_only:
                continue
            known = self._known(data, newly_held)
            if known is not None:
                waiting.append(known)
            elif waiting or self._held_by(rules, item, self._clock.monotonic()) is not None:
                after = waiting[-1] if waiting else None
                newly_held.append(_HeldCommit(data, item, after, self._clock.monotonic(), self._clock.now_us()))
                waiting.append(newly_held[-1])
            else:
                through.append(data)
        self._register_held(newly_held)
        if through or not waiting:
            self._inner.append(through)
        self._await(waiting)
        if unanswered:
            raise LogUnavailable(f"{self.name}: no answer (a rule drops it)", "the outcome is unknown")

    def append_async(self, records: Sequence[bytes]) -> Future[None]:
        """Append without waiting if no rule concerns this participant. Otherwise wait here."""
        if not self._rules(COMMIT) and not self._in_flight:
            return self._inner.append_async(records)
        return completed_future(lambda: self.append(records))

    def begin_offset(self) -> int:
        return self._inner.begin_offset()

    def end_offset(self, timeout_s: float = LOOKUP_TIMEOUT_S) -> int:
        """Return the end of the inner log, including held entries: a read barrier waits for these."""
        return self._inner.end_offset(timeout_s)

    def identity(self) -> str:
        return self._inner.identity()

    def kafka_id(self) -> str:
        return self._inner.kafka_id()

    def verify(self) -> None:
        self._inner.verify()

    def tail(self, from_offset: int) -> DelayableTail:
        """Return a reader that sees the entries allowed by the rules."""
        return DelayableTail(self, self._inner.tail(from_offset))

    def close(self) -> None:
        """Lose the records in flight and close the inner log."""
        self._closed.set()
        with self._lock:
            carrier = self._carrier
        if carrier is not None:
            carrier.join(READ_S)
        self._epochs.close()
        self._inner.close()

    # ------------------------------------------------------------------------------------------------- rules

    def _rules(self, where: str) -> tuple[Rule, ...]:
        return tuple(rule for rule in self._control.rules() if rule.concerns(where, self.participant))

    def _fits(self, rule: Rule, item: Entry | UnreadableEntry, offset: int | None) -> bool:
        def epoch() -> Epoch | None:
            if offset is not None:
                return self._epochs.made_by(offset)
            return self._epochs.following(item) if isinstance(item, Entry) else None

        return rule.match.fits(item, epoch)

    def _held_by(
        self, rules: Sequence[Rule], item: Entry | UnreadableEntry, since: float, offset: int | None = None
    ) -> Rule | None:
        """Return the first rule that holds an entry now. ``since`` is the entry's arrival time here."""
        for rule in rules:
            is_over = rule.action == DELAY and self._clock.monotonic() - since >= rule.seconds
            if rule.action != DROP and not is_over and self._fits(rule, item, offset):
                return rule
        return None

    def _dropping(self, rules: Sequence[Rule], item: Entry | UnreadableEntry) -> Rule | None:
        for rule in rules:
            if rule.action == DROP and self._fits(rule, item, None):
                with self._lock:
                    taken = self._dropped.get(rule, 0)
                    if not rule.times or taken < rule.times:
                        self._dropped[rule] = taken + 1
                        return rule
        return None

    # ----------------------------------------------------------------------------------------- held commits

    def _known(self, data: bytes, newly_held: Sequence[_HeldCommit]) -> _HeldCommit | None:
        with self._lock:
            return next((each for each in (*self._in_flight, *newly_held) if each.data == data), None)

    def _register_held(self, records: Sequence[_HeldCommit]) -> None:
        """Register all held records of one append at once, so that an answer covers all of them or none."""
        if not records:
            return
        with self._lock:
            self._in_flight.extend(records)
            if self._carrier is None:
                self._carrier = threading.Thread(target=self._run_carrier, name=f"held-{self.participant}", daemon=True)
                self._carrier.start()

    def _await(self, waiting: Sequence[_HeldCommit]) -> None:
        deadline = time.monotonic() + self._timeout_s
        for each in waiting:
            if not each.done.wait(max(deadline - time.monotonic(), 0.0)):
                raise LogUnavailable(f"{self.name}: no answer (a rule holds it)", "the outcome is unknown")
            if each.failure is not None:
                raise each.failure

    def _run_carrier(self) -> None:
        """Append held records as their rules end, until no record is in flight. The body of the carrier thread."""
        reported: tuple[HeldEntry, ...] = ()
        while not self._closed.is_set():
            with self._lock:
                waiting = tuple(self._in_flight)
                if not waiting:
                    self._carrier = None
                    break
            try:
                held = self._deliver_released(waiting)
            # The epoch of an entry is unknown while the log does not answer, so the entries stay held.
            except LogUnavailable:
                held = reported
            if reported != held:
                reported = held
                self._control.report(self._holder, reported)
            self._control.wait(LOOK_S)
        if reported:
            self._control.report(self._holder, ())

    def _deliver_released(self, waiting: Sequence[_HeldCommit]) -> tuple[HeldEntry, ...]:
        """Append the records that no rule holds, each after its predecessor. Return the held ones."""
        rules = self._rules(COMMIT)
        held: list[HeldEntry] = []
        for each in waiting:
            rule = self._held_by(rules, each.item, each.since)
            if rule is not None:
                behind = _behind(each, waiting)
                held.append(_held(self.participant, rule, COMMIT, each.item, None, behind, each.since_us))
            elif each.after is None or each.after.done.is_set():
                self._deliver(each)
        return tuple(held)

    def _deliver(self, each: _HeldCommit) -> None:
        try:
            self._inner.append([each.data])
        except LogUnavailable as error:
            each.failure = error
        with self._lock:
            self._in_flight.remove(each)
        each.done.set()


class DelayableTail:
    """A reader that sees the log up to the first held entry. For use by one thread."""

    def __init__(self, log: DelayableLog, inner: LogTail) -> None:
        self._log = log
        self._inner = inner
        self._waiting: deque[tuple[LogRecord, Entry | UnreadableEntry, float, Micros]] = deque()
        self._reported: HeldEntry | None = None
        self._holder = f"{log.participant}-{next(_HOLDERS)}".replace("/", "_")

    @property
    def position(self) -> int:
        """The offset that will be read next, before any held entry."""
        return self._waiting[0][0].offset if self._waiting else self._inner.position

    def poll(self, timeout_s: float, records_max: int = 1_000) -> Sequence[LogRecord]:
        """Poll the inner log, and return no records while the next one is held."""
        deadline = time.monotonic() + timeout_s
        if not self._waiting:
            arrived = self._inner.poll(timeout_s, records_max)
            if not self._log._rules(PROPAGATION):
                return arrived
            now, now_us = self._log._clock.monotonic(), self._log._clock.now_us()
            self._waiting.extend((record, decode_entry(record.data), now, now_us) for record in arrived)
        shown = self._take_released(records_max)
        while self._waiting and not shown and (left := deadline - time.monotonic()) > 0:
            self._log._control.wait(left)
            shown = self._take_released(records_max)
        return shown

    def close(self) -> None:
        """Close the inner reader."""
        self._report(None)
        self._inner.close()

    def _take_released(self, records_max: int) -> list[LogRecord]:
        rules = self._log._rules(PROPAGATION)
        shown: list[LogRecord] = []
        held: HeldEntry | None = None
        while self._waiting and len(shown) < records_max:
            record, item, since, since_us = self._waiting[0]
            try:
                rule = self._log._held_by(rules, item, since, record.offset)
            except LogUnavailable:  # the epoch of the entry is unknown while the log does not answer
                break
            if rule is not None:
                behind = len(self._waiting) - 1
                held = _held(self._log.participant, rule, PROPAGATION, item, record.offset, behind, since_us)
                break
            self._waiting.popleft()
            shown.append(record)
        self._report(held)
        return shown

    def _report(self, held: HeldEntry | None) -> None:
        if held != self._reported:
            self._reported = held
            self._log._control.report(self._holder, () if held is None else (held,))


def _held(
    participant: str,
    rule: Rule,
    where: str,
    item: Entry | UnreadableEntry,
    offset: int | None,
    behind: int,
    since: Micros,
) -> HeldEntry:
    kind, request = (item.kind, item.request_id) if isinstance(item, Entry) else ("", "")
    return HeldEntry(participant, rule.name, where, kind, request, offset, behind, since)


def _behind(each: _HeldCommit, waiting: Sequence[_HeldCommit]) -> int:
    """Return the number of records that wait for this one in the same append."""
    heads = {id(each)}
    for other in waiting:
        if id(other.after) in heads:
            heads.add(id(other))
    return len(heads) - 1
