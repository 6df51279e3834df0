"""Compound writes and images through the job on Spark: the rows match the audit, and replays are identical.

``test_cdc_kill`` tests images with a killed driver.
"""

from __future__ import annotations

import uuid
from collections import Counter
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from tests.system.cdc_world import HOUR_US, MORE_TOKENS, World, now_us, until, write
from tests.system.test_cdc_job import forget_last_batch, identity, lines, run_to_idle

from ringlog.kernel.commands.schema.tables import AlterTable, CreateTable
from ringlog.kernel.commands.schema.user_types import CreateType
from ringlog.kernel.cql.types import serialize
from ringlog.kernel.generations.acceptance import stream_of
from ringlog.kernel.generations.statements import is_compound, shape_of_table
from ringlog.kernel.ring.murmur3 import token_of
from ringlog.kernel.values import CdcOptions, Column, TypeField, replace
from ringlog.wire.avro.codec import decode
from ringlog.wire.records import Bounds, CdcRow, Cell, DeletedElements, Mutation, MutationStatement, decode_mutation
from ringlog_audit.rules import compound as rules
from ringlog_audit.rules.compound import AuditColumns, log_rows, plain_row
from ringlog_audit.rules.images import Images, Wanted
from ringlog_audit.rules.values import elements
from ringlog_cdc.definition.split import keys_only, split
from ringlog_cdc.errors import CdcError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.system, pytest.mark.spark, pytest.mark.slow]

MAP = "map<text, int>"
ADDRESS = "udt<street text, zip int>"
NUMBER = (7).to_bytes(8, "big")


def tables(world: World) -> None:
    """Create ``carts`` with a static column and a map, ``keys`` that logs only keys, ``orders`` and ``quiet``."""
    world.apply(CreateType("shop", "address", (TypeField("street", "text"), TypeField("zip", "int"))))
    kinds = {"customer": "text", "number": "bigint", "amount": "int", "items": MAP, "total": "int", "to": "address"}
    columns = tuple(Column(name, kind, name == "total") for name, kind in kinds.items())
    for name, options in (("carts", CdcOptions(True)), ("keys", CdcOptions(True, delta="keys"))):
        key = (("customer",), ("number",))
        world.apply(CreateTable("shop", name, str(uuid.uuid4()), columns, *key, options))


def items(**found: int) -> bytes:
    return serialize(MAP, tuple(found.items()))


def address(**fields: str | int) -> Cell:
    return Cell("to", serialize(ADDRESS, fields))


def compound(first: int, second: int) -> list[Mutation]:
    """Return writes of all kinds in the first generation, and some that extend into the second."""
    cart = {"table": "carts", "cells": ()}
    one = write("ann", 7, first, **cart, operation="UPDATE")
    return [
        replace(
            one, operation="INSERT", cells=(Cell("items", items(a=1)), Cell("amount", b"\0\0\0\1"), address(zip=5))
        ),
        replace(one, operation="INSERT", ttl=60, cells=(Cell("items", items(b=2)),), replaced=("items",)),
        replace(one, deleted_elements=(DeletedElements("items", (b"a", b"b")),), table="keys"),
        replace(one, cells=(Cell("total", b"\0\0\0\2"),), clustering_key=()),
        replace(one, operation="RANGE_DELETE", clustering_key=(), bounds=Bounds((NUMBER,), True, (), False)),
        replace(
            one, operation="INSERT", ttl=5, table="orders", cells=(Cell("amount", b"\0\0\0\1"), Cell("note", None))
        ),
        replace(
            one, cells=(Cell("amount", b"\0\0\0\3"),), more=(MutationStatement("ROW_DELETE", (NUMBER,), (), second),)
        ),
        replace(
            one,
            operation="PARTITION_DELETE",
            clustering_key=(),
            more=(MutationStatement("INSERT", (NUMBER,), (), None, 9),),
        ),
        replace(one, deleted_elements=(DeletedElements("to", (b"\0\1",)),), cells=(address(street="x"),)),
    ]


