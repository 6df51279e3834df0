"""Every tablet transition that an operator, the balancer, a resize or a zone could request.

Changes of the metadata service's members are included, because they are driven in the same way.

The production rules drive each case to its end, and every node acknowledges at once. In each stage, one variant reverts
the tablet, if the stage allows it, and further variants declare each of its nodes down. Each variant is also driven to
its end. So one case covers every path through its kind of transition.

The list is exhaustive: it has every case that the rules distinguish. Tablets of one table on the same nodes have the
same histories, so one of them represents all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from ringlog.kernel.balance.advice import as_migration, input_of, make_plan
from ringlog.kernel.commands.cluster.service import AddServiceMember, ReconfigureService, RemoveServiceMember
from ringlog.kernel.commands.placement.rebalances import TriggerRebalance
from ringlog.kernel.commands.placement.resizes import DecideResize
from ringlog.kernel.commands.placement.tablets import (
    MigrateTablets,
    RevertTablets,
    Shard,
    TabletMigration,
    TabletRevert,
    admissible,
)
from ringlog.kernel.commands.placement.zones import AlterZone
from ringlog.kernel.commands.schema.keyspaces import AlterKeyspace
from ringlog.kernel.commands.topology.nodes import DeclareDown
from ringlog.kernel.model.modes import ServiceMember
from ringlog.kernel.model.outcome import OutcomeKind
from ringlog.kernel.model.state import ClusterState, in_order
from ringlog.kernel.model.tablet_map import Tablet, TabletMap, TabletReplica
from ringlog.kernel.service import JOINING, next_step, wanted_size
from ringlog.kernel.tablets.mutual_exclusion import replication_of, transitions
from ringlog.kernel.tablets.resize import MERGE, SPLIT
from ringlog.kernel.tablets.stages import (
    INTRANODE,
    MIGRATION,
    REBUILD,
    REBUILD_V2,
    REPAIR,
    STAGES,
    WRITE_BOTH_READ_NEW,
    Side,
    kind_of,
)
from ringlog.kernel.tablets.stages import members as members_of
from ringlog.kernel.values import Command, NodeId, Replication, Value, replace
from ringlog.kernel.zones.data import in_zone
from ringlog.operator.rehearsal.zones import switch_of
from ringlog.protocol.rebalancer.zone_tablets import migrations as zone_migrations
from ringlog_testing.quorums.case import CaseOptions, members
from ringlog_testing.quorums.model import MEMBERS_MAX
from ringlog_testing.quorums.plans import KINDS as OPERATIONS
from ringlog_testing.quorums.service_timeline import is_too_large, moving_member
from ringlog_testing.quorums.walk import AWAITS_SERVICE, STEPS_MAX, Fault, WalkWorld, has_live_majority

Ask = Callable[[ClusterState], Command | None]
"""A function from a state to the next command, or None."""


class TabletCase(Value):
    """One transition. ``ground`` is applied first, then ``request`` begins it, and ``follow`` returns
    further commands.
    """

    title: str
    ground: tuple[Ask, ...]
    request: Ask
    follow: Ask = lambda _: None


class TabletWalk(Value):
    """The states of one path through a case. ``fault``: its defect. ``turned``: a revert or a cancel was tried."""

    states: tuple[ClusterState, ...]
    fault: Fault | None = None
    turned: bool = False


TurnedBack = Callable[[], TabletWalk]
TabletCases = Callable[[ClusterState, CaseOptions], Iterator[TabletCase]]


def _always(command: Command) -> Ask:
    return lambda _: command


def _moved(tablet: Tablet, table: str, kind: str, source: TabletReplica | None, target: Shard | None) -> Ask:
    from_ = None if source is None else Shard(source.node, source.shard)
    return _always(MigrateTablets((TabletMigration(table, tablet.index, kind, from_, target),)))


def representative_tablets(state: ClusterState) -> Iterator[tuple[TabletMap, Tablet]]:
    """Yield one tablet for each group of nodes of each table that the balancer manages."""
    for name, tablets in in_order(state.tablets):
        seen: set[frozenset[str]] = set()
        for index in range(tablets.count if not in_zone(state, name) else 0):
            group = frozenset(replica.node for replica in tablets.replicas(index))
            if group not in seen:
                seen.add(group)
                yield tablets, tablets.tablet(index)


def migrations(state: ClusterState, options: CaseOptions) -> Iterator[TabletCase]:  # noqa: ARG001
    """Yield a move of each replica to each node without one."""
    for tablets, tablet in representative_tablets(state):
        there = {replica.node for replica in tablet.replicas}
        for replica in tablet.replicas:
            for node in members(state):
                if node.id not in there:
                    title = f"{_named(state, tablets, tablet)} moves from {_name(state, replica)} to {node.name}"
                    request = _moved(tablet, tablets.table, MIGRATION.name, replica, Shard(node.id, 0))
                    yield TabletCase(title, (), request)


def within_nodes(state: ClusterState, options: CaseOptions) -> Iterator[TabletCase]:  # noqa: ARG001
    """Yield a move of each replica to another shard of its node."""
    for tablets, tablet in representative_tablets(state):
        for replica in tablet.replicas:
            shards = range(state.nodes[replica.node].shards)
            other = next((shard for shard in shards if shard != replica.shard), None)
            if other is not None:
                title = f"{_named(state, tablets, tablet)} moves to shard {other} of {_name(state, replica)}"
                request = _moved(tablet, tablets.table, INTRANODE.name, replica, Shard(replica.node, other))
                yield TabletCase(title, (), request)


def rebuilds(state: ClusterState, options: CaseOptions) -> Iterator[TabletCase]:  # noqa: ARG001
    """Yield rebuilds of each lost replica on another node, and changes of the replica count by one."""
    yield from _rebuilt(state, REBUILD.name)


def repaired_rebuilds(state: ClusterState, options: CaseOptions) -> Iterator[TabletCase]:  # noqa: ARG001
    """Yield the cases of ``rebuilds``, with a repair before."""
    yield from _rebuilt(state, REBUILD_V2.name)


def _rebuilt(state: ClusterState, kind: str) -> Iterator[TabletCase]:
    for tablets, tablet in representative_tablets(state):
        there, name = {replica.node for replica in tablet.replicas}, _named(state, tablets, tablet)
        others = [node for node in members(state) if node.id not in there]
        for replica in tablet.replicas:
            lost = _always(DeclareDown(replica.node, "tried"))
            for node in others:
                title = f"{name} is rebuilt on {node.name} for the dead {_name(state, replica)}"
                yield TabletCase(title, (lost,), _moved(tablet, tablets.table, kind, replica, Shard(node.id, 0)))
        for more, setting in _neighbors(replication_of(state, tablets.table)):
            ground = (_always(AlterKeyspace(tablets.table.partition(".")[0], setting)),)
            for node in others if more else ():
                title = f"{name} gets one more replica, on {node.name}"
                yield TabletCase(title, ground, _moved(tablet, tablets.table, kind, None, Shard(node.id, 0)))
            for replica in () if more else tablet.replicas:
                title = f"{name} loses one replica, on {_name(state, replica)}"
                yield TabletCase(title, ground, _moved(tablet, tablets.table, kind, replica, None))


def _neighbors(replication: Replication) -> Iterator[tuple[bool, Replication]]:
    """Yield (whether it is more, the replication with one replica more or fewer), for each datacenter that it names."""
    for change in (1, -1):
        factor = replication.factor + change
        if not replication.datacenters:
            yield change > 0, replace(replication, factor=factor)
        for place, local in enumerate(replication.datacenters):
            if not local.racks:
                changed = replace(local, factor=local.factor + change)
                rest = (*replication.datacenters[:place], changed, *replication.datacenters[place + 1 :])
                yield change > 0, replace(replication, factor=factor, datacenters=rest)


def repairs(state: ClusterState, options: CaseOptions) -> Iterator[TabletCase]:  # noqa: ARG001
    """Yield a repair of each tablet."""
    for tablets, tablet in representative_tablets(state):
        title = f"{_named(state, tablets, tablet)} is repaired"
        yield TabletCase(title, (), _moved(tablet, tablets.table, REPAIR.name, None, None))


def resizes(state: ClusterState, options: CaseOptions) -> Iterator[TabletCase]:  # noqa: ARG001
    """Yield a split and a merge of each table. Before a merge, the balancer colocates sibling tablets."""
    for name, tablets in in_order(state.tablets):
        if not in_zone(state, name):
            for decision in (SPLIT, MERGE):
                request = _always(DecideResize(name, decision, tablets.sequence + 1))
                yield TabletCase(f"{name}: {decision}", (), request, balanced)


def balanced(state: ClusterState) -> Command | None:
    """Return the balancer's moves before any node has reported its load. They serve a merge that it would revoke."""
    moves, _ = admissible(state, map(as_migration, make_plan(input_of(state, {})).migrations))
    return MigrateTablets(moves) if moves else None


