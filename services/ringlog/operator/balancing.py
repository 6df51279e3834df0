"""The balancer's view, read from outside: its next plan, computed from the state and the nodes' reports."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing, suppress

from ringlog.client.node_reports import AcksReader, LoadsReader
from ringlog.kernel.balance.advice import Advice, advise
from ringlog.kernel.balance.reports import Reports
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Micros, NodeId, Value
from ringlog.log.errors import LogError
from ringlog.protocol.balancer.load_book import LastReports, ReceivedLoad, measured, report_times, take
from ringlog.runtime.clock import SystemClock
from ringlog.wire.records import NodeAck


class BalancerSnapshot(Value):
    """The inputs and the plan of the balancer at one epoch.

    ``acks``: the nodes' last acknowledgements, with their failed stream attempts. ``last_reports``: the time of each
    node's last report.
    """

    state: ClusterState
    reports: Reports
    advice: Advice
    acks: Mapping[str, NodeAck]
    last_reports: LastReports


def view_balancer(bootstrap_servers: str, cluster: str, state: ClusterState) -> BalancerSnapshot:
    """Read the reports and compute the balancer's plan. Raises TopicMissing, LogUnavailable."""
    records = read_load_reports(bootstrap_servers, cluster)
    reports, last = take(Reports(), records, state), LastReports(report_times(records), SystemClock().now_us())
    return BalancerSnapshot(
        state, reports, advise(state, measured(reports, state)), read_acks(bootstrap_servers, cluster), last
    )


def read_load_reports(bootstrap_servers: str, cluster: str) -> tuple[ReceivedLoad, ...]:
    """Return all records of the load topic. Raises TopicMissing, LogUnavailable."""
    with closing(LoadsReader(bootstrap_servers, cluster)) as loads:
        return loads.at_end()


class LastHeardReader:
    """Reader of the load topic that tracks the time of each node's last report. Use it from one thread, and ``close``
    it.

    The topic is opened on the first ``refresh``. Times stay unknown while the topic cannot be read.
    """

    def __init__(self, bootstrap_servers: str, cluster: str) -> None:
        self._place = bootstrap_servers, cluster
        self._loads: LoadsReader | None = None
        self._at: dict[NodeId, Micros] = {}

    def refresh(self) -> LastReports:
        """Read to the current end of the topic and return the times."""
        with suppress(LogError):
            self._loads = self._loads or LoadsReader(*self._place)
            self._at = report_times(self._loads.at_end(), self._at)
        return LastReports(self._at, SystemClock().now_us())

    def close(self) -> None:
        """Close the consumer of the topic."""
        if self._loads is not None:
            self._loads.close()


def last_heard(bootstrap_servers: str, cluster: str) -> LastReports:
    """Return the time of each node's last report, from one read of the topic."""
    with closing(LastHeardReader(bootstrap_servers, cluster)) as reader:
        return reader.refresh()


def read_acks(bootstrap_servers: str, cluster: str) -> Mapping[str, NodeAck]:
    """Return the nodes' last acknowledgements. Raises TopicMissing, LogUnavailable."""
    with closing(AcksReader(bootstrap_servers, cluster)) as acks:
        return acks.refresh()