def refused(first: int) -> dict[str, Mutation]:
    """Return a write for each rejection reason of compound or typed writes; one of its statements is wrong."""
    one = write("bob", 7, first, table="carts", operation="UPDATE", cells=(Cell("amount", b"\0\0\0\1"),))
    late = MutationStatement("UPDATE", (NUMBER,), one.cells, first - 2 * HOUR_US)
    return {
        "bad_key_type": replace(one, partition_key=(b"\xff",)),
        "bad_change": replace(one, replaced=("amount",)),
        "bad_value_type": replace(one, more=(MutationStatement("UPDATE", (NUMBER,), (Cell("items", b"?"),)),)),
        "bad_key": replace(one, more=(MutationStatement("ROW_DELETE", ()),)),
        "unknown_operation": replace(one, more=(MutationStatement("UNKNOWN", (NUMBER,)),)),
        "timestamp_in_future": replace(one, more=(replace(late, timestamp=now_us() + HOUR_US),)),
        "no_generation": replace(one, more=(late,)),
        "oversized": replace(
            one, more=(MutationStatement("UPDATE", (NUMBER,), (Cell("items", items(a=1)),), None, 9),)
        ),
    }


def expected(world: World, mutation: Mutation) -> list[tuple[Any, ...]]:
    """Return the expected rows of a mutation, in order, without their partition."""
    shape = shape_of_table(world.state.tables[f"{mutation.keyspace}.{mutation.table}"])
    assert is_compound(mutation, shape)
    pieces = split(mutation, shape)
    return [replace_place(piece) for piece in (keys_only(pieces) if shape.delta == "keys" else pieces)]


def replace_place(row: Any) -> tuple[Any, ...]:
    """Return the common fields of a piece and its row."""
    names = "timestamp batch_seq_no end_of_batch operation ttl clustering_key cells deleted deleted_elements"
    return tuple(getattr(row, name) for name in names.split())


def written(world: World, mutation: Mutation) -> list[CdcRow]:
    """Return the rows of a mutation by time and sequence, from all partitions."""
    found = [row for row in world.rows() if row.mutation_id == mutation.mutation_id]
    return sorted(found, key=lambda row: (row.timestamp, row.batch_seq_no))


def test_compound_writes_and_a_switch(shop: World, spark: SparkSession, tmp_path: Path) -> None:
    shop.join("n2", MORE_TOKENS, now_us() - 2_000_000)
    first, second = shop.state.generations
    tables(shop)
    before, after = second.timestamp - 1_000, now_us()
    good = [replace(one, mutation_id=str(uuid.uuid4())) for one in compound(before, after)]
    bad = {code: replace(one, mutation_id=str(uuid.uuid4())) for code, one in refused(now_us()).items()}
    many = Cell("items", items(**{f"k{n:05}": n for n in range(4_000)}))
    bad["oversized"] = replace(bad["oversized"], more=(MutationStatement("UPDATE", (NUMBER,), (many,)),))
    nothing = replace(
        good[4], mutation_id=str(uuid.uuid4()), bounds=Bounds((NUMBER,), False, (NUMBER,), True), timestamp=after
    )
    plain = [write(f"customer-{number}", number) for number in range(50)]
    shop.send([*plain[:25], *good, *bad.values(), nothing, *plain[25:]])
    run_to_idle(shop, tmp_path, spark, row_bytes_max=50_000, metrics_port=0)

    for mutation in good:
        rows = written(shop, mutation)
        assert [replace_place(row) for row in rows] == expected(shop, mutation)
        for row in rows:
            generation = second if row.timestamp >= second.timestamp else first
            assert row.generation == generation.timestamp
            assert row.stream_id == stream_of(generation, token_of(b"ann"))
    assert {row.generation for row in written(shop, good[6])} == {first.timestamp, second.timestamp}
    assert {letter.reason for letter in shop.letters()} == set(bad)
    assert len(shop.letters()) == len(bad)
    assert sum(line["skipped"] for line in lines(tmp_path, "batch")) == 1  # type: ignore[misc]
    assert len(shop.rows()) == len(plain) + sum(len(expected(shop, mutation)) for mutation in good)

    # Off and on again: writes in between have no images, and a replay does not change that.
    off, on = CdcOptions(False), CdcOptions(True, delta="keys")
    shop.alter(AlterTable("shop", "carts", cdc=off))
    shop.send([replace(good[0], mutation_id=str(uuid.uuid4()), timestamp=now_us())])
    run_to_idle(shop, tmp_path, spark, row_bytes_max=50_000)
    assert sum(line["skipped"] for line in lines(tmp_path, "batch")) == 2  # type: ignore[misc]
    shop.alter(AlterTable("shop", "carts", cdc=on))
    again = replace(good[1], mutation_id=str(uuid.uuid4()), timestamp=now_us())
    shop.send([again, write("keys", 1, table="keys", cells=(Cell("amount", b"\0\0\0\7"),))])
    run_to_idle(shop, tmp_path, spark, row_bytes_max=50_000)
    assert [replace_place(row) for row in written(shop, again)] == expected(shop, again)
    (only_keys,) = (row for row in shop.rows() if row.partition_key == (b"keys",))
    assert (only_keys.operation, only_keys.cells, only_keys.deleted) == (2, (), ())

    stored = Counter(item.value for item in shop.read("cdc"))
    shop.apply(AlterTable("shop", "carts", cdc=off))
    forget_last_batch(tmp_path)
    run_to_idle(shop, tmp_path, spark, row_bytes_max=50_000)
    repeated = Counter(item.value for item in shop.read("cdc"))
    assert set(repeated) == set(stored)
    assert sum(repeated.values()) == sum(stored.values()) + 4
    assert len({(identity(row), row.time, row.batch_seq_no) for row in shop.rows()}) == len(repeated)


