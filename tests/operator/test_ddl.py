"""CQL to commands and back: accepted statements, refusals with positions, and a described schema that reads back."""

from __future__ import annotations

import re
from random import Random
from typing import Any

import pytest
from cassandra import metadata

from ringlog.kernel.commands.schema.batch import STATEMENTS_MAX, SchemaBatch
from ringlog.kernel.commands.schema.functions import CreateAggregate, CreateFunction
from ringlog.kernel.commands.schema.keyspaces import CreateKeyspace
from ringlog.kernel.commands.schema.tables import CreateTable
from ringlog.kernel.commands.schema.user_types import AlterType, CreateType
from ringlog.kernel.commands.schema.views import CreateIndex, CreateView
from ringlog.kernel.fold import fold
from ringlog.kernel.model.outcome import OutcomeKind
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import (
    CdcOptions,
    Column,
    Command,
    DatacenterReplication,
    Replication,
    TabletOptions,
    TypeField,
    replace,
)
from ringlog.operator.ddl.reading import REASONS, DdlError, batch_json, ddl, located, read_ddl
from ringlog.operator.ddl.writing import RESERVED, describe, identifier
from ringlog.operator.errors import Refused
from ringlog.operator.intents.json_commands import from_json, to_json
from ringlog.runtime.draw import SeededDraw
from tests.cli.known_commands import unknown
from tests.kernel.entries import applied, entry, founded, uuid, with_normal_nodes

EMPTY = with_normal_nodes(founded(), 3)

SHOP = """
-- A shop.
CREATE KEYSPACE IF NOT EXISTS shop WITH replication = {'class': 'SimpleStrategy', 'replication_factor': '2'};
USE shop;
CREATE TYPE address (street varchar, "Zip" int);
/* Orders, with
   their history. */
CREATE TABLE orders (
    customer text,
    at timestamp,
    key text,
    name text STATIC,
    bill_to frozen<address>,
    sent_to map<text, frozen<shop.address>>,
    PRIMARY KEY ((customer), at)
) WITH CLUSTERING ORDER BY (at ASC) AND cdc = {'enabled': true, 'preimage': 'full', 'ttl': '60'};
ALTER TABLE orders ADD (note text, total double);
alter type shop.ADDRESS add city text;
"""


def command_of(text: str, state: ClusterState = EMPTY, keyspace: str = "ks") -> Command:
    found = ddl(text, keyspace)(state, SeededDraw(b"ddl"))
    assert isinstance(found, Command), found
    return found


def after(state: ClusterState, text: str) -> ClusterState:
    return applied(state, command_of(text, state))


ROUTES = """
CREATE FUNCTION shop.add (s tuple<int, bigint>, "Total" double)
    CALLED ON NULL INPUT RETURNS tuple<int, bigint> LANGUAGE lua AS $$
    -- not a comment of CQL; nor an end
    return s
$$;
CREATE FUNCTION shop.mean (s tuple<int, bigint>)
    RETURNS NULL ON NULL INPUT RETURNS double LANGUAGE lua AS 'return ''1''';
CREATE AGGREGATE shop.average (double) SFUNC add STYPE tuple<int, bigint> FINALFUNC shop.mean INITCOND (0, -1.5e3);
CREATE INDEX ON shop.orders (total);
CREATE MATERIALIZED VIEW IF NOT EXISTS shop.by_key AS
    SELECT total FROM shop.orders WHERE key IS NOT NULL AND customer IS NOT NULL AND at IS NOT NULL
    PRIMARY KEY (key, customer, at) WITH CLUSTERING ORDER BY (customer ASC, at ASC);
CREATE MATERIALIZED VIEW shop.by_note AS SELECT * FROM shop.orders PRIMARY KEY ((note), customer, at);
"""


