"""The cost of a joining node for 1,000 zones: all decisions, and the number of moves.

    python bench/zones.py [SCALE]

Zones of 25 partitions with three replicas use ten nodes of one rack; an eleventh one joins. Time is the processor time
of folding ``SetDataNodes`` and ``TriggerRebalance`` for each zone, without Avro. The fold computes the targets of all
partitions, and a pending step if they differ. *share* is the part of all replicas that moves. Even shares give 1/11;
the tolerance is 5 %. ``SCALE`` multiplies the number of zones. The status is 1 if the share is outside the tolerance,
or if the time is above twice its limit.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Iterable

from ringlog.kernel.commands.cluster.cluster import InitializeCluster
from ringlog.kernel.commands.placement.rebalances import TriggerRebalance
from ringlog.kernel.commands.placement.zones import CreateZone, SetDataNodes
from ringlog.kernel.commands.topology.nodes import RegisterNode
from ringlog.kernel.fold import decide
from ringlog.kernel.model.outcome import Accepted, EntryContext
from ringlog.kernel.model.state import EMPTY_STATE, ClusterState
from ringlog.kernel.values import Command, replace

ZONES, PARTITIONS, REPLICAS, NODES = 1_000, 25, 3, 10
LIMIT_S = 2.0
OFF_MAX = 0.05


def folded(state: ClusterState, commands: Iterable[Command]) -> ClusterState:
    """Return the state after these commands; each must be accepted."""
    for command in commands:
        decision = decide(state, command, EntryContext(state.epoch + 1, "", 0))
        assert isinstance(decision, Accepted), decision
        state = replace(decision.state, epoch=state.epoch + 1)
    return state


def registration(number: int) -> RegisterNode:
    """One of equal nodes."""
    uuid = f"{number:08x}-0000-7000-8000-000000000000"
    return RegisterNode(f"n{number}", uuid, f"h{number}:7000", "dc1", "r1", 1, 12, "1", (), 1)


def main() -> int:
    """Print the line; 1 if a limit is missed."""
    zones = int(ZONES * float(sys.argv[1] if len(sys.argv) > 1 else 1))
    gc.disable()
    nodes = [registration(number) for number in range(NODES + 1)]
    ids = tuple(one.id for one in nodes)
    names = [f"z{number}" for number in range(zones)]
    state = folded(EMPTY_STATE, [InitializeCluster("bench"), *nodes])
    state = folded(state, (CreateZone(name, ids[:NODES], PARTITIONS, REPLICAS) for name in names))
    cause = state.epoch
    began = time.process_time()
    state = folded(state, (SetDataNodes(name, ids, cause) for name in names))
    state = folded(state, (TriggerRebalance(name, cause) for name in names))
    taken = time.process_time() - began
    moved = 0
    for one in state.zone_partitions.values():
        assert one.stable is not None, "each partition was placed"
        if one.pending:
            moved += len(set(one.pending[-1].nodes) - set(one.stable.nodes))
    share = moved / (zones * PARTITIONS * REPLICAS)
    off = share * (NODES + 1) - 1
    print("| zones | partitions | decisions, s | limit, s | moved | share x 11 - 1 |\n|---|---|---|---|---|---|")
    limit = LIMIT_S * zones / ZONES
    print(f"| {zones:,} | {zones * PARTITIONS:,} | {taken:.2f} | {limit:.2f} | {moved:,} | {off:+.1%} |")
    return int(abs(off) > OFF_MAX or taken > 2 * limit)


if __name__ == "__main__":
    sys.exit(main())
