"""The Spark reader of the CDC log, without Spark: ranges, the tasks that read them, and Arrow batches."""

from __future__ import annotations

from random import Random
from typing import Any

import pyarrow as pa
import pytest

from ringlog.client.cdc.errors import TableReplaced, TablesForgotten, UnknownTable
from ringlog.client.cdc.generations import GenerationRecord, Generations
from ringlog.client.cdc.progress import NOT_ENTERED, ConsumerProgress, begin_at
from ringlog.client.cdc.reading import CdcReading, RowVerdict
from ringlog.client.cdc.table_versions import NamePeriod, TableVersions
from ringlog.client.cdc.topics import CdcRecord
from ringlog.kernel.commands.schema.tables import DropTable
from ringlog.kernel.cql.types import serialize
from ringlog.kernel.values import Column, replace
from ringlog.wire.records import CdcRow, Cell, DeletedElements, encode_cdc_row
from ringlog_cdc.errors import CdcError
from ringlog_cdc_reader.columns import LogColumns
from ringlog_cdc_reader.heads import head_of
from ringlog_cdc_reader.ranges import ALL, CdcRange, ReadSettings, Scan, found_in, milestone, ranges_along, table_in
from ringlog_cdc_reader.source import settings_of
from ringlog_cdc_reader.vectors import batch_of
from ringlog_cdc_reader.whole import OnePass, Readable, readable
from tests.client.cdc.changes import AT, TABLE, row
from tests.client.cdc.model import CDC_PARTITIONS, Topic, Write, open_generations, random_topic, row_of
from tests.client.cdc.test_schema import following, let_go, with_an_altered_table
from tests.kernel.entries import TABLE as CREATED
from tests.kernel.entries import uuid

UUID = "04c29680-833b-11ee-8000-000000000001"


def delivered(reading: CdcReading[CdcRow], topic: Topic, partition: int, begin: int, end: int) -> list[CdcRow]:
    """Return the delivered rows of the records [begin, end) of a partition."""
    found: list[CdcRow] = []
    for offset, item in topic.records[partition]:
        if begin <= offset < end:
            reading.passed(partition, offset)
            verdict, rows = reading.take(partition, offset, item)
            found += rows if verdict is RowVerdict.DELIVERED else ()
    reading.passed(partition, end)
    return found


def task(topic: Topic, found: CdcRange) -> list[CdcRow]:
    reading: CdcReading[CdcRow] = CdcReading(ConsumerProgress.from_json(found.place))
    return delivered(reading, topic, found.partition, found.begin, found.end)


def _stream(found: CdcRow) -> bytes:
    return found.stream_id


def test_one_pass_matches_following_and_keeps_stream_order() -> None:
    closed_ones = 0
    for seed in range(200):
        chance = Random(seed)
        topic = random_topic(chance)
        start = chance.choice((0, 0, 90, 150))
        known = open_generations(3)
        for closed in topic.closes[: chance.randint(0, len(topic.closes))]:
            known = Generations([item for item in known.all() if item.id != closed.id] + [closed])
            closed_ones += 1
        following: CdcReading[CdcRow] = CdcReading(begin_at(dict.fromkeys(range(CDC_PARTITIONS), 0), start))
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
            # The sort is stable: equal results have equal rows, with the rows of a stream in equal order.
            assert sorted(got, key=_stream) == sorted(rows, key=_stream), seed
    assert closed_ones > 100


def test_one_pass_omits_a_write_without_its_last_row_at_the_close() -> None:
    write = Write(1, 1, 10, 2)
    rows = [row_of(write, (0, 0), number) for number in range(write.rows)]
    closed: OnePass[CdcRow] = OnePass(0, 0, (Readable(0, ((0, 1),)),))
    assert [closed.take(offset, row) for offset, row in enumerate(rows)] == [(), ()]
    still_open: OnePass[CdcRow] = OnePass(0, 0, (Readable(0, None),))
    assert [still_open.take(offset, row) for offset, row in enumerate(rows)] == [(), tuple(rows)]


def test_a_close_beyond_the_planned_end_does_not_end_the_generation_in_one_pass() -> None:
    known = Generations([GenerationRecord("0", 0, ((0, 9),), False), GenerationRecord("100", 100, None, False)])
    assert readable(known, {0: 8}, 0, skip_expired=False) == (Readable(0, None),)
    assert readable(known, {0: 9}, 0, skip_expired=False) == (Readable(0, ((0, 9),)), Readable(100, None))
    assert readable(Generations(), {0: 9}, 0, skip_expired=False) == ()


