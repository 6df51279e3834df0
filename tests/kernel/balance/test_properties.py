"""Properties of each plan and each series of plans on random clusters, checked by the naive model.

A failure prints the seed, which reproduces its cluster.
"""

from __future__ import annotations

import random
from fractions import Fraction
from math import ceil, floor

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ringlog.kernel.balance.advice import make_plan
from ringlog.kernel.balance.model import READS, BalancedHost, BalancePlan, Limits, MeasuredLoads, Migration
from ringlog.kernel.balance.reports import AMOUNT_MAX
from ringlog.kernel.values import replace
from tests.kernel.balance.draws import draw_world
from tests.kernel.balance.naive import Naive
from tests.kernel.balance.world import Table, World, host, kinds_of

SEEDS = st.integers(0, 2**32)


def drive(world: World, rng: random.Random) -> list[Migration]:
    """Apply plans until none is left and nothing runs. Migrations end in random order, and the model checks each
    plan.
    """
    moved: list[Migration] = []
    for _ in range(1 + 10 * world.replicas()):
        plan = make_plan(world.inputs())
        check_plan(world, plan, rng)
        moved += plan.migrations
        world.start(plan.migrations)
        if not plan.migrations and not world.running:
            return moved
        running = sorted(world.running)
        world.finish(running if not plan.migrations else rng.sample(running, rng.randint(0, len(running))))
    raise AssertionError("plans do not end")


def check_plan(world: World, plan: BalancePlan, rng: random.Random) -> None:
    """Assert that the plan does not depend on input order, is legal move by move, and reduces the measure."""
    assert make_plan(world.inputs(rng)) == plan
    naive = Naive(world)
    before, racks = naive.measure(), _racks(world, naive)
    naive.follow(plan)
    assert not plan.migrations or naive.measure() < before
    for key, held in _racks(world, naive).items():
        assert held >= racks[key] or naive.world.tables[key[0]].merging or _drains(world, key[2]), key


def _racks(world: World, naive: Naive) -> dict[tuple[str, int, str], int]:
    """Return the number of racks of each tablet in each datacenter."""
    datacenters = {one.datacenter for one in world.hosts.values()}
    return {(*unit, name): len(naive.racks(unit, name)) for unit in naive.at for name in datacenters}


def _drains(world: World, datacenter: str) -> bool:
    return any(one.draining for one in world.hosts.values() if one.datacenter == datacenter)


def check_final_plan(seed: int) -> None:
    """Assert that plans end, and only without a legal step left."""
    world = draw_world(seed)
    stranded = Naive(world).stranded()
    drive(world, random.Random(seed))
    plan, naive = world.plan(), Naive(world)
    assert not plan.migrations, "a second plan is empty"
    codes = {stop.code for stop in plan.stops}
    held = [(place[0], *unit) for unit, at in naive.at.items() for place in at if not world.tables[unit[0]].paused]
    left = {row for row in held if world.hosts[row[0]].draining}
    named = {(row.node, row.table, row.tablet) for row in plan.obstacles if not world.tables[row.table].paused}
    assert named == naive.stranded() & set(held)
    assert left == named, "obstacles name the rest of a drain"
    assert named <= stranded, "tablets that could move at first have moved"
    assert "limits" not in codes or left
    if "drain_first" not in codes and "skip_limit" not in codes:
        assert list(naive.possible()) == []


@settings(max_examples=50)
@given(SEEDS)
@example(29545)
@example(115829895)
@example(4281997665)
@example(215137)
@example(84287305)
def test_plans_end_without_a_legal_step(seed: int) -> None:
    check_final_plan(seed)


@settings(max_examples=30)
@given(SEEDS)
def test_equal_hosts_get_equal_counts_with_the_fewest_moves(seed: int) -> None:
    """By count, with one replica each: hosts differ by at most one tablet after the minimum of moves."""
    world = draw_world(seed)
    world.hosts = {node: BalancedHost(node, "dc0", "r0", 2) for node in world.hosts}
    for name, table in world.tables.items():
        places = [(places[0][0], places[0][1] % 2) for places in table.places]
        world.tables[name] = Table([(place,) for place in places], table.sizes)
    world.by_size = False
    held = [world.on(node) for node in world.hosts]
    mean = Fraction(world.replicas(), len(held))
    least = max(sum(max(0, n - ceil(mean)) for n in held), sum(max(0, floor(mean) - n) for n in held))
    moved = kinds_of(drive(world, random.Random(seed)))
    assert moved.get("balance", 0) <= least + 2 * moved.get("table_limit", 0), (moved, least)
    counts = [world.on(node) for node in world.hosts]
    assert max(counts) - min(counts) <= 1, counts


@settings(max_examples=30)
@given(SEEDS)
def test_no_table_piles_up_on_a_host(seed: int) -> None:
    """The bound is the host's share of the table's replicas in its rack, plus the slack, rounded up, plus one."""
    world = draw_world(seed)
    for node, one in world.hosts.items():
        world.hosts[node] = replace(one, rack="r0", datacenter="dc0", capacity=1, shards=2, draining=False, alive=True)
    for name, table in world.tables.items():
        places = [tuple((node, shard % 2) for node, shard in each) for each in table.places]
        world.tables[name] = Table(places, table.sizes)
    world.silent = set()
    drive(world, random.Random(seed))
    slack = world.limits.table_slack_percent
    for name, table in world.tables.items():
        replicas = sum(map(len, table.places))
        for node in world.hosts:
            assert world.on(node, name) <= ceil(Fraction(replicas * (100 + slack), len(world.hosts) * 100)) + 1


@pytest.mark.soak("the same in fifty worlds; what was found here is an example there")
@settings(max_examples=2_000)
@given(SEEDS)
def test_plans_end_in_thousands_of_worlds(seed: int) -> None:
    check_final_plan(seed)


@pytest.mark.parametrize(("percent", "count"), [(0, 1 << 15), (33, 1 << 17)])
def test_forged_amounts_do_not_exceed_64_bits(percent: int, count: int) -> None:
    """One shard has tablets of the largest size in a report, the other shard is empty."""
    limits = Limits(reads_percent=percent)
    world = World({name: host(name) for name in ("h1", "h2")}, {}, limits, by_size=True)
    world.tables["ks.t"] = Table([(("h1", 0),)] * count, [AMOUNT_MAX] * count)
    inputs = world.inputs()
    reads = {"h1": MeasuredLoads(1 << 40, {**inputs.measured["h1"].loads, READS: {"ks.t": {0: 1}}})}
    plan = make_plan(replace(inputs, measured={**inputs.measured, **reads}))
    assert plan.migrations[0].source == ("h1", 0)
