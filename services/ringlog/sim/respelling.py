"""A table whose columns are dropped, renamed, added and made anew under load, in a part of the runs.

Its writes name the version that they are by, the newest or an earlier one, and each value says for which column of
which version it was meant (``actors.producer``). So a check needs to know nothing of where cells lie.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ringlog.kernel.commands.schema import AlterTable, CreateTable
from ringlog.kernel.state import ClusterState
from ringlog.kernel.values import CdcOptions, Column, ColumnRename, Command, Micros
from ringlog.runtime.draw import draw_uuid
from ringlog.sim.actors.producer import KEYSPACE, RESPELLED, SimProducer
from ringlog.sim.chance import Chance
from ringlog.sim.shape import COLUMNS
from ringlog.sim.world import MS, SECOND

if TYPE_CHECKING:
    from ringlog.sim.operator import SimOperator
    from ringlog.sim.simulation import Simulation

PROFILE: Final = "columns"
"""The profile of which every run has it."""
SHARE: Final = 0.02
"""How many of the other runs have it, of those that begin with nodes and have no scenario."""
LASTS: Micros = 5 * SECOND
WHAT: Final = ("columns", "columns_burst")
NAMES: Final = ("v", "w", "x")
KINDS: Final = (("rename", 3), ("drop", 2), ("add", 3), ("anew", 2), ("back", 1))
Drawn = tuple[Micros, str, tuple[Any, ...]]


def respelling(chance: Chance, founded: int, share: float) -> list[Drawn]:
    """(time, what happens, with which arguments); nothing in most runs: ``share`` of them have something."""
    if not founded or not chance.happens(share):
        return []
    drawn: list[Drawn] = [(chance.between(300, 500) * MS, "columns", ("create",))]
    for _ in range(chance.between(3, 7)):
        at = chance.between(700, 4_000)
        drawn.append((at * MS, "columns", (chance.weighted(KINDS),)))
        drawn.append(((at + chance.between(-100, 600)) * MS, "columns_burst", (chance.between(2, 4),)))
    return drawn


def befalls(
    sim: Simulation, operator: SimOperator, producer: SimProducer, number: int, what: str, arguments: tuple[Any, ...]
) -> None:
    """One of ``WHAT`` happens."""
    if what == "columns":
        chance = Chance(sim.world.seed, f"columns/{number}")
        operator.images(changes(chance, arguments[0], sim.log.state))
    elif producer.host.up:
        producer.columns_burst(number, arguments[0])


def changes(chance: Chance, what: str, state: ClusterState) -> list[Command]:
    """What an operator asks for. ``what``: create, rename, drop, add, anew (drop and add in one command), back (two
    columns exchange their names).
    """
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
            steps = (ColumnRename(first, "z"), ColumnRename(second, first)), (ColumnRename("z", second),)
            return [AlterTable(*place, rename_columns=step) for step in steps]
        case "drop" if there:
            return [AlterTable(*place, drop_columns=(one,))]
        case "anew" if there:
            return [AlterTable(*place, (Column(one, "text"),), drop_columns=(one,))]
        case _:
            return [AlterTable(*place, (Column(name, "text"),)) for name in free[:1]]
