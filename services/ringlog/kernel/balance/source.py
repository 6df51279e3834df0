"""The planner's input from the state. Only this module makes a ``BalanceInput`` from tablets, nodes and settings.

A node is a host once it has joined, or once it starts to replace another one. A leaving node is drained. A node that
has left counts as dead and drained, as long as a map names it. A tablet that is being reverted counts at its old
places.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ringlog.kernel.balance.model import (
    BalancedHost,
    BalanceInput,
    Limits,
    MeasuredLoads,
    Place,
    TabletGroup,
)
from ringlog.kernel.commands.control.pauses import pause_of
from ringlog.kernel.model.modes import BALANCING
from ringlog.kernel.model.settings import setting
from ringlog.kernel.model.state import OWNING, ClusterState, Node, in_order
from ringlog.kernel.model.tablet_map import TabletMap, Transition, nodes_in
from ringlog.kernel.tablets.mutual_exclusion import targets
from ringlog.kernel.tablets.resize import MERGE
from ringlog.kernel.tablets.stages import ends_as
from ringlog.kernel.tablets.streaming import uses_in
from ringlog.kernel.values import NodeId


def collect_input(
    state: ClusterState,
    maps: Iterable[TabletMap],
    measured: Mapping[NodeId, MeasuredLoads],
    together: Mapping[str, tuple[str, ...]] | None = None,
    busy: str = "",
) -> BalanceInput:
    """Return the input of ``make_plan``.

    ``together``: the co-located tables of each table; ``busy``: the reason why nothing may start. The seed is the
    epoch, so equal states give equal plans.
    """
    chosen = sorted(maps, key=lambda one: one.table)
    named = {node for one in chosen for node in nodes_in(one)}
    may_get = targets(state)
    hosts = tuple(_host(node) for _, node in in_order(state.nodes) if _counts(node, named) or node.id in may_get)
    co_located = together or {}
    tables = tuple(_tablets(state, one, co_located.get(one.table, ())) for one in chosen)
    streams = tuple(uses_in(state))
    return BalanceInput(hosts, tables, measured, limits_of(state), state.epoch, busy, streams=streams)


def limits_of(state: ClusterState) -> Limits:
    """Return the settings in force."""
    return Limits(
        reads_per_shard=setting(state, "tablet_stream_reads_per_shard_max"),
        writes_per_shard=setting(state, "tablet_stream_writes_per_shard_max"),
        reads_per_node=setting(state, "tablet_stream_reads_per_node_max"),
        writes_per_node=setting(state, "tablet_stream_writes_per_node_max"),
        per_cluster=setting(state, "tablet_streams_max"),
        threshold_permille=setting(state, "balance_threshold_permille"),
        target_bytes=setting(state, "balance_tablet_bytes"),
        table_slack_percent=setting(state, "balance_table_slack_percent"),
        tablets_per_shard_goal=setting(state, "balance_tablets_per_shard_goal"),
        tablets_per_shard_least=setting(state, "balance_tablets_per_shard_min"),
        resizes_per_plan=setting(state, "balance_resizes_max"),
        tablets_most=setting(state, "tablets_per_table_max"),
        reads_percent=setting(state, "balance_load_reads_percent"),
        writes_percent=setting(state, "balance_load_writes_percent"),
        cpu_percent=setting(state, "balance_load_cpu_percent"),
        target_reads=setting(state, "balance_tablet_reads"),
        target_writes=setting(state, "balance_tablet_writes"),
        target_cpu=setting(state, "balance_tablet_cpu_us"),
    )


def _counts(node: Node, named: set[NodeId]) -> bool:
    return node.id in named or node.state in OWNING


def _host(node: Node) -> BalancedHost:
    has_left = node.state == "left"
    return BalancedHost(
        node.id,
        node.datacenter,
        node.rack,
        node.shards,
        node.shards * node.capacity,
        draining=has_left or node.state == "leaving",
        alive=not has_left and not node.down,
        gone=has_left,
        weight=node.capacity,
    )


def _tablets(state: ClusterState, found: TabletMap, together: tuple[str, ...]) -> TabletGroup:
    columns = found.columns()
    keyspace = state.keyspaces.get(found.table.partition(".")[0])
    replication = keyspace.replication.datacenters if keyspace is not None else ()
    return TabletGroup(
        found.table,
        found.count,
        found.nodes,
        columns.tablet,
        columns.node,
        columns.shard,
        together,
        {local.datacenter: frozenset(local.racks) for local in replication if local.racks},
        {number: _moving(found, number, transition) for number, transition in in_order(found.transitions)},
        merging=found.resize is not None and found.resize.decision == MERGE,
        paused=pause_of(state, BALANCING, found.table) is not None,
        anywhere=not replication,
    )


def _moving(found: TabletMap, number: int, transition: Transition) -> tuple[Place, ...]:
    return tuple([(replica.node, replica.shard) for replica in ends_as(transition, found.replicas(number))])
