"""Batches of schema commands apply as a whole, in one epoch, with the result of the single commands."""

from __future__ import annotations

from itertools import count
from random import Random
from typing import Any

import pytest
from immutables import Map

from ringlog.kernel.commands.control.pauses import PauseChanges
from ringlog.kernel.commands.schema.batch import PLACES, STATEMENTS_MAX, SchemaBatch, SchemaStatement, statement_of
from ringlog.kernel.commands.schema.functions import CreateAggregate, CreateFunction, DropAggregate, DropFunction
from ringlog.kernel.commands.schema.keyspaces import AlterKeyspace, CreateKeyspace, DropKeyspace
from ringlog.kernel.commands.schema.tables import AlterTable, CreateTable, DropTable
from ringlog.kernel.commands.schema.user_types import AlterType, CreateType, DropType
from ringlog.kernel.commands.schema.views import CreateIndex, CreateView, DropIndex, DropView
from ringlog.kernel.fold import decide, fold
from ringlog.kernel.model.outcome import Accepted, EntryContext, OutcomeKind, Rejected
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.model.tables import Settled
from ringlog.kernel.values import CdcOptions, Column, Command, Replication, TypeField, replace
from tests.kernel.commands.test_schema import SIMPLE_1, SIMPLE_2, TABLE, in_flight, ready
from tests.kernel.entries import applied, entry, uuid

ADDRESS = CreateType("ks", "address", (TypeField("street", "text"),))
LONGER = AlterType("ks", "address", (TypeField("zip", "int"),))


def batch(*commands: Command, if_needed: bool = False) -> SchemaBatch:
    return SchemaBatch(tuple(statement_of(command, if_needed) for command in commands))


def refused(state: ClusterState, command: Command) -> tuple[str, str]:
    folded = fold(state, entry(state, command))
    assert folded.outcome.kind is OutcomeKind.REFUSED, folded.outcome
    assert folded.state is state, "nothing applies"
    return folded.outcome.code, folded.outcome.detail


def test_a_schema_in_one_entry() -> None:
    using = replace(TABLE, keyspace="new", columns=(*TABLE.columns, Column("home", "frozen<address>")))
    before = ready()
    state = applied(
        before,
        batch(
            CreateKeyspace("new", SIMPLE_1),
            replace(ADDRESS, keyspace="new"),
            using,
            AlterTable("new", "t", (Column("w", "int"),)),
            replace(LONGER, keyspace="new"),
        ),
    )
    assert state.epoch == before.epoch + 1
    table = state.tables["new.t"]
    assert [column.name for column in table.columns] == ["k", "c", "v", "home", "w"]
    assert table.columns[3].type == "frozen<udt<street text, zip int>>"
    assert table.version == state.keyspaces["new"].version == state.schema_version == state.state_id


def test_the_first_rejection_rejects_the_batch() -> None:
    code, detail = refused(ready(), batch(TABLE, ADDRESS, replace(TABLE, id=uuid(2, space=6)), LONGER))
    assert code == "table_exists"
    assert detail.startswith("statements, 3 of 4: name: the table ks.t exists")


def test_existing_entities_are_skipped() -> None:
    state = applied(ready(), batch(TABLE, ADDRESS))
    there = batch(CreateKeyspace("ks", SIMPLE_2), replace(TABLE, id=uuid(2, space=6)), ADDRESS, if_needed=True)
    after = applied(state, there)
    assert after.tables is state.tables
    assert after.schema_version == state.schema_version, "nothing has changed"
    view, index = CreateView("ks", "w", "t", (), ("v",), ("k", "c")), CreateIndex("ks", "i", "t", "v")
    function = CreateFunction("ks", "f", ("int",), ("s",), "int", "lua", "return s")
    others = (view, index, function, CreateAggregate("ks", "a", (), "f", "int"))
    after = applied(after, batch(*others))
    assert applied(after, batch(*others, if_needed=True)).schema_version == after.schema_version
    drops = (DropView("ks", "w"), DropIndex("ks", "i"), DropAggregate("ks", "a"), DropFunction("ks", "f"))
    without = applied(after, batch(*drops))
    assert applied(without, batch(*drops, if_needed=True)).schema_version == without.schema_version
    after = without
    gone = batch(DropTable("ks", "none"), DropType("ks", "none"), DropKeyspace("none"), if_needed=True)
    assert applied(after, gone).tables is state.tables
    assert not applied(after, batch(DropTable("ks", "t"), if_needed=True)).tables


@pytest.mark.parametrize(
    ("code", "command"),
    [
        ("bad_field", SchemaBatch(())),
        ("bad_field", batch(*[TABLE] * (STATEMENTS_MAX + 1))),
        ("bad_field", SchemaBatch((SchemaStatement(False),))),
        ("bad_field", SchemaBatch((SchemaStatement(False, create_table=TABLE, drop_table=DropTable("ks", "t")),))),
        ("bad_field", batch(AlterTable("ks", "t", (Column("w", "int"),)), if_needed=True)),
        ("unknown_keyspace", batch(replace(TABLE, keyspace="none"), if_needed=True)),
        ("unknown_type", batch(CreateType("ks", "a", (TypeField("a", "none"),)), if_needed=True)),
        ("operations_in_flight", batch(CreateKeyspace("other", SIMPLE_1))),
    ],
)
def test_invalid_batches_are_rejected(code: str, command: Command) -> None:
    assert refused(in_flight(ready()), command)[0] == code


def test_a_schema_pause_blocks_a_batch() -> None:
    state = applied(ready(), PauseChanges(("schema",), reason="a release"))
    assert refused(state, batch(TABLE))[0] == "changes_paused"


