"""Rows of the lake in random schema histories: the same for all batches, and those of an independent model.

A model decodes each row by the table that has its name in the state of the row's epoch. Of columns with the same name,
or names that differ in case only, the first one in the log has the Delta column.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from ringlog.client.cdc.table_versions import TableVersions
from ringlog.kernel.commands.cdc.verdicts import SettleVerdicts
from ringlog.kernel.commands.schema.tables import AlterTable, CreateTable, DropTable
from ringlog.kernel.commands.schema.user_types import AlterType, CreateType
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import CdcOptions, Column, ColumnRename, Command, TypeField
from ringlog.wire.records import Cell, Mutation, decode_cdc_row
from ringlog_cdc.lake.column_names import ColumnFacts, columns_for, current_names
from ringlog_cdc.lake.columns import all_versions, versions_in
from ringlog_cdc.lake.delta import types_of
from ringlog_cdc.lake.heads import heads_of
from tests.audit.memory_topics import MemoryCluster
from tests.audit.test_lives import created
from tests.kernel.entries import uuid

START = 1_800_000_000_000_000
NAMES = ("a", "b", "A", "n")
TYPES = ("int", "text", "frozen<point>")
POINT = (1).to_bytes(4, "big")
VALUES = {"int": (7).to_bytes(4, "big"), "text": b"word", "frozen<point>": (4).to_bytes(4, "big") + POINT}
Line = dict[str, Any]
Identity = tuple[int, int, int]


@dataclass
class MemoryLake:
    """The lake without Spark: the columns of each Delta table, and the values of each row by its identity."""

    facts: ColumnFacts = field(default_factory=ColumnFacts)
    columns: dict[str, dict[str, str]] = field(default_factory=dict)
    rows: dict[Identity, Line] = field(default_factory=dict)

    def append(self, state: ClusterState, known: TableVersions, values: list[bytes]) -> None:
        """Add the rows of a part, like the job: read the context of the part from its stored form."""
        names = sorted({*state.tables, *state.table_lives})
        versions = json.loads(json.dumps(all_versions(versions_in(state), names)))
        self.facts.add(known)
        encoded = pa.array(values, pa.binary())
        heads = heads_of(encoded)
        for table in sorted(set(heads.tables.to_pylist())):
            own = pa.array(np.flatnonzero(np.array(heads.tables.to_pylist()) == table))
            epochs = pa.array(heads.epochs).take(own)
            there = self.columns.setdefault(table, {})
            first = [*there.items(), *self.facts.fields(table)]
            columns = columns_for(table, set(epochs.to_pylist()), versions.get(table, ()), first)
            types = types_of(from_arrow_schema(columns.schema()))
            assert all(there.get(name, kind) == kind for name, kind in types.items()), "Delta refuses another type"
            there |= types
            for batch in columns.batches(encoded.take(own), epochs):
                for line in batch.to_pylist():
                    name = line["cdc$source_partition"], line["cdc$source_offset"], line["cdc$batch_seq_no"]
                    self.rows[name] = line

    def restart(self) -> None:
        """Read the facts from the rows of ``cdc-columns``."""
        self.facts = ColumnFacts(self.facts.rows())


def shown(line: Line) -> Line:
    """Return the values of a row, with those of ``cdc$undecoded`` under ``?name``."""
    names = [name for name in line if not name.startswith("cdc$") or name.startswith("cdc$deleted_")]
    values = {name: line[name] for name in names if line[name] is not None}
    return values | {f"?{name}": data for name, data in line["cdc$undecoded"] or ()}


# ------------------------------------------------------------------------------------------------------ the model


def owners(states: list[ClusterState], table: str) -> dict[str, tuple[str, str]]:
    """Return the lower-case name of each Delta column to the stored name and type of the column that has it."""
    found: dict[str, tuple[str, str]] = {}
    for state in states:
        if (known := state.tables.get(table)) is not None:
            stored = dict(known.stored)
            for column in known.columns:
                name = stored.get(column.name, column.name)
                found.setdefault(name.lower(), (name, column.type))
    return found


def value(kind: str, data: bytes) -> Any:
    """Return the typed value of one of ``VALUES``, or None if it has another type: its author read another table."""
    if kind == "text":
        return data.decode()
    if kind == "int":
        return int.from_bytes(data, "big", signed=True) if len(data) == 4 else None
    if data != VALUES["frozen<point>"]:
        return None
    fields = {name: None for name in ("x", "y", "z") if f"{name} int" in kind}
    return fields | {"x": 1}


def expected(states: list[ClusterState], data: bytes) -> tuple[Identity, Line]:
    """Return the identity and the values that a row must have in the lake."""
    row = decode_cdc_row(data)
    name = f"{row.keyspace}.{row.table}"
    table = next(state.tables[name] for state in reversed(states) if state.epoch <= row.epoch)
    stored = dict(table.stored)
    types = {stored.get(column.name, column.name): column.type for column in table.columns}
    own, line = owners(states, name), dict[str, Any]()
    keys = zip((*table.partition_key, *table.clustering_key), (*row.partition_key, *row.clustering_key), strict=False)
    cells = [(cell.column, cell.value) for cell in row.cells] + [(stored.get(key, key), part) for key, part in keys]
    for column, part in cells:
        if part is not None:
            is_first = own[column.lower()] == (column, types[column])
            typed = value(types[column], part) if is_first else None
            line |= {f"?{column}": part} if typed is None else {column: typed}
    for column in row.deleted:
        is_first = own[column.lower()][0] == column
        line |= {f"cdc$deleted_{column}": True} if is_first else {f"?cdc$deleted_{column}": b"\1"}
    return (row.source_partition, row.source_offset, row.batch_seq_no), line


# ------------------------------------------------------------------------------------------------------ histories


def schema_command(chance: Random, state: ClusterState) -> Command:
    table = state.tables.get("ks.t")
    if table is None:
        columns = (Column("k", "text"), *(Column(name, chance.choice(TYPES)) for name in chance.sample(NAMES, 2)))
        return CreateTable("ks", "t", uuid(chance.getrandbits(30), space=6), columns, ("k",), (), CdcOptions(True))
    there = [column.name for column in table.columns if column.name in NAMES]
    free = [name for name in NAMES if name not in there]
    what = chance.choice(("drop", "rename", "add", "add", "again", "grow", "table"))
    if what in ("drop", "again") and there:
        name = chance.choice(there)
        again = (Column(name, chance.choice(TYPES)),) if what == "again" else ()
        return AlterTable("ks", "t", again, drop_columns=(name,))
    if what == "rename" and there and free:
        return AlterTable("ks", "t", rename_columns=(ColumnRename(chance.choice(there), chance.choice(free)),))
    if what == "grow" and len(fields := state.types["ks.point"].fields) < 3:
        return AlterType("ks", "point", (TypeField("xyz"[len(fields)], "int"),))
    if what == "table":
        return DropTable("ks", "t")
    name = chance.choice(free or NAMES)
    return AlterTable("ks", "t", (Column(name, chance.choice(TYPES)),))


def mutation(chance: Random, now: int, state: ClusterState, earlier: list[ClusterState]) -> Mutation:
    """Return a write of a table version of that moment, or, naming its epoch, of an earlier one."""
    epoch = None
    if chance.random() < 0.2:
        state = chance.choice(earlier)
        epoch = state.epoch
    table = state.tables.get("ks.t")
    declared = dict(table.declared) if table is not None else {}
    columns = [] if table is None else [column for column in table.columns if column.name in NAMES]
    cells = tuple(
        Cell(column.name, None if chance.random() < 0.2 else VALUES[declared.get(column.name, column.type)])
        for column in chance.sample(columns, len(columns) and chance.randint(1, len(columns)))
    )
    key = (chance.choice((b"k1", b"k2")),)
    return Mutation(None, None, "ks", "t", now, None, "INSERT", key, (), cells, (), (), None, (), epoch=epoch)


def history(seed: int, cut: int) -> tuple[MemoryCluster, MemoryLake, list[ClusterState]]:
    """Return a cluster after random changes and writes, its lake, and its states.

    ``cut`` chooses the parts, the times of their planning, the parts that are written twice, and the restarts.
    """
    chance, cuts, now = Random(seed), Random(cut), START
    cluster, lake, known = MemoryCluster((START - 10**9,), 10**7), MemoryLake(), TableVersions()
    created(cluster)
    cluster.enter(CreateType("ks", "point", (TypeField("x", "int"),)), SettleVerdicts(now + 1))
    states = [cluster.state]

    def enter(command: Command) -> None:
        before = cluster.state
        cluster.enter(command)
        known.begin(before)
        known.record_step(before, cluster.state)
        states.append(cluster.state)

    def carry_out(most: int) -> None:
        parts = len(cluster.written)
        cluster.carry_out(most)
        values = [record[2:][1] for part in cluster.written[parts:] for record in part if record[0] == "cdc"]
        for _ in range(1 + (cuts.random() < 0.2)):
            if values:
                lake.append(cluster.state, known, values)
        if cuts.random() < 0.3:
            lake.restart()

    for _ in range(60):
        now += chance.randint(1, 3) * 1_000
        what = chance.random()
        if what < 0.2 and not cluster.is_refused(command := schema_command(chance, cluster.state)):
            enter(command)
        elif what < 0.3:
            enter(SettleVerdicts(max(cluster.state.settled.until, now) + chance.randint(1, 5) * 1_000))
        else:
            made = mutation(chance, now, cluster.state, states[-5:])
            cluster.write(made, now, int(made.partition_key[0] == b"k2"))
        if cuts.random() < 0.3:
            carry_out(cuts.randint(1, 12))
    enter(SettleVerdicts(now + 10**9))
    carry_out(1_000)
    lake.facts.add(known)
    return cluster, lake, states


def test_rows_do_not_depend_on_the_batches() -> None:
    found: dict[str, int] = {}
    for seed in range(10):
        lakes = []
        for cut in range(2):
            cluster, lake, states = history(seed, 1_000 * seed + cut)
            rows = [value for part in cluster.written for suffix, _, _, value in part if suffix == "cdc"]
            wanted = dict(expected(states, value) for value in rows)
            assert {name: shown(line) for name, line in lake.rows.items()} == wanted, (seed, cut)
            lakes.append(wanted)
            assert lake.facts.rows() == ColumnFacts(lake.facts.rows()).rows()
            assert_columns(lake, states)
        assert lakes[0] == lakes[1], seed
        for line in lakes[0].values():
            for name in line:
                kind = name[0] if name[0] == "?" else "dropped" if "@" in name else "plain"
                found[kind] = found.get(kind, 0) + 1
    assert min(found["?"], found["dropped"], found["plain"]) > 20, found


def assert_columns(lake: MemoryLake, states: list[ClusterState]) -> None:
    """Check the periods of ``cdc-columns`` against every state, and the current names against the last one."""
    rows = [row for row in lake.facts.rows() if row["table"] == "ks.t"]
    for state in states:
        table = state.tables.get("ks.t")
        there = [row for row in rows if row["from_epoch"] <= state.epoch < (row["until_epoch"] or state.epoch + 1)]
        stored = {} if table is None else dict(table.stored)
        columns = () if table is None else table.columns
        assert {(row["column"], row["name"], row["type"]) for row in there} == {
            (stored.get(column.name, column.name), column.name, column.type) for column in columns
        }, state.epoch
        assert {row["table_id"] for row in there} <= {table.id if table is not None else ""}
    if table is not None:
        names = current_names(rows, lake.columns.get("ks.t", {}))
        assert len(set(names.values())) == len(names), "a view has each name once"
        shown_as = {name: column for column, name in names.items()}
        for column in columns:
            place = stored.get(column.name, column.name)
            assert shown_as.get(column.name, place) == place


def test_the_epoch_of_an_unseen_drop_comes_from_the_log() -> None:
    cluster, known = MemoryCluster((START - 10**9,), 10**7), TableVersions()
    created(cluster)
    cluster.enter(CreateTable("ks", "t", uuid(1, space=6), (Column("k", "text"),), ("k",), (), CdcOptions(True)))
    facts = ColumnFacts()
    assert facts.add(versions_in(cluster.state))
    assert not facts.add(versions_in(cluster.state))
    known.begin(cluster.state)
    before = cluster.state
    cluster.enter(DropTable("ks", "t"))
    known.record_step(before, cluster.state)
    dropped = cluster.state.epoch
    cluster.enter(SettleVerdicts(START))
    assert facts.dropped(cluster.state.tables) == ["ks.t"]
    unseen = ColumnFacts(facts.rows())
    for found, source, end in ((facts, known, dropped), (unseen, versions_in(cluster.state), cluster.state.epoch)):
        assert found.add(source)
        assert [row["until_epoch"] for row in found.rows()] == [end]
        assert found.dropped(cluster.state.tables) == []
