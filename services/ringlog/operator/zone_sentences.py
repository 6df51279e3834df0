"""What a partition waits for (``protocol.zone_waits``), in words, with the way out of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from ringlog.kernel.state import ClusterState
from ringlog.kernel.zones.distribution import is_alive
from ringlog.kernel.zones.model import ZonePartition
from ringlog.kernel.zones.resets import begins_anew, has_quorum
from ringlog.kernel.zones.salvage import may_lose
from ringlog.operator.shown import when
from ringlog.operator.views import name_of
from ringlog.protocol import zone_waits as waits
from ringlog.protocol.data_nodes import SCALE_UP, RunningTimer
from ringlog.protocol.zone_waits import ZoneWait

STUCK: Final = "stuck: "
_ADMIT: Final = "ringlog zone reset --admit-loss"


def names(state: ClusterState, nodes: Iterable[str]) -> list[str]:
    """Names of nodes, sorted."""
    return sorted(name_of(state, node) for node in nodes)


def told(state: ClusterState, partition: ZonePartition, found: Sequence[ZoneWait]) -> str | None:
    """All that a partition waits for; None: for nothing. It begins with *stuck* where no agent ends it."""
    if not found:
        return None
    parts = [_goal(state, partition)] if partition.pending else []
    parts += [_told(state, partition, one) for one in found]
    return (STUCK if any(one.is_stuck for one in found) else "") + "; ".join(parts)


def timer_line(state: ClusterState, timer: RunningTimer) -> str:
    """A timer of a zone: for whom it runs, since when, when it is over, and how to end it.

    Who takes the rebalancer over counts from the last change of any node; one that acts may have seen earlier when
    these nodes came, or went. So it is over then at the latest.
    """
    who, since = _listed(state, timer.nodes), when(timer.since)
    option = f"ringlog zone alter {timer.zone} --{timer.name.replace('_', '-')}"
    comes = timer.name == SCALE_UP
    what = "came, to be a data node" if comes else "went, to be no data node any more"
    if timer.fires is None:
        return f"{timer.name}: {who} {what}; never, as the zone is set: {option} SECONDS"
    until = f"since {since}, over at {when(timer.fires)} at the latest"
    return f"{timer.name}: {who} {what}: {until}; at once: {option} 0"


def _goal(state: ClusterState, partition: ZonePartition) -> str:
    if partition.cancel is not None:
        return f"for its group to return to {_listed(state, partition.cancel.old.nodes)}"
    return f"for its group to have {_listed(state, partition.pending[0].nodes)}"


def _told(state: ClusterState, partition: ZonePartition, one: ZoneWait) -> str:
    who = _listed(state, one.nodes)
    match one.code:
        case waits.VOTERS:
            whom = "a quorum of its voters" if not _has_quorum(state, partition) else "a majority of who has its data"
            return f"for {whom}: {who} are down; {_quorum_way(state, partition, one)}"
        case waits.COPIES:
            return f"for {who} to say what they have; who never will is to be declared down (ringlog node down)"
        case waits.ANSWERS:
            dead = _listed(state, (node for node in one.nodes if not is_alive(state, node)))
            way = "; ringlog zone cancel" if _has_way_back(partition) and _has_quorum(state, partition) else ""
            return f"not yet: {who}" + (f", of which {dead} are down{way}" if dead else "")
        case waits.ROWS:
            lost = may_lose(state, partition) if begins_anew(state, partition) else ""
            way = f", or {_ADMIT}, which may lose {lost}" if lost else ""
            return f"for rows of its tablets that nobody knows without {who}: bring them back{way}"
        case waits.ROOM:
            end = "ringlog zone cancel" if _has_way_back(partition) else "ringlog node remove"
            return f"{who} cannot get tablets now: bring them back, or {end}"
        case waits.OPERATION:
            return f"tablets begin to move when operation {', '.join(one.what)} is over (ringlog operation show)"
        case waits.TABLETS:
            dead = f", which need {who}" if one.nodes else ""
            return f"tablet {_first(one)} on the way{dead} (ringlog tablet explain)"
        case waits.BEGIN:
            return f"tablet {_first(one)} to begin: the rebalancer"
        case waits.STEP:
            return "all have answered: the rebalancer"
        case waits.TRIGGER:
            changed = state.zones[partition.zone].changed
            return f"for what changed at epoch {changed} to be acted on: TriggerRebalance"
        case waits.PLACE:
            why = f"of its data nodes ({who}) none can have it" if one.nodes else "its zone has no data nodes"
            return f"for a node to belong on: {why}; bring nodes up, or change the zone's filter (ringlog zone alter)"
        case _:
            return f"for a change of its zone, or TriggerRebalance: it was turned back to {who}, and they have left"


def _quorum_way(state: ClusterState, partition: ZonePartition, one: ZoneWait) -> str:
    lost = may_lose(state, partition)
    if not one.is_stuck:
        return "mode high_availability resets it" + (f", which may lose {lost}" if lost else "")
    if lost:
        return f"bring them back, or {_ADMIT}, which may lose {lost}"
    return "ringlog zone reset"


def _has_quorum(state: ClusterState, partition: ZonePartition) -> bool:
    return has_quorum(state, state.zones[partition.zone], partition)


def _has_way_back(partition: ZonePartition) -> bool:
    """True if a cancel would be admitted: there is none yet, and no reset has begun."""
    return bool(partition.pending) and partition.cancel is None and not partition.pending[0].forced


def _first(one: ZoneWait) -> str:
    return one.what[0] + (f" and {len(one.what) - 1} others" if len(one.what) > 1 else "")


def _listed(state: ClusterState, nodes: Iterable[str]) -> str:
    return ", ".join(names(state, nodes))
