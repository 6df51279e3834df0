"""Creation of a table's tablets: it gets its own tablets, shares those of another table, or has none.

The first number of tablets is the table's option, else the greatest of: the minimum hint, the expected data in tablets
of 5 GiB, and ``tablets_initial_scale`` replicas for each shard. It is rounded up to a power of two, within the maximum
hint and the bound of the settings.

In a keyspace that a zone places, a table has one tablet for each partition of the zone.
"""

from __future__ import annotations

from typing import Final

from immutables import Map

from ringlog.kernel.model.outcome import Rejected
from ringlog.kernel.model.settings import setting
from ringlog.kernel.model.state import ClusterState, in_order
from ringlog.kernel.model.tables import Table
from ringlog.kernel.model.tablet_map import TabletMap, new_map, uniform_ends
from ringlog.kernel.ownership.kinds import strategy_of
from ringlog.kernel.tablets.allocation import allocated, eligible, replica_counts, unplaceable
from ringlog.kernel.values import Epoch, Replication, TabletOptions, replace
from ringlog.kernel.zones.data import first_replicas, placement_obstacle

TARGET_BYTES: Final = 5 * 2**30
BYTES_MAX: Final = 2**62

Cut = tuple[Table, Map[str, TabletMap]]
"""A table with its options, and the maps of all tables."""


def cut_table(state: ClusterState, table: Table, options: TabletOptions | None, epoch: Epoch) -> Cut | Rejected:
    """Return the table with the options of its keyspace, and all maps with the table's own one, if it gets one."""
    replication = state.keyspaces[table.keyspace].replication
    if strategy_of(replication).in_ring:
        if options is not None:
            return Rejected("bad_tablets", f"tablets: {_in_ring(table, replication)}")
        return table, state.tablets
    options = TabletOptions() if options is None else options
    if (wrong := broken_options(state, options)) is not None:
        return wrong
    cut = replace(table, tablets=options)
    if options.base:
        wrong = _bad_base(state, table, options)
        return wrong if wrong is not None else (cut, state.tablets)
    if strategy_of(replication).by_zone:
        found = _as_its_zone(state, table, options, epoch)
        return found if isinstance(found, Rejected) else (cut, state.tablets.set(table.full_name, found))
    if why := unplaceable(state, replication):
        return Rejected("replication_impossible", f"keyspace: {why}")
    count = options.count if options.count is not None else default_count(state, options, replication)
    return cut, state.tablets.set(table.full_name, allocated(table.full_name, count, replication, state, epoch))


def _as_its_zone(state: ClusterState, table: Table, options: TabletOptions, epoch: Epoch) -> TabletMap | Rejected:
    """Return a map with one tablet for each partition of the zone, of equal length, on the nodes of the partition."""
    zone = state.zones[state.keyspaces[table.keyspace].replication.zone]
    if options != TabletOptions():
        return Rejected(
            "bad_tablets", f"tablets: zone {zone.name} sets the tablets of {table.full_name}; omit the options"
        )
    most = setting(state, "tablets_per_table_max")
    if zone.partitions > most:
        return Rejected(
            "bad_tablets", f"tablets: zone {zone.name} has {zone.partitions:,} partitions, the limit is {most:,}"
        )
    if why := placement_obstacle(state, zone):
        return Rejected("replication_impossible", f"keyspace: {why}")
    groups = first_replicas(state, zone, replica_counts(state.tablets.values()), epoch)
    return new_map(table.full_name, uniform_ends(zone.partitions), groups, epoch)


def _in_ring(table: Table, replication: Replication) -> str:
    why = f"{table.full_name} has no tablets: the keyspace {table.keyspace} has the strategy {replication.strategy}"
    return f"{why}; create a keyspace with tablets and copy the table there"


def rehinted(state: ClusterState, table: Table, options: TabletOptions) -> Table | Rejected:
    """Return the table with other hints. Its number of tablets and its base table stay."""
    if table.tablets is None:
        return Rejected("bad_tablets", f"tablets: {_in_ring(table, state.keyspaces[table.keyspace].replication)}")
    if strategy_of(state.keyspaces[table.keyspace].replication).by_zone and options != TabletOptions():
        return Rejected("bad_tablets", f"tablets: its zone sets the tablets of {table.full_name}")
    if options.count is not None or options.base:
        return Rejected("bad_tablets", "tablets: count and base cannot change after creation; split or merge instead")
    if (wrong := broken_options(state, options)) is not None:
        return wrong
    return replace(table, tablets=replace(options, count=table.tablets.count, base=table.tablets.base))


def shared_by(state: ClusterState, table: Table) -> Rejected | None:
    """Return a rejection that names a table sharing the tablets of this one, or None."""
    for name, other in in_order(state.tables) if table.full_name in state.tablets else ():
        if other.tablets is not None and other.tablets.base == table.name and other.keyspace == table.keyspace:
            return Rejected("bad_tablets", f"name: {name} shares its tablets")
    return None


def default_count(state: ClusterState, options: TabletOptions, replication: Replication) -> int:
    """Return the first number of tablets of a table without that option."""
    named = {local.datacenter for local in replication.datacenters}
    shards = sum(node.shards for node in eligible(state).values() if not named or node.datacenter in named)
    wanted = max(
        1,
        options.min_count or 0,
        -(-(options.expected_bytes or 0) // TARGET_BYTES),
        -(-setting(state, "tablets_initial_scale") * shards // max(1, replication.factor)),
    )
    most = min(options.max_count or TARGET_BYTES, setting(state, "tablets_per_table_max"))
    count = min(_power_at_least(wanted), _power_at_least(most + 1) // 2)
    assert 1 <= count <= most, "the number is within the hint and the setting"
    assert count.bit_count() == 1, "the initial number of tablets is a power of two"
    return count


def broken_options(state: ClusterState, options: TabletOptions) -> Rejected | None:
    """Return the first rule that options break. The hints must include a power of two, as tables converge to one."""
    most = setting(state, "tablets_per_table_max")
    for name in ("count", "min_count", "max_count"):
        value = getattr(options, name)
        if value is not None and not 1 <= value <= most:
            return Rejected("bad_field", f"tablets.{name}: must be between 1 and {most:,}, not {value:,}")
    if options.expected_bytes is not None and not 0 <= options.expected_bytes <= BYTES_MAX:
        return Rejected("bad_field", f"tablets.expected_bytes: must be between 0 and {BYTES_MAX}")
    least, high = options.min_count or 1, options.max_count
    if high is not None and (least > high or _power_at_least(least) > high):
        return Rejected("bad_tablets", f"tablets.max_count: no power of two is between {least} and {high}")
    return None


def _bad_base(state: ClusterState, table: Table, options: TabletOptions) -> Rejected | None:
    if replace(options, base="") != TabletOptions():
        return Rejected("bad_tablets", "tablets.base: a table that shares another's tablets has no hints of its own")
    if f"{table.keyspace}.{options.base}" not in state.tablets:
        return Rejected("bad_tablets", f"tablets.base: {table.keyspace} has no table {options.base} with tablets")
    return None


def _power_at_least(number: int) -> int:
    """Return the least power of two that is not below ``number``, which is 1 or more."""
    assert number >= 1, "no power of two is below 1"
    return 1 << (number - 1).bit_length()
