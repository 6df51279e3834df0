"""The waits of a zone's partition (``protocol.rebalancer.zone_waits``) in words, with the remedies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from ringlog.kernel.commands.control.pauses import pause_of
from ringlog.kernel.model.modes import ZONES, pause_text
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.model.zones import ZonePartition
from ringlog.kernel.zones.distribution import is_alive, targets
from ringlog.kernel.zones.resets import has_quorum, restarts_from_survivor
from ringlog.kernel.zones.salvage import may_lose
from ringlog.operator.views.views import name_of
from ringlog.operator.views.words import when
from ringlog.protocol.rebalancer import zone_waits as waits
from ringlog.protocol.rebalancer.data_nodes import SCALE_UP, RunningTimer
from ringlog.protocol.rebalancer.zone_waits import ZoneWait

STUCK: Final = "stuck: "
_ADMIT: Final = "ringlog zone reset --admit-loss"


def names(state: ClusterState, nodes: Iterable[str]) -> list[str]:
    """Return node names, sorted."""
    return sorted(name_of(state, node) for node in nodes)


def explain(state: ClusterState, partition: ZonePartition, found: Sequence[ZoneWait]) -> str | None:
    """Return all waits of a partition; None if there are none. The text starts with ``stuck`` if no agent ends them."""
    if not found:
        return None
    parts = [_goal(state, partition)] if partition.pending else []
    parts += [_explain(state, partition, one) for one in found]
    return (STUCK if any(one.is_stuck for one in found) else "") + "; ".join(parts)


def timer_line(state: ClusterState, timer: RunningTimer) -> str:
    """Return a zone's timer in words: its nodes, its start, its end, and the command to end it.

    A new instance of the rebalancer counts from the last change of a node. The active instance may have an earlier
    start, so the time in the text is the latest one.
    """
    node_names, since = _listed(state, timer.nodes), when(timer.since)
    option = f"ringlog zone alter {timer.zone} --{timer.name.replace('_', '-')}"
    comes = timer.name == SCALE_UP
    event = "to join the data nodes" if comes else "to leave the data nodes"
    if timer.fires is None:
        return f"{timer.name}: {node_names} {event}: never; to change that: {option} SECONDS"
    until = f"changed at {since}, takes effect at {when(timer.fires)} at the latest"
    return f"{timer.name}: {node_names} {event}: {until}; at once: {option} 0"


def _goal(state: ClusterState, partition: ZonePartition) -> str:
    if partition.cancel is not None:
        return f"for its group to return to {_listed(state, partition.cancel.old.nodes)}"
    return f"for its group to have {_listed(state, partition.pending[0].nodes)}"


def _explain(state: ClusterState, partition: ZonePartition, one: ZoneWait) -> str:
    node_names = _listed(state, one.nodes)
    match one.code:
        case waits.VOTERS:
            quorum = (
                "a quorum of its voters"
                if not _has_quorum(state, partition)
                else "a majority of the nodes with its data"
            )
            return f"for {quorum}: {node_names} are down; {_quorum_way(state, partition, one)}"
        case waits.COPIES:
            return f"for {node_names} to report their data; declare lost nodes down (ringlog node down)"
        case waits.ANSWERS:
            dead = _listed(state, (node for node in one.nodes if not is_alive(state, node)))
            way = "; ringlog zone cancel" if _can_cancel(partition) and _has_quorum(state, partition) else ""
            return f"not yet: {node_names}" + (f", of which {dead} are down{way}" if dead else "")
        case waits.ROWS:
            lost = may_lose(state, partition) if restarts_from_survivor(state, partition) else ""
            way = f", or {_ADMIT}, which may lose {lost}" if lost else ""
            return f"for rows of its tablets that only {node_names} have: start them again{way}"
        case waits.ROOM:
            end = "ringlog zone cancel" if _can_cancel(partition) else "ringlog node remove"
            return f"{node_names} cannot get tablets now: start them again, or {end}"
        case waits.OPERATION:
            return f"tablets start to move after operation {', '.join(one.what)} (ringlog operation show)"
        case waits.TABLETS:
            dead = f", which need {node_names}" if one.nodes else ""
            return f"for migrating tablet {_first(one)}{dead} (ringlog tablet explain)"
        case waits.BEGIN:
            return f"for the rebalancer to start tablet {_first(one)}"
        case waits.STEP:
            return "for the rebalancer: all nodes have answered"
        case waits.TRIGGER:
            zone = state.zones[partition.zone]
            changed = zone.changed if partition.change < zone.changed else zone.liveness
            stopped = pause_of(state, ZONES)
            until = f"; {pause_text(stopped.scope)} (ringlog resume {stopped.scope})" if stopped is not None else ""
            return f"for the rebalancer to act on epoch {changed}{until}"
        case waits.PLACE:
            why = f"none of its data nodes ({node_names}) can have it" if one.nodes else "its zone has no data nodes"
            return f"for a suitable node: {why}; start nodes, or change the filter of the zone (ringlog zone alter)"
        case waits.MISPLACED:
            zone = state.zones[partition.zone]
            (target,) = targets(state, zone, [partition.stable], [partition.number])
            nodes = target.nodes if target is not None else ()
            dead = _listed(state, (node for node in nodes if not is_alive(state, node)))
            there = _listed(state, nodes) + (f" ({dead} are down)" if dead else "")
            return f"its zone places it on {there}, but a cancellation or a reset left it here; {_rebalance(partition)}"
        case _:
            return f"it was reverted to {node_names}, which have left; {_rebalance(partition)}"


def _rebalance(partition: ZonePartition) -> str:
    return f"ringlog zone rebalance {partition.zone} {partition.number}"


def _quorum_way(state: ClusterState, partition: ZonePartition, one: ZoneWait) -> str:
    lost = may_lose(state, partition)
    if not one.is_stuck:
        return "mode high_availability resets it" + (f", which may lose {lost}" if lost else "")
    if lost:
        return f"start them again, or {_ADMIT}, which may lose {lost}"
    return "ringlog zone reset"


def _has_quorum(state: ClusterState, partition: ZonePartition) -> bool:
    return has_quorum(state, state.zones[partition.zone], partition)


def _can_cancel(partition: ZonePartition) -> bool:
    """Return True if a cancel would be accepted: none has started, and the pending step is not a reset."""
    return bool(partition.pending) and partition.cancel is None and not partition.pending[0].forced


def _first(one: ZoneWait) -> str:
    return one.what[0] + (f" and {len(one.what) - 1} others" if len(one.what) > 1 else "")


def _listed(state: ClusterState, nodes: Iterable[str]) -> str:
    return ", ".join(names(state, nodes))