def test_views_indexes_functions_and_aggregates() -> None:
    state = after(EMPTY, SHOP + ROUTES)
    add, mean = (state.functions[name] for name in sorted(state.functions))
    assert (add.argument_names, add.called_on_null, add.body.count("\n")) == (("s", "Total"), True, 3)
    assert (mean.body, mean.called_on_null) == ("return '1'", False)
    average = state.aggregates["shop.average(double)"]
    assert (average.state_function, average.final_function, average.initial) == ("add", "mean", "(0, -1.5e3)")
    assert state.indexes["shop.orders_total_idx"].column == "total"
    assert state.views["shop.by_key"].columns == ("customer", "at", "key", "total")
    assert "name" not in state.views["shop.by_note"].columns, "it is static"
    drops = """
        DROP MATERIALIZED VIEW shop.by_key; DROP INDEX IF EXISTS shop.none; DROP INDEX shop.orders_total_idx;
        DROP AGGREGATE shop.average; DROP FUNCTION shop.add (tuple<int, bigint>, double); DROP FUNCTION shop.mean;
    """
    state = after(state, drops)
    assert not state.functions
    assert not state.indexes
    assert list(state.views) == ["shop.by_note"]


def test_a_typical_schema() -> None:
    state = after(EMPTY, SHOP)
    assert state.epoch == EMPTY.epoch + 1
    table = state.tables["shop.orders"]
    udt = "udt<street text, Zip int, city text>"
    assert [(column.name, column.type, column.static) for column in table.columns] == [
        ("customer", "text", False),
        ("at", "timestamp", False),
        ("key", "text", False),
        ("name", "text", True),
        ("bill_to", f"frozen<{udt}>", False),
        ("sent_to", f"map<text, frozen<{udt}>>", False),
        ("note", "text", False),
        ("total", "double", False),
    ]
    assert (table.partition_key, table.clustering_key) == (("customer",), ("at",))
    assert table.cdc == CdcOptions(True, "full", ttl=60)
    again = SHOP.partition("USE shop;")[0]
    assert after(state, again).keyspaces is state.keyspaces


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("DROP KEYSPACE ks", {"command": "DropKeyspace", "name": "ks"}),
        ("drop table Other.T;", {"command": "DropTable", "keyspace": "other", "name": "t"}),
        ('DROP TYPE "Other"."a"', {"command": "DropType", "keyspace": "Other", "name": "a"}),
        ("ALTER TABLE t WITH cdc = true", {"command": "AlterTable", "keyspace": "ks", "name": "t", "cdc": True}),
        (
            "ALTER TABLE t WITH tablets = {'min_tablet_count': 4}",
            {"command": "AlterTable", "keyspace": "ks", "name": "t", "tablets": {"min_count": 4}},
        ),
        ("ALTER TABLE t DROP v", {"command": "AlterTable", "keyspace": "ks", "name": "t", "drop_columns": ["v"]}),
        (
            'alter table t drop ("V", w)',
            {"command": "AlterTable", "keyspace": "ks", "name": "t", "drop_columns": ["V", "w"]},
        ),
        (
            "ALTER TABLE t RENAME a TO b AND c TO d",
            {
                "command": "AlterTable",
                "keyspace": "ks",
                "name": "t",
                "rename_columns": [{"from": "a", "to": "b"}, {"from": "c", "to": "d"}],
            },
        ),
        (
            "ALTER TYPE a ADD b int AND c int",
            {
                "command": "AlterType",
                "keyspace": "ks",
                "name": "a",
                "fields": [{"name": "b", "type": "int"}, {"name": "c", "type": "int"}],
            },
        ),
    ],
)
def test_a_statement_equals_its_command(text: str, fields: dict[str, Any]) -> None:
    assert batch_json(read_ddl(text, "ks")) == fields


@pytest.mark.parametrize(
    ("setting", "replication"),
    [
        ("{'class': 'SimpleStrategy', 'replication_factor': 3}", {"strategy": "simple", "factor": 3}),
        (
            "{'class': 'org.apache.cassandra.locator.NetworkTopologyStrategy', 'dc1': '3', 'dc2': ['r1', 'r2']}",
            {"strategy": "network", "datacenters": {"dc1": 3, "dc2": ["r1", "r2"]}},
        ),
        ("{'class': 'EverywhereStrategy'} AND durable_writes = true", {"strategy": "entire"}),
        ("{'strategy': 'zone', 'zone': 'z'}", {"strategy": "zone", "zone": "z"}),
        ("{'strategy': 'tablets', 'factor': 1}", {"strategy": "tablets", "factor": 1}),
        (
            "{'class': 'NetworkTopologyStrategy', 'dc1': 3} AND tablets = {'enabled': true}",
            {"strategy": "tablets", "datacenters": {"dc1": 3}},
        ),
        (
            "{'class': 'SimpleStrategy', 'replication_factor': 3} AND tablets = {'enabled': 'false'}",
            {"strategy": "simple", "factor": 3},
        ),
    ],
)
def test_replication(setting: str, replication: dict[str, Any]) -> None:
    found = batch_json(read_ddl(f"ALTER KEYSPACE ks WITH replication = {setting}"))
    assert found == {"command": "AlterKeyspace", "name": "ks", "replication": replication}


