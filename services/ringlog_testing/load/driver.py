"""Clients that read and write keys, and record each operation in a history while it is checked.

Invariants:

- The value and the timestamp of a write are drawn together with its invoke line. So the greater value also has the
  later timestamp, whichever client writes it.
- An operation without a clear answer is recorded as unknown (``info``), and the client continues. So the load runs
  while nodes are killed or removed.
- The memory does not grow with time: it has a number for each key, the open operations, and counts of latencies.
- At the end each key is read once more, so that a loss after the last operation is found, too.

The run stops at the first violation, because later operations would only make its history longer.
"""

from __future__ import annotations

import math
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence

from ringlog.client.errors import ClientBroken, ClientClosed
from ringlog.kernel.values import Micros, Value
from ringlog.log.errors import ReplicaHalted
from ringlog_testing.histories.events import Op, OpValue, Type, parse_event
from ringlog_testing.histories.recorder import Recorder, Sink
from ringlog_testing.load.order import LoadCheck
from ringlog_testing.load.stores import LoadStore, WriteRejected

PROGRESS_S = 5.0
PAUSE_S = 0.2
"""The pause of a client after an operation without an answer: a cluster that is away answers at once, too."""
FINAL_S = 60.0
"""Time to read each key at the end."""
PER_OCTAVE = 32
"""Counts for each doubling of a latency, so that a percentile is at most 2 % too large."""
NOTE_MAX = 200
"""Characters of an error in the history."""
ENDS = (ReplicaHalted, ClientBroken, ClientClosed)
"""Errors after which no request of this process can succeed."""


class LoadOptions(Value):
    """The shape of a load.

    ``run``: a name for the keys, different for each run, because a new key has no value. ``keys``: of each store.
    ``rate``: operations per second of all clients together, None: each client sends its next operation at once. With a
    rate, latencies count from the planned time of an operation. So they include the time that it waited for a client.
    """

    run: str
    clients: int = 8
    keys: int = 20
    seed: int = 0
    rate: float | None = None
    timeout_s: float = 10.0


class LatencyCounts:
    """Latencies in counts of fixed size."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()

    def add(self, seconds: float) -> None:
        """Count a latency."""
        self._counts[math.ceil(math.log2(max(seconds * 1e6, 1)) * PER_OCTAVE)] += 1

    def percentile(self, percent: float) -> float | None:
        """Return a percentile in seconds, or None without latencies."""
        left = math.ceil(self._counts.total() * percent / 100)
        for place, count in sorted(self._counts.items()):
            left -= count
            if left <= 0:
                return float(2 ** (place / PER_OCTAVE) / 1e6)
        return None


class LoadFigures:
    """Counts of operations and latencies. Thread-safe. ``outcomes``: by (kind, operation, outcome)."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.outcomes: Counter[tuple[str, str, Type]] = Counter()
        self.codes: Counter[tuple[str, str, str]] = Counter()
        """Codes of unknown and rejected operations, by (kind, operation, code)."""
        self.latencies: dict[tuple[str, str], LatencyCounts] = {}
        self.silence_s = 0.0
        """The longest time without an answered operation."""
        self.seconds = 0.0
        self.unread = 0
        """Keys that could not be read at the end."""
        self._began = self._last = time.monotonic()

    def add(self, kind: str, op: Op, outcome: Type, code: str, seconds: float) -> None:
        """Count an operation with its latency. ``code``: of an unknown or rejected operation."""
        with self._lock:
            self.outcomes[kind, op, outcome] += 1
            if code:
                self.codes[kind, op, code] += 1
            if outcome is Type.OK:
                self.latencies.setdefault((kind, op), LatencyCounts()).add(seconds)
                self._answered()

    def end(self) -> None:
        """Record the end of the load."""
        with self._lock:
            self._answered()
            self.seconds = self._last - self._began

    def total(self, outcome: Type) -> int:
        """Return the number of operations with an outcome."""
        with self._lock:
            return sum(count for (_, _, one), count in self.outcomes.items() if one is outcome)

    def _answered(self) -> None:
        now = time.monotonic()
        self.silence_s = max(self.silence_s, now - self._last)
        self._last = now


