"""Distribution zones: their partitions, their data nodes and their replicas.

The partitions of a new zone are stable on the nodes where they belong. Later changes (replicas, partitions, data nodes,
filter) only change where they belong; **TriggerRebalance** (``commands.placement.rebalances``) starts the moves. New
partitions belong nowhere until then; partitions above a smaller number are removed at once.

The filter is JSONPath over the list of nodes. The rule checks its grammar (``zones.filter``). The author evaluates it
and puts the nodes into the command, so no state depends on a library. When nodes come, leave or change, an author
evaluates the filter again and sends **SetDataNodes**.
"""

from __future__ import annotations

from typing import Annotated, Final

from ringlog.kernel.commands.rules import IDENTIFIER_RULE, NAME_RULE, broken_field, cause_rule, made_of, registered
from ringlog.kernel.model.modes import ZONES
from ringlog.kernel.model.outcome import Accepted, Decision, EntryContext, Rejected
from ringlog.kernel.model.principals import AGENT, OPERATOR
from ringlog.kernel.model.state import STAYS, ClusterState, advance
from ringlog.kernel.model.zones import (
    EVERY_NODE,
    MODES,
    NEVER,
    PARTITIONS_MAX,
    REPLICAS_MAX,
    STRONG,
    Zone,
    partition_key,
)
from ringlog.kernel.operations.node_states import shown_state
from ringlog.kernel.values import Command, is_identifier, is_name, replace
from ringlog.kernel.zones.change import new_partition, partitions_of, with_partitions, zone_named
from ringlog.kernel.zones.data import keyspaces_in
from ringlog.kernel.zones.distribution import default_quorum, quorum_bounds, targets
from ringlog.kernel.zones.filter import broken_filter

CODES: Final = {
    "bad_filter": "The filter of a zone is not a JSONPath of the supported subset.",
    "no_data_nodes": "The zone would have no data nodes: no node matches its filter.",
    "outdated_cause": "The same change, or a later one, was already processed.",
    "profile_missing": "A data node does not support a storage profile of its zone.",
    "partitions_fixed": "The zone places keyspaces, so its number of partitions cannot change.",
    "too_few_data_nodes": "The zone has fewer data nodes than replicas.",
    "unknown_zone": "The zone does not exist.",
    "zone_exists": "A zone with this name exists.",
    "zone_in_use": "A keyspace uses the zone for its placement.",
}

COPIES_MAX: Final = 100_000
"""The most replicas of all partitions of a zone, because one entry changes and publishes all of them."""
PLACEMENTS_MAX: Final = 10_000_000
"""The most partitions times data nodes of a zone. Each replica of the log scores every pair, 0.1 to 0.2 us each."""
DATA_NODES_MAX: Final = 10_000
PROFILES_MAX: Final = 64


class CreateZone(Command):
    """Create a zone. Its partitions are on their nodes immediately."""

    PAUSED_BY = ZONES
    NEEDS = (OPERATOR,)

    zone: Annotated[str, "Name of the zone."]
    nodes: Annotated[tuple[str, ...], "Ids of the data nodes: the nodes that match the filter."]
    partitions: Annotated[int, "Number of partitions."] = 25
    replicas: Annotated[int, "Number of replicas of each partition."] = 1
    quorum: Annotated[int | None, "Voters that must be alive. Null: 1 for 1 replica, 2 for up to 4, else 3."] = None
    filter: Annotated[str, "JSONPath filter over the list of nodes."] = EVERY_NODE
    profiles: Annotated[tuple[str, ...], "Storage profiles: features that each data node must have."] = ()
    scale_up: Annotated[int, "Seconds until new matching nodes become data nodes. 2147483647: never."] = 0
    scale_down: Annotated[int, "Seconds until nodes that no longer match are removed. 2147483647: never."] = NEVER
    mode: Annotated[str, "strong, or high_availability (resets partitions that lose their majority)."] = STRONG


def decide_create_zone(state: ClusterState, command: CreateZone, context: EntryContext) -> Decision:
    """Create a zone with enough data nodes, each with the zone's profiles. Its partitions are stable where
    they belong.
    """
    if (broken := broken_field((is_identifier(command.zone), "zone", IDENTIFIER_RULE))) is not None:
        return broken
    quorum = default_quorum(command.replicas) if command.quorum is None else command.quorum
    sets = {"profiles": tuple(sorted(command.profiles)), "nodes": tuple(sorted(command.nodes))}
    new = {"name": command.zone, "cause": 0, "changed": context.epoch, "moving": 0}
    zone = made_of(Zone, command, quorum=quorum, **sets, **new)
    if (refused := _broken_zone(zone)) is not None:
        return refused
    if zone.name in state.zones:
        return Rejected("zone_exists", f"zone: {zone.name} exists")
    if (refused := _unfit_nodes(state, zone, ()) or _too_few(zone)) is not None:
        return refused
    numbers = range(zone.partitions)
    steps = targets(state, zone, [None] * zone.partitions, numbers)
    if any(step is None for step in steps):
        return Rejected("too_few_data_nodes", "nodes: all nodes of a partition would be down")
    made = [new_partition(zone, number, step, context) for number, step in zip(numbers, steps, strict=True)]
    return with_partitions(state, context, zone, made)


