"""Requests that are sent only once: rebalances and a SIGKILL lose none, and none takes effect twice.

An agent refuses to start on a topic that would lose entries.
"""

from __future__ import annotations

import os
import uuid
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest
from tests.system.topic_settings import alter

from ringlog.agents.exits import CRASHED, HALTED
from ringlog.kernel.commands.cdc.writers import AdvanceCdcWriter, RegisterCdcWriter
from ringlog.kernel.commands.cluster.cluster import Noop
from ringlog.kernel.model.outcome import Entry, Outcome, OutcomeKind, UnreadableEntry
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Command
from ringlog.log.kafka.adapter import KafkaLog
from ringlog.log.kafka.topics import METADATA, REQUESTS, admin_client, topic_name
from ringlog.protocol.submission.results import AppliedResult
from ringlog.stack import StackInfo
from ringlog.wire.commands import encode_command
from ringlog.wire.records import REJECTED, CommandRequest, encode_request

from .agents_world import DEADLINE_S, AgentsWorld, until

pytestmark = pytest.mark.system


class Sender:
    """Appends requests to their topic, each once, and counts the applied ones in the log."""

    def __init__(self, world: AgentsWorld) -> None:
        self.world = world
        self.sent: list[CommandRequest] = []
        self.applied: Counter[str] = Counter()
        self._log = KafkaLog(world.stack.bootstrap_servers, world.cluster, REQUESTS)
        world.client.replica.subscribe(self._follow)

    def _follow(
        self, _: ClusterState, _after: ClusterState, item: Entry | UnreadableEntry, out: Outcome, _at: int
    ) -> None:
        if out.kind is OutcomeKind.APPLIED and isinstance(item, Entry):
            self.applied[item.request_id] += 1

    def send(self, *commands: Command) -> list[CommandRequest]:
        since = self.world.state.epoch
        requests = [
            CommandRequest(str(uuid.uuid4()), since, "tester", *encode_command(command)) for command in commands
        ]
        self.append(requests)
        self.sent += requests
        return requests

    def append(self, requests: list[CommandRequest]) -> None:
        self._log.append([encode_request(request) for request in requests])

    def send_some(self) -> bool:
        return bool(self.send(*(Noop() for _ in range(40))))

    def close(self) -> None:
        self._log.close()


LEAVING = """
import asyncio, sys
from aiokafka.consumer.group_coordinator import GroupCoordinator
from ringlog.agents.worker import run

_, pipe, role = sys.argv
name = "_GroupCoordinator__coordination_routine"
real = getattr(GroupCoordinator, name)

async def routine(coordinator):
    work = asyncio.ensure_future(real(coordinator))
    await asyncio.to_thread(open, pipe)
    work.cancel()
    raise OSError("planted")

setattr(GroupCoordinator, name, routine)
run(role)
"""
"""An agent whose task for the consumer group ends with an error when the pipe is written."""


def members(world: AgentsWorld) -> int:
    """Return the number of validators in the group."""
    group = f"{world.cluster}.validator"
    admin = admin_client(world.stack.bootstrap_servers)
    return len(admin.describe_consumer_groups([group])[group].result(DEADLINE_S).members)


def test_each_request_is_applied_once(world: AgentsWorld) -> None:
    with closing(Sender(world)) as sender:
        first = world.start("validator")
        second = world.spawn("validator")
        until(lambda: sender.send_some() and members(world) == 2, "the second validator in the group")
        rebalanced = world.term("validator") > 1
        sender.send_some()
        (second if rebalanced else first).kill()
        before = world.term("validator")
        until(lambda: sender.send_some() and world.term("validator") > before, "the take-over")
        sender.send_some()
        sent = {request.request_id for request in sender.sent}
        until(lambda: sent <= sender.applied.keys(), "the last request to be applied")
        assert max(sender.applied.values()) == 1


@pytest.mark.soak("the next validator that repeats a rejection under its own term")
def test_a_rejected_request_stays_rejected(world: AgentsWorld) -> None:
    """The next validator keeps the rejection although it would accept the command."""
    world.start("validator")
    with closing(Sender(world)) as sender:
        check_rejections(world, sender)


def check_rejections(world: AgentsWorld, sender: Sender) -> None:
    """One validator rejects and is killed; the next one receives the same requests."""
    first = world.running("validator")
    world.spawn("validator")
    early: list[CommandRequest] = []
    for number in range(300):
        early += sender.send(AdvanceCdcWriter(f"w{number}", "a", 1, 0), RegisterCdcWriter(f"w{number}", "a"))[:1]
    until(lambda: any(result.outcome == REJECTED for result in world.results()), "the first rejection")
    before = world.term("validator")
    first.kill()
    world.await_term("validator", before + 1)
    sender.append(early)
    assert isinstance(world.client.submit(Noop(), timeout_s=DEADLINE_S), AppliedResult)

    def refused() -> set[tuple[str, int]]:
        return {(result.request_id, result.term) for result in world.results() if result.outcome == REJECTED}

    def rejected() -> set[str]:
        return {request_id for request_id, _ in refused()}

    until(lambda: len(refused()) > len(rejected()), "rejections under the next term")
    # The first validator may have died before it published all rejections; the next one decides those again and may
    # accept.
    asked = {request.request_id for request in early}
    until(lambda: rejected() | sender.applied.keys() >= asked, "an answer to every request")
    assert rejected() <= asked
    assert not rejected() & sender.applied.keys()
    assert len(world.state.writers) == 300


def test_a_standby_that_left_its_consumer_group_ends(world: AgentsWorld, tmp_path: Path) -> None:
    world.start("validator")
    os.mkfifo(pipe := tmp_path / "leave")
    standby = world.spawn("validator", ("-c", LEAVING, str(pipe)))
    until(lambda: members(world) == 2, "a standby in the group")
    assert standby.process.poll() is None
    pipe.write_text("")
    assert standby.exit_code() == CRASHED


def test_an_agent_on_a_topic_that_would_lose_entries_ends(stack: StackInfo, cluster_name: str, tmp_path: Path) -> None:
    with closing(AgentsWorld(stack, cluster_name, tmp_path)) as world:
        admin = admin_client(stack.bootstrap_servers)
        alter(admin, topic_name(cluster_name, METADATA.suffix), "retention.ms", "1000000")
        agent = world.spawn("keeper")
        assert agent.exit_code() == HALTED
        assert world.term("keeper") == 0
