"""A look at the balancer's work from outside: what it would decide now, from the state and the nodes' reports."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass

from ringlog.client.acks import AcksReader
from ringlog.client.loads import LoadsReader
from ringlog.kernel.balance.advice import Advice, advise
from ringlog.kernel.balance.reports import Reports
from ringlog.kernel.state import ClusterState
from ringlog.protocol.load_book import Heard, measured, take
from ringlog.wire.records import NodeAck


@dataclass(frozen=True, slots=True)
class BalancerView:
    """``state`` and ``reports``, and what follows from them; ``acks``: what nodes acknowledge and try in vain."""

    state: ClusterState
    reports: Reports
    advice: Advice
    acks: Mapping[str, NodeAck]


def look(bootstrap_servers: str, cluster: str, state: ClusterState) -> BalancerView:
    """What the balancer would see. Raises TopicMissing, LogUnavailable."""
    reports = take(Reports(), heard(bootstrap_servers, cluster), state)
    return BalancerView(state, reports, advise(state, measured(reports)), said(bootstrap_servers, cluster))


def heard(bootstrap_servers: str, cluster: str) -> tuple[Heard, ...]:
    """All that the topic of loads has. Raises TopicMissing, LogUnavailable."""
    with closing(LoadsReader(bootstrap_servers, cluster)) as loads:
        return loads.at_end()


def said(bootstrap_servers: str, cluster: str) -> Mapping[str, NodeAck]:
    """The nodes' last acknowledgements. Raises TopicMissing, LogUnavailable."""
    with closing(AcksReader(bootstrap_servers, cluster)) as acks:
        return acks.refresh()