class AlterZone(Command):
    """Change a zone. Null values stay as they are."""

    PAUSED_BY = ZONES
    NEEDS = (OPERATOR,)

    zone: Annotated[str, "Name of the zone."]
    partitions: Annotated[int | None, "Number of partitions."] = None
    replicas: Annotated[int | None, "Number of replicas of each partition."] = None
    quorum: Annotated[int | None, "Voters that must be alive. Null: unchanged, as far as replicas allow."] = None
    filter: Annotated[str | None, "JSONPath filter over the list of nodes. Requires nodes."] = None
    profiles: Annotated[tuple[str, ...] | None, "Features that each data node must have. Requires nodes."] = None
    scale_up: Annotated[int | None, "Seconds until new matching nodes become data nodes. 2147483647: never."] = None
    scale_down: Annotated[int | None, "Seconds until nodes that no longer match are removed. 2147483647: never."] = None
    mode: Annotated[str | None, "strong, or high_availability (resets partitions that lose their majority)."] = None
    nodes: Annotated[tuple[str, ...] | None, "Ids of the data nodes. Only with a new filter or new profiles."] = None


_ALTERED: Final = ("partitions", "replicas", "quorum", "filter", "profiles", "scale_up", "scale_down", "mode")
_MOVES: Final = ("partitions", "replicas", "quorum", "mode", "nodes")
"""The fields that placements depend on."""
assert {*AlterZone.__struct_fields__} == {"zone", "nodes", *_ALTERED}, "no field of the command is ignored"
assert {*_MOVES} < {*Zone.__struct_fields__}, "each name is a field of a zone"


def decide_alter_zone(state: ClusterState, command: AlterZone, context: EntryContext) -> Decision:
    """Change a zone. Another filter, or other profiles, come with the nodes that match now."""
    given = {name: getattr(command, name) for name in _ALTERED if getattr(command, name) is not None}
    if not given:
        return Rejected("bad_field", f"zone: no field was given; give at least one of {', '.join(_ALTERED)}")
    before = zone_named(state, command.zone)
    if isinstance(before, Rejected):
        return before
    if ("filter" in given or "profiles" in given) != (command.nodes is not None):
        return Rejected("bad_field", "nodes: must be given if the filter or the profiles change, and only then")
    if command.nodes is not None:
        given["nodes"] = tuple(sorted(command.nodes))
    if "profiles" in given:
        given["profiles"] = tuple(sorted(given["profiles"]))
    zone = replace(before, **given)
    if command.quorum is None and 1 <= zone.replicas <= REPLICAS_MAX:
        least, most = quorum_bounds(zone.replicas)
        zone = replace(zone, quorum=min(max(zone.quorum, least), most))
    if (refused := _broken_zone(zone)) is not None:
        return refused
    if (refused := _used(state, before, zone)) is not None:
        return refused
    if command.nodes is not None and (refused := _unfit_nodes(state, zone, before.nodes)) is not None:
        return refused
    if (command.nodes is not None or command.replicas is not None) and (refused := _too_few(zone)) is not None:
        return refused
    if any(getattr(zone, name) != getattr(before, name) for name in _MOVES):
        zone = replace(zone, changed=context.epoch)
    if zone == before:
        return Accepted(state)
    new = [new_partition(zone, number, None, context) for number in range(before.partitions, zone.partitions)]
    kept = list(partitions_of(state, before))[: zone.partitions] if zone.mode != before.mode else []
    gone = [partition_key(zone.name, number) for number in range(zone.partitions, before.partitions)]
    return with_partitions(state, context, zone, [*kept, *new], gone)


class DropZone(Command):
    """Drop a zone with all of its partitions."""

    PAUSED_BY = ZONES
    NEEDS = (OPERATOR,)

    zone: Annotated[str, "Name of the zone."]


def decide_drop_zone(state: ClusterState, command: DropZone, context: EntryContext) -> Decision:
    """Remove a zone that places no keyspace, even while its partitions move."""
    zone = zone_named(state, command.zone)
    if isinstance(zone, Rejected):
        return zone
    if used := keyspaces_in(state, zone.name):
        return Rejected("zone_in_use", f"zone: {zone.name} places keyspace {used[0]}" + _others(used[1:]))
    left = state.zone_partitions.mutate()
    for number in range(zone.partitions):
        del left[partition_key(zone.name, number)]
    zones = state.zones.delete(zone.name)
    return Accepted(advance(state, context.epoch, zones=zones, zone_partitions=left.finish()))


class SetDataNodes(Command):
    """Set the data nodes of a zone."""

    PAUSED_BY = ZONES
    NEEDS = (AGENT,)

    zone: Annotated[str, "Name of the zone."]
    nodes: Annotated[tuple[str, ...], "Ids of the data nodes. Empty: no partition moves."]
    cause: Annotated[int, "Epoch of the change that led to these data nodes."]


