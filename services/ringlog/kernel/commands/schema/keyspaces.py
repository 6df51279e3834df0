"""Rules of keyspaces and their replication.

A keyspace under a replication setting that is in use shares its placement. A new setting adds a placement that a plan
in flight would not know. Dropping the last keyspace of a setting removes a placement that a plan in flight may hold.
Both wait until nothing is in flight.

An alteration that moves no data is applied at once; any other is an operation, which runs alone. The alteration of a
keyspace in tablets is also applied at once, and its tablets then move to match it, one replica at a time. A keyspace
that a zone places cannot be altered: the zone is altered instead.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Final

from immutables import Map

from ringlog.kernel.commands.rules import IDENTIFIER_RULE, NAME_RULE, broken_field
from ringlog.kernel.commands.schema.shared import exists
from ringlog.kernel.model.modes import SCHEMA
from ringlog.kernel.model.outcome import Accepted, Decision, EntryContext, Rejected
from ringlog.kernel.model.principals import ADMIN, OPERATOR
from ringlog.kernel.model.state import ClusterState, Placement, Plan, advance, in_order
from ringlog.kernel.model.tables import Keyspace
from ringlog.kernel.movements.admission import admit, requested
from ringlog.kernel.movements.alteration import altered, prepared_alteration
from ringlog.kernel.operations.kinds import ALTER
from ringlog.kernel.operations.plan import alteration_key, plan_alteration
from ringlog.kernel.operations.stages import in_flight
from ringlog.kernel.ownership.kinds import STRATEGIES, names_datacenters, strategy_of
from ringlog.kernel.ownership.placements import new_placement
from ringlog.kernel.ownership.strategies import (
    census_of,
    impossible,
    replication_key,
)
from ringlog.kernel.tablets.allocation import unplaceable
from ringlog.kernel.values import Command, Replication, is_identifier, is_name, replace
from ringlog.kernel.zones.data import placement_obstacle

CODES: Final = {
    "conversion_impossible": "A keyspace keeps its kind of placement: token ring, tablets, or the same zone.",
    "keyspace_exists": "A keyspace with this name exists.",
    "keyspace_not_empty": "The keyspace has tables, user types, functions or aggregates.",
    "replication_impossible": "Too few normal nodes, or too few in the racks, for the requested replication.",
    "unknown_keyspace": "The keyspace does not exist.",
    "unknown_strategy": "This release does not support the replication strategy.",
}

FACTOR_MAX = 64
DATACENTERS_MAX = 64
REPLICATION_BYTES_MAX = 16_384
"""The longest key of a replication. The records of every range contain it, twice during a change of replication."""


class CreateKeyspace(Command):
    """Create a keyspace."""

    PAUSED_BY = SCHEMA
    NEEDS = (OPERATOR,)

    name: Annotated[str, "Name of the keyspace."]
    replication: Annotated[Replication, "Replication. The nodes that are normal now must be able to satisfy it."]


def decide_create_keyspace(state: ClusterState, command: CreateKeyspace, context: EntryContext) -> Decision:
    """Create a keyspace. The first one of a replication setting adds its placement."""
    replication = command.replication
    broken = broken_field(
        (is_identifier(command.name), "name", IDENTIFIER_RULE),
    )
    if broken is not None:
        return broken
    if (refused := _bad_replication(replication)) is not None:
        return refused
    if command.name in state.keyspaces:
        return exists(state, "keyspace_exists", f"keyspace {command.name}", state.keyspaces[command.name].version)
    if (refused := _impossible(state, replication)) is not None:
        return refused
    key = replication_key(replication)
    placements = state.placements
    if key not in placements and strategy_of(replication).in_ring:
        if flying := _flying(state):
            return Rejected(
                "operations_in_flight", f"replication: {key} is new, and operations are in flight: {flying}"
            )
        placements = placements.set(key, new_placement(replication, state.token_owners, state.nodes, context.epoch))
    assert key in placements or not strategy_of(replication).in_ring, "the ranges of the ring have replicas"
    keyspace = Keyspace(command.name, replication, context.state_id, made=context.epoch)
    return _accept(state, context, state.keyspaces.set(keyspace.name, keyspace), placements)


class AlterKeyspace(Command):
    """Change the replication of a keyspace.

    Starts an operation, unless no range gets other replicas.
    """

    PAUSED_BY = SCHEMA
    NEEDS = (OPERATOR,)

    name: Annotated[str, "Name of the keyspace."]
    replication: Annotated[Replication, "New replication. The nodes that own tokens now must be able to satisfy it."]


def decide_alter_keyspace(state: ClusterState, command: AlterKeyspace, context: EntryContext) -> Decision:
    """Change the replication: at once if every range keeps its members, else by an operation."""
    if (broken := broken_field((is_identifier(command.name), "name", IDENTIFIER_RULE))) is not None:
        return broken
    replication = command.replication
    if (refused := _bad_replication(replication)) is not None:
        return refused
    keyspace = state.keyspaces.get(command.name)
    if keyspace is None:
        return Rejected("unknown_keyspace", f"name: there is no keyspace {command.name}")
    old, new = replication_key(keyspace.replication), replication_key(replication)
    if old == new:
        return Rejected("bad_field", f"replication: {command.name} has {new} already")
    if (refused := _impossible(state, replication)) is not None:
        return refused
    if not (strategy_of(keyspace.replication).in_ring and strategy_of(replication).in_ring):
        return _alter_tablets(state, keyspace, replication, context)
    if flying := _flying(state):
        return Rejected("operations_in_flight", f"replication: {new} is new, and operations are in flight: {flying}")
    key = alteration_key(keyspace.replication, replication)
    plan = plan_alteration(state, key, keyspace.replication, replication)
    operation = replace(requested(ALTER, "", context), keyspace=keyspace.name, replication=replication)
    if plan == Plan():
        alone = replace(state, **prepared_alteration(state, operation))
        return Accepted(advance(state, context.epoch, **altered(alone, operation, context)))
    return admit(state, operation, plan, context)


def _alter_tablets(
    state: ClusterState, keyspace: Keyspace, replication: Replication, context: EntryContext
) -> Decision:
    """Change the setting at once. The balancer then changes tablets to match it, one replica at a time."""
    if keyspace.replication.strategy != replication.strategy or strategy_of(replication).by_zone:
        why = f"{keyspace.name} has {keyspace.replication.strategy}: create another keyspace and copy the tables"
        return Rejected("conversion_impossible", f"replication.strategy: {why}")
    assert not strategy_of(replication).in_ring, "replicas of ring ranges move by an operation"
    altered = replace(keyspace, replication=replication, version=context.state_id)
    return _accept(state, context, state.keyspaces.set(keyspace.name, altered), state.placements)


class DropKeyspace(Command):
    """Drop an empty keyspace."""

    PAUSED_BY = SCHEMA
    NEEDS = (ADMIN,)
    DANGEROUS = True

    name: Annotated[str, "Name of the keyspace."]


def decide_drop_keyspace(state: ClusterState, command: DropKeyspace, context: EntryContext) -> Decision:
    """Drop an empty keyspace. The last one of a replication setting removes the placement.

    Without tables and functions it has no views, indexes and aggregates.
    """
    if (broken := broken_field((is_identifier(command.name), "name", IDENTIFIER_RULE))) is not None:
        return broken
    keyspace = state.keyspaces.get(command.name)
    if keyspace is None:
        return Rejected("unknown_keyspace", f"name: there is no keyspace {command.name}")
    if types := [name for name, found in in_order(state.types) if found.keyspace == command.name]:
        return Rejected("keyspace_not_empty", f"name: {command.name} has user types, the first is {types[0]}")
    if tables := [name for name, table in in_order(state.tables) if table.keyspace == command.name]:
        return Rejected(
            "keyspace_not_empty", f"name: {command.name} has {len(tables)} tables, the first is {tables[0]}"
        )
    if functions := [name for name, one in in_order(state.functions) if one.keyspace == command.name]:
        return Rejected("keyspace_not_empty", f"name: {command.name} has functions, the first is {functions[0]}")
    for operation in in_flight(state):
        if operation.keyspace == command.name:
            return Rejected("operations_in_flight", f"name: {operation.id} changes its replication")
    keyspaces = state.keyspaces.delete(command.name)
    placements = state.placements
    key = replication_key(keyspace.replication)
    if key in placements and all(replication_key(other.replication) != key for _, other in in_order(keyspaces)):
        if flying := _flying(state):
            return Rejected(
                "operations_in_flight", f"name: no other keyspace has {key}, and operations are in flight: {flying}"
            )
        placements = placements.delete(key)
    return _accept(state, context, keyspaces, placements)


def _accept(
    state: ClusterState, context: EntryContext, keyspaces: Map[str, Keyspace], placements: Map[str, Placement]
) -> Accepted:
    version = context.state_id
    return Accepted(advance(state, context.epoch, schema_version=version, keyspaces=keyspaces, placements=placements))


def _flying(state: ClusterState) -> str:
    """Return the ids of the operations that have not ended, in words; empty if there are none."""
    return ", ".join(operation.id for operation in in_flight(state))


# ----------------------------------------------------------------------------------------------------- replication


def _bad_replication(replication: Replication) -> Rejected | None:
    """Check the replication setting, independent of the state."""
    strategy = STRATEGIES.get(replication.strategy)
    if strategy is None:
        detail = f"replication.strategy: {replication.strategy!r} is not known; known are {', '.join(STRATEGIES)}"
        return Rejected("unknown_strategy", detail)
    broken = broken_field(
        (is_identifier(replication.zone) or not strategy.by_zone, "replication.zone", IDENTIFIER_RULE),
        (strategy.by_zone or not replication.zone, "replication.zone", "is allowed only for the strategy zone"),
    )
    if broken is not None:
        return broken
    if names_datacenters(replication):
        return _bad_datacenters(replication)
    least, most = (1, FACTOR_MAX) if strategy.has_factor else (0, 0)
    return broken_field(
        (least <= replication.factor <= most, "replication.factor", f"must be between {least} and {most}"),
        (replication.datacenters == (), "replication.datacenters", "are allowed only for the strategy network"),
    )


def _bad_datacenters(replication: Replication) -> Rejected | None:
    found = replication.datacenters
    names = [local.datacenter for local in found]
    total = sum(local.factor for local in found)
    broken = broken_field(
        (1 <= len(found) <= DATACENTERS_MAX, "replication.datacenters", f"must be 1 to {DATACENTERS_MAX}"),
        (all(low < high for low, high in pairwise(names)), "replication.datacenters", "must ascend, each named once"),
        (all(is_name(name) for name in names), "replication.datacenters", f"each {NAME_RULE}"),
        (replication.factor == total, "replication.factor", f"must be the sum of the datacenters' factors, {total}"),
    )
    if broken is not None:
        return broken
    for local in found:
        racks, where = local.racks, f"replication.datacenters.{local.datacenter}"
        broken = broken_field(
            (1 <= local.factor <= FACTOR_MAX, where, f"must be between 1 and {FACTOR_MAX}"),
            (not racks or len(racks) == local.factor, where, "must have one replica in each rack of its list"),
            (all(low < high for low, high in pairwise(racks)), where, "racks must ascend, each named once"),
            (all(is_name(rack) for rack in racks), where, f"each rack {NAME_RULE}"),
        )
        if broken is not None:
            return broken
    size = len(replication_key(replication))
    if size > REPLICATION_BYTES_MAX:
        text = f"the replication has {size:,} bytes, the limit is {REPLICATION_BYTES_MAX:,}"
        return Rejected("too_large", f"replication.datacenters: {text}: name fewer racks")
    return None


def _impossible(state: ClusterState, replication: Replication) -> Rejected | None:
    """Return why the nodes that own tokens, or may have tablets, cannot hold the replicas."""
    strategy = strategy_of(replication)
    if strategy.by_zone:
        return _unplaced(state, replication)
    if not strategy.in_ring:
        why = unplaceable(state, replication)
    else:
        why = impossible(replication, census_of(set(state.token_owners.values()), state.nodes))
    if not why:
        return None
    field = "replication.datacenters" if replication.datacenters else "replication.factor"
    return Rejected("replication_impossible", f"{field}: {why}")


def _unplaced(state: ClusterState, replication: Replication) -> Rejected | None:
    """Return why a zone cannot place a keyspace."""
    zone = state.zones.get(replication.zone)
    if zone is None:
        return Rejected("unknown_zone", f"replication.zone: there is no zone {replication.zone}")
    why = placement_obstacle(state, zone)
    return Rejected("replication_impossible", f"replication.zone: {why}") if why else None