@pytest.mark.parametrize(
    ("code", "said", "text"),
    [
        ("bad_ddl", "line 1, column 1: the text contains no statement", " ; -- nothing\n"),
        ("bad_ddl", "line 2, column 6: 'tabel' is not expected, but AGGREGATE or FUNCTION or", "\ndrop tabel t"),
        ("bad_ddl", "line 1, column 17: '1' is not expected, but PRIMARY or a name", "CREATE TABLE t (1 int)"),
        ("bad_ddl", "line 1, column 18: the text ends, expected a name", "CREATE TABLE t (a "),
        ("bad_ddl", "line 1, column 24: '%' is not expected", "ALTER TABLE t WITH cdc=%"),
        ("bad_ddl", "line 1, column 12: t has no keyspace", "DROP TABLE t"),
        ("bad_ddl", "line 1, column 1: a table has one PRIMARY KEY, not 0", "CREATE TABLE k.t (a int)"),
        (
            "bad_ddl",
            "line 1, column 38: a table has one PRIMARY",
            "CREATE TABLE k.t (a int PRIMARY KEY, b int PRIMARY KEY);"[:-1],
        ),
        (
            "bad_ddl",
            "line 1, column 91: replication_factor appears twice",
            "CREATE KEYSPACE k WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1, "
            "'replication_factor': 3}",
        ),
        (
            "bad_ddl",
            "line 1, column 45: a number has at most 18 digits",
            f"ALTER TABLE k.t WITH default_time_to_live = {'9' * 5_000}",
        ),
        (
            "bad_ddl",
            "line 1, column 404: nested more than 64 deep",
            f"CREATE TABLE k.t (k {'frozen<list<' * 1_500}int{'>>' * 1_500})",
        ),
        (
            "bad_ddl",
            "line 1, column 92: nested more than 64 deep",
            f"ALTER TABLE k.t WITH cdc = {'[' * 3_000}{']' * 3_000}",
        ),
        ("bad_ddl", "line 1, column 100001: more than 100,000 words and signs", ";" * 1_000_000),
        ("bad_ddl", "line 1, column 19: '\u212a' is not expected", "CREATE TABLE k.t (\u212a text PRIMARY KEY)"),
        ("bad_ddl", "line 1, column 37: cdc appears twice", "ALTER TABLE k.t WITH cdc = true AND cdc = true"),
        ("bad_ddl", "line 1, column 1: expected WITH repl", "CREATE KEYSPACE k WITH durable_writes = true"),
        ("bad_ddl", "line 1, column 18: a field of a type cannot", "CREATE TYPE k.a (b int STATIC)"),
        ("ddl_unsupported", "line 1, column 8: CUSTOM: an index has a", "CREATE CUSTOM INDEX i ON k.t (v)"),
        ("ddl_unsupported", "line 1, column 27: USING: an index has a", "CREATE INDEX i ON k.t (v) USING 'sai'"),
        ("ddl_unsupported", "line 1, column 24: an index covers a whole column", "CREATE INDEX i ON k.t (keys(v))"),
        ("ddl_unsupported", "line 1, column 8: or: a function must be dropped", "create or replace function k.f"),
        (
            "ddl_unsupported",
            "line 1, column 47: t of another keyspace",
            "CREATE MATERIALIZED VIEW k.v AS SELECT * FROM o.t PRIMARY KEY (v)",
        ),
        (
            "ddl_unsupported",
            "line 1, column 72: a view does not support the option x",
            "CREATE MATERIALIZED VIEW k.v AS SELECT * FROM k.t PRIMARY KEY (v) WITH x = 1",
        ),
        (
            "bad_ddl",
            "line 1, column 57: IS NOT NULL is allowed only",
            "CREATE MATERIALIZED VIEW k.v AS SELECT * FROM k.t WHERE x IS NOT NULL PRIMARY KEY (v)",
        ),
        ("ddl_unsupported", "line 3, column 1: INSERT: clients write rows", "DROP TABLE k.t;\n\nINSERT INTO t (a)"),
        ("ddl_unsupported", "line 1, column 21: the key of a table", "ALTER TABLE k.t ADD a int PRIMARY KEY"),
        (
            "ddl_unsupported",
            "line 1, column 22: a table does not support the option gc",
            "ALTER TABLE k.t WITH gc_grace_seconds = 1",
        ),
        ("ddl_unsupported", "line 1, column 30: a type of another keysp", "ALTER TABLE k.t ADD v frozen<b.a>"),
        ("ddl_unsupported", "line 1, column 24: a keyspace does not support", "CREATE KEYSPACE k WITH comment = 'x'"),
        ("ddl_unsupported", "line 1, column 24: every write is dur", "CREATE KEYSPACE k WITH durable_writes = false"),
        (
            "ddl_unsupported",
            "line 2, column 29: DESC: rows are always in ascending order",
            "CREATE TABLE k.t (a int, b int, PRIMARY KEY (a, b))\nWITH CLUSTERING ORDER BY (b DESC)",
        ),
        ("ddl_unsupported", "line 1, column 43: COMPACT", "CREATE TABLE k.t (a int PRIMARY KEY) WITH COMPACT STORAGE"),
        ("ddl_unsupported", "line 1, column 24: repl", "CREATE KEYSPACE k WITH replication = {'class': 'Local'}"),
        (
            "ddl_unsupported",
            "line 1, column 24: replication_factor for all",
            "CREATE KEYSPACE k WITH replication = {'class': 'NetworkTopologyStrategy', 'replication_factor': 3}",
        ),
    ],
)
def test_refusals_with_positions(code: str, said: str, text: str) -> None:
    with pytest.raises(DdlError) as caught:
        read_ddl(text)
    assert str(caught.value).startswith(said), caught.value
    assert caught.value.code == code


