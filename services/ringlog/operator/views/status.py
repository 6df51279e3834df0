"""The status of a cluster as one JSON value, for ``ringlog status`` and the console."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ringlog.agents.status import AgentView
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Micros
from ringlog.log.kafka.lag import Lag
from ringlog.operator.views import views
from ringlog.operator.views.clocks import clock_lines
from ringlog.operator.views.summary import summary, truncation_view
from ringlog.operator.views.words import is_in_flight
from ringlog.operator.views.writer_lag import writers_behind
from ringlog.operator.views.zones import standing_view, timers_view
from ringlog.protocol.balancer.load_book import LastReports
from ringlog.protocol.rebalancer.zone_groups import session_reports
from ringlog.wire.acks import ACK_REJECTED
from ringlog.wire.records import NodeAck

Json = dict[str, Any]


def rejected_nodes(agents: Sequence[AgentView]) -> list[str]:
    """Return the names of nodes whose acknowledgements the coordinator rejects."""
    return [one.subject for agent in agents for one in agent.refused if one.code == ACK_REJECTED]


def status_view(
    state: ClusterState,
    acks: Mapping[str, NodeAck],
    reports: LastReports,
    agents: Sequence[AgentView],
    lags: Mapping[str, Lag | str],
    appended: Micros | None,
    now: Micros,
) -> Json:
    """Return the state, the reports of nodes and agents, and the summary.

    Args:
        lags: Lag of each CDC writer.
        appended: The newest append time of the mutations topic, if known.
    """
    found = views.operations(state, acks, now, rejected_nodes(agents), reports)
    whole = views.cluster(state) | {
        "agents": [views.agent(a) for a in agents],
        "directory": views.nodes(state, reports),
        "features": views.features(state),
        "operations": [view for view in found if is_in_flight(view)],
        "zones": standing_view(state, session_reports(state, acks)),
        "clocks": clock_lines(state, now, appended),
        "writers_behind": writers_behind(state, lags),
        "zone_timers": timers_view(state),
        "truncation": truncation_view(state),
    }
    return whole | {"summary": summary(whole, agents, now)}