def zone_steps(state: ClusterState, options: CaseOptions) -> Iterator[TabletCase]:  # noqa: ARG001
    """Yield changes of each zone with a keyspace: each other number of replicas, and each node excluded, up or down."""
    all_nodes = members(state)
    for name in zones_with_data(state):
        zone = state.zones[name]
        for replicas in range(1, len(all_nodes) + 1):
            if replicas != zone.replicas:
                title = f"zone {name} has {replicas} replicas"
                yield TabletCase(title, (_always(AlterZone(name, replicas=replicas)),), _triggered(name), _follow)
        for node in all_nodes:
            ids = tuple(other.id for other in all_nodes if other.id != node.id)
            without = AlterZone(name, filter=f'$[?(@.name != "{node.name}")]', nodes=ids)
            yield TabletCase(f"zone {name} without {node.name}", (_always(without),), _triggered(name), _follow)
            ground = (_always(DeclareDown(node.id, "tried")), _always(without))
            yield TabletCase(f"zone {name} without the dead {node.name}", ground, _triggered(name), _follow)


def zones_with_data(state: ClusterState) -> tuple[str, ...]:
    """Return the zones that place a keyspace, by name."""
    return tuple(sorted({keyspace.replication.zone for keyspace in state.keyspaces.values()} - {""}))


