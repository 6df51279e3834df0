"""The audit reports no deviation in a correct CDC log, in random histories of three table names.

Commands create, drop and alter tables while writes of all operations arrive. Some writes name a current or earlier id,
version or epoch. The job processes the writes late, in batches of random size, and repeats some batches.
"""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

from ringlog.kernel.commands.cdc.verdicts import SettleVerdicts
from ringlog.kernel.commands.cluster.cluster import ChangeSettings, InitializeCluster
from ringlog.kernel.commands.control.recovery import EnterRecovery, ForcedPart, ForceState, LeaveRecovery
from ringlog.kernel.commands.schema.keyspaces import CreateKeyspace
from ringlog.kernel.commands.schema.tables import AlterTable, CreateTable, DropTable
from ringlog.kernel.encoding.encoder import encoded_parts
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import CdcOptions, Column, ColumnRename, Command, replace
from ringlog.wire.records import Bounds, Cell, DeletedElements, Mutation, MutationStatement, decode_dead_letter
from ringlog_audit.verify import Expected, audit
from tests.audit.memory_topics import MemoryCluster
from tests.kernel.commands.test_schema import SIMPLE_1
from tests.kernel.entries import uuid, with_normal_nodes

START = 1_800_000_000_000_000
MS = 1_000
COLUMNS = (
    Column("k", "text"),
    Column("c", "int"),
    Column("v", "text"),
    Column("m", "map<text, int>"),
    Column("s", "text", static=True),
)
NAMES, TEXTS = ("t", "u", "w"), ("v", "w", "x")
OPTIONS = (
    CdcOptions(),
    CdcOptions(True),
    CdcOptions(True, "true", True),
    CdcOptions(True, "full", False),
    CdcOptions(True, "full", True, delta="keys"),
)


def created(cluster: MemoryCluster) -> None:
    """Create a cluster with a keyspace and one node that owns a token. The test uses a recovery to add the node."""
    settings = (("cdc_leeway_us", cluster.leeway),)
    cluster.enter(InitializeCluster("test", settings), EnterRecovery("a node", "ann"))
    parts = encoded_parts(with_normal_nodes(cluster.state, 1))
    forced = tuple(ForcedPart(name, parts[name]) for name in ("nodes", "node_names", "token_owners"))
    cluster.enter(ForceState("a node", "ann", forced), LeaveRecovery("done", "ann"), CreateKeyspace("ks", SIMPLE_1))


LONG = (b"\0\0\0\0\1",)
MISTYPED: tuple[dict[str, Any], ...] = (
    {"clustering_key": LONG},
    {"operation": "RANGE_DELETE", "clustering_key": (), "cells": (), "bounds": Bounds(LONG, True, (), True)},
    {"operation": "UPDATE", "cells": (Cell("v", b"\xff"),)},
    {"operation": "UPDATE", "cells": (Cell("m", b"\0\0\0\1"),)},
    {"operation": "UPDATE", "cells": (Cell("m", bytes(3) + b"\1" + bytes(3) + b"\1a" + bytes(4)),)},
    {"operation": "UPDATE", "deleted_elements": (DeletedElements("m", (b"f", b"\xff")),)},
)
"""Fields of writes with a key or a value of another type."""


def new_table(chance: Random, name: str) -> CreateTable:
    columns = COLUMNS if chance.random() < 0.5 else COLUMNS[:3]
    made = uuid(chance.getrandbits(30), space=6)
    return CreateTable("ks", name, made, columns, ("k",), ("c",), chance.choice(OPTIONS))


def schema_command(chance: Random, state: ClusterState) -> Command:
    name = chance.choice(NAMES)
    table = state.tables.get(f"ks.{name}")
    if table is None:
        return new_table(chance, name)
    there = [column.name for column in table.columns if column.name in TEXTS]
    free = [one for one in TEXTS if one not in there]
    what = chance.choice(("drop", "rename", "add", "table", "options", "again"))
    if what == "drop" and there:
        return AlterTable("ks", name, drop_columns=(chance.choice(there),))
    if what == "again" and there:
        return AlterTable("ks", name, (Column(there[0], "text"),), drop_columns=(there[0],))
    if what == "rename" and there and free:
        return AlterTable("ks", name, rename_columns=(ColumnRename(chance.choice(there), free[0]),))
    if what == "add" and free:
        return AlterTable("ks", name, (Column(free[0], "text"),))
    if what == "table":
        return DropTable("ks", name)
    return AlterTable("ks", name, cdc=chance.choice(OPTIONS))


def value(chance: Random) -> bytes | None:
    return chance.choice((None, b"a", b"b", b"c"))