KINDS = {"customer": "text", "number": "bigint", "amount": "int", "items": MAP, "total": "int", "note": "text"}
COLUMNS = AuditColumns(("text",), ("bigint",), frozenset({"total"}), {"items": MAP})
WANTED = Wanted("full", True, ("amount", "items", "note"), ("total",))
IMAGES = CdcOptions(True, preimage="full", postimage=True)


def carts(world: World, options: CdcOptions = IMAGES) -> None:
    """Create the table ``carts``; ``orders`` has no images."""
    columns = tuple(Column(name, kind, name == "total") for name, kind in KINDS.items())
    world.apply(CreateTable("shop", "carts", str(uuid.uuid4()), columns, ("customer",), ("number",), options))


def history(chance: Random, count: int) -> list[Mutation]:
    """Return writes of all kinds to few rows, some of them late."""
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
    """Return the audit's expected rows of ``carts`` by the position of their write."""
    images, found = Images(), {}
    for item in world.read("mutations"):
        mutation = decode_mutation(item.value)
        if mutation.table == "carts":
            _, record = decode(item.value)
            rows = log_rows(record, COLUMNS, False) if rules.is_compound(record, COLUMNS) else plain_row(record, False)
            rows = images.rows("carts", mutation.partition_key[0] or b"", record, rows, COLUMNS, WANTED, item.appended)
            found[item.partition, item.offset] = [
                (r.timestamp, r.sequence, r.last, r.operation, r.ttl, r.clustering_key, r.values, r.deleted)
                for r in rows
            ]
    return found


def logged(rows: list[CdcRow]) -> dict[tuple[int, int], list[tuple[Any, ...]]]:
    """Return the rows by the position of their write."""
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
        """Return the operations of the rows of one more write."""
        one = write("ann", 1, table="carts", cells=(Cell("note", b"n"),))
        shop.send([one])
        run_to_idle(shop, tmp_path, spark, **options)
        return sorted(row.operation for row in shop.rows() if row.mutation_id == one.mutation_id)

    def switch(options: CdcOptions) -> None:
        """Set other image options and wait until they apply to new writes."""
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
    assert codes() == [0, 2, 9], "the earlier options apply until the validation watermark"
    switch(CdcOptions(True))
    assert codes() == [2]
    switch(IMAGES)
    assert codes() == [2, 9]
    for path in (tmp_path / "images").glob("*.db"):
        path.unlink()
    with pytest.raises(CdcError, match="images_lost"):
        codes()
    assert codes(images_anew=True) == [0, 2, 9]  # the previous write is repeated into an empty state
