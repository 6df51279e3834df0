"""Zones as JSON, with sorted node names, and the waits of partitions in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ringlog.kernel.history import state_id_at
from ringlog.kernel.model.state import ClusterState, in_order
from ringlog.kernel.model.tablet_map import TabletMap
from ringlog.kernel.model.zones import NEVER, Zone, ZonePartition, ZoneStep
from ringlog.kernel.tablets.stages import nodes_of
from ringlog.kernel.values import Epoch, NodeId
from ringlog.kernel.zones.change import partitions_of
from ringlog.kernel.zones.data import goal_of, maps_in
from ringlog.kernel.zones.distribution import data_nodes, is_alive, kept, ranked, targets
from ringlog.kernel.zones.queue import is_same, steps_between
from ringlog.kernel.zones.rebalance import triggered
from ringlog.kernel.zones.resets import has_quorum, members
from ringlog.kernel.zones.salvage import full_replicas
from ringlog.operator.views.views import NO_REPORTS, name_of, silent_nodes
from ringlog.operator.views.zone_explanations import explain, names, timer_line
from ringlog.protocol.balancer.load_book import LastReports
from ringlog.protocol.rebalancer.data_nodes import (
    SCALE_DOWN,
    RunningTimer,
    Timers,
    matching_nodes,
    running_timers,
    unfit,
    updated_timers,
)
from ringlog.protocol.rebalancer.zone_groups import FAILED, HAS, SessionReports, added_nodes, session
from ringlog.protocol.rebalancer.zone_waits import waits_of
from ringlog.wire.ids import time_of

Json = dict[str, Any]


def _step(state: ClusterState, step: ZoneStep | None) -> list[str] | None:
    return None if step is None else names(state, step.nodes)


def zone_view(state: ClusterState, zone: Zone) -> Json:
    """Return the data nodes and partitions of a zone for a rehearsal. ``revision``: that of the pending steps."""
    return {
        "data_nodes": names(state, zone.nodes),
        "partitions": [_partition(state, one) for one in partitions_of(state, zone)],
    }


def _partition(state: ClusterState, partition: ZonePartition) -> Json:
    cancel = partition.cancel
    return {
        "partition": partition.number,
        "stable": _step(state, partition.stable) or [],
        "pending": [names(state, step.nodes) for step in partition.pending],
        "planned": _step(state, partition.planned),
        "cancel": None if cancel is None else {"old": _step(state, cancel.old), "new": _step(state, cancel.new)},
        "revision": partition.revisions.pending,
    }


def zones_view(state: ClusterState) -> list[Json]:
    """Return a row for each zone."""
    timers = _timers(state)
    return [settings_view(state, zone, timers) for _, zone in in_order(state.zones)]


def _timers(state: ClusterState) -> tuple[RunningTimer, ...]:
    """Return the timers as a new instance of the rebalancer would compute them."""
    return tuple(running_timers(updated_timers(Timers(), state), state))


def timers_view(state: ClusterState) -> list[Json]:
    """Return the timers of all zones. ``since``, ``fires``: microseconds. ``fires`` is null if the zone disables the
    timer.
    """
    return [_timer(state, one) for one in _timers(state)]


def _timer(state: ClusterState, one: RunningTimer) -> Json:
    shown = {"zone": one.zone, "timer": one.name, "nodes": names(state, one.nodes)}
    return shown | {"since": one.since, "fires": one.fires, "text": timer_line(state, one)}


def settings_view(state: ClusterState, zone: Zone, timers: Sequence[RunningTimer]) -> Json:
    """Return a zone's settings, the number of moving partitions, and its running timers."""
    return {
        "zone": zone.name,
        "partitions": zone.partitions,
        "replicas": zone.replicas,
        "quorum": zone.quorum,
        "filter": zone.filter,
        "profiles": list(zone.profiles),
        "scale_up": None if zone.scale_up == NEVER else zone.scale_up,
        "scale_down": None if zone.scale_down == NEVER else zone.scale_down,
        "mode": zone.mode,
        "data_nodes": names(state, zone.nodes),
        "moving": zone.moving,
        "timers": [_timer(state, one) for one in timers if one.zone == zone.name],
    }


def full_view(
    state: ClusterState, zone: Zone, replica_reports: SessionReports, reports: LastReports = NO_REPORTS
) -> Json:
    """Return a zone's settings, and each partition with its roles, last decision and wait.

    - ``state`` of a partition: ``available`` (all voters are alive), ``degraded`` (a quorum is), ``read_only`` (some
      are)
    or ``unavailable``.
    - ``replicas``: the state of each: ``healthy``, ``unavailable`` (declared down, or gone), or a state of a running
      node.

    A running node's replica is ``initializing`` if it does not follow the pending step yet. It is ``catching_up`` if
    tablets are missing, and ``broken`` if the node reported that its rows can never follow.

    ``waits`` is the wait in words, including the scale-down timer of a member that went down. ``stuck`` is true if only
    returning nodes or an operator can end the wait (``protocol.rebalancer.zone_waits``). ``cancelled`` is the reason of
    the last or present cancel. ``since`` and ``at`` are the epoch since which it waits and the time of that epoch in
    microseconds, null if it is pruned. ``replica_reports``: the nodes' reports about partitions.
    """
    rows, maps, timers = [], list(maps_in(state, zone.name)), _timers(state)
    going = [one for one in timers if one.zone == zone.name and one.name == SCALE_DOWN and one.fires is not None]
    for partition, shown in zip(partitions_of(state, zone), zone_view(state, zone)["partitions"], strict=True):
        learners = partition.stable.learners if partition.stable is not None else ()
        more: Json = {"learners": names(state, learners), "status": partition.status or None}
        more["cancelled"] = partition.reason or None
        more |= {"change": partition.change, "state": _health(state, zone, partition)}
        more |= {"replicas": _replicas(state, partition, replica_reports, maps)}
        found, since = waits_of(state, partition, replica_reports), _since(zone, partition)
        waits = [explain(state, partition, found)]
        waits += [timer_line(state, one) for one in going if set(one.nodes).intersection(members(partition))]
        more |= {"waits": "; ".join(filter(None, waits)) or None, "stuck": any(one.is_stuck for one in found)}
        made = state_id_at(state, since) if since else ""
        rows.append(shown | more | {"since": since, "at": time_of(made) if made else None})
    used = {node for partition in partitions_of(state, zone) for node in members(partition)}
    silent = silent_nodes(state, reports, used.union(zone.nodes))
    return settings_view(state, zone, timers) | {"partitions": rows, "count": zone.partitions, "silent": silent}


