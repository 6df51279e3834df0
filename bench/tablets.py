"""The cost of a million tablets: memory of the state, one stage of a thousand of them, a start, and a lookup.

    python bench/tablets.py [TABLETS]

One hundred tables share the tablets (1,000,000) evenly, three replicas each, on 300 nodes of 16 shards. *State* is the
growth of the process. *Stage* is the least time of some entries that each advance 1,000 tablets by one stage, with all
acknowledgements. *Start* reads the state from its canonical bytes. *Lookup* is the ratio to a lookup on a ring with 16
tokens for each node. Times are those of one core with the garbage collector off, as in the other benchmarks. The status
is 1 if a limit is missed.
"""

from __future__ import annotations

import gc
import random
import resource
import sys
import time

from ringlog.kernel.commands.placement.tablets import AdvanceTablets, TabletAdvance
from ringlog.kernel.encoding.decoder import decode_state
from ringlog.kernel.encoding.encoder import encode
from ringlog.kernel.fold import decide
from ringlog.kernel.model.outcome import Accepted, EntryContext
from ringlog.kernel.model.state import EMPTY_STATE, ClusterState, Node
from ringlog.kernel.model.tables import Keyspace, Table
from ringlog.kernel.model.tablet_map import TabletReplica, Transition, new_map, uniform_ends, with_transitions
from ringlog.kernel.ownership.placements import new_placement
from ringlog.kernel.tablets.groups import serving
from ringlog.kernel.tablets.stages import USE_NEW
from ringlog.kernel.values import CdcOptions, Replication, TabletOptions, Witness, replace

TABLES, NODES, SHARDS, FACTOR, MOVED = 100, 300, 16, 3, 1_000
STATE_MIB_MAX, STAGE_MS_MAX, START_S_MAX, LOOKUP_MAX = 1_024, 20.0, 10.0, 2.0
LOOKUPS = 5_000
EPOCH = 7


def node_id(number: int) -> str:
    """The id of a node."""
    return f"{number:08x}-0000-7000-8000-000000000001"


def cluster(tablets: int) -> ClusterState:
    """The nodes, and the tables with their tablets."""
    state, nodes = EMPTY_STATE, EMPTY_STATE.nodes
    for number in range(NODES):
        one = Node(
            node_id(number),
            f"n{number}",
            "h:1",
            "dc1",
            f"r{number % 3}",
            SHARDS,
            12,
            "1",
            (),
            1,
            "normal",
            (number,),
            1,
        )
        nodes = nodes.set(one.id, one)
    keyspaces = state.keyspaces.set("ks", Keyspace("ks", Replication("tablets", FACTOR), "v", made=1))
    each = tablets // TABLES
    maps, tables = state.tablets, state.tables
    for table in range(TABLES):
        name, first = f"t{table}", table * each
        replicas = [
            [
                TabletReplica(node_id((first + index + 100 * copy) % NODES), (first + index) % SHARDS, EPOCH)
                for copy in range(3)
            ]
            for index in range(each)
        ]
        maps = maps.set(f"ks.{name}", new_map(f"ks.{name}", uniform_ends(each), replicas, EPOCH))
        made = Table(f"{table}", "ks", name, (), ("k",), (), CdcOptions(), "v", EPOCH, tablets=TabletOptions())
        tables = tables.set(made.full_name, made)
    return replace(state, epoch=EPOCH, nodes=nodes, keyspaces=keyspaces, tables=tables, tablets=maps)


def resident_mib() -> float:
    """The most memory that the process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1_024


def stage_ms(state: ClusterState) -> float:
    """The least time of an entry that moves tablets of all tables on."""
    each = MOVED // TABLES
    maps = state.tablets
    steps = []
    for name in sorted(maps):
        moving = {}
        for index in range(each):
            old = maps[name].replicas(index)
            new = (TabletReplica(node_id((int(old[0].node[:8], 16) + 50) % NODES), 0, EPOCH), *old[1:])
            moving[index] = Transition(index, "migration", "write_both_read_new", EPOCH, EPOCH - 1, new, EPOCH)
            steps.append(TabletAdvance(name, index, USE_NEW))
        maps = maps.set(name, with_transitions(maps[name], moving))
    running = replace(state, tablets=maps)
    witnesses = tuple(Witness(node_id(number), EPOCH, EPOCH) for number in range(NODES))
    best = float("inf")
    for _ in range(7):
        began = time.process_time()
        decision = decide(running, AdvanceTablets(tuple(steps), witnesses), EntryContext(EPOCH + 1, "s", 1))
        best = min(best, time.process_time() - began)
        assert isinstance(decision, Accepted), decision
    return best * 1_000


def lookups_us(state: ClusterState) -> tuple[float, float]:
    """The least time of a lookup: in tablets, on a ring."""
    drawn = random.Random(1)
    owners = {drawn.randrange(-(2**63) + 1, 2**63): node_id(number % NODES) for number in range(NODES * SHARDS)}
    ring = Keyspace("ring", Replication("simple", FACTOR), "v", made=1)
    placement = new_placement(ring.replication, owners, state.nodes, EPOCH)
    table = Table("ring", "ring", "t0", (), ("k",), (), CdcOptions(), "v", EPOCH)
    state = replace(
        state,
        keyspaces=state.keyspaces.set("ring", ring),
        placements=state.placements.set(placement.key, placement),
        tables=state.tables.set(table.full_name, table),
    )
    tokens = [drawn.randrange(-(2**63) + 1, 2**63) for _ in range(LOOKUPS)]
    best = {"ks": float("inf"), "ring": float("inf")}
    for _ in range(15):
        for keyspace in best:
            began = time.process_time()
            for token in tokens:
                serving(state, keyspace, "t0", token)
            best[keyspace] = min(best[keyspace], time.process_time() - began)
    return best["ks"] / LOOKUPS * 1e6, best["ring"] / LOOKUPS * 1e6


def main(tablets: int) -> int:
    """Print the figures; 1 if one misses its limit."""
    gc.disable()
    before = resident_mib()
    state = cluster(tablets)
    grown = resident_mib() - before
    stage = stage_ms(state)
    in_tablets, on_ring = lookups_us(state)
    stored = encode(replace(state, epoch=0))  # a state of no epoch has no history
    began = time.process_time()
    decode_state(stored)
    start = time.process_time() - began
    missed = False
    for name, value, limit, unit in (
        ("state", grown, STATE_MIB_MAX, "MiB"),
        ("stage of 1,000 tablets", stage, STAGE_MS_MAX, "ms"),
        (f"start from {len(stored) / 2**20:,.0f} MiB", start, START_S_MAX, "s"),
        (f"lookup {in_tablets:.2f} us, ring {on_ring:.2f} us", in_tablets / on_ring, LOOKUP_MAX, ""),
    ):
        missed |= value > limit
        print(f"{name:32} {value:10,.2f} {unit:4} limit {limit:,}{'  MISSED' if value > limit else ''}")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000))
