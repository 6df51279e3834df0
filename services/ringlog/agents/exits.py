"""The end of an agent's process: its exit code, its reason, and the end after the loss of a topic.

===== ==================================================================================================
0     stopped on request
1     crashed: the broker or another component failed; a restart helps once it is back
3     superseded: another instance is active in this role; a restarted process becomes a stand-by
4     halted: the log or the change topics changed unexpectedly, or are gone; a restart does not help
===== ==================================================================================================

Every agent watches its topics, active or on stand-by, because a stand-by follows no log that would show a loss.

- The metadata topic was deleted or created again: the log is gone, and nothing may be written in its place. Halted.
- Another topic that the role reads or writes was deleted or created again: crashed, with the command that creates it.
  After a restart the agent waits until all topics exist, and begins with their records of that time.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ringlog.kernel.values import Value
from ringlog.log.kafka.topics import METADATA, topic_name
from ringlog.log.replicas.identity import ClusterIdentityStore
from ringlog.log.replicas.topic_watch import LostTopic
from ringlog.protocol.roles import ROLES
from ringlog.runtime.logs import get_logger

if TYPE_CHECKING:
    from ringlog.runtime.settings import ProcessSettings

STOPPED = 0
CRASHED = 1
SUPERSEDED = 3
HALTED = 4

log = get_logger(__name__)


class End(Value):
    """The reason of an instance's end. ``error``: after a crash."""

    code: int
    detail: str
    error: BaseException | None = None


class Superseded(Exception):
    """A higher term of this role was folded, or the broker fenced this instance's transactional id."""


class Diverged(Exception):
    """The content of a topic cannot come from this log. The agent writes nothing, and an operator must act."""


def log_end(role: str, end: End, *, goodbye: bool = True) -> None:
    """Log the last line of an agent. Halting is an error, because an operator must act."""
    say, event = (log.error, "halted") if end.code == HALTED else (log.info, "stopped")
    say(event, role=role, code=end.code, why=end.detail, left_group=goodbye)


RESTORE = "rebuild the log from a copy: ringlog recover; no process continues without the log"
MAKE_AGAIN = "create the topic again: `ringlog cluster repair-topics`; a restarted agent waits for it"
BEGIN_AGAIN = "restart this agent: it starts with the current content"


def records_of(settings: ProcessSettings, role: str) -> ClusterIdentityStore:
    """Return the agent's records of the logs that it has read, with their positions."""
    return ClusterIdentityStore(settings.data_dir / "agents", settings.cluster, role)


def accept_recovery(data_dir: Path, cluster: str, cluster_id: str, topic_id: str) -> tuple[Path, ...]:
    """Make the agents of this data folder follow the topic of a rebuilt log. Return the removed files.

    Raises LogDamaged, OSError.
    """
    memories = (ClusterIdentityStore(data_dir / "agents", cluster, role) for role in ROLES)
    return tuple(path for memory in memories for path in memory.remove_outdated(cluster_id, topic_id))


def end_of(lost: LostTopic, cluster: str) -> End:
    """Return the end of an agent of this cluster after the loss of a topic that it needs."""
    if lost.topic == topic_name(cluster, METADATA.suffix):
        return End(HALTED, f"{lost} ({RESTORE})")
    return End(CRASHED, f"{lost} ({MAKE_AGAIN if lost.found is None else BEGIN_AGAIN})")
