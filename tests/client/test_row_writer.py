"""What a write says that its author knew, and the verdict on it that its author works out."""

from __future__ import annotations

from ringlog.client.row_writer import VerdictSought, WrittenRow, named
from ringlog.kernel.commands.schema import AlterTable, DropTable
from ringlog.kernel.commands.verdicts import SettleVerdicts
from ringlog.kernel.generations.admission import rules_of, verdict
from ringlog.kernel.values import Column
from tests.kernel.entries import applied
from tests.node.world import APPENDED, TABLE, cluster, write

SECOND = 1_000_000


def test_a_write_names_cluster_table_and_epoch_unless_it_does_already() -> None:
    state = cluster((0,), factor=1)
    plain = write("ann", 1, cluster_id=None)
    found = named(state, plain)
    assert (found.cluster_id, found.table_id, found.epoch) == (state.cluster_id, state.tables[TABLE].id, state.epoch)
    assert found.table_version is None
    for own in (
        {"cluster_id": "c", "table_id": "t", "epoch": 3},
        {"cluster_id": "c", "table_id": "t", "table_version": "v"},
    ):
        said = write("ann", 1, **own)
        assert named(state, said) == said
    assert named(state, write("ann", 1, table="nosuch")).table_id is None


def test_the_verdict_is_there_when_it_is_settled_and_stays() -> None:
    state = cluster((0,), factor=1)
    mutation = named(state, write("ann", 1))
    sought = VerdictSought(mutation, APPENDED)
    assert sought.found(state) is None, "nothing was promised yet"
    early = applied(state, SettleVerdicts(APPENDED))
    assert sought.found(early) is None
    late = applied(early, SettleVerdicts(APPENDED + SECOND))
    found = sought.found(late)
    assert found is not None
    assert (found[0].code, found[1]) == ("", late.epoch)
    for later in (applied(late, DropTable("shop", "orders")), applied(late, SettleVerdicts(APPENDED + 9 * SECOND))):
        assert sought.found(later) == (found[0], later.epoch)


def test_a_write_by_an_epoch_is_read_as_the_table_was_known_then() -> None:
    state = applied(cluster((0,), factor=1), SettleVerdicts(APPENDED - SECOND))
    mutation = named(state, write("ann", 1))
    changed = applied(state, AlterTable("shop", "orders", add_columns=(Column("more", "text"),)))
    newer = named(changed, write("ann", 1))
    assert newer.epoch == changed.epoch
    state = applied(changed, SettleVerdicts(APPENDED + SECOND))
    for one in (mutation, newer):
        found = VerdictSought(one, APPENDED).found(state)
        assert found is not None
        assert found[0] == verdict(rules_of(state), one, APPENDED)
        assert not found[0].code
    refused = VerdictSought(named(state, write("ann", 1, table="nosuch")), APPENDED).found(state)
    assert refused is not None
    assert refused[0].code == "unknown_table"


def test_a_position_is_above_the_write() -> None:
    assert WrittenRow(write("ann", 1), 3, 41, APPENDED).at == {3: 42}
