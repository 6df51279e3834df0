"""Random clusters that cover all distinctions of the planner's rules. A seed reproduces its cluster."""

from __future__ import annotations

import random

from ringlog.kernel.balance.model import GIB, BalancedHost, Limits, Place
from ringlog.kernel.values import replace
from tests.kernel.balance.world import Table, World, host

TABLET = 5 * GIB


def draw_world(seed: int) -> World:
    """Return a world of 1 to 2 datacenters, 1 to 3 racks each, up to 12 hosts and up to 4 table groups of at most 24
    tablets.
    """
    rng = random.Random(seed)
    hosts = _hosts(rng)
    world = World({one.id: one for one in hosts}, {}, _limits(rng), by_size=rng.random() < 0.6, seed=seed)
    for number in range(rng.randint(1, 4)):
        table = _table(rng, hosts, number)
        if table is not None:
            world.tables[f"ks.t{number}"] = table
    leave = rng.sample(sorted(world.hosts), min(len(hosts), rng.choice((0, 0, 0, 1, 1, 2))))
    for node in leave:
        world.hosts[node] = replace(world.hosts[node], draining=True, alive=rng.random() < 0.6)
    if rng.random() < 0.2:
        node = rng.choice(sorted(world.hosts))
        world.hosts[node] = replace(world.hosts[node], alive=False)
    if world.by_size and rng.random() < 0.15:
        world.silent = {rng.choice(sorted(world.hosts))}
    return world


def _hosts(rng: random.Random) -> list[BalancedHost]:
    shapes = rng.choice(([1], [2], [3], [1, 2, 4], [2, 7]))
    capacities = rng.choice(([5], [5], [4, 5, 11]))
    found = []
    for datacenter in range(rng.choice((1, 1, 2))):
        racks = rng.randint(1, 3)
        for _ in range(rng.randint(1, 8)):
            shards = rng.choice(shapes)
            where = (f"r{rng.randrange(racks)}", f"dc{datacenter}")
            capacity = rng.choice(capacities) * GIB * shards * 8
            found.append(host(f"h{len(found):02}", shards, *where, capacity=capacity))
    return found


def _limits(rng: random.Random) -> Limits:
    return Limits(
        reads_per_shard=rng.randint(1, 3),
        writes_per_shard=rng.randint(1, 3),
        reads_per_node=rng.choice((0, 1, 4)),
        writes_per_node=rng.choice((0, 1, 4)),
        per_cluster=rng.choice((1, 7, 1000)),
        table_slack_percent=rng.choice((0, 25, 100)),
    )


def _table(rng: random.Random, hosts: list[BalancedHost], number: int) -> Table | None:
    racks: dict[str, frozenset[str]] = {}
    eligible: list[tuple[int, list[list[BalancedHost]]]] = []
    for datacenter in sorted({one.datacenter for one in hosts}):
        local = [one for one in hosts if one.datacenter == datacenter]
        names = sorted({one.rack for one in local})
        if rng.random() < 0.3:
            chosen = rng.sample(names, rng.randint(1, len(names)))
            racks[datacenter] = frozenset(chosen)
            eligible += [(1, [[one for one in local if one.rack == rack]]) for rack in chosen]
        elif rng.random() < 0.9:
            eligible.append((rng.randint(1, min(3, len(local))), [[o for o in local if o.rack == r] for r in names]))
    if not eligible:
        return None
    skewed = rng.random() < 0.5
    places = [_places(rng, eligible, skewed) for _ in range(rng.choice((1, 2, 5, 12, 24)))]
    size = rng.choice((TABLET, TABLET, TABLET // 1000, 3))
    sizes = [size if rng.random() < 0.5 else rng.randrange(2 * size) for _ in places]
    together = (f"ks.t{number}_log",) if rng.random() < 0.2 else ()
    return Table(places, sizes, together, racks, merging=rng.random() < 0.25, paused=rng.random() < 0.05)


def _places(
    rng: random.Random, eligible: list[tuple[int, list[list[BalancedHost]]]], skewed: bool
) -> tuple[Place, ...]:
    """Return the places of one tablet, spread over as many racks as possible."""
    places: list[Place] = []
    for factor, racks in eligible:
        left = [list(rack) for rack in racks]
        used = [0] * len(racks)
        for _ in range(factor):
            open_racks = [number for number, rack in enumerate(left) if rack]
            fewest = min(used[number] for number in open_racks)
            number = rng.choice([at for at in open_racks if used[at] == fewest])
            chosen = left[number].pop(0 if skewed else rng.randrange(len(left[number])))
            used[number] += 1
            places.append((chosen.id, 0 if skewed else rng.randrange(chosen.shards)))
    return tuple(places)
