"""The process of one agent: a faust worker for one role.

``python -m ringlog.agents ROLE`` runs it. See ``exits`` for its exit codes.
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

from ringlog import __version__
from ringlog.agents.exits import CRASHED, HALTED, Diverged, End, end_of, log_end, records_of
from ringlog.agents.monitoring.health_view import AgentWatch
from ringlog.agents.ports import Acknowledge, Ended, RoleWorker
from ringlog.agents.status import read_statuses, view
from ringlog.cache.redis_url import BadRedisUrl, redis_address
from ringlog.files import FolderUnusable, private_folder, private_process, refused_by_files
from ringlog.log.archive.locations import open_location
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
from ringlog.log.kafka.diagnosis import connection_failure
from ringlog.log.kafka.topics import (
    AGENTS,
    METADATA,
    admin_client,
    kafka_id,
    topic_name,
    verify_topics,
)
from ringlog.log.replicas.identity import ClusterIdentityStore, Topic
from ringlog.log.replicas.replica import MISSING_S
from ringlog.log.replicas.topic_watch import LostTopic
from ringlog.protocol.roles import ROLES, Role
from ringlog.runtime.clock import SystemClock
from ringlog.runtime.kafka.security import BadKafkaConfig
from ringlog.runtime.logs import get_logger, setup_logs
from ringlog.runtime.monitoring.health import WHY_CHARS_MAX
from ringlog.runtime.process import reduce_gc
from ringlog.runtime.settings import BadProcessSettings, ProcessSettings
from ringlog.runtime.trust import BadTrustConfig, check_listen_address, current
from ringlog.wire.records import AgentStatus, encode_agent_status

if TYPE_CHECKING:
    from ringlog.agents.app import AgentApp

WAIT_FOR_TOPICS_S = 60.0
RETRY_S = 1.0
PARENT_LOOK_S = 0.5
PARENT_VARIABLE = "RINGLOG_AGENTS_PARENT"
"""The process id of the supervisor, in the environment of processes that must end with it."""

log = get_logger(__name__)


_SHELLS = "ringlog.agents.roles"


def _worker_of(role: Role) -> Callable[[ProcessSettings, Acknowledge, Ended], RoleWorker]:
    """Return the factory of a role's workers. Only the modules of this role are imported."""
    if role.steps:
        from ringlog.agents.roles.acks import PlainThread

        return partial(PlainThread, role)
    module = importlib.import_module(f"{_SHELLS}.{role.name}")
    made: Callable[[ProcessSettings, Acknowledge, Ended], RoleWorker] = getattr(
        module, f"{role.name.capitalize()}Thread"
    )
    return made


def make_agent(role: str, settings: ProcessSettings, ids: Mapping[str, str]) -> AgentApp:
    """Return the faust app of a role. It makes a worker for every assignment. ``ids``: of all topics, by name."""
    from ringlog.agents.app import AgentApp

    spec = ROLES[role]
    make = partial(_worker_of(spec), settings)
    source, *others = (topic_name(settings.cluster, suffix) for suffix in (spec.source, *spec.uses))
    metadata = topic_name(settings.cluster, METADATA.suffix)
    topics = {name: ids[name] for name in (metadata, source, *others)}
    return AgentApp(role, settings, source, spec.reset, topics, make)


def main(role: str, settings: ProcessSettings) -> int:
    """Run one worker until a stop is requested or it ends itself. Return the exit code."""
    setup_logs(settings.log_format, settings.log_level)
    try:
        if settings.metrics_port is not None:
            check_listen_address(settings.metrics_host, current(), insecure=settings.insecure)
    except BadTrustConfig as error:
        end = End(HALTED, f"not started: {error.code}: {error}")
        log_end(role, end)
        return end.code
    watch = AgentWatch(role, SystemClock().now_us)
    with _shown(watch, settings):
        end = _run_agent(role, settings, watch)
        log_end(role, end)
    return end.code