def statement(chance: Random, at: int) -> MutationStatement:
    kind = chance.choice(
        ("INSERT", "UPDATE", "UPDATE", "ROW_DELETE", "RANGE_DELETE", "PARTITION_DELETE", "map", "static")
    )
    row = (bytes(3) + bytes([chance.randrange(2)]),)
    if kind == "map":
        elements = (1).to_bytes(4, "big") + (1).to_bytes(4, "big") + b"e" + (4).to_bytes(4, "big") + bytes(4)
        taken = (DeletedElements("m", (b"f",)),) if chance.random() < 0.5 else ()
        return MutationStatement("UPDATE", row, (Cell("m", elements),), at, None, taken)
    if kind == "static":
        return MutationStatement("UPDATE", (), (Cell("s", value(chance)),), at)
    if kind == "ROW_DELETE":
        return MutationStatement(kind, row, (), at)
    if kind == "PARTITION_DELETE":
        return MutationStatement(kind, (), (), at)
    if kind == "RANGE_DELETE":
        return MutationStatement(kind, (), (), at, bounds=Bounds(row, True, (), True))
    texts = TEXTS if chance.random() < 0.2 else TEXTS[:1]
    cells = tuple(Cell(chance.choice(texts), value(chance)) for _ in range(chance.randint(1, 3)))
    return MutationStatement(kind, row, cells, at, chance.choice((None, None, 60)))


def mutation(chance: Random, now: int, met: dict[str, list[tuple[str, str]]], epoch: int) -> Mutation | bytes:
    if chance.random() < 0.02:
        return b"no mutation"
    at = now + chance.choice((-3_000, -70, -20, -5, 0, 0, 0, 0, 0, 3, 4, 30, 2_000, 9_000)) * MS
    first, *more = [statement(chance, at + n * chance.randint(0, 1)) for n in range(chance.choice((1, 1, 1, 2)))]
    made = Mutation(
        None,
        None,
        "ks",
        chance.choice((*NAMES, "none")) if chance.random() < 0.1 else chance.choice(NAMES),
        at,
        first.ttl,
        first.operation,
        (chance.choice((b"k1", b"k2")),),
        first.clustering_key,
        first.cells,
        first.deleted_elements,
        first.replaced,
        first.bounds,
        tuple(more),
    )
    known = met.get(f"ks.{made.table}", [("", "")])
    table, version = chance.choice(known[-3:])
    what = chance.random()
    if what < 0.1 and table:
        return replace(made, table_id=chance.choice((table, uuid(99, space=6))))
    if what < 0.25 and version:
        return replace(made, table_version=version)
    if what < 0.35:
        return replace(made, epoch=max(1, epoch - chance.randint(0, 4)))
    if what < 0.38:
        return replace(made, partition_key=chance.choice(((b"k1", b"k2"), (None,), (b"\xff",))))
    if what < 0.42:
        return replace(made, **chance.choice(({"operation": "UNKNOWN"}, {"replaced": ("v",)})))
    if what < 0.44:
        return replace(made, cluster_id=uuid(98))
    if what < 0.5:
        return replace(made, **chance.choice(MISTYPED))
    return made


def random_cluster(seed: int) -> MemoryCluster:
    """Return a cluster after a random history. The production rules write its CDC log."""
    chance = Random(seed)
    now = START
    starts, leeway = (START - 1_000 * MS, START + 60 * MS), chance.choice((40 * MS, 5_000 * MS))
    cluster = MemoryCluster(starts, leeway, closed=seed % 3 == 0, row_bytes_max=chance.choice((190, 9_000)))
    created(cluster)
    for name in NAMES[: chance.randint(1, 3)]:
        cluster.enter(new_table(chance, name))
    cluster.enter(SettleVerdicts(now + 1))
    met: dict[str, list[tuple[str, str]]] = {}
    for _ in range(90):
        now += chance.randint(0, 4) * MS
        what = chance.random()
        if what < 0.03:
            leeway = chance.choice((20 * MS, 40 * MS, 5_000 * MS))
            if not cluster.is_refused(change := ChangeSettings((("cdc_leeway_us", leeway),))):
                cluster.enter(change)
        elif what < 0.2:
            command = schema_command(chance, cluster.state)
            if not cluster.is_refused(command):
                cluster.enter(command)
                for name, table in cluster.state.tables.items():
                    met.setdefault(name, []).append((table.id, table.version))
        elif what < 0.35:
            cluster.enter(SettleVerdicts(max(cluster.state.settled.until, now) + chance.randint(0, 8) * MS + 1))
        elif what < 0.45:
            cluster.carry_out(chance.randint(1, 30))
        else:
            made = mutation(chance, now, met, cluster.state.epoch)
            partition = int(isinstance(made, Mutation) and made.partition_key[0] == b"k2")
            cluster.write(made, now, partition, chance.choice((b"", b"ks.t\0k3")) if chance.random() < 0.03 else None)
    cluster.enter(SettleVerdicts(now + 20_000_000))
    cluster.carry_out()
    for part in chance.sample(cluster.written, min(2, len(cluster.written))):
        cluster.send(part)
    cluster.publish()
    return cluster


def test_a_correct_log_has_no_deviation() -> None:
    reasons: Counter[str] = Counter()
    for seed in range(40):
        cluster = random_cluster(seed)
        report = audit(cluster.topics, Expected(), lambda _: None)
        wrong = [f"{check.name}: {check.examples[:3]}" for check in report.checks if not check.ok]
        assert not wrong, (seed, wrong)
        letters = cluster.topics.records("dead-letters")
        reasons.update(decode_dead_letter(record.value() or b"").reason for record in letters)
        reasons["rows"] += report.counts["cdc_rows"]
        reasons["repeated"] += report.counts["repeated_rows"]
    assert len(reasons) >= 18, reasons
    assert reasons.keys() >= {"bad_key_type", "wrong_record_key", "bad_value_type"}
    assert min(reasons.values()) >= 3, reasons