def decide_set_data_nodes(state: ClusterState, command: SetDataNodes, context: EntryContext) -> Decision:
    """Set the data nodes. Reject a cause older than that of the present nodes. The same nodes change nothing."""
    if (broken := broken_field(cause_rule(state, command.cause))) is not None:
        return broken
    before = zone_named(state, command.zone)
    if isinstance(before, Rejected):
        return before
    if command.cause < before.cause:
        return Rejected("outdated_cause", f"cause: the data nodes already reflect epoch {before.cause}")
    zone = replace(before, nodes=tuple(sorted(command.nodes)), cause=command.cause)
    if zone.nodes and (refused := _broken_zone(zone) or _unfit_nodes(state, zone, before.nodes)):
        return refused
    if zone == before:
        return Accepted(state)
    changed = before.changed if zone.nodes == before.nodes else context.epoch
    zones = state.zones.set(zone.name, replace(zone, changed=changed))
    return Accepted(advance(state, context.epoch, zones=zones))


# --------------------------------------------------------------------------------------------------------- rules


def _broken_zone(zone: Zone) -> Rejected | None:
    """Check the values of a zone, independent of the state."""
    broken = broken_field(
        (1 <= zone.partitions <= PARTITIONS_MAX, "partitions", f"must be between 1 and {PARTITIONS_MAX:,}"),
        (1 <= zone.replicas <= REPLICAS_MAX, "replicas", f"must be between 1 and {REPLICAS_MAX}"),
    )
    if broken is not None:
        return broken
    least, most = quorum_bounds(zone.replicas)
    broken = broken_field(
        (least <= zone.quorum <= most, "quorum", f"of {zone.replicas} replicas must be between {least} and {most}"),
        (0 <= zone.scale_up <= NEVER, "scale_up", f"must be between 0 and {NEVER} seconds"),
        (0 <= zone.scale_down <= NEVER, "scale_down", f"must be between 0 and {NEVER} seconds"),
        (zone.mode in MODES, "mode", f"must be {' or '.join(MODES)}"),
        (len(zone.profiles) <= PROFILES_MAX, "profiles", f"must be at most {PROFILES_MAX}"),
        (all(map(is_name, zone.profiles)), "profiles", f"each {NAME_RULE}"),
        (len(set(zone.profiles)) == len(zone.profiles), "profiles", "must name each profile once"),
        (len(zone.nodes) <= DATA_NODES_MAX, "nodes", f"must be at most {DATA_NODES_MAX:,}"),
        (len(set(zone.nodes)) == len(zone.nodes), "nodes", "must name each node once"),
    )
    if broken is not None:
        return broken
    if why := broken_filter(zone.filter):
        return Rejected("bad_filter", f"filter: {why}")
    for count, of, most in ((zone.replicas, "replicas", COPIES_MAX), (len(zone.nodes), "data nodes", PLACEMENTS_MAX)):
        if zone.partitions * count > most:
            product = f"{zone.partitions:,} x {count:,} {of}"
            return Rejected("too_large", f"partitions: {product} are {zone.partitions * count:,}, at most {most:,}")
    return None


def _others(names: list[str]) -> str:
    return f" and {len(names)} others" if names else ""


def _used(state: ClusterState, before: Zone, zone: Zone) -> Rejected | None:
    """Reject another number of partitions for a zone that places keyspaces.

    Tokens assign rows to partitions: with another number nearly all rows would belong to another partition.
    """
    if before.partitions == zone.partitions or not (used := keyspaces_in(state, zone.name)):
        return None
    why = "its rows would move between partitions; create another zone and copy the tables"
    return Rejected("partitions_fixed", f"partitions: {zone.name} places keyspace {used[0]}: {why}")


def _unfit_nodes(state: ClusterState, zone: Zone, before: tuple[str, ...]) -> Rejected | None:
    """Return why the zone's nodes cannot be its data nodes. One of the nodes ``before`` may be leaving."""
    if len(zone.nodes) > DATA_NODES_MAX or len(set(zone.nodes)) < len(zone.nodes):
        return Rejected("bad_field", f"nodes: must name at most {DATA_NODES_MAX:,} nodes, each once")
    for name in zone.nodes:
        node = registered(state, name, "nodes")
        if isinstance(node, Rejected):
            return node
        if node.state == "left":
            return Rejected("wrong_node_state", f"nodes: {node.name} has left")
        if node.state not in STAYS and node.id not in before:
            return Rejected(
                "wrong_node_state", f"nodes: {node.name} is {shown_state(state, node.id)}: it must join first"
            )
        if lacks := sorted(set(zone.profiles).difference(node.features)):
            return Rejected("profile_missing", f"nodes: {node.name} has no profile {lacks[0]}")
    return None


def _too_few(zone: Zone) -> Rejected | None:
    if not zone.nodes:
        return Rejected("no_data_nodes", f"filter: {zone.filter} matches no node")
    if len(zone.nodes) < zone.replicas:
        why = f"{zone.replicas} replicas need as many data nodes, the zone has {len(zone.nodes)}"
        return Rejected("too_few_data_nodes", f"replicas: {why}")
    return None