def _halted_at_start(role: str, settings: ProcessSettings, why: str) -> End:
    """Publish the halt for ``agents status``, unless another instance is active in the role."""
    end, now = End(HALTED, why), SystemClock().now_us()
    try:
        last = read_statuses(settings.bootstrap_servers, settings.cluster).get(role)
        if last is not None and view(last, last.epoch, now).is_at_work:
            return end
        epoch = 0 if last is None else last.epoch
        status = AgentStatus(role, "", 0, epoch, "halted", now, why=why[:WHY_CHARS_MAX], release=__version__)
        with closing(KafkaLog(settings.bootstrap_servers, settings.cluster, AGENTS)) as agents:
            agents.put(role, encode_agent_status(status))
    except LogError as error:
        log.warning("halt_not_reported", role=role, why=error.message)
    return end


@contextmanager
def _shown(watch: AgentWatch, settings: ProcessSettings) -> Iterator[None]:
    """Serve metrics and health of the agent if a port is set. Otherwise nothing is imported for it."""
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
    """Check the configuration, wait for the topics, and run the agent. Return its end."""
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
    reduce_gc()
    return agent.execute()


def _check_places(settings: ProcessSettings) -> None:
    """Check the places that the cache writer writes to, before it takes the role from an instance that can write.

    Raises BadRedisUrl, ArchivePlaceUnknown, ArchiveUnavailable.
    """
    redis_address(settings.redis_url)
    if settings.archive is not None:
        open_location(settings.archive)


def _await_topics(settings: ProcessSettings, records: ClusterIdentityStore, watch: AgentWatch) -> Mapping[str, str]:
    """Wait for all topics, check their settings, and return their ids.

    A faust worker never sees a topic that is created after its start. The log must be the one that this agent has read
    before. The replica of the active instance compares its length later.

    Raises LogReplaced if it is another log, Diverged if the metadata topic of a known log stays missing.
    """
    admin = admin_client(settings.bootstrap_servers)
    metadata = topic_name(settings.cluster, METADATA.suffix)
    tick = threading.Event()
    waited, missing, kafka = 0.0, 0.0, ""
    while True:
        try:
            kafka = kafka_id(admin)
            ids = verify_topics(admin, settings.cluster, settings.bootstrap_servers, tend=True)
            records.check_topic(Topic(metadata, ids[metadata], kafka, None))
            return ids
        except (TopicMissing, LogUnavailable) as error:
            gone = isinstance(error, TopicMissing) and error.topic == metadata
            missing = missing + RETRY_S if gone else 0.0
            # A broker that has just started may not know all its topics yet, so only a longer absence counts.
            known = records.on_kafka_cluster(kafka) if missing > MISSING_S else ()
            if known:
                raise Diverged(end_of(LostTopic(metadata, known[0].topic_id, None), settings.cluster).detail) from error
            if waited >= WAIT_FOR_TOPICS_S:
                raise
            if waited % 10 == 0:
                known_why = connection_failure(settings.bootstrap_servers) if isinstance(error, LogUnavailable) else ""
                watch.waits = " ".join(filter(None, (f"{error.code}: {error}", known_why)))
                log.info("waiting", cluster=settings.cluster, why=" ".join(filter(None, (str(error), known_why))))
        tick.wait(RETRY_S)
        waited += RETRY_S


def run(role: str) -> None:
    """Run the whole life of the process. Never returns."""
    _end_with_parent()
    private_process()
    try:
        code = main(role, ProcessSettings())
    except BadProcessSettings as error:
        end = End(HALTED, f"not started: {error.code}: {error}")
        log_end(role, end)
        code = end.code
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads of client libraries may still be closing. Nothing that they could write matters.
    os._exit(code)


def _end_with_parent() -> None:
    """Stop the process when its supervisor is gone, for any reason."""
    parent = int(os.environ.get(PARENT_VARIABLE, "0"))
    if not parent:
        return

    def watch() -> None:
        tick = threading.Event()
        while os.getppid() == parent:
            tick.wait(PARENT_LOOK_S)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="parent", daemon=True).start()