def test_tasks_match_the_driver_for_any_batches_and_restarts() -> None:
    spanning = 0
    for seed in range(120):
        chance = Random(seed)
        topic = random_topic(chance)
        known, closes = open_generations(3), list(topic.closes)
        before = begin_at(dict.fromkeys(range(CDC_PARTITIONS), 0))
        driver: CdcReading[CdcRow] = CdcReading(before)
        got: list[CdcRow] = []
        idle = 0
        while closes or idle < 20:
            if closes and chance.random() < 0.3:
                closed = closes.pop(0)
                known = Generations([item for item in known.all() if item.id != closed.id] + [closed])
            if chance.random() < 0.3:
                driver = CdcReading(ConsumerProgress.from_json(before.to_json()))
            expected, path = looked(chance, driver, topic, known), [before]
            while chance.random() < 0.8 and driver.generation != NOT_ENTERED:
                left = driver.progress()
                if not driver.move_on(known):
                    break
                path.append(ConsumerProgress.from_json(milestone(left).to_json()))
                expected += looked(chance, driver, topic, known)
            after = driver.progress()
            batch = [item for found in ranges_along([*path, after]) for item in task(topic, found)]
            assert sorted(map(str, batch)) == sorted(map(str, expected)), seed
            spanning += len({item.generation for item in batch}) > 1
            got += batch
            idle = idle + 1 if after == before else 0
            before = after
        numbers = [(int(item.clustering_key[0] or b""), item.batch_seq_no) for item in got]
        assert sorted(numbers) == [(write.number, seq) for write in topic.writes for seq in range(write.rows)], seed
    assert spanning > 50


def looked(chance: Random, driver: CdcReading[CdcRow], topic: Topic, known: Generations) -> list[CdcRow]:
    """Return the rows that the driver delivers for some records of each partition; each record must be in a
    generation.
    """
    if driver.generation == NOT_ENTERED:
        driver.move_on(known)
    expected: list[CdcRow] = []
    for partition, position in driver.positions().items():
        end = min(topic.ends[partition], position + chance.choice((0, 3, 9, 99)))
        for offset, item in topic.records[partition]:
            if position <= offset < end and driver.wants(partition):
                driver.passed(partition, offset)
                verdict, rows = driver.take(partition, offset, item)
                expected += rows if verdict is RowVerdict.DELIVERED else ()
    return expected


class TopicsInMemory:
    """The topic interface of a reader on the model's topic; all closes are known."""

    def __init__(self, topic: Topic) -> None:
        self.generations = open_generations(3)
        for closed in topic.closes:
            self.generations = Generations([one for one in self.generations.all() if one.id != closed.id] + [closed])
        self._topic = topic
        self._positions: dict[int, int] = {}

    def bounds(self) -> dict[int, tuple[int, int]]:
        return {number: (0, end) for number, end in self._topic.ends.items()}

    def read_from(self, positions: dict[int, int]) -> None:
        self._positions = dict(positions)

    def poll(self, _timeout_s: float, records_max: int) -> list[CdcRecord]:
        """Return a few records of each partition, or its end."""
        found = []
        for number, position in self._positions.items():
            mine = [one for one in self._topic.records[number] if one[0] >= position][: min(7, records_max)]
            found += [CdcRecord(number, offset, encode_cdc_row(item)) for offset, item in mine]
            self._positions[number] = mine[-1][0] + 1 if mine else self._topic.ends[number]
            found += [] if mine else [CdcRecord(number, self._topic.ends[number], None)]
        return found


def scan_of(topic: Topic, rows_max: int) -> Scan:
    scan = Scan(ReadSettings("", "c", "ks.t", rows_max=rows_max))
    scan._topics = TopicsInMemory(topic)  # type: ignore[assignment]
    scan.go_to(begin_at(dict.fromkeys(range(CDC_PARTITIONS), 0)))
    return scan


def test_one_batch_or_bounded_batches_have_all_rows() -> None:
    bounded = 0
    for seed in range(30):
        topic = random_topic(Random(seed))
        wanted = [(write.number, seq) for write in topic.writes if write.key % 4 for seq in range(write.rows)]
        for rows_max in (ALL, 12):
            scan, got = scan_of(topic, rows_max), []
            before, batches = scan.place(), 0
            while batches == 0 or (rows_max != ALL and scan.place() != before):
                before, batches = scan.place(), batches + 1
                left = scan.advance()
                tasks = ranges_along([before, *left, scan.place()])
                got += [item for found in tasks for item in task(topic, found) if item.table == "t"]
            bounded += batches > 2
            numbers = [(int(item.clustering_key[0] or b""), item.batch_seq_no) for item in got]
            assert sorted(numbers) == wanted, (seed, rows_max)
    assert bounded > 15


