"""Keyspaces and tables."""

from __future__ import annotations

from ringlog.kernel.commands.model import (
    AlterTable,
    CdcOptions,
    Column,
    CreateKeyspace,
    CreateTable,
    DropKeyspace,
    DropTable,
    Replication,
)
from ringlog.kernel.state import ClusterState, in_order
from ringlog.sim.chance import Chance
from ringlog.sim.families.family import Family
from ringlog.sim.shape import COLUMNS
from ringlog.wire.draw import draw_uuid


def _create_keyspace(state: ClusterState, chance: Chance) -> CreateKeyspace:
    normal = sum(node.state == "normal" for node in state.nodes.values())
    name = chance.pick(["ks", "ks1", "ks2", "ks3"])
    return CreateKeyspace(name, Replication("simple", chance.between(1, max(normal, 1) + 1)))


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
    """Never the table that the producer writes to: rows of a dropped one become those of its namesake."""
    names = [(table.keyspace, table.name) for name, table in in_order(state.tables) if name != "ks.t"]
    if not names:
        return DropTable("ks", "none")
    return DropTable(*chance.pick(names))


FAMILY = Family(
    name="schema",
    commands={
        "CreateKeyspace": (2, _create_keyspace),
        "DropKeyspace": (1, _drop_keyspace),
        "CreateTable": (2, _create_table),
        "AlterTable": (1, _alter_table),
        "DropTable": (1, _drop_table),
    },
    checks=(),
)
