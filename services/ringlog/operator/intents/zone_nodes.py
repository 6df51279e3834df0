"""The values that an author chooses for zone commands: matching nodes, causes and revisions."""

from __future__ import annotations

from typing import Any

from ringlog.kernel.commands.placement.rebalances import ZoneCopy, default_copies
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.model.zones import EVERY_NODE, ZonePartition, ZoneRevisions, partition_key
from ringlog.kernel.zones.change import partitions_of
from ringlog.protocol.rebalancer.data_nodes import matching_nodes, unfit

Values = dict[str, Any]


def nodes_of_new(state: ClusterState, values: Values) -> tuple[str, ...]:
    """Return the data nodes of a CreateZone."""
    return _fit(state, matching_nodes(state, values.get("filter", EVERY_NODE), values.get("profiles", ())))


def nodes_of_altered(state: ClusterState, values: Values) -> tuple[str, ...] | None:
    """Return the data nodes of an AlterZone; None if the filter and profiles are unchanged."""
    zone = state.zones.get(values["zone"])
    if zone is None or (values.get("filter") is None and values.get("profiles") is None):
        return None
    wanted = values.get("profiles")
    profiles = zone.profiles if wanted is None else wanted
    return _fit(state, matching_nodes(state, values.get("filter") or zone.filter, profiles))


def nodes_of_existing(state: ClusterState, values: Values) -> tuple[str, ...]:
    """Return the data nodes of a SetDataNodes."""
    zone = state.zones.get(values["zone"])
    return () if zone is None else _fit(state, matching_nodes(state, zone.filter, zone.profiles))


def _fit(state: ClusterState, nodes: tuple[str, ...]) -> tuple[str, ...]:
    """Return those of the nodes that may be data nodes."""
    outside = unfit(state)
    return tuple(node for node in nodes if node not in outside)


def partition_of(state: ClusterState, values: Values) -> ZonePartition | None:
    """Return the partition that a command names, or None."""
    return state.zone_partitions.get(partition_key(values["zone"], values["partition"]))


def next_step(state: ClusterState, values: Values) -> tuple[str, ...]:
    """Return the nodes of the next step, for a SwitchStable."""
    found = partition_of(state, values)
    return () if found is None or not found.pending else found.pending[0].nodes


def learners_of(state: ClusterState, values: Values) -> tuple[str, ...]:
    """Return the applied nodes that are learners in the next step (or in the stable one), for a SwitchStable."""
    found = partition_of(state, values)
    if found is None:
        return ()
    step = found.pending[0] if found.pending else found.stable
    return () if step is None else tuple(node for node in step.learners if node in values["applied"])


def revisions_of(state: ClusterState, values: Values) -> ZoneRevisions:
    """Return the partition's current revisions, for a SwitchStable."""
    found = partition_of(state, values)
    return ZoneRevisions() if found is None else found.revisions


def pending_revision(state: ClusterState, values: Values) -> int:
    """Return the revision of the pending steps, for a CancelRebalance or FinishCancel."""
    return revisions_of(state, values).pending


def copies_of(state: ClusterState, values: Values) -> tuple[ZoneCopy, ...]:
    """Return the copies of a ResetPartitions: every living member has the same data."""
    zone = state.zones.get(values["zone"])
    wanted = values.get("partitions", ())
    if zone is None:
        return ()
    return default_copies(state, (one for one in partitions_of(state, zone) if not wanted or one.number in wanted))
