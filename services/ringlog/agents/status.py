"""Is each agent at work, and how far is it? From the agents' heartbeats and the log itself."""

from __future__ import annotations

import time
from dataclasses import dataclass

from ringlog.log.kafka import KafkaLog
from ringlog.log.replica import Replica
from ringlog.log.topics import AGENTS
from ringlog.wire.errors import WireError
from ringlog.wire.records import AgentStatus, decode_agent_status

SILENT_S = 5.0
"""An agent that was not heard of for so long is not called caught up, whatever it said last."""

POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class AgentView:
    """The last word of a role's agent.

    ``lag``: epochs that the log is ahead of it; ``age_s``: seconds since it spoke.
    """

    role: str
    instance: str
    term: int
    epoch: int
    state: str
    lag: int
    age_s: float

    @property
    def caught_up(self) -> bool:
        """It works, has handled the newest epoch, and was heard of just now."""
        return self.state == "active" and self.lag == 0 and self.age_s < SILENT_S


def view(status: AgentStatus, epoch: int, now_us: int) -> AgentView:
    """How an agent stands when the log is at ``epoch``."""
    age_s = max(0, now_us - status.at) / 1_000_000
    lag = max(0, epoch - status.epoch)
    return AgentView(status.role, status.instance, status.term, status.epoch, status.state, lag, age_s)


def read_status(bootstrap_servers: str, cluster: str) -> tuple[AgentView, ...]:
    """Every role that was ever heard of, by name. Raises TopicMissing, LogUnavailable."""
    metadata = KafkaLog(bootstrap_servers, cluster)
    try:
        with Replica(metadata) as replica:
            epoch = replica.read_barrier().epoch
    finally:
        metadata.close()
    found = _last_words(bootstrap_servers, cluster)
    now_us = time.time_ns() // 1_000
    return tuple(view(found[role], epoch, now_us) for role in sorted(found))


def _last_words(bootstrap_servers: str, cluster: str) -> dict[str, AgentStatus]:
    """The newest readable status of each role."""
    agents = KafkaLog(bootstrap_servers, cluster, AGENTS)
    found: dict[str, AgentStatus] = {}
    try:
        end = agents.end_offset()
        tail = agents.tail(agents.begin_offset())
        try:
            while tail.position < end:
                for record in tail.poll(POLL_S):
                    try:
                        status = decode_agent_status(record.data)
                    except WireError:
                        continue
                    found[status.role] = status
        finally:
            tail.close()
    finally:
        agents.close()
    return found