def test_dropped_and_renamed_columns_are_described_by_name() -> None:
    text = """ALTER TABLE shop.orders DROP (total, key); ALTER TABLE shop.orders RENAME at TO day AND note TO remark;
        ALTER TABLE shop.orders ADD note int;"""
    state = after(after(EMPTY, SHOP), text)
    table = state.tables["shop.orders"]
    assert [column.name for column in table.columns][-2:] == ["remark", "note"]
    assert (table.clustering_key, dict(table.stored)["note"]) == (("day",), f"note@{state.epoch}")
    again = after(EMPTY, describe(state, "shop")).tables["shop.orders"]
    assert (again.columns, again.clustering_key, again.stored) == (table.columns, ("day",), ())


def test_a_batch_has_a_bound() -> None:
    with pytest.raises(DdlError, match="--each"):
        batch_json(read_ddl("DROP TABLE a.t;\n" * (STATEMENTS_MAX + 1)))


def test_a_refusal_names_the_place_of_the_statement() -> None:
    text = "CREATE KEYSPACE a WITH replication = {'strategy': 'entire'};\n  DROP TABLE a.none;"
    statements = read_ddl(text)
    folded = fold(EMPTY, entry(EMPTY, command_of(text)))
    assert folded.outcome.kind is OutcomeKind.REFUSED
    assert located(statements, folded.outcome.detail) == "line 2, column 3: name: there is no table a.none"
    wrong = "DROP TABLE a.t;\nALTER TABLE a.t WITH cdc = {'colour': 'red'}"
    found = ddl(wrong)(EMPTY, SeededDraw(b"ddl"))
    assert not isinstance(found, Command)
    assert located(read_ddl(wrong), found.detail).startswith("line 2, column 1: cdc.colour is not a field")
    assert located(read_ddl("DROP TABLE a.t"), "name: none") == "line 1, column 1: name: none"


