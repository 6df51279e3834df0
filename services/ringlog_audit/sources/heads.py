"""A reader of the first fields of an Avro record. The audit reads every row, and most bytes are in the cells.

The fields after the head (clustering key and cells) are compared as bytes. If the bytes differ, or a schema has another
layout than the current one, the records are decoded completely. So this optimization never changes a result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Reader = Callable[[bytes, int], tuple[Any, int]]
"""A function from a position to (value, position after it). It raises IndexError or ValueError."""

_COMPOUND = ("clustering_key", "cells", "deleted_elements", "replaced", "bounds", "more")
MUTATION_TAILS = (
    (*_COMPOUND, "epoch", "table_id", "table_version"),
    _COMPOUND,
    ("clustering_key", "cells"),
)
CDC_TAILS = (
    ("clustering_key", "cells", "deleted", "deleted_elements", "epoch"),
    ("clustering_key", "cells", "deleted", "deleted_elements"),
    ("clustering_key", "cells", "deleted"),
)
"""The fields from the clustering key on, in the current schema and in earlier ones."""

EPOCH = "epoch"
"""The last field of a log row, a number. A write does not have it."""

SHARED = 2
"""The number of fields at the start of each tail that a mutation and its row share."""


class RecordHead:
    """A reader of the fields of ``schema`` before its tail. ``schema`` is a parsed record, its tail one of ``tails``.

    ``usable`` is False for a schema with another tail or with an unsupported type in its head. ``rest``: the bytes of
    empty fields after the shared ones, one zero per field, without the epoch. ``has_epoch``: the tail ends with the
    epoch.
    """

    def __init__(self, schema: dict[str, Any], tails: tuple[tuple[str, ...], ...], wanted: tuple[str, ...]) -> None:
        fields = schema["fields"]
        names = [field["name"] for field in fields]
        tail = next((tail for tail in tails if tuple(names[-len(tail) :]) == tail), ())
        self.usable = bool(tail)
        self.has_epoch = tail[-1:] == (EPOCH,)
        self.rest = bytes(max(len(tail) - SHARED - self.has_epoch, 0))
        self._readers: list[Reader] = []
        self._wanted: tuple[int, ...] = ()
        readers: dict[str, Any] = {}
        try:
            self._readers = [_reader(field["type"], readers) for field in fields[: len(fields) - len(tail)]]
            self._wanted = tuple(names.index(name) for name in wanted)
        except (KeyError, ValueError):
            self.usable = False

    def read(self, value: bytes, at: int) -> tuple[tuple[Any, ...], int]:
        """Return (the wanted fields, position of the tail)."""
        found = []
        for reader in self._readers:
            item, at = reader(value, at)
            found.append(item)
        return tuple([found[index] for index in self._wanted]), at


def before_last_number(value: bytes) -> bytes:
    """Return the bytes before a variable-length number at the end of ``value``. A byte below 0x80 must precede the
    number.
    """
    at = len(value) - 1
    while at > 0 and value[at - 1] >= 0x80:
        at -= 1
    return value[: max(at, 0)]


def long_at(value: bytes, at: int) -> tuple[int, int]:
    """Return the zigzag number at a position and the position after it."""
    number = shift = 0
    while True:
        byte = value[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), at
        shift += 7
        if shift > 63:
            raise ValueError("an integer of more than 64 bits")


def bytes_at(value: bytes, at: int) -> tuple[bytes, int]:
    """Return the length-prefixed bytes at a position and the position after them."""
    size, at = long_at(value, at)
    if not 0 <= size <= len(value) - at:
        raise ValueError("a length ends after the end of the record")
    return value[at : at + size], at + size


def _array(item: Reader) -> Reader:
    """Return a reader of an array of one block. It raises ValueError for an array of several blocks."""

    def read(value: bytes, at: int) -> tuple[list[Any], int]:
        found = []
        count, at = long_at(value, at)
        if count < 0:
            raise ValueError("an array block has a byte size")
        for _ in range(count):
            part, at = item(value, at)
            found.append(part)
        if count and value[at] != 0:
            raise ValueError("an array has several blocks")
        return found, at + 1 if count else at

    return read


def _boolean(value: bytes, at: int) -> tuple[bool, int]:
    return value[at] != 0, at + 1


def _string(value: bytes, at: int) -> tuple[str, int]:
    found, at = bytes_at(value, at)
    return found.decode(), at


def _fixed(size: int) -> Reader:
    def read(value: bytes, at: int) -> tuple[bytes, int]:
        if at + size > len(value):
            raise ValueError("the record ends early")
        return value[at : at + size], at + size

    return read


def _optional(inner: Reader) -> Reader:
    def read(value: bytes, at: int) -> tuple[Any, int]:
        branch = value[at]
        if branch == 0:
            return None, at + 1
        if branch != 2:
            raise ValueError("unknown union branch")
        return inner(value, at + 1)

    return read


def _enum(symbols: list[str]) -> Reader:
    def read(value: bytes, at: int) -> tuple[str, int]:
        index, at = long_at(value, at)
        return symbols[index], at

    return read


def _reader(schema: Any, readers: dict[str, Any]) -> Reader:
    """Return the reader of a type. Raise KeyError for a type that heads do not support."""
    if isinstance(schema, list):
        if len(schema) != 2 or schema[0] != "null":
            raise KeyError("union")
        return _optional(_reader(schema[1], readers))
    if isinstance(schema, str):
        simple: dict[str, Reader] = {
            "long": long_at,
            "int": long_at,
            "bytes": bytes_at,
            "string": _string,
            "boolean": _boolean,
        }
        return simple[schema] if schema in simple else _reader(readers[schema], readers)
    readers[schema.get("name", "")] = schema
    if schema["type"] == "fixed":
        return _fixed(schema["size"])
    if schema["type"] == "array":
        return _array(_reader(schema["items"], readers))
    if schema["type"] == "enum":
        return _enum(schema["symbols"])
    raise KeyError(schema["type"])


components_at: Reader = _array(_optional(bytes_at))
"""Reader of an array of nullable bytes."""


def _cell(value: bytes, at: int) -> tuple[dict[str, Any], int]:
    name, at = _string(value, at)
    content, at = _optional(bytes_at)(value, at)
    return {"column": name, "value": content}, at


cells_at: Reader = _array(_cell)
"""Reader of an array of cells."""