def _health(state: ClusterState, zone: Zone, partition: ZonePartition) -> str:
    peers = () if partition.reached is None else partition.reached.peers
    alive = sum(is_alive(state, node) for node in peers)
    if not alive:
        return "unavailable"
    if alive == len(peers):
        return "available"
    return "degraded" if has_quorum(state, zone, partition) else "read_only"


def _replicas(
    state: ClusterState, partition: ZonePartition, replica_reports: SessionReports, maps: list[TabletMap]
) -> Json:
    """Return the state of each member's replica, by node name."""
    reported = replica_reports.get(session(partition, HAS), {})
    failed = replica_reports.get(session(partition, FAILED), {})
    starting = added_nodes(partition).difference(reported) if partition.pending else frozenset[str]()
    must, tablets = goal_of(partition).must, [one.tablet(partition.number) for one in maps]
    lacking = {node for tablet in tablets for node in must.difference(nodes_of(full_replicas(tablet)))}
    found = {}
    for node in members(partition):
        if not is_alive(state, node):
            how = "unavailable"
        elif node in failed:
            how = "broken"
        elif node in starting:
            how = "initializing"
        else:
            how = "catching_up" if node in lacking else "healthy"
        found[name_of(state, node)] = how
    return dict(sorted(found.items()))


def _since(zone: Zone, partition: ZonePartition) -> Epoch | None:
    """Return the epoch since which a partition has, or waits for, a pending step; None if neither."""
    if partition.pending:
        return partition.revisions.pending
    return zone.changed if partition.change < zone.changed else None


def standing_view(state: ClusterState, replica_reports: SessionReports) -> list[Json]:
    """Return, for each zone, the number of partitions by state and the waits of its stuck partitions."""
    found = []
    for _, zone in in_order(state.zones):
        states: dict[str, int] = {}
        stuck: list[Json] = []
        has_tables = any(True for _ in maps_in(state, zone.name))
        for partition in partitions_of(state, zone):
            health = _health(state, zone, partition)
            states[health] = states.get(health, 0) + 1
            waits = waits_of(state, partition, replica_reports, has_tables=has_tables)
            if any(one.is_stuck for one in waits):
                stuck.append({"partition": partition.number, "waits": explain(state, partition, waits)})
        found.append({"zone": zone.name, "partitions": zone.partitions, "states": states, "stuck": stuck})
    return found


def plan_view(state: ClusterState, zone: Zone) -> Json:
    """Return the effect of a trigger now: the steps of each partition, and the number of new replicas by node.

    ``left_out``: down nodes that would otherwise get replicas. ``data_node`` is true for data nodes, with the number of
    partitions, and false for nodes that would become data nodes.
    """
    rows, coming = [], dict.fromkeys(names(state, zone.nodes), 0)
    partitions = list(partitions_of(state, zone))
    wanted = targets(state, zone, [kept(one) for one in partitions], [one.number for one in partitions])
    for partition, target in zip(partitions, wanted, strict=True):
        have = partition.stable
        if target is None or is_same(have, target):
            continue
        after = triggered(partition, target, max(partition.change, state.epoch) + 1, state.epoch + 1)
        steps = [names(state, step.nodes) for step in steps_between(have, target)]
        status = None if after is None else after.status
        rows.append(
            {"partition": partition.number, "stable": _step(state, have) or [], "steps": steps, "status": status}
        )
        for name in names(state, set(target.nodes) - set(() if have is None else have.nodes)):
            coming[name] = coming.get(name, 0) + 1
    replicas = {name: count for name, count in coming.items() if count}
    left_out = _left_out(state, zone, partitions, wanted)
    return {"zone": zone.name, "moves": rows, "replicas": replicas, "left_out": left_out}


def _left_out(
    state: ClusterState, zone: Zone, partitions: Sequence[ZonePartition], wanted: Sequence[ZoneStep | None]
) -> list[Json]:
    found = dict.fromkeys(matching_nodes(state, zone.filter, zone.profiles, is_down), 0)
    found = {node: 0 for node in found if node not in zone.nodes and node not in unfit(state)}
    best = ranked(zone, data_nodes(state, zone), [one.number for one in partitions])
    for nodes, target in zip(best, wanted, strict=True):
        for node in set(nodes).difference(() if target is None else target.nodes):
            found[node] = found.get(node, 0) + 1
    rows = [
        {"node": name_of(state, node), "why": "down", "data_node": node in zone.nodes, "partitions": count}
        for node, count in found.items()
    ]
    return sorted(rows, key=lambda row: str(row["node"]))


def is_down(state: ClusterState, node: NodeId) -> bool:
    """Return True if a node is declared down and may return."""
    return state.nodes[node].down and state.nodes[node].state != "left"
