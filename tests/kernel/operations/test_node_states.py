"""Node states as shown during an operation."""

from __future__ import annotations

import json
from typing import Any

import pytest
from immutables import Map

from ringlog.cache.projection import project as cache_of
from ringlog.kernel.changes import NodeChange, diff, project
from ringlog.kernel.commands.topology.nodes import DeclareDown
from ringlog.kernel.model.state import EMPTY_STATE, ClusterState, Node, Operation, Plan, StageMark
from ringlog.kernel.operations.node_states import NodeStatus, node_statuses, shown_nodes, shown_state
from ringlog.kernel.operations.stages import FINISHED, REQUESTED, STREAMING, WRITE_BOTH_READ_OLD
from ringlog.kernel.sections import NODES
from ringlog.kernel.values import replace
from ringlog.operator.views import views
from tests.kernel.operations.driver import applied, at_every_stage
from tests.operator.test_waiting import KINDS, asked


def _node(name: str, state: str, *tokens: int) -> Node:
    return Node(name, name, f"{name}:1", "dc1", "r1", 1, 12, "1", (), 1, state, tokens, 1)


def _operation(kind: str, node: str, stage: str, **more: Any) -> Operation:
    tokens = (1, 2, 3) if kind == "join" else ()
    marks = (StageMark(stage, 2, 0),)
    return Operation("one", kind, node, tokens, b"", stage, 2, Plan(), (), None, marks, (), "", **more)


def _state(operation: Operation | None, *nodes: Node) -> ClusterState:
    state = EMPTY_STATE
    for node in nodes:
        state = replace(state, nodes=state.nodes.set(node.id, node))
    return state if operation is None else replace(state, operations=state.operations.set(operation.id, operation))


@pytest.mark.parametrize(
    ("kind", "kept", "expected"),
    [
        ("join", "joining", NodeStatus("bootstrapping", 3)),
        ("move", "moving", NodeStatus("moving", 1)),
        ("leave", "leaving", NodeStatus("decommissioning", 1)),
        ("remove", "leaving", NodeStatus("removing", 1)),
    ],
)
def test_the_kind_of_an_operation_defines_the_node_state(kind: str, kept: str, expected: NodeStatus) -> None:
    tokens = () if kind == "join" else (7,)
    state = _state(_operation(kind, "a", WRITE_BOTH_READ_OLD), _node("a", kept, *tokens), _node("b", "normal", 9))
    assert node_statuses(state) == {"a": expected, "b": NodeStatus("normal", 1)}
    assert shown_state(state, "a") == expected.state


def test_a_replacement_names_the_replaced_node() -> None:
    running = _operation("replace", "a", WRITE_BOTH_READ_OLD, replaced="b")
    state = _state(running, _node("a", "joining"), _node("b", "leaving", 9))
    assert node_statuses(state) == {"a": NodeStatus("replacing", 0, "b"), "b": NodeStatus("removing", 1)}
    done = _state(None, replace(_node("a", "normal", 9), replaced="b"), _node("b", "left"))
    assert node_statuses(done) == {"a": NodeStatus("normal", 1, "b"), "b": NodeStatus("left", 0)}


def test_a_rebuild_shows_its_sources() -> None:
    node = _node("a", "normal", 9)
    waits = _operation("rebuild", "a", REQUESTED, source_datacenter="dc2")
    assert shown_state(_state(waits, node), "a") == "normal"
    streams = _state(replace(waits, stage=STREAMING), node)
    assert node_statuses(streams) == {"a": NodeStatus("rebuilding", 1, "", "dc2")}


def test_a_node_without_an_operation_keeps_its_state() -> None:
    nodes = [_node("a", "none"), _node("b", "normal", 9), _node("c", "left")]
    assert {name: status.state for name, status in node_statuses(_state(None, *nodes)).items()} == {
        "a": "none",
        "b": "normal",
        "c": "left",
    }


WORDS = {
    "join": {"x": "bootstrapping"},
    "leave": {"n3": "decommissioning"},
    "move": {"n3": "moving"},
    "replace": {"x": "replacing", "n3": "removing"},
    "remove": {"n3": "removing"},
    "rebuild": {"n3": "rebuilding"},
    "alter": {},
}


@pytest.mark.parametrize("kind", KINDS)
def test_topic_and_cache_contain_node_states(kind: str) -> None:
    first, operation = asked(kind)
    if kind == "replace":
        first = applied(first, DeclareDown("n3", "disk"))
    told = {key: change for (topic, key), change in project(first).items() if topic == NODES}
    before = first
    for stage, state in at_every_stage(first, operation).items():
        for record in diff(before, state):
            if record.topic == NODES and isinstance(record.value, NodeChange):
                told[record.key] = record.value
        before = state
        shown = {node: status.state for node, status in node_statuses(state).items()}
        assert {key: getattr(change, "state", "") for key, change in told.items()} == shown, stage
        cached = cache_of(state)["nodes"]
        assert {key: json.loads(text)["state"] for key, text in cached.items()} == shown, stage
        names = {state.nodes[node].name: word for node, word in shown.items()}
        if stage == "write_both_read_old":
            assert {name: word for name, word in names.items() if word not in ("none", "normal")} == WORDS[kind]


def test_the_replaced_node_outlives_the_operation_record() -> None:
    state, operation = asked("replace")
    state = at_every_stage(applied(state, DeclareDown("n3", "disk")), operation)[FINISHED]
    (new, old) = (next(node.id for node in state.nodes.values() if node.name == name) for name in ("x", "n3"))
    state = replace(state, operations=Map())
    assert views.nodes(state)[-1] | {"replaced": "n3"} == views.nodes(state)[-1]
    assert shown_nodes(state)[new].replaced == old
    change = project(state)[NODES, new]
    assert (getattr(change, "state", ""), getattr(change, "replaced", "")) == ("normal", old)
    assert json.loads(cache_of(state)["nodes"][new])["replaced"] == old


def test_nodes_without_operations_are_unchanged_objects() -> None:
    state, operation = asked("join")
    state = at_every_stage(state, operation)["write_both_read_old"]
    kept = [node for node, shown in shown_nodes(state).items() if shown is state.nodes[node]]
    assert len(kept) == len(state.nodes) - 1, "a difference costs only the changes"
