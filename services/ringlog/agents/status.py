"""Is each agent at work, and how far is it? From the agents' heartbeats and the log itself."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from ringlog.log.kafka import KafkaLog
from ringlog.log.opening import beginning_of, open_metadata
from ringlog.log.port import LogTail
from ringlog.log.reading import read_to_end
from ringlog.log.replay import Tell, catch_up, say
from ringlog.log.replica import LogReplica
from ringlog.log.topics import AGENTS
from ringlog.wire.errors import WireError
from ringlog.wire.records import AgentStatus, RefusedProposal, decode_agent_status

SILENT_S = 5.0
"""An agent that was not heard of for so long is not called caught up, whatever it said last."""


@dataclass(frozen=True, slots=True)
class AgentView:
    """The last word of a role's agent.

    ``lag``: epochs that the log is ahead of it; ``age_s``: seconds since it spoke; ``refused``: what it may not do;
    ``why``: why it ended by itself; what is broken in its state, or waits beside its work.
    """

    role: str
    instance: str
    term: int
    epoch: int
    state: str
    lag: int
    age_s: float
    refused: tuple[RefusedProposal, ...] = ()
    why: str = ""

    @property
    def caught_up(self) -> bool:
        """It works, has handled the newest epoch, and was heard of just now."""
        return self.state == "active" and self.lag == 0 and self.age_s < SILENT_S

    @property
    def shown_state(self) -> str:
        """``state`` for people: who was asked to stop has stopped, and nothing is wrong."""
        return "stopped" if self.state == "halted" and not self.why else self.state

    @property
    def standing(self) -> str:
        """In words: it has caught up, or all that it lacks for that."""
        if self.caught_up:
            return "caught up"
        lacks = [] if self.state == "active" else [self.shown_state]
        if self.lag:
            lacks.append(f"{self.lag} epochs behind")
        if self.state != "halted" and self.age_s >= SILENT_S:
            lacks.append(f"silent for {self.age_s:.0f} s")
        return ", ".join(lacks)


def view(status: AgentStatus, epoch: int, now_us: int) -> AgentView:
    """How an agent stands when the log is at ``epoch``."""
    age_s = max(0, now_us - status.at) / 1_000_000
    lag = max(0, epoch - status.epoch)
    return AgentView(
        status.role,
        status.instance,
        status.term,
        status.epoch,
        status.state,
        lag,
        age_s,
        status.refused,
        status.why,
    )


def views_of(said: Mapping[str, AgentStatus], epoch: int, now_us: int) -> tuple[AgentView, ...]:
    """Every role that was heard of, by name, when the log is at ``epoch``."""
    return tuple(view(said[role], epoch, now_us) for role in sorted(said))


def newest(last: AgentStatus | None, status: AgentStatus) -> AgentStatus:
    """What to believe of a role: a replaced instance may still speak, one that has no term yet (0) is about to act."""
    return last if last is not None and 0 < status.term < last.term else status


class StatusReader:
    """Looks again and again at little cost. For use by one thread, as a context. ``tell``: hears of a long replay."""

    def __init__(self, bootstrap_servers: str, cluster: str, tell: Tell = say) -> None:
        self._tell = tell
        self._metadata = open_metadata(bootstrap_servers, cluster, "status")
        self._agents = KafkaLog(bootstrap_servers, cluster, AGENTS)
        self._replica = LogReplica(self._metadata, beginning=beginning_of(bootstrap_servers, cluster, warns=False))
        self._tail: LogTail | None = None
        self._last: dict[str, AgentStatus] = {}

    def __enter__(self) -> StatusReader:
        """Begin to follow the log. Raises TopicMissing, LogUnavailable."""
        self._replica.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Let go of the connections."""
        if self._tail is not None:
            self._tail.close()
        self._replica.stop()
        self._agents.close()
        self._metadata.close()

    def read(self) -> tuple[AgentView, ...]:
        """Every role that was ever heard of, by name. Raises LogUnavailable."""
        epoch = catch_up(self._replica, tell=self._tell).epoch
        self._listen()
        return views_of(self._last, epoch, time.time_ns() // 1_000)

    def _listen(self) -> None:
        """Take in the newest readable status of each role."""
        if self._tail is None:
            self._tail = self._agents.tail(self._agents.begin_offset())
        _take(self._agents, self._tail, self._last)


def _take(agents: KafkaLog, tail: LogTail, last: dict[str, AgentStatus]) -> None:
    for record in read_to_end(agents, tail):
        try:
            status = decode_agent_status(record.data)
        except WireError:
            continue
        last[status.role] = newest(last.get(status.role), status)


def read_said(bootstrap_servers: str, cluster: str) -> dict[str, AgentStatus]:
    """The newest readable word of each role; for who knows the log's epoch. Raises TopicMissing, LogUnavailable."""
    agents = KafkaLog(bootstrap_servers, cluster, AGENTS)
    try:
        tail = agents.tail(agents.begin_offset())
        try:
            last: dict[str, AgentStatus] = {}
            _take(agents, tail, last)
        finally:
            tail.close()
    finally:
        agents.close()
    return last


def read_refused(bootstrap_servers: str, cluster: str) -> tuple[RefusedProposal, ...]:
    """What agents would do and are refused, as they said last. Raises TopicMissing, LogUnavailable."""
    return tuple(one for _, said in sorted(read_said(bootstrap_servers, cluster).items()) for one in said.refused)


def read_status(bootstrap_servers: str, cluster: str, tell: Tell = say) -> tuple[AgentView, ...]:
    """One look: every role that was ever heard of, by name. Raises TopicMissing, LogUnavailable."""
    with StatusReader(bootstrap_servers, cluster, tell) as reader:
        return reader.read()
