"""A validator freezes at the worst moment: after it verified its role, before it takes the role's fence.

When the process continues, it takes the fence from its own successor. This costs only time: no answer is lost or
changed, because the terms in the log name the active instance. The broker fences the successor, and its supervisor
restarts it.
"""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from ringlog.client.client import Client
from ringlog.client.creation.creation import create_cluster
from tests.stopping import is_stopped

from .broker import Broker
from .checks import Checker
from .load import Commands
from .processes import Process
from .waiting import until
from .world import environment

FREEZES = """
import os, signal, sys
from ringlog.agents.fenced_producer import FencedProducer
from ringlog.agents.worker import run
initialise = FencedProducer.initialise

def freeze_and_initialise(self):
    os.kill(os.getpid(), signal.SIGSTOP)
    initialise(self)

FencedProducer.initialise = freeze_and_initialise
sys.argv = sys.argv[:1]
run("validator")
"""
SUPERVISED = """
import sys
from ringlog.agents.supervise import supervise
from ringlog.runtime.settings import ProcessSettings
sys.exit(supervise(ProcessSettings(), ("validator",)))
"""


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_a_validator_frozen_before_its_fence_takes_it(broker: Broker, tmp_path: Path, opened: ExitStack) -> None:
    cluster = f"z{uuid.uuid4().hex[:8]}"
    create_cluster(broker.bootstrap, cluster)
    client = opened.enter_context(Client(broker.bootstrap, cluster, "load"))
    frozen = Process("frozen", ["-c", FREEZES], environment(broker, cluster, "agents", tmp_path / "f"), tmp_path)
    opened.callback(frozen.end)
    until("the test", "the first validator to freeze", lambda: is_stopped(frozen.pid), why_not=frozen.tail)
    term = client.read_barrier().terms["validator"].term

    arguments = environment(broker, cluster, "agents", tmp_path / "s")
    supervisor = Process("supervised", ["-c", SUPERVISED], arguments, tmp_path)
    opened.callback(supervisor.end)
    commands = Commands(client, seed=5)
    opened.callback(commands.close)
    commands.run()

    def answers(count: int, when: str) -> None:
        before = len([each for each in commands.asked if each.answer is not None])
        until(
            "the client",
            f"{count} answers {when}",
            lambda: len([each for each in commands.asked if each.answer is not None]) >= before + count,
            why_not=lambda: f"{supervisor.tail()}\n{frozen.tail()}",
        )

    answers(30, "of the successor")
    assert client.state.terms["validator"].term > term
    os.kill(frozen.pid, signal.SIGCONT)
    until("the test", "the frozen validator to end", lambda: not frozen.runs(), why_not=frozen.tail)
    assert frozen.exit_code() == 3
    until("the supervisor", "its validator to be fenced", lambda: "was superseded" in supervisor.text())
    answers(30, "of the successor's successor")
    commands.pause()
    until("the client", "all answers", lambda: not commands.unanswered(), why_not=supervisor.tail)
    checker = Checker(broker, cluster)
    opened.callback(checker.close)
    checker.check_answers(commands)
