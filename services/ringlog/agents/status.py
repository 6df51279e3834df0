"""The status of agents, from their heartbeats and the log; and the schedule of these heartbeats.

An agent reports soon after each change, and at least once a second. A new epoch is reported when it was the newest in
two successive checks. During many commits, each status record would be an additional record for the broker.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from contextlib import closing, suppress

from ringlog.kernel.values import Value
from ringlog.log.errors import LogError, LogUnavailable
from ringlog.log.kafka.adapter import KafkaLog
from ringlog.log.kafka.compacted import read_compacted
from ringlog.log.kafka.topics import AGENTS, SCHEMAS, topic_name
from ringlog.log.opening import open_metadata, start_point_finder
from ringlog.log.port import LogTail
from ringlog.log.reading import read_to_end
from ringlog.log.replicas.replay import ProgressCallback, catch_up, log_progress
from ringlog.log.replicas.replica import LogReplica
from ringlog.wire.avro.codec import learn
from ringlog.wire.errors import WireError
from ringlog.wire.records import AgentStatus, RefusedProposal, decode_agent_status

_CODE = re.compile(r"\b([a-z]+(?:_[a-z]+)+):")
"""The code in a reason, such as ``not started: log_replaced: …``."""
SILENT_S = 5.0
"""An agent without a report for this long does not count as caught up, independent of its last report."""


class AgentView(Value):
    """The last status of a role's agent.

    ``lag``: the number of epochs in the log that it has not handled. ``age_s``: seconds since the report. ``refused``:
    its rejected proposals. ``why``: the reason of its end, a broken invariant, or the wait of its maintenance work.
    ``release``: empty if it is unknown.
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
    release: str = ""

    @property
    def caught_up(self) -> bool:
        """Whether it is at work and has handled the newest epoch."""
        return self.is_at_work and self.lag == 0

    @property
    def is_at_work(self) -> bool:
        """Whether it is the active instance and has reported recently."""
        return self.state == "active" and self.age_s < SILENT_S

    @property
    def shown_state(self) -> str:
        """``state`` for operators: "stopped" if nothing is wrong, else "halted" with the code of the reason."""
        if self.state != "halted":
            return self.state
        code = _CODE.search(self.why)
        return "stopped" if not self.why else "halted" if code is None else f"halted: {code[1]}"

    @property
    def readiness(self) -> str:
        """A text: it has caught up, or everything that it lacks for that."""
        if self.caught_up:
            return "caught up"
        lacks = [] if self.state == "active" else [self.shown_state]
        if self.lag:
            lacks.append(f"{self.lag} epochs behind")
        if self.state != "halted" and self.age_s >= SILENT_S:
            lacks.append(f"silent for {self.age_s:.0f} s")
        return ", ".join(lacks)


def view(status: AgentStatus, epoch: int, now_us: int) -> AgentView:
    """Return the view of a status when the log is at ``epoch``."""
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
        status.release,
    )


def views_of(said: Mapping[str, AgentStatus], epoch: int, now_us: int) -> tuple[AgentView, ...]:
    """Return the views of all known roles, by name, when the log is at ``epoch``."""
    return tuple(view(said[role], epoch, now_us) for role in sorted(said))


def newest(last: AgentStatus | None, status: AgentStatus) -> AgentStatus:
    """Return the status that counts for a role.

    A status of a lower term than the last one comes from a replaced instance. Term 0 means that an instance is about to
    take over.
    """
    return last if last is not None and 0 < status.term < last.term else status


LEARNING_S = 30.0
"""The shortest interval between two readings of the topic of schemas."""
LEARN_WAIT_S = 3.0
"""The longest wait for these schemas."""


def _text(data: bytes) -> str:
    return data.decode(errors="replace")


