"""One agent as a process: a faust worker for one role.

``python -m ringlog.agents ROLE`` runs it; exit codes in ``exits``.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING

from ringlog.agents.exits import CRASHED, HALTED, Diverged, End, end_of, records_of, say_end
from ringlog.agents.monitoring.health_view import AgentWatch
from ringlog.agents.ports import Acknowledge, Ended, RoleWorker
from ringlog.agents.status import read_said, view
from ringlog.cache.redis_url import BadRedisUrl, redis_address
from ringlog.files import FolderUnusable, private_folder, private_process, refused_by_files
from ringlog.log.archive.locations import place_of
from ringlog.log.errors import (
    ArchivePlaceUnknown,
    ArchiveUnavailable,
    LogDamaged,
    LogError,
    LogUnavailable,
    TopicMisconfigured,
    TopicMissing,
)
from ringlog.log.kafka.adapter import KafkaLog
from ringlog.log.kafka.diagnosis import why_no_answer
from ringlog.log.kafka.topics import (
    AGENTS,
    METADATA,
    admin_client,
    kafka_id,
    topic_name,
    verify_topics,
)
from ringlog.log.replicas.identity import ClusterRecords, Topic
from ringlog.log.replicas.replica import MISSING_S
from ringlog.log.replicas.topic_watch import Lost
from ringlog.protocol.roles import ROLES, Role
from ringlog.runtime.clock import SystemClock
from ringlog.runtime.kafka.security import BadKafkaConfig
from ringlog.runtime.logs import get_logger, setup_logs
from ringlog.runtime.monitoring.health import WHY_CHARS_MAX
from ringlog.runtime.process import rarely_collect
from ringlog.runtime.settings import BadProcessSettings, ProcessSettings
from ringlog.runtime.trust import BadTrustConfig, current, guard
from ringlog.wire.records import AgentStatus, encode_agent_status

if TYPE_CHECKING:
    from ringlog.agents.app import AgentApp

WAIT_FOR_TOPICS_S = 60.0
RETRY_S = 1.0
PARENT_LOOK_S = 0.5
PARENT_VARIABLE = "RINGLOG_AGENTS_PARENT"
"""Set by a supervisor for the processes that shall end with it: its process id."""

log = get_logger(__name__)


_SHELLS = "ringlog.agents.roles"


def _worker_of(role: Role) -> Callable[[ProcessSettings, Acknowledge, Ended], RoleWorker]:
    """What makes a worker of a role. A process loads the role that it is, and nothing of the others."""
    if role.steps:
        from ringlog.agents.roles.acks import PlainThread

        return partial(PlainThread, role)
    module = importlib.import_module(f"{_SHELLS}.{role.name}")
    made: Callable[[ProcessSettings, Acknowledge, Ended], RoleWorker] = getattr(
        module, f"{role.name.capitalize()}Thread"
    )
    return made


def make_agent(role: str, settings: ProcessSettings, ids: Mapping[str, str]) -> AgentApp:
    """The faust app of a role, which makes a worker for every assignment; ``ids``: those of all topics, by name."""
    from ringlog.agents.app import AgentApp

    spec = ROLES[role]
    make = partial(_worker_of(spec), settings)
    source, *others = (topic_name(settings.cluster, suffix) for suffix in (spec.source, *spec.uses))
    metadata = topic_name(settings.cluster, METADATA.suffix)
    topics = {name: ids[name] for name in (metadata, source, *others)}
    return AgentApp(role, settings, source, spec.reset, topics, make)


def main(role: str, settings: ProcessSettings) -> int:
    """Run one worker until it is asked to stop or ends by itself; returns the exit code."""
    setup_logs(settings.log_format, settings.log_level)
    try:
        if settings.metrics_port is not None:
            guard(settings.metrics_host, current(), insecure=settings.insecure)
    except BadTrustConfig as error:
        end = End(HALTED, f"not started: {error.code}: {error}")
        say_end(role, end)
        return end.code
    watch = AgentWatch(role, SystemClock().now_us)
    with _shown(watch, settings):
        end = _run_agent(role, settings, watch)
        say_end(role, end)
    return end.code


def _halted_at_start(role: str, settings: ProcessSettings, why: str) -> End:
    """Have ``agents status`` show it, unless another instance acts in the role."""
    end, now = End(HALTED, why), SystemClock().now_us()
    try:
        last = read_said(settings.bootstrap_servers, settings.cluster).get(role)
        if last is not None and view(last, last.epoch, now).is_at_work:
            return end
        epoch = 0 if last is None else last.epoch
        status = AgentStatus(role, "", 0, epoch, "halted", now, why=why[:WHY_CHARS_MAX])
        with closing(KafkaLog(settings.bootstrap_servers, settings.cluster, AGENTS)) as agents:
            agents.put(role, encode_agent_status(status))
    except LogError as error:
        log.warning("halt_not_reported", role=role, why=error.message)
    return end


@contextmanager
def _shown(watch: AgentWatch, settings: ProcessSettings) -> Iterator[None]:
    """Figures and health of the agent, if a port is set for them; who sets none loads nothing for it."""
    if settings.metrics_port is None:
        yield
        return
    from ringlog.runtime.monitoring.server import WatchServer

    server = WatchServer(watch, settings.metrics_host, settings.metrics_port)
    server.start()
    try:
        yield
    finally:
        server.stop()


def _run_agent(role: str, settings: ProcessSettings, watch: AgentWatch) -> End:
    try:
        if ROLES[role].stores:
            _check_places(settings)
        private_folder(settings.data_dir / "agents", ours=True)
        ids = _await_topics(settings, records_of(settings, role), watch)
        agent = make_agent(role, settings, ids)
        watch.look = agent.seen
    except (ArchiveUnavailable, TopicMissing, LogUnavailable) as error:
        return End(CRASHED, f"not started: {error.code}: {error}")
    except (TopicMisconfigured, LogDamaged) as error:
        return _halted_at_start(role, settings, f"not started: {error.code}: {error}")
    except Diverged as error:
        return _halted_at_start(role, settings, str(error))
    except (ArchivePlaceUnknown, BadKafkaConfig, BadRedisUrl, FolderUnusable) as error:
        return End(HALTED, f"not started: {error.code}: {error}")
    except OSError as error:
        refused = refused_by_files(error)
        if refused is None:
            raise
        return End(CRASHED, f"not started: {refused.code}: {refused}")
    rarely_collect()
    return agent.execute()


def _check_places(settings: ProcessSettings) -> None:
    """Where the keeper writes, before it takes the role from one that can. Raises BadRedisUrl, ArchivePlaceUnknown,
    ArchiveUnavailable.
    """
    redis_address(settings.redis_url)
    if settings.archive is not None:
        place_of(settings.archive)


def _await_topics(settings: ProcessSettings, records: ClusterRecords, watch: AgentWatch) -> Mapping[str, str]:
    """A worker that starts before its topic exists never sees it: wait for all topics, check their settings, give
    their ids.

    How far the log went is compared by who folds it; a stand-by has at least to know that it is the same log. Raises
    LogReplaced if it is not, Diverged if the metadata topic, which this agent has read before, stays missing.
    """
    admin = admin_client(settings.bootstrap_servers)
    metadata = topic_name(settings.cluster, METADATA.suffix)
    tick = threading.Event()
    waited, missing, kafka = 0.0, 0.0, ""
    while True:
        try:
            kafka = kafka_id(admin)
            ids = verify_topics(admin, settings.cluster, settings.bootstrap_servers, tend=True)
            records.meet(Topic(metadata, ids[metadata], kafka, None))
            return ids
        except (TopicMissing, LogUnavailable) as error:
            gone = isinstance(error, TopicMissing) and error.topic == metadata
            missing = missing + RETRY_S if gone else 0.0
            known = records.on(kafka) if missing > MISSING_S else ()
            if known:
                raise Diverged(end_of(Lost(metadata, known[0].topic_id, None), settings.cluster).detail) from error
            if waited >= WAIT_FOR_TOPICS_S:
                raise
            if waited % 10 == 0:
                known_why = why_no_answer(settings.bootstrap_servers) if isinstance(error, LogUnavailable) else ""
                watch.waits = " ".join(filter(None, (f"{error.code}: {error}", known_why)))
                log.info("waiting", cluster=settings.cluster, why=" ".join(filter(None, (str(error), known_why))))
        tick.wait(RETRY_S)
        waited += RETRY_S


def run(role: str) -> None:
    """The whole life of the process; never returns."""
    _end_with_parent()
    private_process()
    try:
        code = main(role, ProcessSettings())
    except BadProcessSettings as error:
        end = End(HALTED, f"not started: {error.code}: {error}")
        say_end(role, end)
        code = end.code
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads of client libraries may still be closing; nothing they could write matters any more.
    os._exit(code)


def _end_with_parent() -> None:
    """A process that a supervisor started stops when the supervisor is gone, however that one ended."""
    parent = int(os.environ.get(PARENT_VARIABLE, "0"))
    if not parent:
        return

    def watch() -> None:
        tick = threading.Event()
        while os.getppid() == parent:
            tick.wait(PARENT_LOOK_S)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="parent", daemon=True).start()