def test_a_batch_equals_its_commands() -> None:
    batch = command_of(SHOP)
    assert isinstance(batch, SchemaBatch)
    typed = to_json(EMPTY, batch)
    assert typed["statements"][0] == {
        "command": "CreateKeyspace",
        "name": "shop",
        "replication": {"strategy": "simple", "factor": 2},
        "if_needed": True,
    }
    assert from_json(EMPTY, typed, SeededDraw(b"other")) == batch
    for wrong in ({"command": "Noop"}, {"command": "DropType"}, {"command": "Noop", "if_needed": 1}, 5, {"x": 1}):
        refused = from_json(EMPTY, {"command": "SchemaBatch", "statements": [wrong]}, SeededDraw(b""))
        assert not isinstance(refused, Command)
        assert refused.code in ("bad_field", "missing_field", "unknown_field")


# ---------------------------------------------------------------------------------------------------- describing


def _schema(draw: Random) -> list[Command]:
    """Return commands that create some schema, with names that need quotes."""
    replications = [
        Replication("simple", draw.randrange(1, 4)),
        Replication("entire", 0),
        Replication("network", 2, (DatacenterReplication("dc1", 2),)),
        Replication("tablets", 2),
        Replication("tablets", 2, (DatacenterReplication("dc1", 2),)),
    ]
    made: list[Command] = []
    for index, keyspace in enumerate(draw.sample(["shop", "Shop", "table", "ks_2"], 3)):
        replication = draw.choice(replications)
        made.append(CreateKeyspace(keyspace, replication))
        types = draw.sample(["zebra", "Address", "index", "a"], 3)
        made += [CreateType(keyspace, name, (TypeField("select", "int"),)) for name in types]
        made.append(AlterType(keyspace, types[2], (TypeField("Of", f"frozen<map<text, frozen<{types[0]}>>>"),)))
        kinds = ["text", "set<int>", types[0], f"frozen<{types[1]}>", f"tuple<int, frozen<{types[2]}>>"]
        for number, name in enumerate(draw.sample(["zoo", "Orders", "set", "by"], 2)):
            columns = [Column("k", "text"), Column("Key", "int"), Column("c", "timeuuid")]
            columns += [Column(f"v{at}", draw.choice(kinds), draw.random() < 0.3) for at in range(4)]
            options = None
            if replication.strategy == "tablets":
                options = draw.choice([None, TabletOptions(count=4, max_count=64)])
            cdc = draw.choice([CdcOptions(), CdcOptions(True, "true", True, "keys", draw.choice([0, 60]))])
            key = draw.choice([("k",), ("k", "Key")])
            if isinstance(made[-1], CreateTable) and replication.strategy == "tablets":
                options = draw.choice([options, TabletOptions(base=made[-1].name)])
            table_id = uuid(10 * index + number, space=6)
            made.append(CreateTable(keyspace, name, table_id, tuple(columns), key, ("c",), cdc, tablets=options))
        made += _ways(draw, keyspace, name, types)
    return made


def _ways(draw: Random, keyspace: str, table: str, types: list[str]) -> list[Command]:
    """Return views, indexes, functions and an aggregate on a table and types of the keyspace."""
    state, other = (draw.choice([types[0], f"frozen<{types[1]}>", "int", "tuple<int, bigint>"]) for _ in range(2))
    body = draw.choice(["return 1", "$$ it's $$", "$", "a;\n'b' -- c"])
    return [
        CreateView(keyspace, "View", table, draw.choice([(), ("Key",)]), ("c", "Key"), ("k",)),
        CreateIndex(keyspace, "from", table, draw.choice(["Key", "c", "v0"])),
        CreateFunction(keyspace, "next", (state, other), ("token", "B"), state, "lua", body, draw.random() < 0.5),
        CreateFunction(keyspace, "last", (state,), ("s",), "double", "Java", body),
        CreateAggregate(keyspace, "To", (other,), "next", state, draw.choice(["", "last"]), draw.choice([None, "{}"])),
    ]