def _triggered(zone: str) -> Ask:
    return lambda state: TriggerRebalance(zone, state.epoch)


def _follow(state: ClusterState) -> Command | None:
    """Return the next move of a zone's data, or else the next step of a partition."""
    moves = zone_migrations(state)
    if moves is not None:
        return moves
    waiting = [partition for _, partition in in_order(state.zone_partitions) if partition.pending]
    return switch_of(waiting[0]) if waiting else None


def _name(state: ClusterState, replica: TabletReplica) -> str:
    return state.nodes[replica.node].name


def _named(state: ClusterState, tablets: TabletMap, tablet: Tablet) -> str:
    return f"{tablets.table}/{tablet.index} on {', '.join(_name(state, one) for one in tablet.replicas)}"


def member_changes(state: ClusterState, options: CaseOptions) -> Iterator[TabletCase]:  # noqa: ARG001
    """Yield the current change of the service, and every change that an operator could request next.

    Each node is added, removed and excluded, each member fails, and the service gets each other size.
    """
    if next_step(state) is not None:
        yield TabletCase("the change of members in progress", (), lambda _: None)
    all_nodes = members(state)
    for node in all_nodes:
        if node.id not in state.service:
            yield TabletCase(f"member {node.name} is added", (), _always(AddServiceMember(node.id)))
    for node in all_nodes:
        if node.id in state.service:
            yield TabletCase(f"member {node.name} is removed", (), _always(RemoveServiceMember(node.id)))
            excluded = (*state.service_goal.excluded, node.id)
            yield TabletCase(f"member {node.name} is excluded", (), _always(ReconfigureService(excluded=excluded)))
            if not node.down:
                yield TabletCase(f"member {node.name} is dead", (), _always(DeclareDown(node.id, "tried")))
    for size in range(1, min(len(all_nodes), MEMBERS_MAX - 1) + 1):
        if size != wanted_size(state):
            yield TabletCase(f"the service has {size} members", (), _always(ReconfigureService(size)))


