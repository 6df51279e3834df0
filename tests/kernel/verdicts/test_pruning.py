"""Versions that may still validate a write are not pruned: neither before a future CDC writer nor by a forced state."""

from __future__ import annotations

from typing import Any

import pytest
from immutables import Map

from ringlog.kernel.commands.cdc.verdicts import SettleVerdicts
from ringlog.kernel.commands.cdc.writers import AdvanceCdcWriter, FenceCdcWriter, RegisterCdcWriter
from ringlog.kernel.commands.control.recovery import FORCEABLE, EnterRecovery, ForcedPart, ForceState
from ringlog.kernel.commands.schema.tables import AlterTable
from ringlog.kernel.encoding.encoder import encoded_parts
from ringlog.kernel.fold import fold
from ringlog.kernel.invariants.check import violations
from ringlog.kernel.model.outcome import Outcome
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.model.tables import TableLifetime, TableVersion
from ringlog.kernel.values import Column, Command, replace
from tests.kernel.commands.test_service import joined
from tests.kernel.entries import applied, entry, uuid
from tests.node.world import APPENDED, TABLE, cluster, with_table

SECOND = 1_000_000
HOUR = 3_600 * SECOND
ONE, OTHER = uuid(1, space=5), uuid(2, space=5)
FORGET = SettleVerdicts(1, forget_below=APPENDED + 60 * SECOND)


def outcome(state: ClusterState, command: Command) -> Outcome:
    return fold(state, entry(state, command)).outcome


def logging() -> ClusterState:
    """Return a table with CDC, and an hour of writes validated by nodes."""
    return applied(cluster((0,), factor=1, cdc=True), SettleVerdicts(APPENDED + HOUR))


def durable(state: ClusterState, name: str, incarnation: str, until: int) -> ClusterState:
    return applied(state, AdvanceCdcWriter(name, incarnation, until, until))


def test_pruning_waits_for_the_first_writer() -> None:
    state = logging()
    assert state.generations[0].timestamp < FORGET.forget_below
    assert outcome(state, FORGET).code == "verdicts_needed"


def test_pruning_without_cdc_waits_for_no_writer() -> None:
    state = applied(cluster((0,), factor=1), SettleVerdicts(APPENDED + HOUR))
    assert outcome(state, FORGET).code == ""


def test_pruning_waits_for_the_successor_of_a_fenced_writer() -> None:
    state = applied(logging(), RegisterCdcWriter("w", ONE, "mutations"))
    state = applied(state, FenceCdcWriter("w", ONE, (), "gone"))
    refused = outcome(state, FORGET)
    assert (refused.code, "fenced writer w" in refused.detail) == ("verdicts_needed", True)
    state = applied(state, RegisterCdcWriter("other", OTHER, "mutations"))
    assert "writer other" in outcome(state, FORGET).detail, "another writer has replaced it"
    assert outcome(durable(state, "other", OTHER, APPENDED + HOUR), FORGET).code == ""


def test_durable_rows_of_a_fenced_writer_permit_pruning() -> None:
    state = applied(logging(), RegisterCdcWriter("w", ONE, "mutations"))
    state = applied(durable(state, "w", ONE, APPENDED + HOUR), FenceCdcWriter("w", ONE, (), "gone"))
    assert outcome(state, FORGET).code == ""


# Forced states


def altered() -> ClusterState:
    """Return a recovery state with a table that lost a column for writes above the watermark."""
    state = applied(with_table(joined(2), 1), SettleVerdicts(APPENDED + 1_000))
    state = applied(state, AlterTable("shop", "orders", drop_columns=("note",)), SettleVerdicts(APPENDED + 100_000))
    return applied(state, EnterRecovery("r", "op"))


def forced(state: ClusterState, **parts: Any) -> Outcome:
    encoded = encoded_parts(replace(state, **parts))
    return outcome(state, ForceState("r", "op", tuple(ForcedPart(name, encoded.get(name, b"")) for name in parts)))


def lifetimes(state: ClusterState, *versions: TableVersion) -> Map[str, tuple[TableLifetime, ...]]:
    (lifetime,) = state.table_lives[TABLE]
    return state.table_lives.set(TABLE, (replace(lifetime, versions=versions),))


@pytest.mark.parametrize("change", ["forgotten", "later", "other columns"])
def test_force_changes_no_version_for_validated_writes(change: str) -> None:
    state = altered()
    old, new = state.table_lives[TABLE][0].versions
    changed = {
        "forgotten": Map(),
        "later": lifetimes(state, replace(old, end=new.since + 2 + HOUR), replace(new, since=new.since + 1)),
        "other columns": lifetimes(state, replace(old, table=replace(old.table, columns=(Column("x", "text"),))), new),
    }[change]
    refused = forced(state, table_lives=changed)
    assert (refused.code, "past_versions" in refused.detail) == ("state_unsound", True)


def test_force_keeps_the_validation_watermark() -> None:
    assert "settled" not in FORCEABLE


def test_changes_above_the_watermark_are_valid() -> None:
    """The same holds for pruning, in each step of this history."""
    state = altered()
    assert not violations(state)
    before = applied(with_table(joined(2), 1), SettleVerdicts(APPENDED + 1_000))
    for command in (
        AlterTable("shop", "orders", (Column("more", "text"),)),
        SettleVerdicts(APPENDED + 3 * HOUR),
        AlterTable("shop", "orders", drop_columns=("more",)),
        SettleVerdicts(APPENDED + 9 * HOUR),
        SettleVerdicts(1, forget_below=APPENDED + 2 * HOUR),
        SettleVerdicts(1, forget_below=APPENDED + 8 * HOUR),
    ):
        after = applied(before, command)
        assert not violations(after, before), command
        before = after
    assert not before.table_lives
