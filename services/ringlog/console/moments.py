"""The input of a view: a state of the log, the reports of nodes and agents, and the parameters of the request."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ringlog.agents.status import AgentView, views_of
from ringlog.client.cdc.dead_letters import LetterSummary
from ringlog.kernel.balance.reports import Reports
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Epoch, Micros, NodeId, Value, field
from ringlog.log.folding import FoldedRecord
from ringlog.log.kafka.lag import Lag
from ringlog.log.replicas.start_point import ListedSnapshot
from ringlog.operator.doctor import Finding
from ringlog.operator.history.log_lines import LogFilter
from ringlog.operator.machines import Machine
from ringlog.operator.views.summary import rejected_nodes
from ringlog.protocol.balancer.load_book import LastReports
from ringlog.wire.records import AgentStatus, NodeAck


class LiveReports(Value):
    """Reports of nodes, agents and brokers, which are not in the log.

    Attributes:
        version: Increases with each change, for ``ETag``.
        read_at: Time of the last complete reading; 0: never.
        confirmed_at: The last time when the state was known to have every entry of the log.
        problem: Why the last reading failed, or why the replica halted; empty: no problem.
        appended: Newest append time of the mutations topic.
        mutations_behind: By node, the mutations that it had not validated when its last report arrived. A node is
            missing until it reports while this process runs.
        machines: By node, the free disk and the end of the certificates, as its last report says.
        letters: The newest dead letters, newest first.
        letters_end: The end of their topic when they were read; None: not read.
        findings: The findings of ``ringlog doctor`` on the machine of the console.
        examined_at: The time of the findings; 0: none yet.
    """

    version: int = 0
    read_at: Micros = 0
    confirmed_at: Micros = 0
    problem: str = ""
    acks: Mapping[str, NodeAck] = field(default_factory=dict)
    agents: Mapping[str, AgentStatus] = field(default_factory=dict)
    last_reports: LastReports = field(default_factory=LastReports)
    loads: Reports = field(default_factory=Reports)
    lags: Mapping[str, Lag | str] = field(default_factory=dict)
    appended: Micros | None = None
    snapshots: Sequence[ListedSnapshot] = ()
    mutations_behind: Mapping[NodeId, int] = field(default_factory=dict)
    machines: Mapping[NodeId, Machine] = field(default_factory=dict)
    letters: Sequence[LetterSummary] = ()
    letters_end: int | None = None
    findings: Sequence[Finding] = ()
    examined_at: Micros = 0


NO_REPORTS = LiveReports()


class ViewInput(Value):
    """The input of a view.

    Attributes:
        state: The newest state, or that of a past epoch.
        live: The reports; ``NO_REPORTS`` for a past epoch.
        now: The time that durations count to: the last reading, or the time of a past state.
        query: The checked parameters of the view, by name.
        records: Returns the last records that a filter selects, up to an epoch, and the first epoch that was searched.
        state_at: Returns the state at an epoch. Raises EpochUnknown, LogUnavailable.
    """

    state: ClusterState
    live: LiveReports
    now: Micros
    query: Mapping[str, Any]
    records: Callable[[LogFilter, Epoch, int], tuple[Sequence[FoldedRecord], Epoch]]
    state_at: Callable[[Epoch], ClusterState]
    is_past: bool = False

    @property
    def agents(self) -> tuple[AgentView, ...]:
        """The status of each role."""
        return views_of(self.live.agents, self.state.epoch, self.now)

    @property
    def rejected_nodes(self) -> list[str]:
        """Names of nodes whose acknowledgements the coordinator rejects."""
        return rejected_nodes(self.agents)