ZONE, SERVICE = "zone", "service"
KINDS: dict[str, TabletCases] = {
    "tablet-migration": migrations,
    "tablet-intranode": within_nodes,
    "tablet-rebuild": rebuilds,
    "tablet-rebuild-v2": repaired_rebuilds,
    "tablet-repair": repairs,
    "tablet-resize": resizes,
    ZONE: zone_steps,
    SERVICE: member_changes,
}
"""Kind of transition to its cases."""


def kinds_in(state: ClusterState) -> tuple[str, ...]:
    """Return the kinds of plans to try by default: kinds of operations, and kinds for the tablets of this cluster."""
    tables = any(not in_zone(state, name) for name in state.tablets)
    present = {ZONE: bool(zones_with_data(state)), SERVICE: bool(state.service) and not is_too_large(state)}
    return (*OPERATIONS, *(name for name in KINDS if present.get(name, tables)))


NOT_COVERED = ("resets of zone partitions (salvage, lossy_salvage)",)
"""Operations that change groups and have no plans here."""


def not_covered(state: ClusterState) -> tuple[str, ...]:
    """Return the operations that change groups in this cluster and have no plans."""
    large = f"changes of the metadata service's members: there are more than {MEMBERS_MAX - 1}"
    return (*NOT_COVERED, *((large,) if is_too_large(state) else ()))


# ---------------------------------------------------------------------------------------------------- driving


def begin(state: ClusterState, case: TabletCase) -> tuple[ClusterState, ...] | Fault:
    """Return the states of a case from its preparation to its applied request, or a Fault for a rejected command."""
    world, states = WalkWorld(state), [state]
    for ask in (*case.ground, case.request):
        command = ask(world.state)
        if command is None:
            continue
        outcome = world.apply(command)
        if outcome.kind is not OutcomeKind.APPLIED:
            return Fault("admitted", "before", f"{outcome.code}: {outcome.detail}", outcome.code)
        states.append(world.state)
    return tuple(states)


def finished(states: tuple[ClusterState, ...], follow: Ask) -> tuple[ClusterState, ...]:
    """Drive the case until no further entry applies, and return the states."""
    world, found = WalkWorld(states[-1]), [*states]
    for _ in range(STEPS_MAX):
        before = world.state
        for outcome in world.coordinate():
            if outcome.kind is OutcomeKind.APPLIED and world.state is not found[-1]:
                found.append(world.state)
        if world.state.tablets is not before.tablets or world.state.service is not before.service:
            continue
        command = follow(world.state)
        if command is None or world.apply(command).kind is not OutcomeKind.APPLIED:
            break
        found.append(world.state)
    return tuple(found)


def walks(states: tuple[ClusterState, ...], case: TabletCase) -> Iterator[TabletWalk]:
    """Yield every path from the begun case to its end: undisturbed, reverted in each stage, and a node lost in each
    stage.
    """
    straight = finished(states, case.follow)
    yield TabletWalk(straight, _stuck(straight[-1]))
    seen: set[tuple[str, str]] = set()
    for place in range(len(states) - 1, len(straight)):
        state = straight[place]
        until = straight[: place + 1]
        for key, nodes, turned_back in _under_way(until):
            if key in seen:
                continue
            seen.add(key)
            yield turned_back()
            for node in sorted(nodes):
                world = WalkWorld(state)
                if world.apply(DeclareDown(node, "tried")).kind is OutcomeKind.APPLIED:
                    yield TabletWalk(finished((*until, world.state), case.follow), turned=False)


