"""A table whose columns are dropped, renamed, added and recreated under load, in a part of the runs.

Its writes name their table version, the newest or an earlier one. Each value names its column and version
(``ringlog_sim.actors.cdc.producer``). So a check does not need to know where cells are stored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ringlog.kernel.commands.schema.keyspaces import CreateKeyspace, DropKeyspace
from ringlog.kernel.commands.schema.tables import AlterTable, CreateTable, DropTable
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import CdcOptions, Column, ColumnRename, Command, Micros
from ringlog.runtime.draw import draw_uuid
from ringlog_sim.actors.cdc.producer import KEYSPACE, RESPELLED, REUSED, SimProducer
from ringlog_sim.devices.world import MS, SECOND, Chance
from ringlog_sim.shape import COLUMNS
from ringlog_sim.stories.moments import DAWDLE
from ringlog_sim.stories.story import APPLICATIONS, Drawn, StorySetting

if TYPE_CHECKING:
    from ringlog_sim.operator import SimOperator
    from ringlog_sim.simulation import Simulation

PROFILE: Final = "columns"
"""The profile that always has this story."""
SHARE: Final = 0.02
"""Share of other runs that have it, of those that begin with nodes and have no scenario."""
USED_AGAIN: Final = 0.6
"""Share of the profile's runs that drop and recreate the table and a keyspace while a node streams."""
LASTS: Micros = 5 * SECOND
ACTIONS: Final = ("columns", "columns_burst")
NAMES: Final = ("v", "w", "x")
KINDS: Final = (("rename", 3), ("drop", 2), ("add", 3), ("anew", 2), ("back", 1))


def draw_column_rename(setting: StorySetting) -> list[Drawn]:
    """Draw the story for every run of its profile, and for a part of the others."""
    chance, is_own = setting.chance("columns"), setting.profile == PROFILE
    if not setting.founded or not chance.happens(1.0 if is_own else SHARE):
        return []
    drawn: list[Drawn] = [(chance.between(300, 500) * MS, "columns", ("create",))]
    for _ in range(chance.between(3, 7)):
        at = chance.between(700, 4_000)
        drawn.append((at * MS, "columns", (chance.weighted(KINDS),)))
        drawn.append(((at + chance.between(-100, 600)) * MS, "columns_burst", (chance.between(2, 4),)))
    return drawn + _used_again(setting.chance("columns/again")) if is_own else drawn


def _used_again(chance: Chance) -> list[Drawn]:
    """Reuse names in a part of the runs, while a node streams the data of their first owners."""
    if not chance.happens(USED_AGAIN):
        return []
    drawn: list[Drawn] = [(chance.between(0, 60) * MS, "columns", ("reuse",))]
    for register, name in enumerate(APPLICATIONS):
        drawn += [(after * MS, "register", (name, register, "write-QUORUM")) for after in (250, 500, 800)]
    drawn += [(after * MS, "columns_burst", (3,)) for after in (550, 750)]
    moment = chance.pick(["streamed", "registers streamed"])
    drawn.append((0, "when", (moment, 1, chance.between(0, 60), "columns", "again")))
    drawn.append((0, "when", (moment, 1, 0, DAWDLE, chance.between(800, 2_000))))
    return drawn


def perform_fault(
    sim: Simulation, operator: SimOperator, producer: SimProducer, number: int, what: str, arguments: tuple[Any, ...]
) -> None:
    """Perform one of ``ACTIONS``."""
    if what == "columns":
        chance = Chance(sim.world.seed, f"columns/{number}")
        operator.images(changes(chance, arguments[0], sim.log.state))
    elif producer.host.up:
        producer.columns_burst(number, arguments[0])


def changes(chance: Chance, what: str, state: ClusterState) -> list[Command]:
    """Return an operator's commands.

    ``what``: create, rename, drop, add, anew (drop and add in one command), back (two columns exchange their names),
    reuse (create the keyspace ``REUSED``), again (drop that keyspace and the table, and create both again).
    """
    if what == "reuse":
        # Keyspaces with equal replication share the ranges, so this one may be dropped while a node streams.
        return [CreateKeyspace(REUSED, state.keyspaces[KEYSPACE].replication)] if KEYSPACE in state.keyspaces else []
    if what == "again":
        drops: list[Command] = [DropKeyspace(REUSED)] if REUSED in state.keyspaces else []
        drops += [DropTable(KEYSPACE, RESPELLED)] if f"{KEYSPACE}.{RESPELLED}" in state.tables else []
        return [*drops, *changes(chance, "reuse", state), *changes(chance, "create", state)]
    if what == "create":
        columns = (*COLUMNS, Column("w", "text"))
        own = CdcOptions(True, ttl=1)
        return [CreateTable(KEYSPACE, RESPELLED, draw_uuid(chance), columns, ("k",), ("c",), own)]
    table = state.tables.get(f"{KEYSPACE}.{RESPELLED}")
    if table is None:
        return []
    there = [column.name for column in table.columns[2:]]
    free, place = [name for name in NAMES if name not in there], (KEYSPACE, RESPELLED)
    one = chance.pick(there) if there else ""
    match what:
        case "rename" if there and free:
            renamed = (ColumnRename(one, chance.pick(free)),)
            return [AlterTable(*place, rename_columns=renamed)]
        case "back" if len(there) > 1:
            first, second = there[:2]
            steps = ColumnRename(first, "z"), ColumnRename(second, first), ColumnRename("z", second)
            entries = [steps] if table.changed % 2 else [steps[:2], steps[2:]]
            return [AlterTable(*place, rename_columns=entry) for entry in entries]
        case "drop" if there:
            return [AlterTable(*place, drop_columns=(one,))]
        case "anew" if there:
            return [AlterTable(*place, (Column(one, "text"),), drop_columns=(one,))]
        case _:
            return [AlterTable(*place, (Column(name, "text"),)) for name in free[:1]]
