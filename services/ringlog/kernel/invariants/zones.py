"""Invariants of zones: their partitions exist, a plan follows a pending move, a cancel refers to the pending move, and
their tablets are on the nodes of their partitions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from ringlog.kernel.invariants.shape import Details, changed_items, invariant
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.model.zones import (
    MODES,
    PARTITIONS_MAX,
    REPLICAS_MAX,
    ZonePartition,
    ZoneStep,
    partition_key,
)
from ringlog.kernel.ownership.kinds import strategy_of
from ringlog.kernel.tablets.stages import is_salvage
from ringlog.kernel.zones.distribution import quorum_bounds
from ringlog.kernel.zones.queue import STEPS_MAX, is_same
from ringlog.kernel.zones.rebalance import CHAIN_MAX, KEYS


@invariant("a zone has partitions 0 to n-1 and the number of moving ones", "zones", "zone_partitions")
def zone_parts(state: ClusterState, known: ClusterState) -> Details:
    """Compare the two sections."""
    counted: Counter[str] = Counter()
    moving: Counter[str] = Counter()
    for key, partition in sorted(state.zone_partitions.items()):
        zone = state.zones.get(partition.zone)
        if key != partition_key(partition.zone, partition.number):
            yield f"{key} has the value of {partition.zone}/{partition.number}"
        elif zone is None or not 0 <= partition.number < zone.partitions:
            yield f"{key} has no zone"
        counted[partition.zone] += 1
        moving[partition.zone] += bool(partition.pending)
    for name, zone in sorted(state.zones.items()):
        if (counted[name], moving[name]) != (zone.partitions, zone.moving) or zone.name != name:
            found = f"{counted[name]} partitions, {moving[name]} move"
            yield f"{name} has {found}: its record has {zone.partitions} and {zone.moving}"


@invariant("a zone has values within bounds, and registered data nodes", "zones")
def zone_values(state: ClusterState, known: ClusterState) -> Details:
    """Check bounds and ids of nodes."""
    for name, zone in changed_items(state.zones, known.zones):
        if not (1 <= zone.partitions <= PARTITIONS_MAX and 1 <= zone.replicas <= REPLICAS_MAX):
            yield f"{name}: {zone.partitions} partitions, {zone.replicas} replicas"
            continue
        least, most = quorum_bounds(zone.replicas)
        if not least <= zone.quorum <= most or zone.mode not in MODES:
            yield f"{name}: a quorum of {zone.quorum} of {zone.replicas}, mode {zone.mode}"
        if not (0 <= zone.cause <= state.epoch and 1 <= zone.changed <= state.epoch):
            yield f"{name} changed at {zone.changed}, before its cause at {zone.cause}"
        if list(zone.nodes) != sorted(set(zone.nodes)) or any(node not in state.nodes for node in zone.nodes):
            yield f"{name}: its data nodes are not unique registered nodes"


@invariant("a configuration has a voter, and unique registered nodes", "zone_partitions")
def zone_steps(state: ClusterState, known: ClusterState) -> Details:
    """Check each configuration that a partition names."""
    for key, partition in changed_items(state.zone_partitions, known.zone_partitions):
        for step in _steps(partition):
            nodes = (*step.peers, *step.learners)
            sound = len(set(nodes)) == len(nodes) and list(step.peers) == sorted(step.peers)
            sound = sound and len(nodes) <= REPLICAS_MAX
            if not step.peers or not sound or any(node not in state.nodes for node in nodes):
                yield f"{key}: {step.peers} with learners {step.learners}"
        if len(partition.pending) > STEPS_MAX or len(partition.chain) > CHAIN_MAX:
            yield f"{key} has {len(partition.pending)} steps before it, {len(partition.chain)} links behind it"


def _steps(partition: ZonePartition) -> Iterator[ZoneStep]:
    alone = (partition.stable, partition.reached, partition.planned)
    yield from (step for step in (*alone, *partition.pending) if step is not None)
    if partition.cancel is not None:
        yield from (partition.cancel.old, partition.cancel.new)


@invariant("only a partition with a pending step has a plan or a cancellation", "zone_partitions")
def zone_plans(state: ClusterState, known: ClusterState) -> Details:
    """Check that plans have a pending move, and that a cancel refers to the pending and the reached configuration."""
    for key, partition in changed_items(state.zone_partitions, known.zone_partitions):
        if partition.planned is not None and not partition.pending:
            yield f"{key}: a plan without a pending step"
        cancel = partition.cancel
        if cancel is not None and (
            not partition.pending
            or cancel.revision != partition.revisions.pending
            or not is_same(cancel.new, partition.pending[0])
            or not is_same(cancel.old, partition.reached)
        ):
            yield f"{key}: the cancellation is of {cancel.revision}, the pending step {partition.revisions.pending}"


@invariant(
    "no step changes a node's role while another node votes; a stable configuration is not forced", "zone_partitions"
)
def zone_roles(state: ClusterState, known: ClusterState) -> Details:
    """Compare each step with the previous one. Stable configurations must have no marks of a reset."""
    for key, partition in changed_items(state.zone_partitions, known.zone_partitions):
        for one in (partition.stable, partition.reached):
            if one is not None and (one.forced or one.from_reset):
                yield f"{key}: the stable configuration is marked as reset"
        queue = partition.pending
        for have, to in pairwise((*(() if partition.reached is None else (partition.reached,)), *queue)):
            changed = set(have.peers) & set(to.learners) | set(have.learners) & set(to.peers)
            if changed and set(to.peers) - changed and not (have.forced or to.forced or to.from_reset):
                yield f"{key}: {sorted(changed)} change their roles in one step"


@invariant("revisions and handled changes of a partition are not above the state's epoch", "zone_partitions")
def zone_revisions(state: ClusterState, known: ClusterState) -> Details:
    """Check revisions: each written key has one."""
    for key, partition in changed_items(state.zone_partitions, known.zone_partitions):
        of = partition.revisions
        if any(getattr(of, name) > state.epoch for name in KEYS) or partition.change > state.epoch:
            yield f"{key} at epoch {state.epoch}: {of}, change {partition.change}"
        if any(getattr(partition, name) and not getattr(of, name) for name in KEYS):
            yield f"{key}: a key has a value but no revision"


@invariant(
    "a keyspace placed by a zone names a zone, and its tables have one tablet for each partition",
    "keyspaces",
    "zones",
    "tablets",
)
def zone_keyspaces(state: ClusterState, known: ClusterState) -> Details:
    """Compare keyspaces and maps with zones."""
    placed = {}
    for name, keyspace in sorted(state.keyspaces.items()):
        zone = state.zones.get(keyspace.replication.zone)
        by_zone = strategy_of(keyspace.replication).by_zone
        if by_zone != bool(keyspace.replication.zone):
            yield f"{name} has {keyspace.replication}"
        elif by_zone and zone is None:
            yield f"{name} is placed by {keyspace.replication.zone}, which does not exist"
        elif zone is not None:
            placed[name] = zone
    for name, tablets in sorted(state.tablets.items()) if placed else ():
        cutter = placed.get(_keyspace_of(name))
        if cutter is not None and (tablets.count != cutter.partitions or tablets.resize is not None):
            yield f"{name} has {tablets.count} tablets, but {cutter.name} has {cutter.partitions} partitions"


@invariant(
    "except in a salvage, a tablet of a zone has its replicas on nodes of its partition's current, stable or pending "
    "configurations",
    "keyspaces",
    "tablets",
    "zone_partitions",
)
def zone_tablets(state: ClusterState, known: ClusterState) -> Details:
    """Compare tablets with the configurations of their partitions, if either is new or the zone changed."""
    placed, was = _zones_of(state), _zones_of(known)
    for name, tablets in sorted(state.tablets.items()) if placed else ():
        zone = placed.get(_keyspace_of(name), "")
        before = known.tablets.get(name) if zone == was.get(_keyspace_of(name)) else None
        for number in range(tablets.count) if zone else ():
            key = partition_key(zone, number)
            partition = state.zone_partitions[key]
            if before is tablets and known.zone_partitions.get(key) is partition:
                continue
            steps = (partition.stable, partition.reached, *partition.pending)
            there = {node for step in steps if step is not None for node in step.nodes}
            tablet = tablets.tablet(number)
            step = tablet.transition
            to = () if step is None else step.next
            have = () if is_salvage(step) else tablet.replicas
            outside = {one.node for one in (*have, *to)} - there
            if outside:
                yield f"{name}/{number} is on {sorted(outside)}, which {key} does not have"


def _zones_of(state: ClusterState) -> dict[str, str]:
    """Return keyspace to the zone that places it."""
    return {name: one.replication.zone for name, one in state.keyspaces.items() if one.replication.zone}


def _keyspace_of(table: str) -> str:
    return table.partition(".")[0]


INVARIANTS = (
    zone_parts,
    zone_values,
    zone_steps,
    zone_plans,
    zone_roles,
    zone_revisions,
    zone_keyspaces,
    zone_tablets,
)
