"""The versions stored for validation have a bound: one more change is rejected, and pruning makes room."""

from __future__ import annotations

import pytest

from ringlog.kernel.commands.cdc.verdicts import SettleVerdicts
from ringlog.kernel.commands.cluster.cluster import ChangeSettings
from ringlog.kernel.commands.schema.tables import AlterTable, CreateTable, DropTable
from ringlog.kernel.fold import fold
from ringlog.kernel.generations.admission import rules_of, verdict
from ringlog.kernel.generations.verdicts import FORGOTTEN, LEEWAYS_MAX
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.schema import table_versions as lifetimes
from ringlog.kernel.schema.table_versions import NAMED_US
from ringlog.kernel.values import CdcOptions, Column, Command, replace
from tests.kernel.entries import applied, entry, uuid
from tests.node.world import APPENDED, TABLE, cluster, write

SECOND = 1_000_000
VERSIONS_MAX = 60


@pytest.fixture(autouse=True)
def _few_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set a low bound for the tests."""
    assert lifetimes.VERSIONS_MAX > VERSIONS_MAX
    monkeypatch.setattr(lifetimes, "VERSIONS_MAX", VERSIONS_MAX)


def settled() -> ClusterState:
    return applied(cluster((0,), factor=1), SettleVerdicts(APPENDED))


def on(state: ClusterState, command: Command) -> ClusterState:
    """Apply the change and a later watermark, so that the next change concerns other writes."""
    changed = applied(state, command)
    return applied(changed, SettleVerdicts(changed.settled.until + SECOND))


def forgetting(state: ClusterState) -> ClusterState:
    """Prune the versions that no reader can need."""
    until = state.settled.until + 2 * NAMED_US
    return applied(state, SettleVerdicts(until + SECOND), SettleVerdicts(until + 2 * SECOND, until))


def refused(state: ClusterState, command: Command) -> None:
    outcome = fold(state, entry(state, command)).outcome
    assert outcome.code == "too_many_versions", outcome


def test_versions_of_a_table_are_bounded_and_pruned() -> None:
    state = settled()
    for number in range(VERSIONS_MAX - 1):
        one = AlterTable("shop", "orders", add_columns=(Column("c", "text"),))
        state = on(state, replace(one, add_columns=(), drop_columns=("c",)) if number % 2 else one)
    one_more = AlterTable("shop", "orders", add_columns=(Column("more", "text"),))
    assert len(state.table_lives[TABLE][-1].versions) == VERSIONS_MAX
    refused(state, one_more)
    before = state.settled.until - 1
    state = forgetting(state)
    assert not state.table_lives, "the table is unchanged for all undecided writes"
    assert applied(state, one_more).tables[TABLE].columns[-1].name == "more"
    found = verdict(rules_of(state), write("ann", 1), before)
    assert found is not None
    assert found.code == FORGOTTEN


def test_tables_of_one_name_are_bounded_and_pruned() -> None:
    state, columns = settled(), (Column("k", "blob"), Column("v", "blob"))

    def made(number: int) -> CreateTable:
        return CreateTable("shop", "brief", uuid(number, space=8), columns, ("k",), (), CdcOptions(enabled=False))

    for number in range(VERSIONS_MAX):
        state = on(on(state, made(number)), DropTable("shop", "brief"))
    refused(state, made(VERSIONS_MAX))
    state = forgetting(state)
    assert not state.table_lives
    applied(state, made(VERSIONS_MAX))


def test_lateness_settings_are_bounded_and_pruned() -> None:
    state = settled()
    for number in range(LEEWAYS_MAX):
        state = on(state, ChangeSettings((("cdc_leeway_us", (5 + number % 2) * SECOND + 1),)))
    one_more = ChangeSettings((("cdc_leeway_us", 7 * SECOND),))
    assert len(state.settled.leeways) == LEEWAYS_MAX
    refused(state, one_more)
    state = forgetting(state)
    assert state.settled.leeways == ()
    applied(state, one_more)
