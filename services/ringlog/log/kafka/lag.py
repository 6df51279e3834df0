"""The lag of a reader of a topic: the records that it has not handled, and the age of the oldest of them.

``LagReader`` asks the broker at the time of the call. ``LagWatch`` does so in a thread, also while its process is busy,
and knows since when a silent broker has not answered.

Ages are the difference between this machine's clock and the append time of a record. If the clock of the broker is
ahead, ages are too small, but never negative. They are for display and alerts only.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaError, KafkaException, TopicPartition

from ringlog.kernel.generations.acceptance import append_time_us
from ringlog.kernel.model.state import ClusterState, in_order
from ringlog.kernel.values import SECOND_US, Micros, Value
from ringlog.log.errors import LogError, LogUnavailable, TopicMissing
from ringlog.log.kafka.adapter import reader_config
from ringlog.runtime.clock import SystemClock
from ringlog.runtime.logs import get_logger

ANSWER_S = 3.0
"""Wait for one answer of the broker. A silent broker is noticed after that time."""
FETCH_BYTES = 65_536
"""Bytes of a partition in one fetch. A larger record is fetched alone."""
QUEUED_KB = 4_096
"""Limit of fetched records in memory."""
LOOK_S = 2.0
"""Interval of a watch."""

log = get_logger(__name__)


class Lag(Value):
    """A measured lag.

    ``records``: the offsets that are not handled. ``seconds``: the age of the oldest record among them, 0 without any,
    None if the broker did not return it in time. ``at``: the time of the measurement.
    """

    records: int
    seconds: float | None
    at: Micros


class LagReader:
    """A client that measures lags of one topic. Not thread-safe. It reads committed records only."""

    def __init__(self, bootstrap_servers: str, topic: str, answer_s: float = ANSWER_S) -> None:
        self._topic = topic
        self._answer_s = answer_s
        limits = {"queued.min.messages": 1, "queued.max.messages.kbytes": QUEUED_KB, "fetch.wait.max.ms": 50}
        fetching = {"fetch.message.max.bytes": FETCH_BYTES, "auto.offset.reset": "earliest"}
        self._consumer = Consumer(reader_config(bootstrap_servers, "read_committed") | limits | fetching)

    def close(self) -> None:
        """Close the connection."""
        self._consumer.close()

    def measure(self, positions: Mapping[int, int], *, is_whole: bool = True) -> Lag:
        """Return the lag of a reader that has handled everything below ``positions``.

        Other partitions count from their first record if the reader reads the whole topic.

        Raises:
            LogUnavailable, TopicMissing: The lag is not known.
        """
        ends = self.ends()
        is_new = is_whole and ends.keys() - positions.keys()
        begins = self._offsets(OFFSET_BEGINNING) if is_new else {}
        starts = {**begins, **positions}
        behind = {number: starts[number] for number, end in ends.items() if starts.get(number, end) < end}
        times = self._first_times(behind) if behind else {}
        now, known = SystemClock().now_us(), [at for at in times.values() if at is not None]
        seconds = (max(now, *known) - min(known)) / SECOND_US if known else 0.0 if len(times) == len(behind) else None
        return Lag(sum(ends[number] - start for number, start in behind.items()), seconds, now)

    def ends(self) -> dict[int, int]:
        """Return the next offset of each partition. Raises LogUnavailable, TopicMissing."""
        return self._offsets(OFFSET_END)

    def _offsets(self, which: int) -> dict[int, int]:
        """Return the first or the next offset of each partition, with one request to each broker."""
        offsets = {}
        try:
            found = self._consumer.list_topics(self._topic, timeout=self._answer_s).topics[self._topic]
            if not found.partitions:
                raise TopicMissing(self._topic)
            places = [TopicPartition(self._topic, partition, which) for partition in sorted(found.partitions)]
            for place in self._consumer.offsets_for_times(places, timeout=self._answer_s):
                if place.error is not None:
                    raise KafkaException(place.error)
                offsets[place.partition] = place.offset
        except KafkaException as error:
            raise LogUnavailable(
                f"cannot read the end of {self._topic}: {error.args[0].str()}", "check that the broker is up"
            ) from error
        return offsets

    def _first_times(self, starts: Mapping[int, int]) -> dict[int, Micros | None]:
        """Return the append times of the first records at or after these offsets, as far as they arrive in time.

        None: the rest of the partition has no visible record, because its transactions were aborted.
        """
        places = [TopicPartition(self._topic, number, start) for number, start in sorted(starts.items())]
        self._consumer.assign(places)
        times: dict[int, Micros | None] = {}
        deadline = time.monotonic() + self._answer_s
        while len(times) < len(starts) and (left := deadline - time.monotonic()) > 0:
            message = self._consumer.poll(left)
            partition, error = (None, None) if message is None else (message.partition(), message.error())
            if message is None or partition is None or partition in times:
                continue
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                continue
            times[partition] = append_time_us(message.timestamp()[1]) if error is None else None
            self._consumer.pause([TopicPartition(self._topic, partition)])
        self._consumer.resume(places)  # a paused partition would stay paused after the next assignment
        self._consumer.unassign()
        return times


WRITERS_MAX = 16
"""CDC writers whose lag is measured at a time."""


def writer_lags(bootstrap_servers: str, state: ClusterState) -> dict[str, Lag | str]:
    """Return the lag of each CDC writer by its positions in the metadata log, or why it is not known.

    A writer reports its positions with each extension of its write lease, and when it stops. So a lag above zero may be
    the part that a running writer has not reported yet, at most half of ``cdc_horizon_lead_us``.
    """
    found: dict[str, Lag | str] = {}
    for name, writer in in_order(state.writers):
        if not writer.source or len(found) >= WRITERS_MAX:
            found[name] = "the writer named no source" if not writer.source else f"only {WRITERS_MAX} are measured"
            continue
        reader = LagReader(bootstrap_servers, writer.source)
        try:
            found[name] = reader.measure({one.partition: one.offset for one in writer.decided})
        except LogError as error:
            found[name] = error.message
        finally:
            reader.close()
    return found


class LagView(Value):
    """The result of a watch.

    ``lag``: the last measured lag, None before the first. ``away_since``: the time since which the broker has not
    answered, None if it answers. ``why``: the last failure.
    """

    lag: Lag | None = None
    away_since: Micros | None = None
    why: str = ""

    @property
    def known(self) -> Lag | None:
        """The lag, or None if it is not known at present."""
        return self.lag if self.away_since is None else None


class LagWatch:
    """A thread that measures a lag every ``look_s``. ``start`` once, ``stop`` once.

    Args:
        make: Function that connects. The thread calls it, so that a slow connection delays nothing else.
        positions: Function that returns the positions of the reader. Called in the thread.
        is_whole: See ``LagReader.measure``.
        observe: Called in the thread after each measurement, and after each failure.
    """

    def __init__(
        self,
        make: Callable[[], LagReader],
        positions: Callable[[], Mapping[int, int]],
        observe: Callable[[LagView], None],
        *,
        is_whole: bool = True,
        look_s: float = LOOK_S,
    ) -> None:
        self._is_whole = is_whole
        self._make = make
        self._positions = positions
        self._observe = observe
        self._look_s = look_s
        self._view = LagView()
        self._answered_at = SystemClock().now_us()
        self._asked, self._done = 0, 0
        self._changed = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="lag", daemon=True)

    @property
    def view(self) -> LagView:
        """The last result."""
        return self._view

    def start(self) -> None:
        """Start to measure."""
        self._thread.start()

    def stop(self) -> None:
        """Stop. A measurement in progress ends with the process."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(ANSWER_S)

    def measured(self, timeout_s: float) -> LagView:
        """Return the result of a measurement that begins now. If it takes longer, the lag is not known."""
        with self._changed:
            self._asked += 1
            wanted = self._asked
            self._changed.notify_all()
            if self._changed.wait_for(lambda: self._done >= wanted or self._stopping, timeout_s):
                return self._view
        return self._unknown("the broker has not answered in time")

    def _run(self) -> None:
        reader: LagReader | None = None
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopping or self._asked > self._done, self._look_s)
                if self._stopping:
                    break
                asked = self._asked
            try:
                reader = reader or self._make()
                lag = reader.measure(self._positions(), is_whole=self._is_whole)
                self._answered_at, self._view = lag.at, LagView(lag)
            except LogError as error:
                self._view = self._unknown(error.message)
            except Exception as error:
                if self._view.away_since is None:
                    log.exception("lag_unknown")
                self._view = self._unknown(f"{type(error).__name__}: {error}")
            with self._changed:
                self._done = asked
                self._changed.notify_all()
            try:
                self._observe(self._view)
            except Exception:  # a failed report, such as a closed output, must not end the measurement
                log.exception("lag_not_reported")
        if reader is not None:
            reader.close()

    def _unknown(self, why: str) -> LagView:
        return LagView(self._view.lag, self._view.away_since or self._answered_at, why)
