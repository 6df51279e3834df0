"""A thread that reads the reports of nodes, agents and brokers for the console.

It reads quick topics every second and slow facts every ``SLOW_S``. A second thread examines the cluster as ``ringlog
doctor`` does: a check may wait for a broker or a Redis that is away. While the broker is away, the last reports stay,
and ``confirmed_at`` shows their age.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from typing import Any, Final

from ringlog.agents.status import HeartbeatReader
from ringlog.client.cdc.dead_letters import DeadLetterReader, LetterFilter
from ringlog.client.node_reports import AcksReader, LoadsReader
from ringlog.console.moments import LiveReports
from ringlog.errors import RinglogError
from ringlog.kernel.values import Micros, NodeId, replace
from ringlog.log.errors import TopicMissing
from ringlog.log.kafka.lag import LagReader, writer_lags
from ringlog.log.kafka.topics import MUTATIONS, topic_name
from ringlog.log.opening import open_snapshots
from ringlog.log.replicas.replica import LogReplica
from ringlog.operator.doctor import Finding, examine
from ringlog.operator.machines import machines_of
from ringlog.operator.views.clocks import seen_until
from ringlog.protocol.balancer.load_book import LastReports, ReceivedLoad, report_times, take
from ringlog.runtime.clock import Clock, SystemClock
from ringlog.runtime.context import ClusterContext
from ringlog.runtime.logs import get_logger

EVERY_S: Final = 1.0
SLOW_S: Final = 15.0
EXAMINE_S: Final = 60.0
BARRIER_S: Final = 5.0

log = get_logger(__name__)


class LiveReader:
    """The newest reports, in ``reports``. ``start`` it once and ``stop`` it once.

    Args:
        replica: A replica of the cluster that the caller runs.
    """

    def __init__(self, context: ClusterContext, replica: LogReplica, clock: Clock | None = None) -> None:
        self._context = context
        self._place = context.bootstrap, context.cluster
        self._replica = replica
        self._clock = clock or SystemClock()
        self._stopping = threading.Event()
        self._open = ExitStack()
        self._readers: dict[str, Any] = {}
        self._slow_at = float("-inf")
        self._thread = threading.Thread(target=self._run, name="live", daemon=True)
        self._examined: tuple[Sequence[Finding], Micros] = (), 0
        self._examiner = threading.Thread(target=self._examine, name="examiner", daemon=True)
        self.reports = LiveReports(confirmed_at=self._clock.now_us())

    def start(self) -> None:
        """Read once, then regularly in a thread."""
        self.read()
        self._thread.start()
        self._examiner.start()

    def stop(self) -> None:
        """Stop the reading thread and close its connections. An examination that waits is left behind."""
        self._stopping.set()
        self._thread.join()
        self.close()

    def close(self) -> None:
        """Close the connections of a reader that was not started."""
        self._open.close()

    def _run(self) -> None:
        while not self._stopping.wait(EVERY_S):
            try:
                self.read()
            except Exception:
                log.exception("reports_unreadable")

    def _examine(self) -> None:
        while True:
            try:
                found = tuple(examine(self._context, lambda _: self._replica.state))
                self._examined = found, self._clock.now_us()
            except Exception:
                log.exception("not_examined")
            if self._stopping.wait(EXAMINE_S):
                return

    def read(self) -> None:
        """Read once. After an error, the old reports stay with the problem."""
        old = self.reports
        try:
            self.reports = self._read(old)
        except RinglogError as error:
            self.reports = replace(
                old, version=old.version + 1, problem=f"{error.code}: {getattr(error, 'message', error)}"
            )

    def _reader(self, kind: Callable[[str, str], Any]) -> Any:
        """Return the reader of a topic, which stays open."""
        if kind.__name__ not in self._readers:
            self._readers[kind.__name__] = self._open.enter_context(closing(kind(*self._place)))
        return self._readers[kind.__name__]

    def _read(self, old: LiveReports) -> LiveReports:
        acks = dict(
            self._reader(AcksReader).refresh()
        )  # before the barrier: the state then has every acknowledged epoch
        self._replica.raise_if_ended()
        asked_at = self._clock.now_us()
        state = self._replica.read_barrier(BARRIER_S)
        now = self._clock.now_us()
        findings, examined_at = self._examined
        found = replace(
            old,
            version=old.version + 1,
            read_at=now,
            confirmed_at=asked_at,
            problem="",
            acks=acks,
            findings=findings,
            examined_at=examined_at,
        )
        with suppress(TopicMissing):  # an older cluster may lack a topic
            found = replace(found, agents=dict(self._reader(HeartbeatReader).refresh()))
        with suppress(TopicMissing):
            records = self._reader(LoadsReader).at_end()
            times = report_times(records, old.last_reports.at)
            machines = {**old.machines, **machines_of(records, state.nodes)}
            found = replace(
                found, last_reports=LastReports(times, now), loads=take(old.loads, records, state), machines=machines
            )
            if old.read_at and records:  # at the start, records are as old as their nodes' last reports
                behind = mutations_behind(records, self._reader(_mutations).ends())
                found = replace(found, mutations_behind={**old.mutations_behind, **behind})
        if time.monotonic() - self._slow_at >= SLOW_S:
            found = self._slow(found)
            self._slow_at = time.monotonic()
        return found

    def _slow(self, found: LiveReports) -> LiveReports:
        bootstrap, cluster = self._place
        lags = writer_lags(bootstrap, self._replica.state) if self._replica.state.writers else {}
        with closing(open_snapshots(bootstrap, cluster)) as topic:
            snapshots = topic.listed()
        with suppress(TopicMissing):
            letters = self._reader(DeadLetterReader)
            end = letters.bounds()[1]
            if end != found.letters_end:
                found = replace(found, letters=tuple(letters.newest(LetterFilter(), 1)), letters_end=end)
        return replace(found, lags=lags, appended=seen_until(bootstrap, cluster), snapshots=snapshots)


def _mutations(bootstrap_servers: str, cluster: str) -> LagReader:
    return LagReader(bootstrap_servers, topic_name(cluster, MUTATIONS.suffix))


def mutations_behind(records: Iterable[ReceivedLoad], ends: Mapping[int, int]) -> dict[NodeId, int]:
    """Return how many mutations each node had not validated when it sent its last record. ``ends``: the next offset of
    each partition at that time.
    """
    loads = {one.load.node: one.load for one in records if one.load is not None and one.load.judged}
    return {
        node: sum(max(0, ends[place.partition] - place.offset) for place in load.judged if place.partition in ends)
        for node, load in loads.items()
    }