def test_a_table_that_is_altered_twice_has_one_new_version() -> None:
    """A writer cannot validate a write with the intermediate version, and both versions would have the id of the
    entry.
    """
    state = applied(ready(), TABLE)
    state = replace(state, settled=Settled(until=1_000))
    one, two = Column("one", "int"), Column("two", "int")
    once = applied(state, batch(AlterTable("ks", "t", (one,)), AlterTable("ks", "t", (two,))))
    assert once.table_lives == applied(state, AlterTable("ks", "t", (one, two))).table_lives
    assert applied(state, batch(AlterTable("ks", "t", (one,)), DropTable("ks", "t"))).table_lives["ks.t"][-1].until


# Random batches


def _drawn(draw: Random, ids: Any) -> Command:
    """Return a random schema command. Most fit the small schema of earlier commands."""
    keyspace, name = draw.choice("ab"), draw.choice("tu")
    columns = (
        Column("k", "text"),
        Column("c", "int"),
        Column("v", draw.choice(["int", "frozen<x>", "list<frozen<y>>"])),
    )
    options = CdcOptions(enabled=draw.random() < 0.5, ttl=draw.choice([0, 5, 86_400]))
    return draw.choice(
        [
            CreateKeyspace(keyspace, draw.choice([SIMPLE_1, SIMPLE_2, Replication("tablets", 1)])),
            AlterKeyspace(keyspace, draw.choice([SIMPLE_1, SIMPLE_2, Replication("tablets", 2)])),
            DropKeyspace(keyspace),
            CreateTable(keyspace, name, uuid(next(ids), space=6), columns, ("k",), ("c",), options),
            AlterTable(keyspace, name, (Column(f"n{draw.randrange(9)}", "int"),), draw.choice([None, options])),
            DropTable(keyspace, name),
            CreateType(keyspace, draw.choice("xy"), (TypeField("a", "int"),)),
            AlterType(keyspace, draw.choice("xy"), (TypeField(f"n{draw.randrange(9)}", "int"),)),
            DropType(keyspace, draw.choice("xy")),
            *_other_ways(draw, keyspace, name),
        ]
    )


def _other_ways(draw: Random, keyspace: str, table: str) -> list[Command]:
    """Return the schema commands other than for tables and types."""
    made: list[Command] = [
        CreateView(keyspace, draw.choice("vw"), table, (), ("v",), ("k", "c")),
        DropView(keyspace, draw.choice("vw")),
        CreateIndex(keyspace, draw.choice("ij"), table, draw.choice("cv")),
        DropIndex(keyspace, draw.choice("ij")),
        CreateFunction(keyspace, "f", ("int", "int"), ("s", "v"), "int", "lua", "return s"),
        DropFunction(keyspace, "f"),
        CreateAggregate(keyspace, "a", ("int",), "f", "int"),
        DropAggregate(keyspace, "a"),
    ]
    return draw.sample(made, 4)


def _plain(state: ClusterState) -> dict[str, Any]:
    """Return the schema without versions and epochs, which depend on the entries."""

    def bare(part: Map[str, Any], **fields: Any) -> dict[str, Any]:
        return {name: replace(value, **fields) for name, value in part.items()}

    return {
        "keyspaces": bare(state.keyspaces, version="", made=0),
        "types": bare(state.types, version="", changed=0),
        "tables": bare(state.tables, version="", changed=0, made=0),
        "ids": dict(state.table_ids),
        "others": [
            bare(part, version="", changed=0)
            for part in (state.views, state.indexes, state.functions, state.aggregates)
        ],
        "tablets": {name: found.count for name, found in state.tablets.items()},
        "placements": {name: found.ends for name, found in state.placements.items()},
        "operations": len(state.operations),
        "ttls": {one.ttl for one in state.past_ttls},
    }


def test_a_batch_equals_its_single_commands() -> None:
    """An applied batch takes one epoch. A batch with a rejected command is rejected with the same code."""
    kinds, sizes = set[type[Command]](), set[int]()
    for seed in range(8):
        _compare(seed, kinds, sizes)
    assert len(kinds) >= len(PLACES) - 3, "most kinds have applied"
    assert max(sizes) > 1


def _compare(seed: int, kinds: set[type[Command]], sizes: set[int]) -> None:
    draw, ids = Random(seed), count(10)
    state = replace(ready(), settled=Settled(until=1_000 * (seed % 2)))
    state = applied(state, CreateKeyspace("a", SIMPLE_2), CreateKeyspace("b", Replication("tablets", 1)))
    for _ in range(100):
        commands = [_drawn(draw, ids) for _ in range(draw.randrange(1, 5))]
        alone, why = state, ""
        for command in commands:
            decided = fold(alone, entry(alone, command))
            alone, why = decided.state, decided.outcome.code
            if why:
                break
        folded = fold(state, entry(state, batch(*commands)))
        assert folded.outcome.code == why, commands
        if not why:
            assert folded.state.epoch == state.epoch + 1
            assert _plain(folded.state) == _plain(alone)
            kinds.update(map(type, commands))
            sizes.add(len(commands))
            state = state if folded.state.operations else folded.state


def test_a_rule_never_sees_another_epoch() -> None:
    state, context = ready(), EntryContext(6, uuid(6), 1)
    decided = decide(state, batch(ADDRESS, LONGER), context)
    assert isinstance(decided, Accepted)
    assert decided.state.types["ks.address"].changed == 6
    assert not isinstance(decided, Rejected)
