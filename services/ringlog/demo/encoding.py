"""Flights as Avro, put together from pieces that repeat: the bytes that ``ringlog.wire`` makes, in a tenth of the time.

A client that writes hundreds of thousands of similar rows may do this: an Avro record is the encodings of its fields
one after the other, so what is the same in many rows needs to be encoded once. ``mutation_of`` is the value that the
bytes stand for; the tests compare the two.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Protocol

from ringlog.wire.records import INSERT, MUTATION, Cell, Mutation
from ringlog.wire.single_object import header
from ringlog_schemas import current

_NULL, _SOME, _END = b"\0", b"\2", b"\0"
_ONE_STATEMENT = _END + _END + _NULL + _END + _NULL + _NULL + _NULL
"""No elements deleted, no collection replaced, no bounds, nothing more; epoch, table id and version not said."""


class HasCell(Protocol):
    """A cell with its bytes."""

    @property
    def cell(self) -> Cell: ...
    @property
    def encoded(self) -> bytes: ...


class FlightRow(Protocol):
    """What ``ringlog.demo.flights.Flight`` has."""

    @property
    def partition_key(self) -> bytes | None: ...
    @property
    def clustering_key(self) -> tuple[bytes, bytes]: ...
    @property
    def fields(self) -> Iterable[HasCell]: ...


def mutation_of(
    row: FlightRow, keyspace: str, table: str, cluster_id: str, mutation_id: str, timestamp_us: int
) -> Mutation:
    """A flight as an INSERT of the whole row."""
    return Mutation(
        mutation_id=mutation_id,
        cluster_id=cluster_id,
        keyspace=keyspace,
        table=table,
        timestamp=timestamp_us,
        ttl=None,
        operation=INSERT,
        partition_key=(row.partition_key,),
        clustering_key=row.clustering_key,
        cells=tuple(field.cell for field in row.fields),
    )


class Encoder:
    """Encodes flights for one table of one cluster."""

    def __init__(self, keyspace: str, table: str, cluster_id: str) -> None:
        schema = current()[MUTATION]
        operations = next(f["type"]["symbols"] for f in schema.json["fields"] if f["name"] == "operation")
        self._before = header(schema.fingerprint) + _SOME
        self._between = _SOME + uuid.UUID(cluster_id).bytes + _sized(keyspace.encode()) + _sized(table.encode())
        self._after = _NULL + _long(operations.index(INSERT))

    def encode(self, row: FlightRow, mutation_id: bytes, timestamp_us: int) -> bytes:
        """The bytes of ``mutation_of``; ``mutation_id``: 16 bytes."""
        cells = [field.encoded for field in row.fields]
        first, second = row.clustering_key
        return b"".join(
            (
                self._before,
                mutation_id,
                self._between,
                _long(timestamp_us),
                self._after,
                _long(1),
                _optional(row.partition_key),
                _END,
                _long(2),
                _optional(first),
                _optional(second),
                _END,
                _long(len(cells)),
                *cells,
                _END,
                _ONE_STATEMENT,
            )
        )


def encoded_cell(cell: Cell) -> bytes:
    """A ``ringlog.Cell``."""
    return _sized(cell.column.encode()) + _optional(cell.value)


def _optional(value: bytes | None) -> bytes:
    return _NULL if value is None else _SOME + _sized(value)


def _sized(value: bytes) -> bytes:
    return _long(len(value)) + value


def _long(number: int) -> bytes:
    """Zigzag, seven bits a byte."""
    left = (number << 1) ^ (number >> 63)
    if left < 0x80:
        return bytes((left,))
    out = bytearray()
    while left >= 0x80:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    out.append(left)
    return bytes(out)