def _bare(state: ClusterState) -> dict[str, Any]:
    """Return the schema without ids and versions."""
    return {
        "keyspaces": {name: one.replication for name, one in state.keyspaces.items()},
        "types": {name: one.fields for name, one in state.types.items()},
        "tables": {
            name: replace(one, id="", version="", changed=0, made=0, declared=tuple(sorted(one.declared)))
            for name, one in state.tables.items()
        },
        "tablets": {name: one.ends for name, one in state.tablets.items()},
        **{
            part: {name: replace(one, version="", changed=0) for name, one in getattr(state, part).items()}
            for part in ("views", "indexes", "functions", "aggregates")
        },
    }


@pytest.mark.parametrize("seed", range(10))
def test_a_described_schema_reads_back(seed: int) -> None:
    state = applied(EMPTY, *_schema(Random(seed)))
    text = describe(state)
    again = after(EMPTY, text)
    assert _bare(again) == _bare(state)
    assert describe(again) == text


def test_a_part_of_the_schema() -> None:
    state = after(EMPTY, SHOP)
    assert describe(state, "shop") == describe(state)
    assert describe(state, "shop.address").startswith('CREATE TYPE shop.address (\n    street text,\n    "Zip" int')
    assert describe(state, "shop.orders").count("CREATE") == 1
    assert describe(EMPTY) == ""
    state = after(state, ROUTES)
    assert describe(state, "shop.orders").count("CREATE") == 4, "with its index and views"
    for name in ("shop.add", "shop.average", "shop.by_key", "shop.orders_total_idx"):
        assert describe(state, name).count("CREATE") == 1
    for name, code in (("none", "unknown_keyspace"), ("shop.none", "unknown_table")):
        with pytest.raises(Refused) as caught:
            describe(state, name)
        assert caught.value.code == code


def test_a_datacenter_named_class() -> None:
    local = (DatacenterReplication("class", 1), DatacenterReplication("dc1", 2))
    state = replace(EMPTY, keyspaces=applied(EMPTY, CreateKeyspace("ks", Replication("simple", 1))).keyspaces)
    keyspace = replace(state.keyspaces["ks"], replication=Replication("network", 3, local))
    text = describe(replace(state, keyspaces=state.keyspaces.set("ks", keyspace)))
    found = command_of(text)
    assert isinstance(found, CreateKeyspace)
    assert found.replication == keyspace.replication


def test_words_are_reserved_as_in_cassandras_driver() -> None:
    assert metadata.cql_keywords_reserved >= RESERVED, "its list also has words of other products"
    for name in ("orders", "Orders", "table", "a1", "key"):
        assert identifier(name) == metadata.protect_name(name)


def test_output_of_cassandras_driver_is_read() -> None:
    keyspace = metadata.KeyspaceMetadata("shop", True, "SimpleStrategy", {"replication_factor": "2"})
    assert command_of(keyspace.as_cql_query()) == CreateKeyspace("shop", Replication("simple", 2))
    kind = metadata.UserType("shop", "Address", ["street", "Zip"], ["text", "frozen<list<int>>"])
    fields = (TypeField("street", "text"), TypeField("Zip", "frozen<list<int>>"))
    assert command_of(kind.as_cql_query()) == CreateType("shop", "Address", fields)
    made = CreateFunction("shop", "next", ("int", "int"), ("s", "v"), "int", "java", "return s;", True)
    arguments = (["int", "int"], ["s", "v"], "int", "java", "return s;", True, False, False, [])
    assert command_of(metadata.Function("shop", "next", *arguments).as_cql_query()) == made
    aggregate = metadata.Aggregate("shop", "sum", ["int"], "next", "int", None, "0", "int", False)
    assert command_of(aggregate.as_cql_query()) == CreateAggregate("shop", "sum", ("int",), "next", "int", "", "0")


def test_the_reason_of_an_unsupported_word_names_existing_commands() -> None:
    named = {word: re.findall(r"`(ringlog [^`]+)`", reason) for word, reason in REASONS.items()}
    assert named["GRANT"] == named["ROLE"] == named["USER"] == ["ringlog cluster acls"]
    assert [unknown(line.split()) for lines in named.values() for line in lines if unknown(line.split())] == []
    with pytest.raises(DdlError, match="ringlog cluster acls"):
        read_ddl("GRANT SELECT ON ks.t TO someone;")
