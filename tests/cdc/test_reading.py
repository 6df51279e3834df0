"""Reading the CDC log with Spark, without Spark: ranges and the tasks that read them, and Arrow batches."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from ringlog.client.cdc.errors import WriteIncomplete
from ringlog.client.cdc.generations import Generations, Known
from ringlog.client.cdc.progress import Progress, begin_at
from ringlog.client.cdc.reading import Reading, Verdict
from ringlog.kernel.commands.model import Column
from ringlog.wire.records import CdcRow, Cell, DeletedElements
from ringlog_cdc.errors import CdcError
from ringlog_cdc.reading.columns import LogColumns
from ringlog_cdc.reading.ranges import CdcRange, ranges_between
from ringlog_cdc.reading.source import settings_of
from ringlog_cdc.reading.whole import OnePass, Readable, readable
from tests.client.cdc.changes import AT, TABLE, row
from tests.client.cdc.model import CDC_PARTITIONS, Topic, Write, drawn, open_generations, row_of

UUID = "04c29680-833b-11ee-8000-000000000001"


def delivered(reading: Reading[CdcRow], topic: Topic, partition: int, begin: int, end: int) -> list[CdcRow]:
    """What comes of the records [begin, end) of a partition."""
    found: list[CdcRow] = []
    for offset, item in topic.records[partition]:
        if begin <= offset < end:
            reading.passed(partition, offset)
            verdict, rows = reading.take(partition, offset, item)
            found += rows if verdict is Verdict.DELIVERED else ()
    reading.passed(partition, end)
    return found


def task(topic: Topic, found: CdcRange) -> list[CdcRow]:
    reading: Reading[CdcRow] = Reading(Progress.from_json(found.place))
    return delivered(reading, topic, found.partition, found.begin, found.end)


def _stream(found: CdcRow) -> bytes:
    return found.stream_id


def test_one_pass_gives_what_following_gives_and_each_stream_in_the_same_order() -> None:
    closed_ones = 0
    for seed in range(200):
        chance = Random(seed)
        topic = drawn(chance)
        start = chance.choice((0, 0, 90, 150))
        known = open_generations(3)
        for closed in topic.closes[: chance.randint(0, len(topic.closes))]:
            known = Generations([item for item in known.all() if item.id != closed.id] + [closed])
            closed_ones += 1
        following: Reading[CdcRow] = Reading(begin_at(dict.fromkeys(range(CDC_PARTITIONS), 0), start))
        wanted: dict[int, list[CdcRow]] = {number: [] for number in range(CDC_PARTITIONS)}
        moved = True
        while moved:
            moved = following.move_on(known)
            for number, position in following.positions().items():
                wanted[number] += delivered(following, topic, number, position, topic.ends[number])
        generations = readable(known, topic.ends, start, skip_expired=False)
        for number, rows in wanted.items():
            one: OnePass[CdcRow] = OnePass(number, 0, generations, start)
            got = [row for offset, item in topic.records[number] for row in one.take(offset, item)]
            one.finish()
            # Sorting is stable: what is equal then has the same rows, and those of a stream in the same order.
            assert sorted(got, key=_stream) == sorted(rows, key=_stream), seed
    assert closed_ones > 100


def test_a_closed_generation_that_ends_inside_a_write_is_an_error_in_one_pass() -> None:
    first = row_of(Write(1, 1, 10, 2), (0, 0), 0)
    whole: OnePass[CdcRow] = OnePass(0, 0, (Readable(0, ((0, 1),)),))
    assert whole.take(0, first) == ()
    with pytest.raises(WriteIncomplete, match="0/0"):
        whole.finish()
    still_open: OnePass[CdcRow] = OnePass(0, 0, (Readable(0, None),))
    assert still_open.take(0, first) == ()
    still_open.finish()


def test_a_close_beyond_the_planned_end_does_not_end_the_generation_in_one_pass() -> None:
    known = Generations([Known("0", 0, ((0, 9),), False), Known("100", 100, None, False)])
    assert readable(known, {0: 8}, 0, skip_expired=False) == (Readable(0, None),)
    assert readable(known, {0: 9}, 0, skip_expired=False) == (Readable(0, ((0, 9),)), Readable(100, None))
    assert readable(Generations(), {0: 9}, 0, skip_expired=False) == ()


def test_tasks_give_exactly_what_the_driver_delivered_wherever_batches_are_cut_and_the_driver_restarts() -> None:
    for seed in range(120):
        chance = Random(seed)
        topic = drawn(chance)
        known, closes = open_generations(3), list(topic.closes)
        before = begin_at(dict.fromkeys(range(CDC_PARTITIONS), 0))
        driver: Reading[CdcRow] = Reading(before)
        got: list[CdcRow] = []
        idle = 0
        while closes or idle < 20:
            if closes and chance.random() < 0.3:
                closed = closes.pop(0)
                known = Generations([item for item in known.all() if item.id != closed.id] + [closed])
            if chance.random() < 0.3:
                driver = Reading(Progress.from_json(before.to_json()))
            driver.move_on(known)
            expected: list[CdcRow] = []
            for partition, position in driver.positions().items():
                end = min(topic.ends[partition], position + chance.randint(0, 9))
                for offset, item in topic.records[partition]:
                    if position <= offset < end and driver.wants(partition):
                        driver.passed(partition, offset)
                        verdict, rows = driver.take(partition, offset, item)
                        expected += rows if verdict is Verdict.DELIVERED else ()
            after = driver.progress()
            batch = [item for found in ranges_between(before, after) for item in task(topic, found)]
            assert sorted(map(str, batch)) == sorted(map(str, expected)), seed
            assert len({item.generation for item in batch}) <= 1
            got += batch
            idle = idle + 1 if after == before else 0
            before = after
        numbers = [(int(item.clustering_key[0] or b""), item.batch_seq_no) for item in got]
        assert sorted(numbers) == [(write.number, seq) for write in topic.writes for seq in range(write.rows)], seed


def columns_of(*rows: CdcRow, **types: str) -> dict[str, list[Any]]:
    table = replace(TABLE, columns=(*TABLE.columns, *(Column(name, kind) for name, kind in types.items())))
    found = LogColumns(table).batch(rows)
    assert isinstance(found, pa.RecordBatch)
    result: dict[str, list[Any]] = found.to_pydict()
    return result


def test_columns_are_those_of_the_log_table() -> None:
    schema = LogColumns(TABLE).schema()
    assert schema.names == [
        *("cdc$stream_id", "cdc$time", "cdc$batch_seq_no", "cdc$operation", "cdc$ttl", "cdc$end_of_batch"),
        *("cdc$timestamp", "cdc$generation", "p", "c", "v", "w", "m", "l", "b", "cdc$deleted_v", "cdc$deleted_w"),
        *("cdc$deleted_m", "cdc$deleted_elements_m", "cdc$deleted_l", "cdc$deleted_elements_l", "cdc$deleted_b"),
        "cdc$undecoded",
    ]
    spark = {field.name: field.dataType.simpleString() for field in LogColumns(TABLE).spark_schema()}
    assert spark["cdc$operation"] == "tinyint"
    assert spark["m"] == "map<string,int>"
    assert spark["l"] == "map<string,int>"
    assert spark["cdc$deleted_elements_l"] == "array<string>"


def test_rows_become_typed_columns() -> None:
    values = {"v": 5, "w": "x", "m": (("k", 1),), "l": ((UUID, 3),), "b": b"\x01"}
    taken = (DeletedElements("m", (b"gone",)),)
    one = row(2, values=values, ttl=9)
    found = columns_of(one, row(1, deleted=("v", "m"), deleted_elements=taken), row(4, ()))
    assert found["cdc$operation"] == [2, 1, 4]
    assert found["cdc$ttl"] == [9, None, None]
    assert found["cdc$timestamp"] == [AT] * 3
    assert found["cdc$stream_id"][0] == one.stream_id
    assert (found["p"], found["c"]) == (["p1"] * 3, [1, 1, None])
    assert [found[name][0] for name in "vwmlb"] == [5, "x", [("k", 1)], [(UUID, 3)], b"\x01"]
    assert found["cdc$deleted_v"] == found["cdc$deleted_m"] == [None, True, None]
    assert found["cdc$deleted_elements_m"] == [None, ["gone"], None]


@pytest.mark.parametrize(
    ("kind", "data", "wanted"),
    [
        ("timestamp", (1_500).to_bytes(8, "big"), 1_500_000),
        ("timestamp", (2**62).to_bytes(8, "big"), 2**63 - 1),
        ("varint", b"\x01" + bytes(20), str(2**160)),
        ("date", (2**31 + 3).to_bytes(4, "big"), 3),
        ("boolean", b"\x01", True),
        ("frozen<list<int>>", b"\0\0\0\x01\0\0\0\x04\0\0\0\x07", [7]),
        ("udt<a varint, b text>", b"\0\0\0\x01\x07", {"a": "7", "b": None}),
        ("tuple<int, text>", b"\xff\xff\xff\xff\0\0\0\x01x", {"_1": None, "_2": "x"}),
    ],
)
def test_types_without_an_equal_in_spark(kind: str, data: bytes, wanted: Any) -> None:
    table = replace(TABLE, columns=(*TABLE.columns, Column("x", kind)))
    batch = LogColumns(table).batch([replace(row(1), cells=(Cell("x", data),))])
    column = batch.column(batch.schema.get_field_index("x"))
    plain = column.cast(pa.int64()) if kind == "timestamp" else column.cast(pa.int32()) if kind == "date" else column
    assert plain.to_pylist() == [wanted]


def test_a_value_that_does_not_fit_its_type_is_kept_as_bytes() -> None:
    found = columns_of(replace(row(1), cells=(Cell("v", b"\x01"), Cell("w", b"ok"))))
    assert (found["v"], found["w"], found["cdc$undecoded"]) == ([None], ["ok"], [[("v", b"\x01")]])


@pytest.mark.parametrize(
    "options", [{"table": ""}, {"bootstrap": ""}, {"lost": "maybe"}, {"rowsMax": "0"}, {"rowsMax": "many"}]
)
def test_wrong_options_are_named(options: dict[str, str]) -> None:
    with pytest.raises(CdcError, match="bad_option"):
        settings_of({"bootstrap": "b", "cluster": "c", "table": "t"} | options)
