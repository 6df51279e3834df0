"""``ringlog plan`` on a log in memory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ringlog.cli.cluster import plans
from ringlog.client.client import Client
from ringlog.kernel.commands.control.plans import RequireApprovals
from ringlog.kernel.commands.control.principals import CreatePrincipal
from ringlog.kernel.commands.topology.nodes import UpdateNode
from ringlog.kernel.model.principals import ADMIN
from ringlog.kernel.values import Command
from ringlog.log.archive.archive import all_records
from ringlog.operator.answers import ways_after
from ringlog.operator.history.log_past import Past
from ringlog.operator.intents.intents import named
from ringlog.operator.rehearsal.rehearsal import Rehearsal
from ringlog.protocol.submission.results import AppliedResult, RejectedResult
from tests.cli.authoring import authoring, run
from tests.fuzz.world import node

GROW = [
    {"command": "RegisterNode", "name": "n1"},
    {"command": "Join", "node": "n1", "num_tokens": 2},
]


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    with authoring(monkeypatch) as client:

        @contextmanager
        def past_of(_: object, near: int) -> Iterator[Past]:
            assert near >= 1
            yield Past(all_records(client.replica.log, None))

        monkeypatch.setattr(plans, "past_of", past_of)
        yield client


def staged(tmp_path: Path, *commands: dict[str, Any], name: str = "grow") -> tuple[int, str, str]:
    file = tmp_path / "plan.json"
    file.write_text("".join(f"{json.dumps(one)}\n\n" for one in commands))
    return run("plan", "stage", name, str(file), "--expires", "600")


def apply(client: Client, *commands: Command) -> None:
    for command in commands:
        assert isinstance(client.direct.submit(command), AppliedResult)


def test_a_plan_is_staged_shown_and_approved(client: Client, tmp_path: Path) -> None:
    assert run("plan", "list")[1] == "no plan is staged\n"
    assert staged(tmp_path, *GROW)[1].startswith("applied at epoch 2 ")
    assert "RegisterNode, Join" in run("plan", "list")[1]
    (row,) = json.loads(run("plan", "list", "--json")[1])["plans"]
    assert (row["name"], row["author"], row["staged"], row["commands"], row["needs_approval"]) == (
        *("grow", "cli", 2, ["RegisterNode", "Join"]),
        [],
    )
    shown = run("plan", "show", "grow")[1]
    assert shown.startswith("grow, staged with epoch 2 by cli, expires at ")
    assert '  {"command": "RegisterNode"' in shown
    assert "effect:\n" in shown
    assert "\n  node_names n1 added\n" in shown
    assert run("plan", "approve", "grow", "--staged", "1")[2].startswith("plan_changed: ")
    answer = json.loads(run("plan", "approve", "grow", "--staged", "2", "--json")[1])
    assert (answer["outcome"], answer["operation"]) == ("applied", "join-3-1")
    assert run("plan", "approve", "grow")[2].startswith("unknown_plan: ")


def test_both_effects_are_shown_once_they_differ(client: Client, tmp_path: Path) -> None:
    apply(client, node(1))
    staged(tmp_path, {"command": "UpdateNode", "node": "n1", "capacity": 9, "address": "127.0.0.1:9"})
    apply(client, UpdateNode(node_id(client), address="127.0.0.1:9"))
    shown = run("plan", "show", "grow")[1]
    assert "effect when it was staged:\n  nodes n1 changed: address, capacity\n" in shown
    assert "effect now:\n  nodes n1 changed: capacity\n" in shown
    view = json.loads(run("plan", "show", "grow", "--json")[1])
    assert (view["unchanged"], view["effect"], view["rejected"]) == (False, ["nodes n1 changed: capacity"], None)
    assert run("plan", "approve", "grow")[2].startswith("plan_changed: ")


def test_a_command_that_is_now_rejected_is_shown(client: Client, tmp_path: Path) -> None:
    staged(tmp_path, GROW[0])
    apply(client, node(1))
    assert "effect now:\n  duplicate_name: commands, 1 of 1: " in run("plan", "show", "grow")[1]
    assert json.loads(run("plan", "show", "grow", "--json")[1])["rejected"]["code"] == "duplicate_name"


def test_a_plan_is_rejected(client: Client, tmp_path: Path) -> None:
    staged(tmp_path, *GROW)
    assert run("plan", "reject", "grow", "--reason", "too early")[0] == 0
    assert len(client.read_barrier().plans) == 0
    assert run("plan", "reject", "grow")[2].startswith("unknown_plan: ")


def test_approvals_are_demanded_and_ended(client: Client, tmp_path: Path) -> None:
    assert run("plan", "require", "TruncateLog")[2].startswith("second_admin_needed: ")
    apply(client, CreatePrincipal("ann", ADMIN), CreatePrincipal("bob", ADMIN))
    assert run("plan", "require", "TruncateLog", "DropKeyspace")[0] == 0
    assert "commands that need an approval: DropKeyspace, TruncateLog" in run("plan", "list")[1]
    assert staged(tmp_path, {"command": "EnterRecovery", "reason": "lost", "operator": "ann"}, name="free")[0] == 0
    assert staged(tmp_path, {"command": "GrantRole", "principal": "ann", "role": "operator"})[0] == 0
    assert "needs the approval of a second principal: GrantRole" in run("plan", "show", "grow")[1]
    assert run("plan", "approve", "grow")[2].startswith("approval_needed: ")
    assert run("plan", "approve", "free")[0] == 0
    assert run("plan", "require", "--none")[0] == 0
    assert run("plan", "require")[0] == 2


def test_a_refused_command_comes_with_the_line_that_stages_it(client: Client) -> None:
    command = RequireApprovals(("DropKeyspace",))
    refusal = RejectedResult("r", "approval_needed", "why", 1)
    (line,) = ways_after(client.state, named(command), refusal)
    expected = (
        """stage it: ringlog plan stage NAME <<<'{"command": "RequireApprovals", "commands": ["DropKeyspace"]}'"""
    )
    assert line == expected


@pytest.mark.parametrize(
    ("text", "status", "code"),
    [
        ("{", 2, "bad_json: line 1: "),
        ('\n{"command": "Noop"}\n{"command": "Nothing"}', 2, "unknown_command: line 3: "),
        ('{"command": "StagePlan", "plan": "p", "commands": []}', 1, "bad_field: commands, 1 of 1: "),
        ("", 1, "bad_field: commands: "),
    ],
)
def test_invalid_plans_are_refused(client: Client, tmp_path: Path, text: str, status: int, code: str) -> None:
    file = tmp_path / "plan.json"
    file.write_text(text)
    found = run("plan", "stage", "p", str(file))
    assert (found[0], found[2][: len(code)]) == (status, code)
    assert run("plan", "stage", "p", str(tmp_path / "none"))[2].startswith("bad_file: ")
    assert run("plan", "show", "p")[2].startswith("unknown_plan: ")


def test_a_rehearsal_knows_plans() -> None:
    rehearsal = Rehearsal()

    def outcome(value: dict[str, Any]) -> Any:
        answer = rehearsal.line(json.dumps(value), 1)
        return answer.get("code") or answer.get("outcome")

    for name in ("ann", "bob"):
        value = {"command": "CreatePrincipal", "name": name, "role": "admin", "as": "ann" if name == "bob" else name}
        assert outcome(value) == "applied"
    demand = {"command": "RequireApprovals", "commands": ["EnterRecovery"], "as": "ann"}
    enter = {"command": "EnterRecovery", "reason": "lost", "operator": "ann"}
    assert outcome(demand) == "applied"
    assert outcome(enter | {"as": "ann"}) == "approval_needed"
    assert outcome({"command": "StagePlan", "plan": "p", "commands": [enter], "as": "ann"}) == "applied"
    assert rehearsal.line('{"show": "plans"}', 1)["plans"][0]["needs_approval"] == ["EnterRecovery"]
    approve = {"command": "ApprovePlan", "plan": "p"}
    assert [outcome(approve | {"as": name}) for name in ("ann", "bob", "bob")] == [
        *("approval_needed", "applied", "unknown_plan")
    ]
    assert outcome({"command": "StagePlan", "plan": "p", "commands": [{"command": "Noop", "x": 1}]}) is not None


def node_id(client: Client) -> str:
    (one,) = client.read_barrier().nodes
    return one
