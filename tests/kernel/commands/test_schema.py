"""Rules of keyspaces and tables, their versions, and the placements of replication settings."""

from __future__ import annotations

from typing import Any

import pytest

from ringlog.kernel.commands.schema.keyspaces import CreateKeyspace, DropKeyspace
from ringlog.kernel.commands.schema.shared import utc
from ringlog.kernel.commands.schema.tables import AlterTable, CreateTable, DropTable
from ringlog.kernel.fold import fold
from ringlog.kernel.model.applied_history import EMPTY_HISTORY
from ringlog.kernel.model.outcome import OutcomeKind
from ringlog.kernel.model.state import ClusterState, Operation, Plan, StageMark
from ringlog.kernel.values import CdcOptions, Column, Command, Replication, replace
from tests.kernel.commands.test_cluster_and_nodes import refusal
from tests.kernel.entries import NODES, SEED, applied, entry, founded, uuid, with_normal_nodes

SIMPLE_1, SIMPLE_2 = Replication("simple", 1), Replication("simple", 2)
COLUMNS = (Column("k", "text"), Column("c", "timestamp"), Column("v", "double"))
TABLE = CreateTable("ks", "t", uuid(1, space=6), COLUMNS, ("k",), ("c",), CdcOptions())


def ready() -> ClusterState:
    """Return three normal nodes and the keyspace ``ks``, at epoch 5."""
    return applied(with_normal_nodes(founded(), 3), CreateKeyspace("ks", SIMPLE_2))


def in_flight(state: ClusterState, stage: str = "prepared") -> ClusterState:
    """Return ``state`` with an operation in ``stage``."""
    flying = Operation(
        "join-9", "join", NODES[0], (), SEED, stage, 5, Plan(), (), None, (StageMark("requested", 5, 0),), (), ""
    )
    return replace(state, operations=state.operations.set(flying.id, flying))


# Keyspaces


def test_a_keyspace_adds_its_placement() -> None:
    state = ready()
    assert state.keyspaces["ks"].version == state.schema_version == state.state_id
    placement = state.placements["simple:2"]
    assert placement.ends == (1_000, 2_000, 3_000)
    assert [[replica.node for replica in group.read] for group in placement.ranges] == [
        [NODES[0], NODES[1]],
        [NODES[1], NODES[2]],
        [NODES[2], NODES[0]],
    ]
    assert state.changed["placements"] == state.changed["keyspaces"] == state.changed["schema_version"] == 5


def test_keyspaces_of_one_setting_share_a_placement() -> None:
    before = ready()
    state = applied(before, CreateKeyspace("two", SIMPLE_2))
    assert state.placements is before.placements
    state = applied(state, DropKeyspace("ks"))
    assert state.placements is before.placements
    state = applied(state, DropKeyspace("two"))
    assert not state.placements
    assert not state.keyspaces


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (CreateKeyspace("ks", SIMPLE_1), "keyspace_exists"),
        (CreateKeyspace("x.y", SIMPLE_1), "bad_field"),
        (CreateKeyspace("x", Replication("simple", 0)), "bad_field"),
        (CreateKeyspace("x", Replication("simple", 65)), "bad_field"),
        (CreateKeyspace("x", Replication("network", 1)), "bad_field"),
        (CreateKeyspace("x", Replication("everywhere", 1)), "unknown_strategy"),
        (CreateKeyspace("x", Replication("simple", 4)), "replication_impossible"),
        (DropKeyspace("x"), "unknown_keyspace"),
        (DropKeyspace(""), "bad_field"),
    ],
)
def test_keyspace_refused(command: Command, code: str) -> None:
    assert refusal(ready(), command) == code


def test_only_nodes_with_tokens_can_hold_replicas() -> None:
    state = with_normal_nodes(founded(), 2)
    other = replace(state.nodes[NODES[1]], state="joining", tokens=())
    state = replace(state, nodes=state.nodes.set(other.id, other), token_owners=state.token_owners.delete(2_000))
    assert refusal(state, CreateKeyspace("ks", SIMPLE_2)) == "replication_impossible"


def test_settings_in_use_do_not_change_under_an_operation() -> None:
    flying = in_flight(ready())
    assert refusal(flying, CreateKeyspace("one", SIMPLE_1)) == "operations_in_flight"
    assert refusal(flying, DropKeyspace("ks")) == "operations_in_flight"
    shared = applied(flying, CreateKeyspace("two", SIMPLE_2), DropKeyspace("ks"))
    assert set(shared.placements) == {"simple:2"}
    for stage in ("finished", "cancelled"):
        assert applied(in_flight(ready(), stage), CreateKeyspace("one", SIMPLE_1), DropKeyspace("ks"))


# Tables


def test_a_table_and_its_versions() -> None:
    state = applied(ready(), TABLE)
    made = state.tables["ks.t"]
    assert (made.version, made.changed, made.committed_by_log) == (state.state_id, 6, True)
    assert made.version == state.schema_version
    assert (made.columns, made.partition_key, made.clustering_key) == (COLUMNS, ("k",), ("c",))
    assert dict(state.table_ids) == {TABLE.id: "ks.t"}
    other = applied(state, replace(TABLE, name="u", id=uuid(2, space=6)))
    assert other.tables["ks.t"] is made, "only the changed tables get the version"
    assert other.schema_version != made.version


def test_collections_static_columns() -> None:
    more = (Column("m", "map<text, frozen<list<int>>>"), Column("s", "text", static=True))
    state = applied(ready(), replace(TABLE, columns=(*COLUMNS, *more[:1])), AlterTable("ks", "t", more[1:]))
    assert state.tables["ks.t"].columns == (*COLUMNS, *more)