def columns_of(*rows: CdcRow, **types: str) -> dict[str, list[Any]]:
    table = replace(TABLE, columns=(*TABLE.columns, *(Column(name, kind) for name, kind in types.items())))
    found = LogColumns(table).batch(rows)
    assert isinstance(found, pa.RecordBatch)
    result: dict[str, list[Any]] = found.to_pydict()
    return result


def test_columns_match_the_log_table() -> None:
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
def test_types_that_spark_lacks(kind: str, data: bytes, wanted: Any) -> None:
    table = replace(TABLE, columns=(*TABLE.columns, Column("x", kind)))
    batch = LogColumns(table).batch([replace(row(1), cells=(Cell("x", data),))])
    column = batch.column(batch.schema.get_field_index("x"))
    plain = column.cast(pa.int64()) if kind == "timestamp" else column.cast(pa.int32()) if kind == "date" else column
    assert plain.to_pylist() == [wanted]


def test_an_invalid_value_is_kept_as_bytes() -> None:
    found = columns_of(replace(row(1), cells=(Cell("v", b"\x01"), Cell("w", b"ok"))))
    assert (found["v"], found["w"], found["cdc$undecoded"]) == ([None], ["ok"], [[("v", b"\x01")]])


def test_columns_have_the_names_of_the_reading_table() -> None:
    kept = tuple(column for column in TABLE.columns if column.name not in ("v", "w"))
    columns = (*kept, Column("x", "int"), Column("v", "text"))
    table = replace(TABLE, columns=columns, stored=(("x", "v"), ("v", "v@9")), respelled=9)
    cells = (Cell("v", serialize("int", 1)), Cell("v@9", b"new"), Cell("w", b"old"))
    rows = [row(2, cells=cells), row(1, deleted=("v",))]
    found = LogColumns(table).batch(rows)
    assert found.column("x").to_pylist() == [1, None]
    assert found.column("v").to_pylist() == ["new", None]
    assert found.column("cdc$deleted_x").to_pylist() == [None, True]
    assert found.column("cdc$undecoded").to_pylist() == [[("w", b"old")], None]


def odd_rows() -> list[CdcRow]:
    """Return rows with more fields than their table has columns, and their undecoded parts."""
    return [
        row(2, cells=(Cell("nosuchcol", b"!"), Cell("w", b"ok"))),
        row(2, cells=(Cell("p", b"another"),)),
        row(0, deleted=("nosuchcol", "v")),
        row(1, deleted=("c",)),
        row(1, deleted_elements=(DeletedElements("nosuchcol", (b"x", b"y")), DeletedElements("v", (b"z",)))),
        row(1, deleted_elements=(DeletedElements("m", (b"\xff",)),)),
        row(2, (1, 2)),
        row(2, partition_key=(b"p1", b"p2")),
    ]


ODD: list[dict[str, bytes]] = [
    {"nosuchcol": b"!"},
    {"p": b"another"},
    {"cdc$deleted_nosuchcol": b"\1"},
    {"cdc$deleted_c": b"\1"},
    {"cdc$deleted_elements_nosuchcol": b"78,79", "cdc$deleted_elements_v": b"7a"},
    {"cdc$deleted_elements_m": b"ff"},
    {"clustering_1": b"\0\0\0\2"},
    {"partition_1": b"p2"},
]


def test_undecodable_values_are_kept_on_both_paths() -> None:
    heads = [head_of(one, number, encode_cdc_row(one)) for number, one in enumerate(odd_rows())]
    for batch in (LogColumns(TABLE).batch(odd_rows()), batch_of(LogColumns(TABLE), heads, 0)):
        found = batch.to_pydict()
        assert [dict(odd) for odd in found["cdc$undecoded"]] == ODD
        assert found["p"] == ["p1"] * len(ODD)
        assert found["w"][0] == "ok"
        assert found["cdc$deleted_v"][2] is True


def test_rows_of_another_table_of_the_name_are_skipped() -> None:
    rows = [row(2, (number,), {"v": number}, epoch=epoch) for number, epoch in enumerate((0, 9, 10, 19, 20, 500))]
    rows += [row(2, (9,), epoch=epoch, cells=(Cell("nosuchcol", b"!"),)) for epoch in (9, 10)]
    heads = [head_of(one, number, encode_cdc_row(one)) for number, one in enumerate(rows)]
    for life, wanted in (
        (NamePeriod(10, 20, False), [2, 3, 9]),
        (NamePeriod(10, None, True), [0, 2, 3, 4, 5, 9]),
        (NamePeriod(10, 20, True), [0, 2, 3, 9]),
        (NamePeriod(600, None, True), [0]),
        (NamePeriod(600, 700, False), []),
    ):
        columns = LogColumns(TABLE, life)
        for batch in (columns.batch(rows), batch_of(columns, heads, 0)):
            assert batch.to_pydict()["c"] == wanted, life