class HeartbeatReader:
    """A reader of ``agents`` from its beginning. Not thread-safe; ``close`` it."""

    def __init__(self, bootstrap_servers: str, cluster: str) -> None:
        self._bootstrap_servers, self._cluster = bootstrap_servers, cluster
        self._agents = KafkaLog(bootstrap_servers, cluster, AGENTS)
        self._tail: LogTail | None = None
        self._next_learning = 0.0
        self.latest: dict[str, AgentStatus] = {}
        """Role to its newest readable status read so far."""

    def refresh(self) -> dict[str, AgentStatus]:
        """Read to the current end of the topic and return ``latest``. Raises TopicMissing, LogUnavailable."""
        if self._tail is None:
            self._tail = self._agents.tail(self._agents.begin_offset())
        for record in read_to_end(self._agents, self._tail):
            if (status := self._decode(record.data)) is not None:
                self.latest[status.role] = newest(self.latest.get(status.role), status)
        return self.latest

    def _decode(self, data: bytes) -> AgentStatus | None:
        """Return a status, or None for other bytes. Agents can have a later release than this process."""
        for _ in range(2):
            try:
                return decode_agent_status(data)
            except WireError:
                if time.monotonic() < self._next_learning:
                    break
                self._next_learning = time.monotonic() + LEARNING_S
                self._learn()
        return None

    def _learn(self) -> None:
        """Learn the schemas of later releases, which a release publishes before its first record."""
        end = time.monotonic() + LEARN_WAIT_S

        def check() -> None:
            if time.monotonic() > end:  # A topic without a permission has no end.
                raise LogUnavailable("the schemas were not read in time", "permit it: ringlog cluster acls")

        with suppress(LogError):
            topic = topic_name(self._cluster, SCHEMAS.suffix)
            for text in read_compacted(self._bootstrap_servers, topic, _text, check).values():
                with suppress(WireError):
                    learn(text)

    def close(self) -> None:
        """Close the connections."""
        if self._tail is not None:
            self._tail.close()
        self._agents.close()


class StatusReader:
    """A reader for repeated looks at low cost, as a context manager for one thread.

    ``on_progress``: receives the progress of a long replay.
    """

    def __init__(self, bootstrap_servers: str, cluster: str, on_progress: ProgressCallback = log_progress) -> None:
        self._on_progress = on_progress
        self._metadata = open_metadata(bootstrap_servers, cluster, "status")
        self._heartbeats = HeartbeatReader(bootstrap_servers, cluster)
        self._replica = LogReplica(
            self._metadata, start_finder=start_point_finder(bootstrap_servers, cluster, warns=False)
        )

    def __enter__(self) -> StatusReader:
        """Start to follow the log. Raises TopicMissing, LogUnavailable."""
        self._replica.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connections."""
        self._heartbeats.close()
        self._replica.stop()
        self._metadata.close()

    def read(self) -> tuple[AgentView, ...]:
        """Return the views of all known roles, by name. Raises LogUnavailable."""
        epoch = catch_up(self._replica, on_progress=self._on_progress).epoch
        return views_of(self._heartbeats.refresh(), epoch, time.time_ns() // 1_000)


def read_statuses(bootstrap_servers: str, cluster: str) -> dict[str, AgentStatus]:
    """Return the newest readable status of each role, without the log. Raises TopicMissing, LogUnavailable."""
    with closing(HeartbeatReader(bootstrap_servers, cluster)) as heartbeats:
        return heartbeats.refresh()


def read_refused(bootstrap_servers: str, cluster: str) -> tuple[RefusedProposal, ...]:
    """Return the rejected proposals in the last statuses. Raises TopicMissing, LogUnavailable."""
    return tuple(one for _, said in sorted(read_statuses(bootstrap_servers, cluster).items()) for one in said.refused)


def read_status(
    bootstrap_servers: str, cluster: str, on_progress: ProgressCallback = log_progress
) -> tuple[AgentView, ...]:
    """Return the views of all known roles, by name, once. Raises TopicMissing, LogUnavailable."""
    with StatusReader(bootstrap_servers, cluster, on_progress) as reader:
        return reader.read()


HEARTBEAT_S = 1.0
"""The longest interval between two reports."""


class ReportSchedule:
    """The schedule of status reports."""

    def __init__(self) -> None:
        self._reported: tuple[int, object] | None = None
        self._seen = -1
        self._silent_s = 0.0

    def is_due(self, epoch: int, rest: object, passed_s: float) -> bool:
        """Return whether to report now, and count the status as reported if so.

        Args:
            epoch: the epoch that the agent has handled.
            rest: the rest of its status.
            passed_s: seconds since the last call.
        """
        self._silent_s += passed_s
        rests, self._seen = epoch == self._seen, epoch
        is_new = self._reported is None or rest != self._reported[1] or (rests and epoch != self._reported[0])
        if not is_new and self._silent_s < HEARTBEAT_S:
            return False
        self._reported, self._silent_s = (epoch, rest), 0.0
        return True
