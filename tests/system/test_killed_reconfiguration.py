"""SIGKILL ends coordinator, validator and the new member at each step of a reconfiguration.

The CMS has one member, and its place alternates between two nodes. Each exchange has four steps (joining, member,
leaving, gone), and the coordinator requests each step as an entry.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.system.agents_world import AgentProcess, AgentsWorld, until
from tests.system.nodes_world import NodesWorld, opened

from ringlog.kernel.commands.cluster.service import ReconfigureService
from ringlog.kernel.encoding.encoder import digest
from ringlog.kernel.fold import fold
from ringlog.kernel.model.outcome import OutcomeKind
from ringlog.kernel.model.state import EMPTY_STATE, ClusterState
from ringlog.kernel.service import GONE, JOINING, LEAVING, MEMBER, read_group
from ringlog.log.kafka.topics import METADATA
from ringlog.node.log.log_copy import COPY, read_copy_state
from ringlog.stack import StackInfo
from ringlog.wire.entries import decode_entry

pytestmark = [pytest.mark.system, pytest.mark.slow]

DEADLINE_S = 120.0
BEFORE, AFTER = (0, 1, 1, 1), (0, 0, 0, 0)
"""The number of own steps before each successive process dies: before each of the four steps, or right after it."""
ASKS = "ringlog.agents.roles.controller", "ControllerThread", "_submit"
VALIDATOR = """
import os, signal, sys
from ringlog.agents.worker import run
from ringlog.log.kafka.adapter import KafkaLog

moment, left, role = sys.argv[1], int(sys.argv[2]), sys.argv[3]
real = KafkaLog.append_async

def step(self, records):
    global left
    is_step = b"AdvanceService" in b"".join(records)
    left -= is_step
    if is_step and left < 0 and moment == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    sent = real(self, records)
    if is_step and left < 0:
        sent.result()
        os.kill(os.getpid(), signal.SIGKILL)
    return sent

KafkaLog.append_async = step
run(role)
"""
"""A validator that dies before, or right after, the append of a CMS step."""
NODE = """
import importlib, os, signal, sys
from ringlog.cli.main import main
from ringlog.node.log import member_copy

module, owner, name = sys.argv[1:4]
del sys.argv[1:4]
found = importlib.import_module(module)
found = getattr(found, owner) if owner else found
real, opened, has_copy = getattr(found, name), member_copy.open_copy, []

def open_copy(*arguments):
    copy = opened(*arguments)
    has_copy.append(True)
    return copy

def step(*arguments, **options):
    if has_copy or name == "write_frames":
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*arguments, **options)

setattr(found, name, step)
member_copy.open_copy = open_copy
main()
"""
"""A node that dies before a step of its promotion to member."""
MEMBER_STEPS = (
    ("ringlog.node.log.log_copy", "", "write_frames"),  # the file of the copy exists
    ("ringlog.node.log.log_copy", "CopyFile", "append"),  # entries are in it
    ("ringlog.node.identity", "NodeFolder", "keep"),  # the epoch of the next acknowledgement is on the disk
    ("ringlog.node.reports.acks", "Acks", "_publish"),  # the step that makes it a member
)


class World(NodesWorld):
    """A member and another node."""

    def __init__(self, agents: AgentsWorld, folder: Path) -> None:
        super().__init__(agents, folder)
        self.chosen, self.exchanges = "n1", 0
        self.begin_all("n1", "n2")
        self.ids = {name: agents.state.node_names[name] for name in self.nodes}
        self.submit(ReconfigureService(1, False, (self.ids["n2"],)))
        self.await_member()

    @property
    def other(self) -> str:
        return "n2" if self.chosen == "n1" else "n1"

    def exchange(self) -> None:
        """Request the other node as member."""
        self.submit(ReconfigureService(excluded=(self.ids[self.chosen],)))
        self.chosen, self.exchanges = self.other, self.exchanges + 1

    def await_member(self) -> None:
        alone = [(self.ids[self.chosen], MEMBER)]
        until(
            lambda: [(one.node, one.stage) for one in self.agents.state.service.values()] == alone,
            f"{self.chosen} to be the only member",
            DEADLINE_S,
        )

    def exchanged(self, role: str, start: Callable[[int], AgentProcess], lives: tuple[int, ...]) -> None:
        """Exchange the member while processes of the role, started by ``start``, die one after the other."""
        for number, left in enumerate(lives):
            if number == 0:
                self.agents.running(role).kill()
            dying = start(left)
            if number == 0:
                self.exchange()
            assert dying.exit_code() == -signal.SIGKILL, (role, number)
        self.agents.start(role)
        self.await_member()

    def start_validator(self, moment: str, left: int) -> AgentProcess:
        before = self.agents.term("validator")
        agent = self.agents.spawn("validator", ("-c", VALIDATOR, moment, str(left)))
        self.agents.await_term("validator", before + 1)
        return agent

    def history(self) -> tuple[list[tuple[str, str]], dict[int, ClusterState]]:
        """Return (node, stage) of each applied step, in order; and all states."""
        state, steps, states = EMPTY_STATE, list[tuple[str, str]](), dict[int, ClusterState]()
        for data in self.agents.records(METADATA, committed=False):
            entry = decode_entry(data)
            folded = fold(state, entry)
            if folded.outcome.kind is OutcomeKind.APPLIED and entry.kind == "AdvanceService":
                before, after = dict(state.service), dict(folded.state.service)
                (node,) = {name for name in {*before, *after} if before.get(name) != after.get(name)}
                steps.append((node, after[node].stage if node in after else GONE))
            state = states[folded.state.epoch] = folded.state
        return steps, states


@pytest.mark.soak("tests/kernel/commands/test_service.py, which takes each step from each state; a release runs this")
def test_a_service_is_reconfigured_despite_kills(stack: StackInfo, cluster_name: str, tmp_path: Path) -> None:
    with opened(World, stack, tmp_path, cluster_name) as world:
        agents = world.agents
        world.exchanged("validator", lambda left: world.start_validator("before", left), BEFORE)
        world.exchanged("validator", lambda left: world.start_validator("after", left), AFTER)
        world.exchanged("coordinator", lambda left: agents.start_dying("coordinator", *ASKS, left), BEFORE)
        for step in MEMBER_STEPS:
            node = world.nodes[world.other]
            assert node.terminate() == 0
            node.restart(("-c", NODE, *step))
            world.exchange()
            until(node.is_dead, f"{world.chosen} to be killed before {step[-1]}", DEADLINE_S)
            assert node.process.returncode == -signal.SIGKILL, (step, node.log.read_text()[-3_000:])
            assert agents.client.read_barrier(DEADLINE_S).service[world.ids[world.chosen]].stage == JOINING
            node.restart()
            world.await_member()

        steps, states = world.history()
        expected, members = [(world.ids["n1"], JOINING), (world.ids["n1"], MEMBER)], ("n1", "n2")
        for number in range(world.exchanges):
            before, after = (world.ids[members[(number + place) % 2]] for place in (0, 1))
            expected += [(after, JOINING), (after, MEMBER), (before, LEAVING), (before, GONE)]
        assert steps == expected, "each step once, in its order"
        first = min(epoch for epoch, state in states.items() if read_group(state))
        assert all(read_group(state) for epoch, state in states.items() if epoch >= first), "always with a reader"

        assert world.nodes[world.chosen].terminate() == 0
        held = read_copy_state(tmp_path / f"{cluster_name}.{agents.state.cluster_id}" / world.chosen / COPY)
        assert held.at.state.epoch > first
        assert digest(held.at.state) == digest(states[held.at.state.epoch])
