"""Bounds on schema bytes: changes of one command, the state, and past versions."""

from __future__ import annotations

import random
from typing import Any

import pytest

from ringlog.kernel.commands.cdc.verdicts import SettleVerdicts
from ringlog.kernel.commands.cluster.cluster import Noop
from ringlog.kernel.commands.schema.tables import AlterTable, CreateTable, DropTable
from ringlog.kernel.commands.schema.user_types import AlterType, CreateType
from ringlog.kernel.commands.schema.views import CreateView, DropView
from ringlog.kernel.fold import fold
from ringlog.kernel.model.outcome import OutcomeKind
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.schema import sizes
from ringlog.kernel.values import CdcOptions, Column, ColumnRename, Command, TypeField
from tests.kernel.commands.test_schema import ready
from tests.kernel.entries import applied, entry, uuid

SECOND = 1_000_000
WIDE = CreateType("ks", "wide", tuple(TypeField(f"field_{number:03}", "varint") for number in range(50)))


def table(name: str, columns: int, number: int) -> CreateTable:
    wide = tuple(Column(f"c{index:03}", "frozen<wide>") for index in range(columns))
    return CreateTable(
        "ks", name, uuid(number, space=6), (Column("k", "text"), *wide), ("k",), (), CdcOptions(enabled=False)
    )


def answered(state: ClusterState, command: Command) -> tuple[ClusterState, str]:
    """Return the state after an entry, and the code of its rejection."""
    folded = fold(state, entry(state, command))
    assert (folded.outcome.kind is OutcomeKind.APPLIED) == (folded.outcome.code == "")
    return folded.state, folded.outcome.code


def total(section: str, state: ClusterState) -> int:
    return sum(map(sizes._WEIGHTS[section], getattr(state, section).values()))


def test_alterations_of_a_type_create_bounded_table_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "PAST_BYTES_MAX", 1_000_000)
    state = applied(ready(), SettleVerdicts(SECOND), WIDE, *(table(f"t{number}", 60, number) for number in range(3)))
    for number in range(100):
        state = applied(state, SettleVerdicts(state.settled.until + SECOND))
        state, code = answered(state, AlterType("ks", "wide", (TypeField(f"more_{number}", "int"),)))
        assert total("table_lives", state) <= sizes.PAST_BYTES_MAX
        if code:
            break
    assert code == "too_many_versions"
    assert number > 3
    until = state.settled.until + 2 * 3_600 * SECOND
    state = applied(state, SettleVerdicts(until), SettleVerdicts(until, forget_below=until))
    assert answered(state, AlterType("ks", "wide", (TypeField("again", "int"),)))[1] == ""


def test_a_renamed_column_changes_a_bounded_number_of_views(monkeypatch: pytest.MonkeyPatch) -> None:
    state = applied(ready(), WIDE, table("t", 40, 1))
    for number in range(20):
        state = applied(state, CreateView("ks", f"v{number}", "t", (), ("k",), (f"c{number:03}",)))
    rename = AlterTable("ks", "t", rename_columns=(ColumnRename("k", "key"),))
    monkeypatch.setattr(sizes, "CHANGED_BYTES_MAX", total("views", state))
    assert answered(state, rename)[1] == "too_large", "the table changes too"
    monkeypatch.undo()
    assert answered(state, rename)[1] == ""


def test_a_schema_that_is_too_large_shrinks_and_does_not_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    state = applied(ready(), WIDE, table("one", 60, 1), table("two", 60, 2))
    monkeypatch.setattr(sizes, "SCHEMA_BYTES_MAX", total("tables", state) // 2)
    assert answered(state, table("three", 60, 3))[1] == "too_large"
    assert answered(state, AlterTable("ks", "one", drop_columns=("c001",)))[1] == ""
    assert answered(state, DropTable("ks", "one"))[1] == ""
    assert answered(state, Noop())[1] == ""


def drawn(draw: random.Random, step: int) -> Command:
    """Return a random command on a few tables with types and views. Many are rejected."""
    name, other = f"t{draw.randrange(4)}", f"v{draw.randrange(4)}"
    column = f"c{draw.randrange(6):03}"
    makers: tuple[Any, ...] = (
        lambda: table(name, draw.randrange(6), step),
        lambda: DropTable("ks", name),
        lambda: AlterTable("ks", name, (Column(column, "frozen<wide>"),)),
        lambda: AlterTable("ks", name, drop_columns=(column,)),
        lambda: AlterTable("ks", name, rename_columns=(ColumnRename("k", "kk"),)),
        lambda: AlterTable("ks", name, rename_columns=(ColumnRename("kk", "k"),)),
        lambda: AlterType("ks", "wide", (TypeField(f"g{step}", "int"),)),
        lambda: CreateView("ks", other, name, (), ("k",), (column,)),
        lambda: DropView("ks", other),
        lambda: SettleVerdicts(step * SECOND, forget_below=draw.choice((0, max(step - 20, 0) * SECOND))),
    )
    command: Command = draw.choice(makers)()
    return command


@pytest.mark.parametrize("seed", range(6))
def test_incremental_totals_equal_full_totals(seed: int) -> None:
    draw = random.Random(seed)
    state = applied(ready(), SettleVerdicts(1), WIDE)
    applied_ones = 0
    for step in range(2, 250):
        command = drawn(draw, step)
        folded, code = answered(state, command)
        applied_ones += not code
        for section in sizes._WEIGHTS:
            old, new = getattr(state, section), getattr(folded, section)
            assert sizes._total(section, new, old, command) == total(section, folded), (section, command)
        state = folded
    assert applied_ones > 60
    assert state.table_lives
