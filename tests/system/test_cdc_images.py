"""Preimages and postimages through the job on Spark: what the audit demands, and a replay.

Over a killed driver: ``test_cdc_kill``.
"""

from __future__ import annotations

import uuid
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from tests.system.cdc_world import World, now_us, until, write
from tests.system.test_cdc_compound import MAP, items
from tests.system.test_cdc_job import forget_last_batch, run_to_idle

from ringlog.kernel.commands.schema.tables import AlterTable, CreateTable
from ringlog.kernel.values import CdcOptions, Column
from ringlog.wire.avro.codec import decode
from ringlog.wire.records import Bounds, CdcRow, Cell, Mutation, MutationStatement, decode_mutation
from ringlog_audit.rules.compound import AuditColumns, elements, is_compound, log_rows, plain_row
from ringlog_audit.rules.images import Images, Wanted
from ringlog_cdc.errors import CdcError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.system, pytest.mark.spark, pytest.mark.slow]

KINDS = {"customer": "text", "number": "bigint", "amount": "int", "items": MAP, "total": "int", "note": "text"}
COLUMNS = AuditColumns(("text",), ("bigint",), frozenset({"total"}), {"items": MAP})
WANTED = Wanted("full", True, ("amount", "items", "note"), ("total",))
IMAGES = CdcOptions(True, preimage="full", postimage=True)


def carts(world: World, options: CdcOptions = IMAGES) -> None:
    """The table ``carts`` beside ``orders``, which has no images."""
    columns = tuple(Column(name, kind, name == "total") for name, kind in KINDS.items())
    world.apply(CreateTable("shop", "carts", str(uuid.uuid4()), columns, ("customer",), ("number",), options))


def history(chance: Random, count: int) -> list[Mutation]:
    """Writes of all kinds to few rows, some of them late."""
    found = []
    for _ in range(count):
        number = chance.randrange(3)
        one = write(f"c{chance.randrange(20)}", number, now_us() - chance.randrange(3_000_000), table="carts")
        key = one.clustering_key
        upto = Bounds((), True, key, True)
        amount, note = Cell("amount", bytes((0, 0, 0, chance.randrange(9)))), Cell("note", b"n")
        total, basket = Cell("total", b"\0\0\0\1"), Cell("items", items(**{chance.choice("ab"): 1}))
        found.append(
            chance.choices(
                (
                    replace(one, cells=(amount, note)),
                    replace(one, operation="UPDATE", cells=(amount, basket)),
                    replace(one, operation="UPDATE", cells=(Cell("note", None),)),
                    replace(one, operation="UPDATE", cells=(total,), clustering_key=()),
                    replace(one, operation="ROW_DELETE", cells=()),
                    replace(one, operation="PARTITION_DELETE", cells=(), clustering_key=()),
                    replace(one, operation="RANGE_DELETE", cells=(), clustering_key=(), bounds=upto),
                    replace(
                        one, cells=(amount,), more=(MutationStatement("UPDATE", key, (note,), one.timestamp + 1, 1),)
                    ),
                ),
                (5, 5, 3, 2, 2, 1, 1, 3),
            )[0]
        )
    return found


def demanded(world: World) -> dict[tuple[int, int], list[tuple[Any, ...]]]:
    """Position of each write of ``carts`` to the rows that the audit wants of it."""
    images, found = Images(), {}
    for item in world.read("mutations"):
        mutation = decode_mutation(item.value)
        if mutation.table == "carts":
            _, record = decode(item.value)
            rows = log_rows(record, COLUMNS, False) if is_compound(record, COLUMNS) else plain_row(record, False)
            rows = images.rows("carts", mutation.partition_key[0] or b"", record, rows, COLUMNS, WANTED, item.appended)
            found[item.partition, item.offset] = [
                (r.timestamp, r.sequence, r.last, r.operation, r.ttl, r.clustering_key, r.values, r.deleted)
                for r in rows
            ]
    return found


def logged(rows: list[CdcRow]) -> dict[tuple[int, int], list[tuple[Any, ...]]]:
    """Position of each write to its rows."""
    found: dict[tuple[int, int], list[tuple[Any, ...]]] = {}
    for row in sorted(rows, key=lambda row: (row.timestamp, row.batch_seq_no)):
        values = {c.column: elements(MAP, c.value or b"") if c.column == "items" else c.value for c in row.cells}
        place = (row.timestamp, row.batch_seq_no, row.end_of_batch, row.operation, row.ttl)
        said = (*place, row.clustering_key, values, set(row.deleted))
        found.setdefault((row.source_partition, row.source_offset), []).append(said)
    return found


def test_images_are_switched_and_lost(shop: World, spark: SparkSession, tmp_path: Path) -> None:
    carts(shop)

    def codes(**options: Any) -> list[int]:
        """Operations of the rows of one more write."""
        one = write("ann", 1, table="carts", cells=(Cell("note", b"n"),))
        shop.send([one])
        run_to_idle(shop, tmp_path, spark, **options)
        return sorted(row.operation for row in shop.rows() if row.mutation_id == one.mutation_id)

    def switch(options: CdcOptions) -> None:
        """Other images, which count for what is written from now on."""
        shop.apply(AlterTable("shop", "carts", cdc=options))
        since = shop.state.table_lives["shop.carts"][-1].versions[-1].since
        until(lambda: now_us() > since, "the options count")

    assert codes() == [2, 9]
    assert codes() == [0, 2, 9]
    stored = {item.value for item in shop.read("cdc")}
    forget_last_batch(tmp_path)
    run_to_idle(shop, tmp_path, spark)
    repeated = [item.value for item in shop.read("cdc")]
    assert (set(repeated), len(repeated)) == (stored, len(stored) + 3)
    shop.apply(AlterTable("shop", "carts", cdc=CdcOptions(True)))
    assert codes() == [0, 2, 9], "until the settled time the options before count"
    switch(CdcOptions(True))
    assert codes() == [2]
    switch(IMAGES)
    assert codes() == [2, 9]
    for path in (tmp_path / "images").glob("*.db"):
        path.unlink()
    with pytest.raises(CdcError, match="images_lost"):
        codes()
    assert codes(images_anew=True) == [0, 2, 9]  # the write before it is repeated, into an empty state
