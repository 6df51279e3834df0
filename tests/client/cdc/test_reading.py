"""The reading protocol delivers every write once and in order over repeats, interleavings and restarts."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import pytest

from ringlog.client.cdc.errors import BadProgress, BadStart, GenerationExpired, ProgressInUse
from ringlog.client.cdc.generations import GenerationRecord, Generations
from ringlog.client.cdc.progress import RECENT_MAX, ConsumerProgress, begin_at
from ringlog.client.cdc.reader import start_of
from ringlog.client.cdc.reading import CdcReading, HiddenRows, RowVerdict
from ringlog.client.cdc.stores import FileProgress
from ringlog.wire.records import CdcRow
from tests.client.cdc.model import CDC_PARTITIONS, GENERATION_US, Topic, Write, open_generations, random_topic, row_of

START = begin_at(dict.fromkeys(range(CDC_PARTITIONS), 0))
SEEDS = range(250)


class Consumer:
    """A consumer with random input that loses uncommitted progress at a restart."""

    def __init__(self, topic: Topic, chance: Random, generations: int, tables: frozenset[str] | None = None) -> None:
        self.topic, self.chance, self.tables = topic, chance, tables
        self.known = open_generations(generations)
        self.closes = list(topic.closes)
        self.reading: CdcReading[CdcRow] = CdcReading(START, tables)
        self.stored = START.to_json()
        self.committed: list[tuple[CdcRow, ...]] = []
        self.fresh: list[tuple[CdcRow, ...]] = []
        self.counts: Counter[RowVerdict] = Counter()

    def step(self) -> bool:
        """Perform one step; return False if no step is left."""
        draw = self.chance.random()
        if draw < 0.05:
            self.restart()
        elif draw < 0.15:
            self.commit()
        elif draw < 0.25 and self.closes:
            closed = self.closes.pop(0)
            self.known = Generations([item for item in self.known.all() if item.id != closed.id] + [closed])
        moved = False
        while self.reading.move_on(self.known):
            moved = True
        positions = self.reading.positions()
        left = {
            partition: [item for item in self.topic.records[partition] if item[0] >= position]
            for partition, position in positions.items()
        }
        ready = [partition for partition, items in left.items() if items]
        if not ready:
            return bool(self.closes) or moved
        partition = self.chance.choice(ready)
        for offset, row in left[partition][: self.chance.randint(1, 6)]:
            self.reading.passed(partition, offset)
            verdict, rows = self.reading.take(partition, offset, row)
            self.counts[verdict] += 1
            if verdict is RowVerdict.DELIVERED:
                self.fresh.append(rows)
        return True

    def commit(self) -> None:
        self.stored = self.reading.progress().to_json()
        self.committed += self.fresh
        self.fresh = []

    def restart(self) -> None:
        self.fresh = []
        self.reading = CdcReading(ConsumerProgress.from_json(self.stored), self.tables)


def write_of(rows: tuple[CdcRow, ...]) -> Write:
    """Return the write of the rows, which must be complete and in order."""
    first = rows[0]
    assert [row.batch_seq_no for row in rows] == list(range(len(rows)))
    assert {(row.time, row.source_offset) for row in rows} == {(first.time, first.source_offset)}
    return Write(int(first.clustering_key[0] or b""), int(first.partition_key[0]), first.timestamp, len(rows))


def consumed(seed: int, tables: frozenset[str] | None = None) -> Consumer:
    chance = Random(seed)
    consumer = Consumer(random_topic(chance), chance, 3, tables)
    while consumer.step():
        pass
    consumer.commit()
    return consumer


def test_every_write_is_delivered_once_and_in_order() -> None:
    counts: Counter[RowVerdict] = Counter()
    for seed in SEEDS:
        consumer = consumed(seed)
        got = [write_of(rows) for rows in consumer.committed]
        assert sorted(write.number for write in got) == [write.number for write in consumer.topic.writes], seed
        for key in range(6):
            generations = [write.timestamp // GENERATION_US for write in got if write.key == key]
            assert generations == sorted(generations), (seed, key)
            for generation in set(generations):
                numbers = [w.number for w in got if (w.key, w.timestamp // GENERATION_US) == (key, generation)]
                assert numbers == sorted(numbers), (seed, key)
        counts += consumer.counts
    # The model reaches every case that the protocol handles.
    assert all(counts[verdict] for verdict in RowVerdict if verdict not in (RowVerdict.FILTERED, RowVerdict.BEYOND)), (
        counts
    )


def test_a_filter_does_not_change_other_tables() -> None:
    for seed in range(60):
        everything = [write_of(rows) for rows in consumed(seed).committed]
        some = consumed(seed, frozenset({"ks.other"}))
        assert sorted(write_of(rows).number for rows in some.committed) == sorted(
            write.number for write in everything if write.key % 4 == 0
        ), seed


def test_a_start_point_skips_earlier_writes_and_generations() -> None:
    topic = random_topic(Random(5))
    start = GENERATION_US + 30
    consumer = Consumer(topic, Random(5), 3)
    consumer.stored = begin_at(dict.fromkeys(range(CDC_PARTITIONS), 0), start).to_json()
    consumer.restart()
    while consumer.step():
        pass
    consumer.commit()
    wanted = [write.number for write in topic.writes if write.timestamp >= start]
    assert sorted(write_of(rows).number for rows in consumer.committed) == wanted
    assert wanted
    assert len(wanted) < len(topic.writes)


def feed(reading: CdcReading[CdcRow], items: list[tuple[int, CdcRow]]) -> list[RowVerdict]:
    return [reading.take(0, offset, row)[0] for offset, row in items]


def entered(ends: tuple[tuple[int, int], ...] | None = None) -> tuple[CdcReading[CdcRow], Generations]:
    """Return one partition in generation 0, which is closed at ``ends``."""
    reading: CdcReading[CdcRow] = CdcReading(begin_at({0: 0}))
    generations = Generations([GenerationRecord("a", 0, ends, False), GenerationRecord("b", 100, None, False)])
    assert reading.move_on(open_generations(1))
    return reading, generations


def test_a_generation_ends_at_its_close_and_later_copies_are_dropped() -> None:
    reading, generations = entered(((0, 2),))
    first, later = row_of(Write(1, 1, 10, 1), (0, 0), 0), row_of(Write(2, 1, 110, 1), (0, 1), 0)
    assert feed(reading, [(0, first), (1, later)]) == [RowVerdict.DELIVERED, RowVerdict.AHEAD]
    assert reading.move_on(generations)
    assert (reading.generation, dict(reading.positions())) == (100, {0: 1})
    assert feed(reading, [(1, later), (2, first)]) == [RowVerdict.DELIVERED, RowVerdict.REPEATED]


def test_rows_fetched_behind_a_close_belong_to_the_next_generation() -> None:
    _, generations = entered(((0, 1),))
    first, later = row_of(Write(1, 1, 10, 1), (0, 0), 0), row_of(Write(2, 1, 110, 1), (0, 1), 0)
    two: CdcReading[CdcRow] = CdcReading(begin_at({0: 0, 1: 0}))
    two.move_on(open_generations(1))
    assert feed(two, [(0, first)]) == [RowVerdict.DELIVERED]
    closed = Generations([GenerationRecord("a", 0, ((0, 1), (1, 4)), False), generations.all()[1]])
    assert not two.move_on(closed)
    assert not two.wants(0)
    assert feed(two, [(3, later), (5, later)]) == [RowVerdict.BEYOND, RowVerdict.BEYOND]
    two.passed(1, 4)
    assert two.move_on(closed)
    assert dict(two.positions()) == {0: 3, 1: 4}


def test_a_write_without_its_last_row_at_the_close_is_not_delivered() -> None:
    reading, generations = entered(((0, 1),))
    assert feed(reading, [(0, row_of(Write(1, 1, 10, 2), (0, 0), 0))]) == [RowVerdict.HELD]
    assert reading.move_on(generations)
    assert feed(reading, [(1, row_of(Write(2, 1, 110, 1), (0, 1), 0))]) == [RowVerdict.DELIVERED]
    assert dict(reading.progress().partitions)[0].position == 2, "rows of the earlier generation are not read again"


def test_a_generation_without_a_record_is_an_error_or_skipped() -> None:
    reading, _ = entered()
    known = Generations([GenerationRecord("b", 100, None, False)])
    with pytest.raises(GenerationExpired):
        reading.move_on(known)
    assert reading.move_on(known, skip_expired=True)
    assert reading.generation == 100


def test_a_consumer_reads_its_expired_generation_to_the_end() -> None:
    reading, _ = entered()
    known = Generations(
        [
            GenerationRecord("a", 0, ((0, 1),), True),
            GenerationRecord("b", 100, ((0, 1),), True),
            GenerationRecord("c", 200, None, False),
        ]
    )
    assert not reading.move_on(known)
    assert feed(reading, [(0, row_of(Write(1, 1, 10, 1), (0, 0), 0))]) == [RowVerdict.DELIVERED]
    assert [reading.move_on(known) for _ in range(3)] == [True, True, False]
    assert reading.generation == 200


def test_the_earliest_generation_is_the_first_that_has_not_expired() -> None:
    known = Generations([GenerationRecord("a", 0, ((0, 9),), True), GenerationRecord("b", 100, None, False)])
    reading: CdcReading[CdcRow] = CdcReading(begin_at({0: 0}))
    assert reading.move_on(known)
    assert reading.generation == 100
    early: CdcReading[CdcRow] = CdcReading(begin_at({0: 0}, start=50))
    with pytest.raises(GenerationExpired):
        early.move_on(known)


def test_progress_is_bounded_for_any_number_of_writes() -> None:
    reading, _ = entered()
    for number in range(3 * RECENT_MAX):
        reading.take(0, number, row_of(Write(number, 1, 10, 1), (0, number), 0))
    assert len(reading.progress().to_json()) < 16 * RECENT_MAX
    repeated = row_of(Write(0, 1, 10, 1), (0, 0), 0)
    assert feed(reading, [(3 * RECENT_MAX, repeated)]) == [RowVerdict.REPEATED]


@pytest.mark.parametrize(
    "text", ["", "{}", '{"form":2}', "[]", "null", START.to_json().replace('"read":0', '"read":-1'), "\xff"]
)
def test_invalid_progress_is_rejected(text: str) -> None:
    with pytest.raises(BadProgress):
        ConsumerProgress.from_json(text)


def test_a_stopped_consumer_reports_undelivered_generations() -> None:
    reading, generations = entered()
    assert reading.hidden_rows({0: 0}) is None
    begun = row_of(Write(1, 1, 10, 2), (0, 0), 0)
    later = [row_of(Write(number, 1, 110, 1), (0, number), 0) for number in (2, 3)]
    ended = row_of(Write(1, 1, 10, 2), (0, 0), 1)
    feed(reading, [(0, begun), (1, later[0]), (2, later[1])])
    assert reading.hidden_rows({0: 3}) == HiddenRows(0, False, ((0, 1),), 2, 1)
    feed(reading, [(3, ended)])
    assert reading.hidden_rows({0: 4}) == HiddenRows(0, False, ((0, 1),), 3, 0)
    resumed: CdcReading[CdcRow] = CdcReading(ConsumerProgress.from_json(reading.progress().to_json()))
    assert resumed.hidden_rows({0: 4}) == reading.hidden_rows({0: 4}), (
        "a consumer that continues from a stored position reports it too"
    )
    assert not reading.move_on(generations)
    closed = GenerationRecord("a", 0, ((0, 4),), False)
    assert not reading.move_on(Generations([closed]))
    assert reading.hidden_rows({0: 4}) == HiddenRows(0, True, ((0, 1),), 3, 0), "the next generation is unknown"
    assert reading.move_on(Generations([*generations.all(), closed]))
    feed(reading, [(1, later[0]), (2, later[1]), (3, ended)])
    assert reading.hidden_rows({0: 4}) is None


def test_without_a_known_generation_all_rows_are_skipped() -> None:
    reading: CdcReading[CdcRow] = CdcReading(begin_at({0: 5}))
    feed(reading, [(5, row_of(Write(1, 1, 10, 1), (0, 0), 0))])
    assert reading.hidden_rows({0: 6}) == HiddenRows(-1, False, ((0, 5),), 1, 0)


# Start points, and the file that stores a position.


AT = 1_700_000_000_123_456


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("earliest", "earliest"),
        ("now", "now"),
        (str(AT), AT),
        (AT, AT),
        ("2023-11-14T22:13:20.123456Z", AT),
        ("2023-11-14T23:13:20.123456+01:00", AT),
        (datetime(2023, 11, 14, 22, 13, 20, 123_456, UTC), AT),
    ],
)
def test_a_start_point(given: Any, wanted: object) -> None:
    assert start_of(given) == wanted


@pytest.mark.parametrize("given", ["yesterday", "", "-5", -5, True, "2023-11-14T22:13:20", datetime(2023, 11, 14)])  # noqa: DTZ001
def test_not_a_start_point(given: Any) -> None:
    with pytest.raises(BadStart):
        start_of(given)


def test_a_position_file_has_one_owner_and_the_last_text(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "place"
    first = FileProgress(path)
    assert first.load() is None
    first.save("one")
    first.save("two")
    with pytest.raises(ProgressInUse, match="place"):
        FileProgress(path)
    first.close()
    second = FileProgress(path)
    assert second.load() == "two"
    second.close()
    assert sorted(item.name for item in path.parent.iterdir()) == ["place", "place.lock"]
