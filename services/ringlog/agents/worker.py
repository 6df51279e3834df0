"""One agent as a process: a faust worker for one role.

``python -m ringlog.agents ROLE`` runs it; exit codes in ``exits``.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from dataclasses import dataclass

import faust
import structlog

from ringlog.agents.app import Acknowledge, AgentApp, Ended, RoleWorker
from ringlog.agents.exits import CRASHED, HALTED, STOPPED
from ringlog.agents.shells.keeper import KeeperThread
from ringlog.agents.shells.role import RoleThread
from ringlog.agents.shells.validator import ValidatorThread
from ringlog.log.errors import LogUnavailable, TopicMisconfigured, TopicMissing
from ringlog.log.topics import METADATA, REQUESTS, admin_client, topic_name, verify_topics
from ringlog.runtime.logs import setup_logs
from ringlog.runtime.settings import Settings

WAIT_FOR_TOPICS_S = 60.0
RETRY_S = 1.0
PARENT_LOOK_S = 0.5
PARENT_VARIABLE = "RINGLOG_AGENTS_PARENT"
"""Set by a supervisor for the processes that shall end with it: its process id."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Role:
    """A role's worker, the topic whose partition it gets, and where a new consumer group begins to read it."""

    thread: type[RoleThread]
    source: str
    reset: str


ROLES: dict[str, Role] = {
    "validator": Role(ValidatorThread, REQUESTS.suffix, "earliest"),
    "keeper": Role(KeeperThread, METADATA.suffix, "latest"),
}
"""The roles, in the order in which they are started."""


def make_agent(role: str, settings: Settings) -> AgentApp:
    """The faust app of a role, which makes a worker for every assignment."""
    spec = ROLES[role]

    def make(acknowledge: Acknowledge, ended: Ended) -> RoleWorker:
        return spec.thread(settings, acknowledge, ended)

    return AgentApp(role, settings, topic_name(settings.cluster, spec.source), spec.reset, make)


def main(role: str, settings: Settings) -> int:
    """Run one worker until it is told to stop or ends by itself; returns the exit code."""
    setup_logs(settings.log_format, settings.log_level)
    try:
        _await_topics(settings)
    except (TopicMissing, LogUnavailable) as error:
        log.error("not_started", role=role, why=str(error))
        return CRASHED
    except TopicMisconfigured as error:
        log.error("not_started", role=role, why=str(error))
        return HALTED
    (settings.data_dir / "agents").mkdir(parents=True, exist_ok=True)
    agent = make_agent(role, settings)
    worker = faust.Worker(agent.app, loglevel="ERROR", quiet=True, redirect_stdouts=False)
    worker.spinner = None
    code = _execute(worker)
    # The role's own end is what counts; faust reports an orderly end as a crash as well.
    code = agent.end.code if agent.end.code != STOPPED else code
    log.info("stopped", role=role, code=code, why=agent.end.detail)
    return code


def _execute(worker: faust.Worker) -> int:
    try:
        worker.execute_from_commandline()
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else STOPPED
    except Exception:
        return CRASHED


def _await_topics(settings: Settings) -> None:
    """A worker that starts before its topic exists never sees it: wait for all topics, and check their settings."""
    admin = admin_client(settings.bootstrap_servers)
    tick = threading.Event()
    waited = 0.0
    while True:
        try:
            verify_topics(admin, settings.cluster, settings.bootstrap_servers)
            return
        except (TopicMissing, LogUnavailable) as error:
            if waited >= WAIT_FOR_TOPICS_S:
                raise
            if waited % 10 == 0:
                log.info("waiting", cluster=settings.cluster, why=str(error))
        tick.wait(RETRY_S)
        waited += RETRY_S


def run(role: str) -> None:
    """The whole life of the process; never returns."""
    _end_with_parent()
    code = main(role, Settings())
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
