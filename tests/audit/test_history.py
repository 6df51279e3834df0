"""The audit and the kernel choose the same table version for a write, in random histories of two table names."""

from __future__ import annotations

from random import Random
from typing import Any

from ringlog.kernel.commands.cdc.verdicts import SettleVerdicts
from ringlog.kernel.commands.schema.keyspaces import CreateKeyspace
from ringlog.kernel.commands.schema.tables import AlterTable, CreateTable, DropTable
from ringlog.kernel.commands.schema.user_types import AlterType, CreateType
from ringlog.kernel.generations.statements import stored_shape
from ringlog.kernel.generations.verdicts import CountedVersion, history_of, version_at
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import CdcOptions, Column, ColumnRename, Command, TypeField, Value, replace
from ringlog_audit.writes.history import AuditVersion, TableHistory
from tests.kernel.commands.test_schema import SIMPLE_1
from tests.kernel.entries import applied, founded, uuid, with_normal_nodes

COLUMNS = (Column("k", "text"), Column("v", "text"), Column("a", "address"))
NAMES = ("v", "w", "x")
TABLES = ("t", "u")
HOUR = 3_600_000_000


class Named(Value, dict=True):
    """The table, version and epoch named by a write."""

    table: str
    table_id: str | None
    table_version: str | None
    epoch: int | None
    keyspace: str = "ks"

    def record(self) -> dict[str, Any]:
        ids = {"table_id": self.table_id, "table_version": self.table_version}
        as_bytes = {name: None if one is None else bytes.fromhex(one.replace("-", "")) for name, one in ids.items()}
        return {"keyspace": "ks", "table": self.table, "epoch": self.epoch} | as_bytes


def drawn(chance: Random, state: ClusterState, number: int) -> Command:
    name = chance.choice(TABLES)
    table = state.tables.get(f"ks.{name}")
    if table is None:
        return CreateTable("ks", name, uuid(number, space=6), COLUMNS, ("k",), (), CdcOptions(chance.random() < 0.8))
    there = [column.name for column in table.columns if column.name not in ("k", "a")]
    free = [one for one in NAMES if one not in there]
    what = chance.choice(("settle", "settle", "far", "drop", "rename", "add", "type", "table", "options"))
    if what == "drop" and there:
        return AlterTable("ks", name, drop_columns=(chance.choice(there),))
    if what == "rename" and there and free:
        return AlterTable("ks", name, rename_columns=(ColumnRename(chance.choice(there), free[0]),))
    if what == "add" and free:
        return AlterTable("ks", name, (Column(free[0], "text"),))
    if what == "type":
        return AlterType("ks", "address", (TypeField(f"f{number}", "int"),))
    if what == "table":
        return DropTable("ks", name)
    if what == "options":
        return AlterTable("ks", name, cdc=CdcOptions(chance.random() < 0.5))
    return SettleVerdicts(state.settled.until + (HOUR if what == "far" else chance.randint(1, 20)))


def test_audit_and_kernel_choose_the_same_table_version() -> None:
    met: dict[str, int] = {"": 0, "unknown_version": 0, "unknown_table": 0}
    for seed in range(60):
        chance, found = Random(seed), TableHistory()
        made = CreateKeyspace("ks", SIMPLE_1), CreateType("ks", "address", (TypeField("street", "text"),))
        state = applied(with_normal_nodes(founded(), 1), *made)
        ids: set[str | None] = {None, uuid(99, space=6)}
        versions: set[str | None] = {None}
        for number in range(25):
            # The first settled time starts the guarantee. Earlier writes use the newest tables.
            command = drawn(chance, state, number) if number != 3 else SettleVerdicts(state.settled.until + 10)
            before, state = state, applied(state, command)
            found.look(before, state)
            ids |= {table.id for table in state.tables.values()}
            versions |= {table.version for table in state.tables.values()}
        history = history_of(state)
        for _ in range(120):
            now = chance.choice((chance.randrange(state.settled.until), state.settled.until - chance.randint(1, 40)))
            version = chance.choice(sorted(versions, key=str)) if chance.random() < 0.4 else None
            life = chance.choice(sorted(ids, key=str)) if chance.random() < 0.4 else None
            epoch = chance.randrange(state.epoch + 3) if version is None and chance.random() < 0.3 else None
            write = Named(chance.choice(TABLES), life, version, epoch)
            wanted, mine = version_at(history, write, now), found.read_by(write.record(), now, None)
            met["" if isinstance(wanted, CountedVersion) else wanted] += 1
            if isinstance(wanted, CountedVersion):
                assert isinstance(mine, AuditVersion), (seed, now, write, mine)
                shape, table = stored_shape(wanted.shape), mine.table
                assert (mine.epoch, table.id, table.cdc) == (wanted.epoch, wanted.id, shape.cdc)
                assert table.stored == {**dict(wanted.shape.stored)}
                assert (table.names, table.logged_names) == ({*(wanted.shape.columns or ())}, {*(shape.columns or ())})
                assert table.columns.collections == dict(shape.collections)
            else:
                assert mine == wanted, (seed, now, write)
    assert min(met.values()) > 100, met


def test_before_a_settled_time_the_version_of_the_epoch_counts() -> None:
    found = TableHistory()
    state = applied(with_normal_nodes(founded(), 1), CreateKeyspace("ks", SIMPLE_1))
    commands = (
        CreateTable("ks", "t", uuid(1, space=6), COLUMNS[:2], ("k",), (), CdcOptions()),
        AlterTable("ks", "t", (Column("w", "text"),)),
        DropTable("ks", "t"),
        CreateTable("ks", "t", uuid(2, space=6), COLUMNS[:2], ("k",), (), CdcOptions()),
    )
    first = state.epoch + 1
    for command in commands:
        before, state = state, applied(state, command)
        found.look(before, state)
    write = Named("t", None, None, None)
    told = [found.read_by(write.record(), 5, epoch) for epoch in range(first - 1, first + 4)]
    assert [one if isinstance(one, str) else (one.table.id, len(one.table.names)) for one in told] == [
        "unknown_table", (uuid(1, space=6), 1), (uuid(1, space=6), 2), "unknown_table", (uuid(2, space=6), 1),
    ]  # fmt: skip
    assert found.read_by(replace(write, table_id=uuid(1, space=6)).record(), 5, first + 3) == "unknown_table"
