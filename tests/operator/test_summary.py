"""The first lines of ``ringlog status``: OK, or one reason per problem."""

from __future__ import annotations

from typing import Any

from ringlog.agents.status import AgentView
from ringlog.kernel.commands.cluster.features import EnableFeature, RequireFeature
from ringlog.kernel.commands.control.pauses import PauseChanges
from ringlog.kernel.commands.topology.nodes import DeclareDown, UpdateNode
from ringlog.kernel.commands.topology.operations import FailOperation
from ringlog.kernel.model.state import ClusterState
from ringlog.operator.rehearsal.rehearsal import acknowledgements
from ringlog.operator.views.summary import LONG_US, OK, WARN, status_view, summary
from ringlog.operator.views.words import OPERATION_COLUMNS, operation_rows
from ringlog.protocol.balancer.load_book import SILENT_US, LastReports
from ringlog.protocol.roles import ROLES
from tests.kernel import entries
from tests.kernel.operations.driver import applied, driven
from tests.kernel.zones.states import down
from tests.kernel.zones.zone_keyspaces import with_data
from tests.operator.test_waiting import asked

AT_WORK = tuple(AgentView(role, "i", 1, 10, "active", 0, 1.0) for role in ROLES)


def summary_of(state: ClusterState, silent: str = "", now: int = 0, acked: bool = True) -> dict[str, Any]:
    heard = LastReports({node.id: -SILENT_US if node.name == silent else 0 for node in state.nodes.values()}, 0)
    acks = acknowledgements(state, 0) if acked else {}
    return status_view(state, acks, heard, AT_WORK, {}, None, now) | {
        "clocks": ["clock_skew: an hour", "  a way out"],
        "writers_behind": [],
    }


def reasons(view: dict[str, Any], agents: tuple[AgentView, ...] = AT_WORK, now: int = 0) -> list[str]:
    found = summary(view, agents, now)
    assert (found["level"] == OK) == (not found["reasons"])
    return [one for one in found["reasons"] if not one.startswith("clock")]


def test_a_cluster_without_problems_is_ok() -> None:
    state, operation = asked("join")
    view = summary_of(driven(state, operation, "prepared"))
    assert summary(view | {"clocks": []}, AT_WORK, 0) == {"level": OK, "reasons": []}
    assert summary(view, AT_WORK, 0) == {"level": WARN, "reasons": ["clock_skew: an hour"]}


def test_an_upgrade_that_has_begun_is_a_reason() -> None:
    state = applied(entries.with_normal_nodes(entries.founded(), 1), RequireFeature("split"))
    since = f"feature split is required since epoch {state.epoch} and not enabled"
    assert reasons(summary_of(state)) == [f"{since}: upgrade n1"]
    able = applied(state, UpdateNode(entries.NODES[0], features=("split",)))
    enable = "ringlog cluster enable-feature split"
    assert reasons(summary_of(able)) == [f"{since}: all members support it: {enable}"]
    assert not reasons(summary_of(applied(able, EnableFeature("split"))))


def test_an_operation_is_a_reason_if_a_node_is_absent() -> None:
    state, operation = asked("join")
    state = driven(state, operation, "prepared")
    view = summary_of(state, silent="n2", acked=False)
    (row,) = operation_rows(view["operations"], 0)
    assert row[0] == operation
    assert "n2" in row[OPERATION_COLUMNS.index("waits for")]
    assert reasons(view) == [
        "node n2 is silent: last heard 90 s ago",
        f"{operation} waits for n2, which is down or silent",
    ]
    down = applied(state, DeclareDown("n2", "disk"))
    assert reasons(summary_of(down, acked=False)) == [
        "node n2 is declared down",
        f"{operation} waits for n2, which is down or silent",
    ]
    later = LONG_US + state.operations[operation].marks[-1].at
    assert reasons(summary_of(state, now=later), now=later) == [f"{operation} has been in stage prepared for 10 min"]
    failed = applied(driven(state, operation, "write_both_read_new"), FailOperation(operation, "disk full"))
    assert reasons(summary_of(failed)) == [f"{operation} needs a decision: ringlog operation show {operation}"]


def test_partitions_that_lost_their_majority_are_a_reason() -> None:
    state = with_data("AB", partitions=2, replicas=2)
    assert reasons(summary_of(state)) == []
    view = summary_of(entries.applied(state, *down("B")))
    assert view["zones"] == [
        {"zone": "z", "partitions": 2, "states": {"read_only": 2}, "stuck": view["zones"][0]["stuck"]}
    ]
    assert [one["partition"] for one in view["zones"][0]["stuck"]] == [0, 1]
    assert "zone z: 2 partitions are stuck: ringlog zone show z" in reasons(view)
    assert "zone z: 2 partitions are read_only" in reasons(view)


def test_agents_and_pauses_are_reasons() -> None:
    state, _ = asked("join")
    state = applied(state, PauseChanges(("schema",), reason="upgrade"))
    behind = AgentView("validator", "i", 1, 10, "active", 3, 1.0)
    halted = AgentView("coordinator", "i", 1, 10, "halted", 0, 1.0, why="log_replaced")
    found = reasons(summary_of(state), (behind, halted, *AT_WORK[3:]))
    assert "the coordinator is not working: halted" in found
    assert [one for one in found if "has reported" in one] == [f"no {list(ROLES)[2]} has reported"]
    assert not [one for one in found if "validator" in one]
    assert any(one.startswith("schema is paused") for one in found)
