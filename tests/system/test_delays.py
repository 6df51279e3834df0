"""A live stack with injected delays: one node does not receive a stage, and the join names that node."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.system.agents_world import DEADLINE_S, until
from tests.system.nodes_world import opened
from tests.system.test_node_cluster import World
from typer.testing import CliRunner

from ringlog.cli.main import app
from ringlog.kernel.commands.schema.keyspaces import CreateKeyspace
from ringlog.kernel.model.state import Operation
from ringlog.kernel.operations.stages import FINISHED, WRITE_BOTH_READ_NEW
from ringlog.kernel.values import Replication
from ringlog.log.delays.control import FolderDelays
from ringlog.protocol.submission.results import AppliedResult
from ringlog.stack import StackInfo

pytestmark = [pytest.mark.system, pytest.mark.slow]


@pytest.fixture
def delays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FolderDelays:
    """Return the rules that all processes started later obey."""
    folder = tmp_path / "delays"
    monkeypatch.setenv("RINGLOG_DELAYS", str(folder))
    return FolderDelays(folder)


@pytest.fixture
def world(stack: StackInfo, cluster_name: str, tmp_path: Path, delays: FolderDelays) -> Iterator[World]:
    with opened(World, stack, tmp_path, cluster_name) as made:
        yield made


def ringlog(world: World, *words: str) -> Any:
    """Return the ``--json`` output of a command."""
    environment = {"RINGLOG_BOOTSTRAP_SERVERS": world.agents.stack.bootstrap_servers}
    answer = CliRunner().invoke(app, [*words, "--json"], env=environment | {"RINGLOG_CLUSTER": world.agents.cluster})
    assert answer.exit_code == 0, answer.output
    return json.loads(answer.stdout)


def test_a_live_stack_is_delayed_entry_by_entry(world: World, delays: FolderDelays) -> None:
    world.begin_all("n1")
    a_held_commit_arrives_after_its_release(world, delays)
    a_join_waits_for_a_delayed_node(world, delays)


def a_held_commit_arrives_after_its_release(world: World, delays: FolderDelays) -> None:
    """The validator's answer waits with its commit; no entry is lost or applied twice."""
    rule = ringlog(world, "sim", "hold", "--commit", "--to", "validator", "--kind", "CreateKeyspace")["name"]
    future = world.agents.client.submit_future(CreateKeyspace("late", Replication("simple", 1)), timeout_s=DEADLINE_S)
    held = delays.await_held(rule, "validator", timeout_s=DEADLINE_S)
    assert held.kind == "CreateKeyspace"
    assert "late" not in world.agents.client.read_barrier().keyspaces
    assert not future.done()
    ringlog(world, "sim", "release", rule)
    answer = future.result(DEADLINE_S)
    assert isinstance(answer, AppliedResult)
    assert "late" in world.agents.client.read_barrier().keyspaces
    applied = [entry for entry in world.agents.applied() if entry.request_id == answer.request_id]
    assert len(applied) == 1


def a_join_waits_for_a_delayed_node(world: World, delays: FolderDelays) -> None:
    """The display names the node, the others continue in the new stage, and the release ends the wait."""
    rule = ringlog(world, "sim", "hold", "--stage", WRITE_BOTH_READ_NEW, "--to", "node-n1")["name"]

    world.begin("n2")
    held = delays.await_held(rule, "node-n1", timeout_s=DEADLINE_S)
    assert held.kind == "AdvanceOperation"
    # n1 and this test's replica read the stage in either order.
    operation = until(lambda: in_stage(world.join(), WRITE_BOTH_READ_NEW), "the stage of the join")
    assert world.member("n2") is not None

    def at(name: str, epoch: int) -> dict[str, object] | None:
        found = world.status(name)
        return found if found is not None and int(str(found["epoch"])) >= epoch else None

    until(lambda: at("n2", operation.stage_epoch), "n2 to read the stage")
    behind = until(lambda: at("n1", operation.stage_epoch - 1), "n1 to acknowledge its epoch")
    assert int(str(behind["epoch"])) == operation.stage_epoch - 1
    assert behind["ready"]

    def shown() -> dict[str, Any]:
        (found,) = [each for each in ringlog(world, "operation", "list") if each["id"] == operation.id]
        return found

    # A node's acknowledgement follows its status page after a moment.
    until(lambda: shown()["waits_for_nodes"] == ["n1"], "the operation to wait only for n1")
    assert (shown()["stage"], shown()["node"]) == (WRITE_BOTH_READ_NEW, "n2")
    (seen,) = ringlog(world, "sim", "rules")["held"]
    assert (seen["rule"], seen["participant"], seen["offset"]) == (rule, "node-n1", held.offset)
    assert world.agents.client.read_barrier().operations[operation.id].stage == WRITE_BOTH_READ_NEW

    ringlog(world, "sim", "release", rule)
    until(lambda: world.agents.state.operations[operation.id].stage == FINISHED, "the join to end")
    world.await_normal("n1", "n2")
    until(lambda: delays.held() == (), "no held entries")


def in_stage(operation: Operation | None, stage: str) -> Operation | None:
    return operation if operation is not None and operation.stage == stage else None
