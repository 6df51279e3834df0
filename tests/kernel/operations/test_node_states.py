"""What nodes are doing, by the operation in flight."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ringlog.kernel.operations.node_states import NodeStatus, node_statuses, shown_state
from ringlog.kernel.operations.stages import FINISHED, REQUESTED, STREAMING, WRITE_BOTH_READ_OLD
from ringlog.kernel.state import EMPTY_STATE, ClusterState, Node, Operation, Plan, StageMark


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
def test_the_kind_of_an_operation_says_what_its_node_does(kind: str, kept: str, expected: NodeStatus) -> None:
    tokens = () if kind == "join" else (7,)
    state = _state(_operation(kind, "a", WRITE_BOTH_READ_OLD), _node("a", kept, *tokens), _node("b", "normal", 9))
    assert node_statuses(state) == {"a": expected, "b": NodeStatus("normal", 1)}
    assert shown_state(state, "a") == expected.state


def test_a_replacement_names_the_node_before_it_and_goes_on_to_do_so() -> None:
    running = _operation("replace", "a", WRITE_BOTH_READ_OLD, replaced="b")
    state = _state(running, _node("a", "joining"), _node("b", "leaving", 9))
    assert node_statuses(state) == {"a": NodeStatus("replacing", 0, "b"), "b": NodeStatus("removing", 1)}
    done = _state(replace(running, stage=FINISHED), _node("a", "normal", 9), _node("b", "left"))
    assert node_statuses(done) == {"a": NodeStatus("normal", 1, "b"), "b": NodeStatus("left", 0)}


def test_a_rebuild_shows_when_it_streams_and_where_from() -> None:
    node = _node("a", "normal", 9)
    waits = _operation("rebuild", "a", REQUESTED, source_datacenter="dc2")
    assert shown_state(_state(waits, node), "a") == "normal"
    streams = _state(replace(waits, stage=STREAMING), node)
    assert node_statuses(streams) == {"a": NodeStatus("rebuilding", 1, "", "dc2")}


def test_a_node_that_no_operation_is_about_is_what_it_was() -> None:
    nodes = [_node("a", "none"), _node("b", "normal", 9), _node("c", "left")]
    assert {name: status.state for name, status in node_statuses(_state(None, *nodes)).items()} == {
        "a": "none",
        "b": "normal",
        "c": "left",
    }
