"""A group that shrinks: enough of its members learn what a quorum of the old group knows."""

from __future__ import annotations

import pytest

from ringlog.kernel.commands.schema.keyspaces import AlterKeyspace
from ringlog.kernel.commands.topology.movements import Assassinate, Leave, Remove
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.operations.gates import gaining_nodes, gate
from ringlog.kernel.values import Replication
from tests.kernel.movements.clusters import ENTIRE, network, placed, simple
from tests.kernel.operations.drive import applied, at_every_stage, begun, refused


def ring(count: int, *settings: Replication, down: tuple[str, ...] = ()) -> ClusterState:
    return placed({f"n{n}": (f"d/r{n}", [10 * n]) for n in range(1, count + 1)}, *settings, down=down)


def streams(state: ClusterState, operation: str, end: int) -> dict[str, set[str]]:
    """Target to its sources, of the range that ends there."""
    found: dict[str, set[str]] = {}
    for one in state.operations[operation].plan.sources:
        if one.end == end:
            found.setdefault(one.target, set()).add(one.source)
    return found


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (2, 1, {}),  # whoever has a quorum of two has both
        (3, 2, {"n1": {"n2"}, "n2": {"n1"}}),
        (3, 1, {"n1": {"n2"}}),
        (4, 3, {}),  # of three of four, two stay
        (4, 2, {"n1": {"n2", "n3"}, "n2": {"n1", "n3"}}),
        (5, 3, {"n1": {"n2", "n3"}, "n2": {"n1", "n3"}}),
        (5, 4, {"n1": {"n2", "n3"}, "n2": {"n1", "n3"}, "n3": {"n1", "n2"}}),
    ],
)
def test_fewer_replicas(before: int, after: int, expected: dict[str, set[str]]) -> None:
    state, operation = begun(ring(6, simple(before)), AlterKeyspace("ks0", simple(after)))
    assert streams(state, operation, 10) == expected


def test_a_datacenter_is_dropped() -> None:
    """A quorum of six may be one node here and three there: here two must know what they knew."""
    places = {f"{dc}{n}": (f"{dc}/r{n}", [10 * n + len(dc)]) for dc in ("a", "bb") for n in (1, 2, 3)}
    state, operation = begun(placed(places, network(a=3, bb=3)), AlterKeyspace("ks0", network(a=3)))
    assert streams(state, operation, 11) == {"a1": {"a2", "bb1", "bb2"}, "a2": {"a1", "bb1", "bb2"}}


def test_a_node_leaves_a_keyspace_that_is_everywhere() -> None:
    state, operation = begun(ring(5, ENTIRE), Leave("n5"))
    assert set(streams(state, operation, 2**63 - 1)) == {"n1", "n2", "n3"}
    state, operation = begun(ring(4, ENTIRE), Leave("n4"))
    assert state.operations[operation].plan.sources == ()


def test_who_merges_is_waited_for_like_one_that_gains() -> None:
    first, operation = begun(ring(3, simple(3)), AlterKeyspace("ks0", simple(1)))
    assert gaining_nodes(first.operations[operation]) == ("n1", "n2", "n3")
    for stage, at in at_every_stage(first, operation).items():
        if stage in ("prepared", "write_both_read_old"):
            assert gate(at, at.operations[operation]).must == ("n1", "n2", "n3")


def test_the_dead_neither_give_nor_learn() -> None:
    state, operation = begun(ring(5, ENTIRE, down=("n1", "n5")), Remove("n5", ("n1",)))
    found = streams(state, operation, 2**63 - 1)
    assert found == {"n2": {"n3", "n4"}, "n3": {"n2", "n4"}, "n4": {"n2", "n3"}}


def test_too_few_are_left_to_know_all() -> None:
    state = ring(5, ENTIRE, down=("n3", "n4", "n5"))
    assert refused(state, Remove("n5", ("n3", "n4"))).code == "too_few_replicas"
    ended = applied(state, Assassinate("n5"))
    (operation,) = ended.operations.values()
    assert "rows of 1 ranges may be lost" in operation.reason
