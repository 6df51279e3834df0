"""Keyspaces and tables; in batches also objects that depend on tables."""

from __future__ import annotations

from ringlog.kernel.commands.schema.batch import SchemaBatch, statement_of
from ringlog.kernel.commands.schema.functions import CreateAggregate, CreateFunction, DropAggregate, DropFunction
from ringlog.kernel.commands.schema.keyspaces import AlterKeyspace, CreateKeyspace, DropKeyspace
from ringlog.kernel.commands.schema.tables import AlterTable, CreateTable, DropTable
from ringlog.kernel.commands.schema.user_types import CreateType, DropType
from ringlog.kernel.commands.schema.views import CreateIndex, CreateView, DropIndex, DropView
from ringlog.kernel.model.state import ClusterState, in_order
from ringlog.kernel.values import CdcOptions, Column, Command, DatacenterReplication, Replication, TypeField
from ringlog.runtime.draw import draw_uuid
from ringlog_sim.checks.base import Family
from ringlog_sim.checks.cdc.columns import Columns
from ringlog_sim.devices.world import Chance
from ringlog_sim.shape import COLUMNS


def _create_keyspace(state: ClusterState, chance: Chance) -> CreateKeyspace:
    name = chance.pick(["ks", "ks1", "ks2", "ks3"])
    return CreateKeyspace(name, _replication(state, chance))


def _replication(state: ClusterState, chance: Chance) -> Replication:
    """Return a replication, mostly one that the nodes can satisfy: a number, datacenters with numbers or racks, or all
    nodes.
    """
    normal = [node for _, node in in_order(state.nodes) if node.tokens]
    kind = chance.weighted([("simple", 4), ("network", 3), ("entire", 1), ("tablets", 2)])
    if kind == "tablets":
        return Replication("tablets", chance.between(1, min(max(len(normal), 1), 3)))
    if kind == "entire":
        return Replication("entire", 0)
    if kind == "simple" or not normal:
        return Replication("simple", chance.between(1, max(len(normal), 1) + 1))
    local = []
    for datacenter in sorted({node.datacenter for node in normal}):
        racks = sorted({node.rack for node in normal if node.datacenter == datacenter})
        there = sum(node.datacenter == datacenter for node in normal)
        if chance.happens(0.3):
            local.append(DatacenterReplication(datacenter, len(racks), tuple(racks)))
        elif chance.happens(0.9):
            local.append(DatacenterReplication(datacenter, chance.between(1, there)))
    return Replication("network", sum(one.factor for one in local), tuple(local))


def _alter_keyspace(state: ClusterState, chance: Chance) -> AlterKeyspace:
    """Return a change, mostly of the keyspace under load."""
    return AlterKeyspace(chance.pick(["ks", "ks", "ks", "ks1", "ks2"]), _replication(state, chance))


def _drop_keyspace(state: ClusterState, chance: Chance) -> DropKeyspace:
    return DropKeyspace(chance.pick(["ks", "ks1", "ks2", "ks3"]))


def _create_table(state: ClusterState, chance: Chance) -> CreateTable | None:
    names = [name for name, _ in in_order(state.keyspaces)]
    if not names:
        return None
    table = chance.pick(["t", "u", "v"])
    taken = [found.id for _, found in in_order(state.tables)]
    new_id = chance.pick(taken) if taken and chance.happens(0.2) else draw_uuid(chance)
    return CreateTable(
        chance.pick(names), table, new_id, COLUMNS, ("k",), ("c",), CdcOptions(enabled=chance.happens(0.5))
    )


def _alter_table(state: ClusterState, chance: Chance) -> AlterTable | None:
    names = [(table.keyspace, table.name) for name, table in in_order(state.tables) if name != "ks.t"]
    if not names:
        return None
    keyspace, table = chance.pick(names)
    return AlterTable(keyspace, table, (Column(f"c{chance.below(3)}", "int"),), None)


def _drop_table(state: ClusterState, chance: Chance) -> DropTable | None:
    """Return a drop, but not of the producer's table, whose checks expect one table of the name.

    ``ringlog_sim.stories.column_rename`` covers drops under load.
    """
    names = [(table.keyspace, table.name) for name, table in in_order(state.tables) if name != "ks.t"]
    if not names:
        return DropTable("ks", "none")
    return DropTable(*chance.pick(names))


def batched(command: Command, chance: Chance) -> Command:
    """Return the command, sometimes in a batch with statements about objects that depend on the table.

    Only tables are batched, because the checks have no model of batches of keyspaces.
    """
    if not isinstance(command, CreateTable | AlterTable | DropTable) or not chance.happens(0.3):
        return command
    keyspace, table, name = command.keyspace, command.name, chance.pick(["a", "b"])
    if isinstance(command, DropTable):
        drops = [DropIndex(keyspace, name), DropView(keyspace, name), DropAggregate(keyspace, name)]
        others = [*drops, DropFunction(keyspace, name), DropType(keyspace, name)]
        return SchemaBatch((*(statement_of(one, True) for one in others), statement_of(command)))
    makes: list[Command] = [
        CreateType(keyspace, name, (TypeField("f", "int"),)),
        CreateFunction(keyspace, name, ("int", "int"), ("s", "v"), "int", "lua", "return s"),
        CreateAggregate(keyspace, name, ("int",), name, "int"),
        CreateIndex(keyspace, name, table, "v"),
        CreateView(keyspace, name, table, (), ("v",), ("k", "c")),
    ]
    if_needed = chance.happens(0.7)
    own = statement_of(command, if_needed and isinstance(command, CreateTable))
    return SchemaBatch((own, *(statement_of(one, if_needed) for one in makes if chance.happens(0.5))))


FAMILY = Family(
    name="schema",
    commands={
        "CreateKeyspace": (2, _create_keyspace),
        "DropKeyspace": (1, _drop_keyspace),
        "AlterKeyspace": (2, _alter_keyspace),
        "CreateTable": (2, _create_table),
        "AlterTable": (1, _alter_table),
        "DropTable": (1, _drop_table),
        # These change only the schema, and existing scripts must not change. So they occur only in batches
        # (``batched``).
        "CreateType": None,
        "AlterType": None,
        "DropType": None,
        "CreateView": None,
        "DropView": None,
        "CreateIndex": None,
        "DropIndex": None,
        "CreateFunction": None,
        "DropFunction": None,
        "CreateAggregate": None,
        "DropAggregate": None,
        "SchemaBatch": None,
    },
    checks=(Columns,),
)
