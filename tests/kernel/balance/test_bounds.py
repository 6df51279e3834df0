"""Bounds of the planner for all combinations of cluster shape, tablets, replication and action.

Each case puts all tablets on the first possible hosts, changes the cluster once, and applies plans until one is empty.
Each tablet counts one, so the balance is exact: between two hosts of a rack, any further move would reverse their
order. The tests compute the bounds by counting.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle, permutations
from math import ceil

import pytest

from ringlog.kernel.balance.model import BALANCE, DRAIN, GIB, REBUILDS, BalancedHost, Limits, Place
from ringlog.kernel.values import Value, replace
from tests.kernel.balance.world import Table, World, host, world_of

Shape = Sequence[Sequence[int]]
"""The shards of each host, by rack."""

SHAPES: dict[str, Shape] = {
    "one rack of four": [[2, 2, 2, 2]],
    "one rack, unlike hosts": [[1, 2, 4, 2]],
    "two racks": [[2, 2], [2, 2]],
    "three racks": [[1, 1], [1, 1], [1, 1]],
    "three racks, unlike hosts": [[1, 3], [2, 2], [4, 1]],
    "eight shards": [[8, 8, 8]],
}
TABLETS = (1, 7, 24)
TABLES = 2
UNBOUNDED = Limits(reads_per_shard=1_000, writes_per_shard=1_000, per_cluster=10_000)
"""The case needs few plans. The random clusters test the limits."""


class Copies(Value, dict=True):
    """``factor`` replicas of each tablet. With ``pinned``, the replication names the racks."""

    factor: int
    pinned: bool = False


REPLICATIONS = (Copies(1), Copies(2), Copies(3), Copies(1, True), Copies(2, True), Copies(3, True))


def hosts_of(shape: Shape) -> list[BalancedHost]:
    racks = [[(f"r{rack}", shards) for shards in row] for rack, row in enumerate(shape)]
    every = [one for row in racks for one in row]
    return [host(f"h{number}", shards, rack, capacity=80 * GIB * shards) for number, (rack, shards) in enumerate(every)]


def crowded_places(hosts: Sequence[BalancedHost], copies: Copies, count: int) -> list[tuple[Place, ...]] | None:
    """Put each tablet on shard 0 of the first possible hosts, with alternating racks. Return None if no host is
    possible.
    """
    racks = sorted({one.rack for one in hosts})
    if copies.pinned and copies.factor > len(racks):
        return None
    rows = [iter([one for one in hosts if one.rack == rack]) for rack in racks]
    chosen: list[Place] = []
    for row in cycle(rows[: copies.factor] if copies.pinned else rows):
        found = next(row, None)
        if found is not None:
            chosen.append((found.id, 0))
        if len(chosen) == copies.factor or (found is None and len(hosts) < copies.factor):
            break
    return [tuple(chosen)] * count if len(chosen) == copies.factor else None


def crowded_world(shape: Shape, copies: Copies, count: int) -> World | None:
    hosts = hosts_of(shape)
    places = crowded_places(hosts, copies, count)
    if places is None:
        return None
    racks = {"dc1": frozenset({f"r{number}" for number in range(copies.factor)})} if copies.pinned else {}
    tables = {f"ks.t{n}": Table(list(places), [1] * count, racks=racks) for n in range(TABLES)}
    return World({one.id: one for one in hosts}, tables, limits=UNBOUNDED)


CASES = [
    pytest.param(shape, copies, count, id=f"{name}-{copies.factor}{' pinned' if copies.pinned else ''}-{count}")
    for name, shape in SHAPES.items()
    for copies in REPLICATIONS
    for count in TABLETS
    if crowded_world(shape, copies, count) is not None
]
every_case = pytest.mark.parametrize(("shape", "copies", "count"), CASES)


def world_for(shape: Shape, copies: Copies, count: int) -> World:
    world = crowded_world(shape, copies, count)
    assert world is not None, "cases without possible hosts are excluded"
    return world


# Bounds


def check(world: World, copies: Copies) -> None:
    """Assert the bounds that hold if no move is left."""
    check_separation(world, copies)
    check_host_balance(world)
    check_shard_balance(world)
    check_table_spread(world)


def check_separation(world: World, copies: Copies) -> None:
    """Assert the number of replicas, on different hosts, in the named racks or in as many racks as possible."""
    serving = {one.rack for one in world.hosts.values() if one.serving}
    for table in world.tables.values():
        for places in table.places:
            nodes = [node for node, _ in places]
            assert len(set(nodes)) == len(nodes) == copies.factor
            racks = [world.hosts[node].rack for node in nodes]
            if copies.pinned:
                assert sorted(racks) == [f"r{number}" for number in range(copies.factor)]
            elif len(serving) == len({one.rack for one in world.hosts.values()}):
                assert len(set(racks)) == min(copies.factor, len(serving))


def check_host_balance(world: World) -> None:
    """Assert that one more move in a rack would reverse the order of two hosts, unless the target has each tablet
    already.
    """
    hosts = [one for one in world.hosts.values() if one.serving]
    for more, less in permutations(hosts, 2):
        if more.rack == less.rack and tablets_on(world, more.id) - tablets_on(world, less.id):
            assert (world.on(more.id) - 1) * less.shards < (world.on(less.id) + 1) * more.shards, (more.id, less.id)


def tablets_on(world: World, node: str) -> set[tuple[str, int]]:
    return {
        (name, number)
        for name, table in world.tables.items()
        for number, places in enumerate(table.places)
        if node in [place[0] for place in places]
    }


def check_shard_balance(world: World) -> None:
    for node, one in world.hosts.items():
        if one.serving:
            counts = world.shard_counts(node)
            assert max(counts) - min(counts) <= 1, (node, counts)


def check_table_spread(world: World) -> None:
    """Assert that a node has at most its share of a table in its rack, plus the slack, rounded up, plus one.

    The bound does not apply if the rack has no more nodes than replicas.
    """
    for name, table in world.tables.items():
        for node, one in world.hosts.items():
            rack = [other for other in world.hosts.values() if other.rack == one.rack and other.serving]
            if one.serving and sum(world.on(other.id, name) for other in rack) < len(rack) * len(table.places):
                assert world.on(node, name) <= share(world, name, one), (name, node)


def share(world: World, table: str, one: BalancedHost) -> int:
    rack = [other for other in world.hosts.values() if other.rack == one.rack]
    held = sum(world.on(other.id, table) for other in rack)
    shards = sum(other.shards for other in rack if other.serving)
    return ceil(held * one.shards * (100 + world.limits.table_slack_percent) / (shards * 100)) + 1


# Actions


@every_case
def test_crowded_tablets_are_spread(shape: Shape, copies: Copies, count: int) -> None:
    world = world_for(shape, copies, count)
    world.balance()
    check(world, copies)


@every_case
def test_only_a_joining_node_gets_tablets(shape: Shape, copies: Copies, count: int) -> None:
    world = world_for(shape, copies, count)
    world.balance()
    before = {node: world.on(node) for node in world.hosts}
    world.hosts["new"] = host("new", 2, "r0", capacity=160 * GIB)
    moved = world.balance()
    check(world, copies)
    between = [row for row in moved if row.why == BALANCE]
    if copies.pinned or len(shape) == 1:
        assert {row.target[0] for row in between} <= {"new"}
        assert len(between) == world.on("new"), "each tablet moves once"
        assert all(world.on(node) <= had for node, had in before.items())


@every_case
@pytest.mark.parametrize("alive", [True, False])
def test_a_node_is_drained_with_one_move_per_replica(shape: Shape, copies: Copies, count: int, alive: bool) -> None:
    world = world_for(shape, copies, count)
    world.balance()
    victim = max(world.hosts.values(), key=lambda one: (world.on(one.id), one.id))
    held = world.on(victim.id)
    world.hosts[victim.id] = replace(victim, draining=True, alive=alive)
    possible = alive or copies.factor > 1
    room = [one for one in world.hosts.values() if one.serving and (not copies.pinned or one.rack == victim.rack)]
    if not possible or len(room) < (1 if copies.pinned else copies.factor):
        plan = world.plan()
        assert {row.code for row in plan.obstacles} <= {"drain_impossible", "too_few_replicas"}
        assert bool(plan.obstacles) == bool(held)
        assert not [row for row in plan.migrations if row.why in (DRAIN, REBUILDS)]
        return
    moved = world.balance()
    assert world.on(victim.id) == 0
    assert sum(row.why == (DRAIN if alive else REBUILDS) for row in moved) == held
    check_separation(world, copies)
    del world.hosts[victim.id]
    world.balance()
    check(world, copies)


@pytest.mark.parametrize(("shape", "copies", "count"), CASES[2::9])
@pytest.mark.parametrize("again", [1, 3])
def test_a_second_planner_makes_the_same_plans(shape: Shape, copies: Copies, count: int, again: int) -> None:
    """A standby that takes over after some plans computes the same plans."""
    one, other = world_for(shape, copies, count), world_for(shape, copies, count)
    one.limits = other.limits = Limits(per_cluster=3)
    for _ in range(again):
        plan = one.plan()
        assert other.plan() == plan
        for world in (one, other):
            world.start(plan.migrations)
            world.finish_all()
    assert one.balance() == other.balance()


# A bound for each table


def lopsided(tables: int, count: int, nodes: int) -> World:
    """Return a world with each table on its own host. The hosts are even, but the tables are not."""
    hosts = [host(f"h{number}", 2, capacity=80 * GIB) for number in range(nodes)]
    world = world_of(*hosts)
    for number in range(tables):
        places: list[tuple[Place, ...]] = [((f"h{number % nodes}", at % 2),) for at in range(count)]
        world.tables[f"ks.t{number}"] = Table(places, [1] * count)
    return world


@pytest.mark.parametrize("slack", [0, 25, 100])
@pytest.mark.parametrize(("tables", "count", "nodes"), [(2, 8, 2), (3, 16, 3), (4, 12, 4), (6, 9, 3)])
def test_single_node_tables_spread_over_even_nodes(tables: int, count: int, nodes: int, slack: int) -> None:
    """ScyllaDB leaves such tables unchanged (issue 31384), because the nodes are balanced."""
    world = lopsided(tables, count, nodes)
    world.limits = Limits(table_slack_percent=slack)
    world.balance()
    most = ceil(count * (100 + slack) / (nodes * 100)) + 1
    for name in world.tables:
        assert [world.on(node, name) for node in world.hosts if world.on(node, name) > most] == []
    check_host_balance(world)
    check_shard_balance(world)


Change = Callable[[World], None]


def shrinks(world: World) -> None:
    """Reduce the cores of a node. The tablets of the removed cores move first."""
    one = world.hosts["h0"]
    world.hosts["h0"] = replace(one, shards=1, capacity=one.capacity // 2)


def drops(world: World) -> None:
    del world.tables["ks.t0"]


@pytest.mark.parametrize("change", [shrinks, drops])
@pytest.mark.parametrize("count", [7, 16, 64])
def test_a_changed_cluster_is_balanced_again(change: Change, count: int) -> None:
    copies = Copies(2)
    world = world_for(SHAPES["two racks"], copies, count)
    world.balance()
    change(world)
    world.balance()
    check(world, copies)
