"""One agent as a process: a faust worker for one role.

``python -m ringlog.agents ROLE`` runs it; exit codes in ``exits``.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from ringlog.agents.contract import Acknowledge, Ended, RoleWorker
from ringlog.agents.exits import CRASHED, HALTED
from ringlog.log.errors import LogUnavailable, TopicMisconfigured, TopicMissing
from ringlog.log.topics import ACKS, METADATA, REQUESTS, admin_client, topic_name, verify_topics
from ringlog.runtime.logs import setup_logs
from ringlog.runtime.settings import Settings

if TYPE_CHECKING:
    from ringlog.agents.app import AgentApp

WAIT_FOR_TOPICS_S = 60.0
RETRY_S = 1.0
PARENT_LOOK_S = 0.5
PARENT_VARIABLE = "RINGLOG_AGENTS_PARENT"
"""Set by a supervisor for the processes that shall end with it: its process id."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Role:
    """Where a role's worker is defined, the topic whose partition it gets, where a new group begins to read."""

    module: str
    thread: str
    source: str
    reset: str


_SHELLS = "ringlog.agents.shells"

ROLES: dict[str, Role] = {
    "validator": Role(f"{_SHELLS}.validator", "ValidatorThread", REQUESTS.suffix, "earliest"),
    "coordinator": Role(f"{_SHELLS}.coordinator", "CoordinatorThread", ACKS.suffix, "earliest"),
    "publisher": Role(f"{_SHELLS}.publisher", "PublisherThread", METADATA.suffix, "latest"),
    "keeper": Role(f"{_SHELLS}.keeper", "KeeperThread", METADATA.suffix, "latest"),
}
"""The roles, in the order in which they are started. A process loads the one that it is, and nothing of the others."""


def make_agent(role: str, settings: Settings) -> AgentApp:
    """The faust app of a role, which makes a worker for every assignment."""
    from ringlog.agents.app import AgentApp

    spec = ROLES[role]
    thread = getattr(importlib.import_module(spec.module), spec.thread)

    def make(acknowledge: Acknowledge, ended: Ended) -> RoleWorker:
        worker: RoleWorker = thread(settings, acknowledge, ended)
        return worker

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
    end = make_agent(role, settings).execute()
    log.info("stopped", role=role, code=end.code, why=end.detail)
    return end.code


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
