"""Resets of partitions that have lost their majority: the partitions that may be reset, and their next groups.

===================  ===================  =========  ==================================================================
voters alive         nodes alive          mode       result
===================  ===================  =========  ==================================================================
the quorum or more   any                  any        refused: the group can continue
fewer                none                 automatic  refused: the group would be empty; also refused if no living node
                                                     has a tablet of a keyspace that the zone places
fewer                none                 manual     a group without data, where it belongs; the data is lost
fewer                some                 automatic  the living nodes with data; refused if all nodes of newer pending
                                                     steps are alive, because these steps can continue
fewer                some                 manual     the living nodes with data, and nodes where it belongs, up to the
                                                     number of replicas
===================  ===================  =========  ==================================================================

If the zone places keyspaces, a partition has also lost its majority if one of its tablets has: that tablet can be
neither read nor written (``zones.salvage``).

The first phase is one survivor. This is the survivor of an earlier reset, if it alone is read already. Otherwise it is
the node with most of the partition's tablets, then with the longest log, then with the first name. If more than
``REPLICAS_MAX`` nodes have data, only the first ones in that order stay, because no configuration is larger.

A manual reset acts on the last change of its zone, as far as nodes are alive; a later trigger would add the nodes that
are down. An automatic reset keeps the remaining nodes. If their configuration differs from the one that the zone now
calculates, for example in roles, the zone's last change counts as not acted on, and a trigger follows.

Source: Apache Ignite 3, disaster recovery of partitions ("reset", two phases).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ringlog.kernel.model.outcome import Rejected
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.model.zones import REPLICAS_MAX, Zone, ZonePartition, ZoneStep
from ringlog.kernel.values import Epoch, replace
from ringlog.kernel.zones.data import keyspaces_in, takers
from ringlog.kernel.zones.distribution import data_nodes, is_alive, ranked, split, targets
from ringlog.kernel.zones.queue import is_same, step_of
from ringlog.kernel.zones.rebalance import reset_to
from ringlog.kernel.zones.salvage import held_by, is_served, lost_tables, sole_reader

MANUAL: Final = "manual"
AUTOMATIC: Final = "automatic"
RESET_MODES: Final = (MANUAL, AUTOMATIC)


def voters_needed(zone: Zone, voters: int) -> int:
    """Return how many of this number of voters must be alive: the zone's quorum, and a majority.

    No step and no cancel counts without a majority, even if the zone's quorum is smaller now.
    """
    return max(min(zone.quorum, voters), voters // 2 + 1)


def has_quorum(state: ClusterState, zone: Zone, partition: ZonePartition) -> bool:
    """Return whether enough voters of the group's present configuration are alive. During a queue this is the step
    reached.
    """
    peers = () if partition.reached is None else partition.reached.peers
    return sum(is_alive(state, node) for node in peers) >= voters_needed(zone, len(peers))


def is_viable(state: ClusterState, zone: Zone, partition: ZonePartition) -> bool:
    """Return whether a partition has a quorum of living voters, and a living majority of the nodes with its data.

    After a reset has begun, only the survivor counts. A reset cannot be cancelled, so other nodes that return do not
    count.
    """
    is_reset = bool(partition.pending) and partition.pending[0].forced
    if (is_reset and not restarts_from_survivor(state, partition)) or not has_quorum(state, zone, partition):
        return False
    return all(is_alive(state, node) for node in members(partition)) or is_served(state, partition)


def restarts_from_survivor(state: ClusterState, partition: ZonePartition) -> bool:
    """Return whether the reset of a partition has begun and its survivor is alive."""
    forced = bool(partition.pending) and partition.pending[0].forced
    return forced and all(is_alive(state, node) for node in partition.pending[0].nodes)


def survives(state: ClusterState, partition: ZonePartition) -> bool:
    """Return whether living nodes have the partition and each of its tablets. Otherwise only an operator may
    reset it.
    """
    nodes = partition.reached.nodes if partition.reached is not None else ()
    return any(is_alive(state, node) for node in nodes) and not lost_tables(state, partition)


def members(partition: ZonePartition) -> tuple[str, ...]:
    """Return all nodes that may have data of a partition: those of stable, reached and each pending step."""
    steps = (partition.stable, partition.reached, *partition.pending)
    return tuple(sorted({node for step in steps if step is not None for node in step.nodes}))


def reset(
    state: ClusterState,
    zone: Zone,
    partition: ZonePartition,
    logs: Mapping[str, int],
    mode: str,
    cause: Epoch,
    epoch: Epoch,
) -> ZonePartition | Rejected:
    """Return the partition after a reset.

    ``logs``: the log length of each node that has data. If the zone places keyspaces, a named node counts only if it
    has a tablet or may get one. A node that has not joined does not count.
    """
    if is_viable(state, zone, partition):
        return Rejected("partition_healthy", "a quorum of its voters is alive")
    pending = partition.pending
    if mode == AUTOMATIC:
        if not survives(state, partition):
            return Rejected(
                "nothing_survives", "no live node has all data of the partition: only a manual reset accepts the loss"
            )
        ahead = [is_alive(state, node) for step in pending for node in step.nodes]
        if partition.revisions.pending > cause and ahead and all(ahead):
            return Rejected("partition_healthy", "the pending configuration is newer, and its nodes are alive")
    alone, held = sole_reader(state, partition), held_by(state, partition)
    able = takers(state) if keyspaces_in(state, zone.name) else frozenset(state.nodes)
    fit = able.union(held)
    living = [node for node in {alone: 0, **logs} if node in fit and is_alive(state, node)]
    rank = {node: (node != alone, -held.get(node, 0), -logs.get(node, 0), _name(state, node)) for node in living}
    with_data = sorted(living, key=rank.__getitem__)[:REPLICAS_MAX]
    nodes = [node for node in data_nodes(state, zone) if not node.down and node.id in able]
    belongs = ranked(zone, nodes, [partition.number])[0]
    order = with_data
    if mode == MANUAL:
        more = [node for node in belongs if node not in with_data]
        order = [*with_data, *more[: max(0, zone.replicas - len(with_data))]]
    if not order:
        return Rejected("nothing_survives", "no live node has, or can have, the data of the partition")
    then = split(zone, order)
    assert then is not None, "the order has at least one node"
    survivor = order[0] if with_data else min(order, key=lambda node: _name(state, node))
    assert alone not in living or survivor == alone, "the only read replica survives"
    assert survivor in then.nodes, "the survivor stays in the group"
    if mode == MANUAL:
        after = reset_to(partition, survivor, then, (), None, cause, epoch)
        return replace(after, change=max(after.change, zone.changed))
    planned = partition.planned if partition.planned is None or not partition.planned.from_reset else None
    after = reset_to(partition, survivor, then, _living(state, pending), planned, cause, epoch)
    (target,) = targets(state, zone, [after.pending[0]], [partition.number])
    if target is None or is_same(after.planned or after.pending[-1], target):
        return after
    return replace(after, change=min(after.change, zone.changed - 1))


def _living(state: ClusterState, pending: tuple[ZoneStep, ...]) -> tuple[ZoneStep, ...]:
    """Return the steps reduced to their living nodes, without steps that have no voter. Only the last one is kept."""
    steps = [
        step_of({n for n in s.peers if is_alive(state, n)}, {n for n in s.learners if is_alive(state, n)})
        for s in pending
        if not s.forced
    ]
    return tuple(step for step in steps if step.peers)[-1:]


def _name(state: ClusterState, node: str) -> str:
    return state.nodes[node].name