def test_rows_older_than_the_schema_are_not_skipped() -> None:
    rows = [row(2, (number,), {"v": number}, epoch=epoch) for number, epoch in enumerate((10, 9, 0, 30))]
    rows += [row(2, (9,), epoch=12, cells=(Cell("nosuchcol", b"!"),))]
    heads = [head_of(one, number, encode_cdc_row(one)) for number, one in enumerate(rows)]
    columns = LogColumns(TABLE, NamePeriod(10, 20, True, known_from=10))
    for of in (columns.batch, lambda _: batch_of(columns, heads, 0)):
        with pytest.raises(TablesForgotten, match="epoch 9"):
            of(rows)
    for whole, wanted in ((NamePeriod(4, None, True), [0, 1, 2, 9]), (NamePeriod(10, 15, False), [0, 2, 9])):
        found = columns.with_past(whole)
        for batch in (found.batch(rows), batch_of(found, heads, 0)):
            assert batch.to_pydict()["c"] == wanted, whole
    known = columns.with_past(NamePeriod(9, None, True, known_from=9))
    assert known.batch(rows).to_pydict()["c"] == [0, 1, 2, 9]
    with pytest.raises(TablesForgotten, match="epoch 8"):
        known.batch([row(2, (0,), epoch=8)])


def test_rows_of_a_later_table_of_the_name_are_skipped() -> None:
    rows = [row(2, (number,), {"v": number}, epoch=epoch) for number, epoch in enumerate((10, 19, 0, 20))]
    heads = [head_of(one, number, encode_cdc_row(one)) for number, one in enumerate(rows)]

    def given(columns: LogColumns, *numbers: int) -> list[list[int]]:
        some = (columns.batch([rows[number] for number in numbers]), batch_of(columns, [heads[n] for n in numbers], 0))
        return [batch.to_pydict()["c"] for batch in some]

    for life in (NamePeriod(10, None, True), NamePeriod(10, 20, True)):
        columns = LogColumns(TABLE, life)
        dropped, replaced = NamePeriod(10, 20, True), NamePeriod(10, 20, False)
        assert given(columns.until(None, by_id=False), 0, 1, 2) == [[0, 1, 2]] * 2
        for now, mine, others in ((dropped, (0, 1, 2), (3,)), (replaced, (0, 1), (2, 3))):
            found = columns.until(now, by_id=False).with_past(NamePeriod(10, None, True))
            assert given(found, *mine) == [list(mine)] * 2
            assert given(columns.until(now, by_id=True), 0, 1, 2, 3) == [list(mine)] * 2, "no table has the name"
            for other in others:
                for of in (found.batch, lambda _, one=other, by=found: batch_of(by, heads[: one + 1], 0)):
                    with pytest.raises(TableReplaced, match=f"table {TABLE.id} was dropped or renamed at epoch 20"):
                        of(rows[: other + 1])


def test_a_table_is_chosen_by_its_id() -> None:
    first, second = (replace(TABLE, id=name, epoch=epoch, changed=epoch) for name, epoch in (("one", 10), ("two", 20)))
    lives = TableVersions([first, second])
    assert table_in(lives, "ks.t", "") == (second, NamePeriod(20, None, True))
    assert table_in(lives, "ks.t", "one") == (first, NamePeriod(10, 20, False))
    for name, table_id in (("ks.t", "three"), ("ks.other", "")):
        with pytest.raises(UnknownTable):
            table_in(lives, name, table_id)


def test_a_pruned_table_is_found_in_an_older_snapshot() -> None:
    """A stream needs this if its first rows arrive long after the drop of its table."""
    cluster, made = with_an_altered_table()
    let_go(cluster)
    cluster.apply(DropTable("ks", "t"))
    dropped = cluster.state.epoch
    cluster.store("publisher")
    for is_last in (True, False):
        follower = following(cluster)
        with pytest.raises(UnknownTable):
            table_in(follower.table_versions, "ks.t", CREATED.id)
        table, life = found_in(follower, "ks.t", CREATED.id)
        follower.close()
        assert (table.id, life) == (CREATED.id, NamePeriod(made, dropped, is_last))
        if is_last:
            cluster.apply(replace(CREATED, id=uuid(9, space=4)))
            cluster.store("publisher")


@pytest.mark.parametrize(
    "options", [{"table": ""}, {"bootstrap": ""}, {"lost": "maybe"}, {"rowsMax": "0"}, {"rowsMax": "many"}]
)
def test_wrong_options_are_named(options: dict[str, str]) -> None:
    with pytest.raises(CdcError, match="bad_option"):
        settings_of({"bootstrap": "b", "cluster": "c", "table": "t"} | options)
