"""How an agent ends whose topics are gone.

Every agent's process looks at its topics, whether it acts or stands by: a stand-by follows no log that could tell. What
is found ends the process in one way for all roles:

- the metadata topic was deleted, or made again: the log is gone, and nothing may be written in its place. Halted.
- another topic that the role reads or writes was deleted, or made again: crashed, with the command that makes it again.
  Started again, the agent waits until all topics are there, and begins with what the topic holds then.
"""

from __future__ import annotations

from ringlog.agents.exits import CRASHED, HALTED, End
from ringlog.log.identity import ClusterRecords
from ringlog.log.topics import METADATA, topic_name
from ringlog.log.watch import Lost
from ringlog.runtime.settings import ProcessSettings

RESTORE = "restore its records under this name, or found a cluster under another one; nothing goes on without the log"
MAKE_AGAIN = "`ringlog cluster found {cluster}` makes it again; this agent waits for it when it is started again"
BEGIN_AGAIN = "started again, this agent begins with what it holds now"


def records_of(settings: ProcessSettings, role: str) -> ClusterRecords:
    """Where an agent remembers which logs it has read, and how far."""
    return ClusterRecords(settings.data_dir / "agents", settings.cluster, role)


def end_of(lost: Lost, cluster: str) -> End:
    """What a lost topic means for an agent of this cluster that lives on it."""
    if lost.topic == topic_name(cluster, METADATA.suffix):
        return End(HALTED, f"{lost} ({RESTORE})")
    return End(CRASHED, f"{lost} ({MAKE_AGAIN.format(cluster=cluster) if lost.found is None else BEGIN_AGAIN})")