def test_a_table_name_is_reusable_but_not_its_id() -> None:
    state = applied(ready(), TABLE, DropTable("ks", "t"))
    assert not state.tables
    assert refusal(state, TABLE) == "table_id_reused"
    state = applied(state, replace(TABLE, id=uuid(2, space=6)))
    assert dict(state.table_ids) == {TABLE.id: "ks.t", uuid(2, space=6): "ks.t"}


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"name": "2t"}, "bad_field"),
        ({"keyspace": "a.b"}, "bad_field"),
        ({"id": "x"}, "bad_field"),
        ({"cdc": CdcOptions(preimage="maybe")}, "bad_field"),
        ({"cdc": CdcOptions(delta="none")}, "bad_field"),
        ({"cdc": CdcOptions(ttl=-1)}, "bad_field"),
        ({"cdc": CdcOptions(ttl=2**31)}, "bad_field"),
        ({"keyspace": "no"}, "unknown_keyspace"),
        ({"columns": (*COLUMNS, Column("k", "int"))}, "column_exists"),
        ({"columns": (*COLUMNS, Column("x", "list<map<int, int>>"))}, "unknown_type"),
        ({"columns": (*COLUMNS, Column("x", "int", True)), "clustering_key": ()}, "bad_field"),
        ({"columns": (Column("k", "text"), Column("c", "int", True))}, "bad_field"),
        ({"columns": (Column("k", "text"), Column("c", "set<int>"))}, "bad_key"),
        ({"columns": (*COLUMNS, Column("x", "TEXT"))}, "unknown_type"),
        ({"columns": (*COLUMNS, Column("", "text"))}, "bad_field"),
        ({"columns": tuple(Column(f"c{number}", "int") for number in range(1_001))}, "bad_field"),
        ({"columns": ()}, "bad_key"),
        ({"partition_key": ()}, "bad_key"),
        ({"partition_key": ("no",)}, "bad_key"),
        ({"partition_key": ("k", "k")}, "bad_key"),
        ({"clustering_key": ("k",)}, "bad_key"),
        ({"clustering_key": ("no",)}, "bad_key"),
    ],
)
def test_table_refused(changes: dict[str, Any], code: str) -> None:
    assert refusal(ready(), replace(TABLE, **changes)) == code


def test_a_second_create_is_refused_and_not_merged() -> None:
    state = applied(ready(), TABLE)
    assert refusal(state, replace(TABLE, id=uuid(2, space=6))) == "table_exists"
    assert refusal(state, DropKeyspace("ks")) == "keyspace_not_empty"


def test_key_order_follows_the_key() -> None:
    state = applied(ready(), replace(TABLE, partition_key=("v", "k")))
    assert state.tables["ks.t"].partition_key == ("v", "k")


def test_alter_adds_columns_and_replaces_cdc_options() -> None:
    state = applied(ready(), TABLE)
    cdc = CdcOptions(enabled=True, delta="keys")
    state = applied(state, AlterTable("ks", "t", (Column("w", "int"),)), AlterTable("ks", "t", cdc=cdc))
    altered = state.tables["ks.t"]
    assert altered.columns == (*COLUMNS, Column("w", "int"))
    assert (altered.cdc, altered.id, altered.changed) == (cdc, TABLE.id, 8)
    assert altered.version == state.schema_version == state.state_id


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (AlterTable("ks", "t"), "bad_field"),
        (AlterTable("ks", "t", (Column("v", "int"),)), "column_exists"),
        (AlterTable("ks", "t", (Column("x", "int"), Column("x", "int"))), "column_exists"),
        (AlterTable("ks", "t", (Column("x", "?"),)), "unknown_type"),
        (AlterTable("ks", "t", cdc=CdcOptions(preimage="")), "bad_field"),
        (AlterTable("ks", "no", (Column("x", "int"),)), "unknown_table"),
        (AlterTable("", "t"), "bad_field"),
        (DropTable("ks", "no"), "unknown_table"),
        (DropTable("ks", ""), "bad_field"),
    ],
)
def test_change_of_a_table_refused(command: Command, code: str) -> None:
    assert refusal(applied(ready(), TABLE), command) == code


def test_a_concurrently_dropped_table_is_not_altered() -> None:
    """The second example of CEP-21 for a rejection: the author has not seen the drop."""
    seen = applied(ready(), TABLE)
    alter = AlterTable("ks", "t", (Column("w", "int"),))
    dropped = applied(seen, DropTable("ks", "t"))
    late = fold(dropped, entry(seen, alter, state_id=uuid(99), request_id=uuid(99, space=1)))
    assert (late.outcome.kind, late.state) == (OutcomeKind.STALE, dropped)
    assert refusal(dropped, alter) == "unknown_table", "decided again, as an author does after a lost race"


def test_a_rejected_create_names_the_first_entry() -> None:
    state = applied(ready(), TABLE)
    folded = fold(state, entry(state, replace(TABLE, id=uuid(2, space=6))))
    assert folded.outcome.detail == (
        "name: the table ks.t exists, made or last altered by epoch 6, 1970-01-01T00:06:33Z"
    )
    state = replace(state, history=EMPTY_HISTORY)
    assert "an epoch before" in fold(state, entry(state, CreateKeyspace("ks", SIMPLE_1))).outcome.detail


def test_entry_times_are_calendar_times() -> None:
    times = {0: "1970-01-01T00:00:00Z", 951_782_399: "2000-02-28T23:59:59Z", 1_709_164_800: "2024-02-29T00:00:00Z"}
    assert {seconds: utc(seconds) for seconds in times} == times
