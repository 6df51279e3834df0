"""The balancer's planner on a large cluster: one plan, and a whole rebalance after nodes were added.

300 nodes of 16 shards in three racks have 100 tables with 1,000 tablets of three replicas each. Then 30 nodes join.
Each plan is executed at once, until a plan is empty. The bench runs by count and by size. It prints the time of one
plan, the moved replicas compared with the minimum, and the planning time per migration. The status is 1 if a limit is
missed. Times are processor time. Usage: ``python bench/balance.py [SCALE]``.
"""

from __future__ import annotations

import gc
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from ringlog.kernel.balance.advice import make_plan
from ringlog.kernel.balance.model import (
    BYTES,
    GIB,
    BalancedHost,
    BalanceInput,
    MeasuredLoads,
    Migration,
    Place,
    TabletGroup,
)

NODES, ADDED, SHARDS, RACKS, FACTOR = 300, 30, 16, 3, 3
TABLES, TABLETS = 100, 1_000
PLAN_S = 1.0
MIGRATION_MS = 1.0
MOVED = 1.10
"""The most that may move, in parts of the fewest possible."""

Places = list[list[Place]]


def hosts_of(first: int, count: int) -> list[BalancedHost]:
    """Equal hosts, their racks in turn; a shard has room for 100 tablets of 5 GiB."""
    numbers = range(first, first + count)
    return [BalancedHost(f"n{at:04}", "dc1", f"r{at % RACKS}", SHARDS, 500 * GIB * SHARDS) for at in numbers]


def spread(hosts: Sequence[BalancedHost], tablets: int, offset: int) -> Places:
    """One replica of each tablet in each rack, hosts and shards in turn."""
    racks = [[host for host in hosts if host.rack == f"r{number}"] for number in range(RACKS)]
    return [
        [(rack[(offset + at) % len(rack)].id, (offset + at) // len(rack) % SHARDS) for rack in racks[:FACTOR]]
        for at in range(tablets)
    ]


def tablets_of(table: str, places: Places) -> TabletGroup:
    """The planner's input for one table."""
    nodes = tuple(sorted({node for each in places for node, _ in each}))
    index = {node: number for number, node in enumerate(nodes)}
    rows = [(number, index[node], shard) for number, each in enumerate(places) for node, shard in each]
    tablet, node, shard = np.array(rows, np.int64).T
    return TabletGroup(table, len(places), nodes, tablet, node, shard)


def sizes_of(tables: Mapping[str, Places], hosts: Sequence[BalancedHost]) -> dict[str, MeasuredLoads]:
    """Load reports of all hosts: tablets of 4 to 5 GiB, with equal replicas."""
    found: dict[str, dict[str, dict[int, int]]] = {host.id: {} for host in hosts}
    for number, (table, places) in enumerate(sorted(tables.items())):
        drawn = np.random.default_rng(number).integers(4 * GIB, 5 * GIB, len(places)).tolist()
        for at, each in enumerate(places):
            for node, _ in each:
                found[node].setdefault(table, {})[at] = drawn[at]
    return {host.id: MeasuredLoads(host.capacity, {BYTES: found[host.id]}) for host in hosts}


def carry_out(tables: Mapping[str, Places], migrations: Sequence[Migration]) -> None:
    """Each tablet is where it was to go."""
    for row in migrations:
        places = tables[row.table][row.tablet]
        places[places.index(row.source)] = row.target


def fewest(tables: Mapping[str, Places], hosts: Sequence[BalancedHost]) -> int:
    """Number of replicas above an even share, rounded up, of their rack."""
    held = Counter(node for places in tables.values() for each in places for node, _ in each)
    moved = 0
    for number in range(RACKS):
        rack = [held[host.id] for host in hosts if host.rack == f"r{number}"]
        moved += sum(max(0, count - -(-sum(rack) // len(rack))) for count in rack)
    return moved


def measure(nodes: int, added: int, tablets: int, by_size: bool) -> list[str]:
    """Print one line; what missed its limit."""
    hosts = hosts_of(0, nodes)
    tables = {f"ks.t{number:03}": spread(hosts, tablets, number * tablets) for number in range(TABLES)}
    hosts += hosts_of(nodes, added)
    least, plans, moved, longest, spent = fewest(tables, hosts), 0, 0, 0.0, 0.0
    while True:
        given = [tablets_of(table, places) for table, places in sorted(tables.items())]
        picture = BalanceInput(hosts, given, sizes_of(tables, hosts) if by_size else {})
        begin = time.process_time()
        plan = make_plan(picture)
        taken = time.process_time() - begin
        plans, longest, spent = plans + 1, max(longest, taken), spent + taken
        if not plan.migrations:
            break
        moved += len(plan.migrations)
        carry_out(tables, plan.migrations)
    each, ratio = spent * 1e3 / max(1, moved), moved / max(1, least)
    name = "by size" if by_size else "by count"
    print(
        f"{name:8} {nodes:5} +{added:<4} {TABLES * tablets:8,} {plans:5} {longest:8.2f} {moved:8,} {least:8,} "
        f"{ratio:7.3f} {each:8.3f}",
        flush=True,
    )
    figures = (("seconds of one plan", longest, PLAN_S), ("ms of a migration", each, MIGRATION_MS))
    figures += (("moved against the fewest", ratio, MOVED),)
    return [f"{what} {name} is {value:.3f}, the limit is {limit}" for what, value, limit in figures if value > limit]


def main(scale: float = 1.0) -> int:
    """Measure and print; the exit status."""
    nodes, added = max(RACKS * 2, round(NODES * scale)), max(RACKS, round(ADDED * scale))
    print("mode     nodes added  tablets plans   plan s    moved   fewest   ratio ms each")
    missed = []
    for by_size in (False, True):
        missed += measure(nodes, added, max(1, round(TABLETS * scale)), by_size)
    for line in missed:
        print(f"MISSED: {line}")
    return int(bool(missed))


if __name__ == "__main__":
    gc.disable()
    sys.exit(main(float(sys.argv[1]) if len(sys.argv) > 1 else 1.0))
