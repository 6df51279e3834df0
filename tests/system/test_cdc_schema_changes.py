"""Columns are added, dropped and renamed while a producer writes without a pause and one job runs with a lake.

The model is a list of schemas. The log supplies only the first append time of each schema. For each write, the model
predicts a row or a dead letter, and the values that readers of topic and lake get.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.ending import stopping
from tests.system.cdc_log import CdcLog
from tests.system.cdc_world import World, founded_shop, now_us, until, write
from tests.system.test_cdc_job import lines, start
from tests.system.test_cdc_lake import audited, table_in

from ringlog.client.cdc import CdcReader
from ringlog.kernel.commands.cdc.verdicts import SettleVerdicts
from ringlog.kernel.commands.schema.tables import AlterTable
from ringlog.kernel.values import Column, ColumnRename, Value
from ringlog.stack import StackInfo
from ringlog.wire.records import Cell, Mutation, decode_dead_letter, decode_mutation

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.system, pytest.mark.spark, pytest.mark.slow]

Form = Mapping[str, str]
"""Name to type of the cells that a write has."""
Place = tuple[int, int]
LEAD_US = 1_000_000
WRITES = 60
"""Writes before and after each change counts, at least."""
START: Form = {"amount": "int", "note": "text"}


def altered(**changes: Any) -> AlterTable:
    return AlterTable("shop", "orders", **changes)


CHANGES: tuple[tuple[AlterTable, Form], ...] = (
    (altered(add_columns=(Column("extra", "int"),)), {"amount": "int", "note": "text", "extra": "int"}),
    (altered(drop_columns=("note",)), {"amount": "int", "extra": "int"}),
    (altered(rename_columns=(ColumnRename("amount", "total"),)), {"total": "int", "extra": "int"}),
    (altered(add_columns=(Column("note", "int"),)), {"total": "int", "extra": "int", "note": "int"}),
    (altered(drop_columns=("extra",)), {"total": "int", "note": "int"}),
    (altered(rename_columns=(ColumnRename("total", "amount"),)), {"amount": "int", "note": "int"}),
)
"""Each change, and the columns of the table after it. ``note`` returns with another type."""
OTHER_TYPE: Form = {"note": "text"}


def value(kind: str, number: int) -> int | str:
    return number if kind == "int" else f"text {number}"


class Load:
    """A producer that writes without a pause, in each of ``forms`` in turn."""

    def __init__(self, world: World) -> None:
        self.forms: tuple[Form, ...] = (START,)
        self.sent = 0
        self._world = world
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    @contextmanager
    def running(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._over.set()
            self._thread.join()

    def await_writes(self, number: int) -> None:
        """Wait for this number of further writes."""
        target = self.sent + number
        until(lambda: self.sent >= target or not self._thread.is_alive(), "the writes")
        assert self._thread.is_alive(), "the producer failed"

    def _run(self) -> None:
        numbers = count()
        while not self._over.is_set():
            self.sent += self._world.send([self._write(form, next(numbers)) for form in self.forms])

    def _write(self, form: Form, number: int) -> Mutation:
        values = {name: value(kind, number) for name, kind in form.items()}
        cells = (
            Cell(name, found.encode() if isinstance(found, str) else found.to_bytes(4, "big"))
            for name, found in values.items()
        )
        return write(f"customer-{number % 97}", number, cells=tuple(cells))


class Outcome(Value):
    """The predicted outcome of a write: the code and the column of its letter, or the values of its row."""

    schema: int
    code: str
    column: str
    number: int
    values: Mapping[str, int | str]


def outcome(mutation: Mutation, appended: int, counts: list[int]) -> Outcome:
    """Predict the outcome of a write. ``counts``: first append time of each schema."""
    schema = max(number for number, since in enumerate(counts) if since <= appended)
    columns = START if schema == 0 else CHANGES[schema - 1][1]
    number = int.from_bytes(mutation.clustering_key[0] or b"", "big")
    kinds = {cell.column: "text" if (cell.value or b"").startswith(b"text ") else "int" for cell in mutation.cells}
    unknown = [name for name in kinds if name not in columns]
    other = [name for name, kind in kinds.items() if name in columns and columns[name] != kind]
    code = "unknown_column" if unknown else "bad_value_type" if other else ""
    values = {name: value(kind, number) for name, kind in kinds.items()}
    return Outcome(schema, code, (unknown + other + [""])[0], number, {} if code else values)


def test_no_schema_change_under_load_loses_a_write(
    stack: StackInfo, cluster_name: str, spark: SparkSession, tmp_path: Path
) -> None:
    lake, checkpoint = tmp_path / "lake", tmp_path / "checkpoint"
    with founded_shop(stack.bootstrap_servers, cluster_name, {"cdc_horizon_lead_us": LEAD_US}) as world:
        world.apply(SettleVerdicts(now_us()))
        load = Load(world)
        with stopping(start(world, checkpoint, spark, lake=str(lake))) as job:
            with load.running():
                load.await_writes(WRITES)
                before = START
                for command, after in CHANGES:
                    early = {**after, **OTHER_TYPE} if "note" in after and "note" not in before else after
                    load.forms = (before, after, early)
                    load.await_writes(WRITES)
                    # Accepted or already done. Without it, two changes could count from the same time.
                    world.author.submit(SettleVerdicts(max(now_us(), world.state.settled.until) + LEAD_US))
                    world.alter(command)
                    load.await_writes(WRITES)
                    load.forms, before = (after,), after
                load.await_writes(WRITES)
            until(job.is_idle, "all writes to be durable", job.writer.check)
            incarnation = world.state.writers["spark"].incarnation
        assert len(lines(checkpoint, "started")) == 1, "the job was started once"
        assert incarnation == job.writer.promises.incarnation
        check(world, spark, lake, load.sent)


def check(world: World, spark: SparkSession, lake: Path, sent: int) -> None:
    """Compare mutations, rows, letters, a reader's changes, and the lake with the model."""
    (life,) = world.state.table_lives["shop.orders"]
    assert len(life.versions) == len(CHANGES) + 1
    counts = [version.since for version in life.versions]
    epochs = [version.table.changed for version in life.versions]
    outcomes: dict[Place, Outcome] = {
        (item.partition, item.offset): outcome(decode_mutation(item.value), item.appended, counts)
        for item in world.read("mutations")
    }
    assert len(outcomes) == sent
    rows = {place: found for place, found in outcomes.items() if not found.code}
    letters = {place: found for place, found in outcomes.items() if found.code}
    shown = Counter((found.schema, found.code) for found in outcomes.values())
    # Each schema has rows, so the comparisons below see all of them. Schemas 1 and 4 contain all columns of the schemas
    # before and after them, so they have no unknown column.
    assert {schema for schema, code in shown if not code} == {0, 1, 2, 3, 4, 5, 6}, shown
    assert {schema for schema, code in shown if code == "unknown_column"} == {0, 2, 3, 5, 6}, shown
    assert {schema for schema, code in shown if code == "bad_value_type"} == {4}, shown

    refused = [decode_dead_letter(item.value) for item in world.read("dead-letters")]
    assert Counter((one.partition, one.offset) for one in refused) == dict.fromkeys(letters, 1)
    for one in refused:
        wanted = letters[one.partition, one.offset]
        assert (one.reason, f"column {wanted.column!r}" in one.detail) == (wanted.code, True), one.detail

    logged = world.rows()
    assert Counter((row.source_partition, row.source_offset) for row in logged) == dict.fromkeys(rows, 1)
    for row in logged:
        schema = rows[row.source_partition, row.source_offset].schema
        assert row.epoch >= epochs[schema]
        assert schema == len(CHANGES) or row.epoch < epochs[schema + 1]

    CdcLog(world).publish()  # as the change publisher of a cluster does
    by_number = {found.number: found.values for found in rows.values()}
    with CdcReader(world.bootstrap, world.cluster, until_end=True) as reader:
        read = [change.rows[0] for change in reader]
    assert Counter(row.key["number"] for row in read) == dict.fromkeys(by_number, 1)
    for found in read:
        assert (dict(found.values), found.undecoded) == (by_number[found.key["number"]], {})

    periods = table_in(spark, lake, "cdc-columns").where("table = 'shop.orders'").collect()
    stored = table_in(spark, lake, "shop/orders_scylla_cdc_log").collect()
    places = [(row["cdc$source_partition"], row["cdc$source_offset"]) for row in stored]
    assert Counter(places) == dict.fromkeys(rows, 1)
    for place, line in zip(places, stored, strict=True):
        epoch = line["cdc$epoch"]
        names = {
            period["name"]: period["column"]
            for period in periods
            if period["from_epoch"] <= epoch and (period["until_epoch"] is None or epoch < period["until_epoch"])
        }
        cells = {name: line[column] for name, column in names.items() if name not in ("customer", "number")}
        values = {name: found for name, found in cells.items() if found is not None}
        assert (values, line["cdc$undecoded"]) == (rows[place].values, None)
    audited(world, lake, {"lake_complete": 0, "lake_once": 0, "lake_nothing_else": 0})
