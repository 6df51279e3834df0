"""Which columns of a table count for a write, told by the audit, against what the kernel says."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

from ringlog.audit.history import SHAPERS, ColumnSteps
from ringlog.kernel.commands.keyspaces import CreateKeyspace
from ringlog.kernel.commands.schema import AlterTable, CreateTable
from ringlog.kernel.commands.verdicts import SettleVerdicts
from ringlog.kernel.generations.verdicts import CountedVersion, history_of, version_at
from ringlog.kernel.state import ClusterState
from ringlog.kernel.values import CdcOptions, Column, ColumnRename, Command
from ringlog.wire.codec import layout
from ringlog.wire.commands import encode_command
from tests.kernel.commands.test_schema import SIMPLE_1
from tests.kernel.entries import applied, founded, uuid, with_normal_nodes

TABLE = CreateTable("ks", "t", uuid(1, space=6), (Column("k", "text"), Column("v", "text")), ("k",), (), CdcOptions())
NAMES = ("v", "w", "x")


@dataclass(frozen=True)
class Named:
    """What a write says of its table."""

    table_version: str | None
    keyspace: str = "ks"
    table: str = "t"
    table_id: str | None = None
    epoch: int | None = None


def told(found: ColumnSteps, state: ClusterState, command: Command) -> None:
    """The audit hears of the entry that made a state."""
    kind, _, payload = encode_command(command)
    record = layout(f"ringlog.commands.{kind}").decode(payload, canonical=True)
    if kind in SHAPERS:
        found.shape(kind, record, state.epoch, bytes.fromhex(state.state_id.replace("-", "")), found.settled)
    elif kind == "SettleVerdicts":
        found.settle(kind, record)


def drawn(chance: Random, state: ClusterState) -> Command:
    there = [column.name for column in state.tables["ks.t"].columns if column.name != "k"]
    free = [name for name in NAMES if name not in there]
    what = chance.choice(("settle", "drop", "rename", "add"))
    if what == "drop" and there:
        return AlterTable("ks", "t", drop_columns=(chance.choice(there),))
    if what == "rename" and there and free:
        return AlterTable("ks", "t", rename_columns=(ColumnRename(chance.choice(there), free[0]),))
    if what == "add" and free:
        return AlterTable("ks", "t", (Column(free[0], "text"),))
    return SettleVerdicts(state.settled.until + chance.randint(1, 20))


def test_the_audit_reads_a_write_by_the_version_by_which_the_kernel_does() -> None:
    met: dict[str, int] = {"": 0, "unknown_version": 0, "unknown_table": 0}
    for seed in range(40):
        chance, found = Random(seed), ColumnSteps()
        state = applied(with_normal_nodes(founded(), 1), CreateKeyspace("ks", SIMPLE_1), SettleVerdicts(10))
        found.settle("SettleVerdicts", {"until": 10})
        versions: list[str | None] = [None]
        for number in range(14):
            command = drawn(chance, state) if number else TABLE
            state = applied(state, command)
            told(found, state, command)
            versions.append(state.tables["ks.t"].version)
        for _ in range(30):
            now, version = chance.randrange(state.settled.until), chance.choice(versions)
            wanted = version_at(history_of(state), Named(version), now)
            named: dict[str, Any] = {"keyspace": "ks", "table": "t"}
            named["table_version"] = None if version is None else bytes.fromhex(version.replace("-", ""))
            mine = found.read_by(named, now, None)
            met["" if isinstance(wanted, CountedVersion) else wanted] += 1
            if isinstance(wanted, CountedVersion):
                assert mine is not None
                stored = dict(wanted.shape.stored)
                assert mine.columns == {name: stored.get(name, name) for name in wanted.shape.columns or ()}
            else:
                assert mine is None
    assert min(met.values()) > 10