def _under_way(until: tuple[ClusterState, ...]) -> Iterator[tuple[tuple[str, str], set[NodeId], TurnedBack]]:
    """Yield (kind and stage, participating nodes, function that reverts it) of each current change in the
    last state.
    """
    for tablets, transition in transitions(until[-1]):
        tablet = tablets.tablet(transition.tablet)
        nodes = {one.node for one in members_of(tablet, Side.BOTH)}
        yield (transition.kind, transition.stage), nodes, partial(_turned_back, until, tablets, tablet)
    moving = moving_member(until[-1])
    if moving is not None:
        yield (SERVICE, moving.stage), set(until[-1].service), partial(_removed_again, until, moving)


def _removed_again(until: tuple[ClusterState, ...], moving: ServiceMember) -> TabletWalk:
    """Return the path of a node that is removed while it joins. A leaving node cannot be removed again."""
    world = WalkWorld(until[-1])
    outcome = world.apply(RemoveServiceMember(moving.node))
    if moving.stage != JOINING:
        refused = outcome.code == "service_changing"
        return TabletWalk((), None if refused else Fault("cancel", moving.stage, "not refused"), turned=True)
    if outcome.kind is not OutcomeKind.APPLIED:
        up = [not until[-1].nodes[node].down for node in until[-1].service if node != moving.node]
        refused = outcome.code == "no_live_majority" and 2 * sum(up) <= len(up)
        fault = None if refused else Fault("cancel", moving.stage, f"{outcome.code}: {outcome.detail}")
        return TabletWalk((), fault, turned=True)
    states = finished((*until, world.state), lambda _: None)
    fault = _stuck(states[-1])
    if fault is None and all(moving.node in state.service for state in states[len(until) :]):
        fault = Fault("cancel", moving.stage, "it is still in the metadata service")
    return TabletWalk(states, fault, turned=True)


def _turned_back(until: tuple[ClusterState, ...], tablets: TabletMap, tablet: Tablet) -> TabletWalk:
    """Return the path of a tablet that reverts in the last of these states, with a fault if the outcome is wrong."""
    transition = tablet.transition
    assert transition is not None, "the tablet is migrating"
    world, stage = WalkWorld(until[-1]), STAGES[transition.stage]
    outcome = world.apply(RevertTablets((TabletRevert(tablets.table, tablet.index, "tried"),)))
    may = stage.back and not (kind_of(transition).within_node and stage.name == WRITE_BOTH_READ_NEW)
    if outcome.kind is not OutcomeKind.APPLIED:
        # While the new replicas are read, a tablet reverts only because of dead nodes.
        refused = outcome.code == "past_point_of_no_return" and (not may or stage.name == WRITE_BOTH_READ_NEW)
        fault = None if refused else Fault("cancel", stage.name, f"{outcome.code}: {outcome.detail}")
        return TabletWalk((), fault, turned=True)
    if not may:
        return TabletWalk((), Fault("cancel", stage.name, "not refused"), turned=True)
    states = finished((*until, world.state), lambda _: None)
    fault = _stuck(states[-1])
    after = states[-1].tablets[tablets.table].replicas(tablet.index)
    if fault is None and [(one.node, one.shard) for one in after] != [(one.node, one.shard) for one in tablet.replicas]:
        fault = Fault("cancel", stage.name, "leaves changes in the replicas")
    return TabletWalk(states, fault, turned=True)


def _stuck(state: ClusterState) -> Fault | None:
    for tablets, transition in transitions(state):
        where = f"{tablets.table}/{transition.tablet}"
        return Fault(
            "ends", transition.stage, f"{where}: every node has acknowledged, but the operation does not continue"
        )
    moving = moving_member(state)
    if moving is not None:
        detail = f"{state.nodes[moving.node].name}: every node has acknowledged, but the operation does not continue"
        return Fault("ends", moving.stage, detail, "" if has_live_majority(state) else AWAITS_SERVICE)
    return None
