"""How an agent's process ends: exit codes, the reason as a value, and the end when its topics are lost.

===== ==================================================================================================
0     stopped on request
1     crashed: the broker or another part failed; starting again helps once it is back
3     superseded: another instance acts in this role now; starting again makes a stand-by
4     halted: the log or the change topics are not what they were, or are gone; starting again does not help
===== ==================================================================================================

Every agent's process watches its topics, active or on stand-by, because a stand-by follows no log that would show it.

- The metadata topic was deleted or created again: the log is gone, and nothing may be written in its place. Halted.
- Another topic that the role reads or writes was deleted or created again: crashed, with the command that creates it.
  After a restart the agent waits until all topics exist, and begins with the records that the topic has then.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ringlog.log.kafka.topics import METADATA, topic_name
from ringlog.log.replicas.identity import ClusterRecords
from ringlog.log.replicas.topic_watch import Lost
from ringlog.protocol.roles import ROLES
from ringlog.runtime.logs import get_logger

if TYPE_CHECKING:
    from ringlog.runtime.settings import ProcessSettings

STOPPED = 0
CRASHED = 1
SUPERSEDED = 3
HALTED = 4

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class End:
    """Why an instance ended; ``error`` is there after a crash."""

    code: int
    detail: str
    error: BaseException | None = None


class Superseded(Exception):
    """A higher term of this role was folded, or the broker fenced this instance's transactional id."""


class Diverged(Exception):
    """What this agent finds in a topic cannot come from this log: nothing is written, an operator has to look."""


def say_end(role: str, end: End, *, goodbye: bool = True) -> None:
    """The last line of an agent: that of one that halted is an error, since somebody has to look."""
    say, event = (log.error, "halted") if end.code == HALTED else (log.info, "stopped")
    say(event, role=role, code=end.code, why=end.detail, left_group=goodbye)


RESTORE = "rebuild it from a copy: ringlog recover; nothing goes on without the log"
MAKE_AGAIN = "`ringlog cluster repair-topics` makes it again; this agent waits for it when it is started again"
BEGIN_AGAIN = "started again, this agent begins with what it holds now"


def records_of(settings: ProcessSettings, role: str) -> ClusterRecords:
    """Where an agent remembers which logs it has read, and how far."""
    return ClusterRecords(settings.data_dir / "agents", settings.cluster, role)


def accept_recovery(data_dir: Path, cluster: str, cluster_id: str, topic_id: str) -> tuple[Path, ...]:
    """Have the agents of this data folder follow the topic that a log was rebuilt in; return the files that it removed.

    Raises LogDamaged, OSError.
    """
    memories = (ClusterRecords(data_dir / "agents", cluster, role) for role in ROLES)
    return tuple(path for memory in memories for path in memory.accept(cluster_id, topic_id))


def end_of(lost: Lost, cluster: str) -> End:
    """What a lost topic means for an agent of this cluster that lives on it."""
    if lost.topic == topic_name(cluster, METADATA.suffix):
        return End(HALTED, f"{lost} ({RESTORE})")
    return End(CRASHED, f"{lost} ({MAKE_AGAIN if lost.found is None else BEGIN_AGAIN})")
