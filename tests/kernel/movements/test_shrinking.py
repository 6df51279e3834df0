"""A group that shrinks: enough remaining members get the rows of each quorum of the old group."""

from __future__ import annotations

import pytest

from ringlog.kernel.commands.schema.keyspaces import AlterKeyspace
from ringlog.kernel.commands.topology.movements import Assassinate, Leave, Remove
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.operations.gates import gaining_nodes, gate
from ringlog.kernel.values import Replication
from tests.kernel.movements.clusters import ENTIRE, network, placed, simple
from tests.kernel.operations.driver import admitted, applied, at_every_stage, refused


def ring(count: int, *settings: Replication, down: tuple[str, ...] = ()) -> ClusterState:
    return placed({f"n{n}": (f"d/r{n}", [10 * n]) for n in range(1, count + 1)}, *settings, down=down)


def streams(state: ClusterState, operation: str, end: int) -> dict[str, set[str]]:
    """Return target to sources for the range with this end."""
    found: dict[str, set[str]] = {}
    for one in state.operations[operation].plan.sources:
        if one.end == end:
            found.setdefault(one.target, set()).add(one.source)
    return found


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (2, 1, {}),  # each quorum of two contains both
        (3, 2, {"n1": {"n2"}, "n2": {"n1"}}),
        (3, 1, {"n1": {"n2"}}),
        (4, 3, {}),  # of three of four, two remain
        (4, 2, {"n1": {"n2", "n3"}, "n2": {"n1", "n3"}}),
        (5, 3, {"n1": {"n2", "n3"}, "n2": {"n1", "n3"}}),
        (5, 4, {"n1": {"n2", "n3"}, "n2": {"n1", "n3"}, "n3": {"n1", "n2"}}),
    ],
)
def test_fewer_replicas(before: int, after: int, expected: dict[str, set[str]]) -> None:
    state, operation = admitted(ring(6, simple(before)), AlterKeyspace("ks0", simple(after)))
    assert streams(state, operation, 10) == expected


def test_a_datacenter_is_dropped() -> None:
    """One node of the first datacenter and three of the second are a quorum of six. Two nodes must get their rows."""
    places = {f"{dc}{n}": (f"{dc}/r{n}", [10 * n + len(dc)]) for dc in ("a", "bb") for n in (1, 2, 3)}
    state, operation = admitted(placed(places, network(a=3, bb=3)), AlterKeyspace("ks0", network(a=3)))
    assert streams(state, operation, 11) == {"a1": {"a2", "bb1", "bb2"}, "a2": {"a1", "bb1", "bb2"}}


def test_a_node_leaves_a_keyspace_that_is_everywhere() -> None:
    state, operation = admitted(ring(5, ENTIRE), Leave("n5"))
    assert set(streams(state, operation, 2**63 - 1)) == {"n1", "n2", "n3"}
    state, operation = admitted(ring(4, ENTIRE), Leave("n4"))
    assert state.operations[operation].plan.sources == ()


def test_a_merging_node_counts_as_a_gaining_node() -> None:
    first, operation = admitted(ring(3, simple(3)), AlterKeyspace("ks0", simple(1)))
    assert gaining_nodes(first.operations[operation]) == ("n1", "n2", "n3")
    for stage, at in at_every_stage(first, operation).items():
        if stage in ("prepared", "write_both_read_old"):
            assert gate(at, at.operations[operation]).must == ("n1", "n2", "n3")


def test_dead_nodes_are_neither_sources_nor_targets() -> None:
    state, operation = admitted(ring(5, ENTIRE, down=("n1", "n5")), Remove("n5", ("n1",)))
    found = streams(state, operation, 2**63 - 1)
    assert found == {"n2": {"n3", "n4"}, "n3": {"n2", "n4"}, "n4": {"n2", "n3"}}


def test_too_few_survivors_to_recover_all_rows() -> None:
    state = ring(5, ENTIRE, down=("n3", "n4", "n5"))
    assert refused(state, Remove("n5", ("n3", "n4"))).code == "too_few_replicas"
    ended = applied(state, Assassinate("n5"))
    (operation,) = ended.operations.values()
    assert "rows of 1 ranges may be lost" in operation.reason