class _CheckedSink:
    """A sink that writes each line and checks it. ``check``: of all lines so far."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._lock = threading.Lock()
        self._lines = 0
        self.check = LoadCheck()

    def append(self, line: str) -> None:
        with self._lock:
            self._sink.append(line)
            self._lines += 1
            self.check.take(parse_event(line, self._lines))


class _Pace:
    """The planned times of operations."""

    def __init__(self, rate: float | None, is_over: threading.Event) -> None:
        self._rate, self._is_over = rate, is_over
        self._lock = threading.Lock()
        self._began, self._taken = time.monotonic(), 0

    def next(self) -> float:
        """Wait for the planned time of the next operation, and return it."""
        if self._rate is None:
            return time.monotonic()
        with self._lock:
            at = self._began + self._taken / self._rate
            self._taken += 1
        self._is_over.wait(max(at - time.monotonic(), 0))
        return at


class CheckedLoad:
    """A load on one cluster. ``figures``: its counts.

    Call ``run`` once. ``failure``: the error that ended it before its time, or None.

    Args:
        coordinators: The same stores, once for each coordinator. Coordinators learn of an epoch at different times.
        sink: Receives the lines of the history.
    """

    def __init__(self, coordinators: Sequence[Sequence[LoadStore]], sink: Sink, options: LoadOptions) -> None:
        self.options = options
        self.figures = LoadFigures()
        self.failure: BaseException | None = None
        self._coordinators = tuple(coordinators)
        self._sink = _CheckedSink(sink)
        self._recorder = Recorder(self._sink, _now)
        self._is_over = threading.Event()
        self._lock = threading.Lock()
        self._written: Counter[tuple[str, str]] = Counter()
        self._timestamp: Micros = 0

    def stop(self) -> None:
        """End the load early. ``run`` then returns after the open operations."""
        self._is_over.set()

    def run(self, seconds: float, report: Callable[[LoadFigures, float], None] = lambda _, __: None) -> None:
        """Run the load, then read each key once more. ``report``: called with the seconds so far, from time to time."""
        began = time.monotonic()
        pace = _Pace(self.options.rate, self._is_over)
        threads = self._started(lambda number: self._client(number, pace), self.options.clients)
        try:
            while (left := began + seconds - time.monotonic()) > 0 and not self._is_over.wait(min(left, PROGRESS_S)):
                report(self.figures, time.monotonic() - began)
        finally:
            self._is_over.set()
            for thread in threads:
                thread.join()
        self.figures.end()
        if self.failure is None:
            self._read_all()

    # ------------------------------------------------------------------------------------------- clients

    def _started(self, run: Callable[[int], None], count: int) -> list[threading.Thread]:
        def guarded(number: int) -> None:
            try:
                run(number)
            except Exception as error:
                self.failure = self.failure or error
                self._is_over.set()

        threads = [threading.Thread(target=guarded, args=(number,), name=f"load-{number}") for number in range(count)]
        for thread in threads:
            thread.start()
        return threads

    def _client(self, number: int, pace: _Pace) -> None:
        draw, process = random.Random(f"{self.options.seed}/{number}"), f"client-{number}"
        stores = self._coordinators[number % len(self._coordinators)]
        while not self._is_over.is_set():
            begun = pace.next()
            if self._is_over.is_set():
                return
            store = draw.choice(stores)
            key, op = self._key(draw.randrange(self.options.keys)), draw.choice((Op.READ, Op.WRITE))
            if self._perform(process, store, op, key, begun) is Type.INFO:
                self._is_over.wait(PAUSE_S)
            if self._sink.check.count:
                self._is_over.set()

    def _key(self, number: int) -> str:
        return f"load-{self.options.run}-{number}"

    def _perform(self, process: str, store: LoadStore, op: Op, key: str, begun: float) -> Type:
        """Perform, record and count an operation."""
        name, timeout_s = f"{store.name} {key}", self.options.timeout_s
        value, timestamp = self._begin(process, op, name, (store.name, key))
        answer: OpValue = None
        outcome, note, code = Type.INFO, "", ""
        try:
            done = store.write(key, value, timestamp, timeout_s) if op is Op.WRITE else store.read(key, timeout_s)
            outcome, note = Type.OK, done.note
            answer = done.value if op is Op.READ else None
        except WriteRejected as error:
            outcome, answer, code = Type.FAIL, error.code, error.code
        except ENDS:
            raise
        except Exception as error:
            code = getattr(error, "code", "")
            if not code:
                raise
            answer, note = code, str(error)[:NOTE_MAX]
        finally:
            self._recorder.event(process, outcome, op, name, answer, note)
        self.figures.add(store.kind, op, outcome, code, time.monotonic() - begun)
        return outcome

    def _begin(self, process: str, op: Op, name: str, key: tuple[str, str]) -> tuple[int, Micros]:
        """Record that an operation begins. Return the value and the timestamp of a write."""
        if op is Op.READ:
            self._recorder.invoke(process, op, name)
            return 0, 0
        with self._lock:
            self._written[key] += 1
            self._timestamp = max(self._timestamp + 1, _now())
            self._recorder.invoke(process, op, name, self._written[key])
            return self._written[key], self._timestamp

    # ----------------------------------------------------------------------------------------- final reads

    def _read_all(self) -> None:
        """Read each written key once, with retries until ``FINAL_S`` is over."""
        deadline, written = time.monotonic() + FINAL_S, sorted(self._written)
        lock = threading.Lock()

        def read(number: int) -> None:
            stores = {store.name: store for store in self._coordinators[number % len(self._coordinators)]}
            while True:
                with lock:
                    if not written:
                        return
                    name, key = written.pop()
                while self._perform(f"final-{number}", stores[name], Op.READ, key, time.monotonic()) is not Type.OK:
                    if time.monotonic() > deadline:
                        with lock:
                            self.figures.unread += 1
                        break
                    time.sleep(PAUSE_S)

        for thread in self._started(read, self.options.clients):
            thread.join()


def _now() -> Micros:
    return time.time_ns() // 1_000
