"""A look at the balancer's work from outside: what it would decide now, from the state and the nodes' reports."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass

from ringlog.client.node_reports import AcksReader, LoadsReader
from ringlog.kernel.balance.advice import Advice, advise
from ringlog.kernel.balance.reports import Reports
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Micros, NodeId
from ringlog.log.errors import LogError
from ringlog.protocol.balancer.load_book import Heard, LastHeard, measured, report_times, take
from ringlog.runtime.clock import SystemClock
from ringlog.wire.records import NodeAck


@dataclass(frozen=True, slots=True)
class BalancerSnapshot:
    """``state`` and ``reports``, and what follows from them; ``acks``: what nodes acknowledge and try in vain;
    ``last_reports``: when each node reported last.
    """

    state: ClusterState
    reports: Reports
    advice: Advice
    acks: Mapping[str, NodeAck]
    last_reports: LastHeard


def view_balancer(bootstrap_servers: str, cluster: str, state: ClusterState) -> BalancerSnapshot:
    """What the balancer would see. Raises TopicMissing, LogUnavailable."""
    records = read_load_reports(bootstrap_servers, cluster)
    reports, last = take(Reports(), records, state), LastHeard(report_times(records), SystemClock().now_us())
    return BalancerSnapshot(
        state, reports, advise(state, measured(reports, state)), read_acks(bootstrap_servers, cluster), last
    )


def read_load_reports(bootstrap_servers: str, cluster: str) -> tuple[Heard, ...]:
    """All that the topic of loads has. Raises TopicMissing, LogUnavailable."""
    with closing(LoadsReader(bootstrap_servers, cluster)) as loads:
        return loads.at_end()


class LastHeardReader:
    """Follows the load topic for when each node was last heard. For one thread; ``close`` it.

    It opens the topic at the first look. Nothing is known of a topic that cannot be read.
    """

    def __init__(self, bootstrap_servers: str, cluster: str) -> None:
        self._place = bootstrap_servers, cluster
        self._loads: LoadsReader | None = None
        self._at: dict[NodeId, Micros] = {}

    def refresh(self) -> LastHeard:
        """Read to the present end of the topic."""
        with suppress(LogError):
            self._loads = self._loads or LoadsReader(*self._place)
            self._at = report_times(self._loads.at_end(), self._at)
        return LastHeard(self._at, SystemClock().now_us())

    def close(self) -> None:
        """Close the connections."""
        if self._loads is not None:
            self._loads.close()


def last_heard(bootstrap_servers: str, cluster: str) -> LastHeard:
    """When each node was last heard, by one look."""
    with closing(LastHeardReader(bootstrap_servers, cluster)) as reader:
        return reader.refresh()


def read_acks(bootstrap_servers: str, cluster: str) -> Mapping[str, NodeAck]:
    """The nodes' last acknowledgements. Raises TopicMissing, LogUnavailable."""
    with closing(AcksReader(bootstrap_servers, cluster)) as acks:
        return acks.refresh()
