"""A comparison of a row of the lake with its row of the CDC topic, by bytes and the lake's column types.

Each value of the topic's row must be in its column or, as bytes, in ``cdc$undecoded``. The row of the lake must have no
other values. The lake's column type determines how to read the bytes; no schema is used. A text may show a uuid, a
varint or a text, so each of these readings is accepted. This module shares no code with the writer of the lake.

======================================  =============================================================================
the topic's row                         the lake's row
======================================  =============================================================================
a cell                                  its column
a part of the key                       its column, if the schema has the table, and else a numbered column
``deleted`` names a column              ``cdc$deleted_<col>`` is true
elements deleted from a column          ``cdc$deleted_elements_<col>`` has their keys
======================================  =============================================================================
"""

from __future__ import annotations

import math
import struct
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

DELETED, ELEMENTS, UNDECODED = "cdc$deleted_", "cdc$deleted_elements_", "cdc$undecoded"
TIMESTAMP_MAX = 2**63 - 1
DATE_ZERO = 2**31
FLOATS = {4: ">f", 8: ">d"}
Keys = tuple[Sequence[str], Sequence[str]]
"""Names of the columns of the partition key and of the clustering key."""


def says_the_same(row: Mapping[str, Any], there: Mapping[str, Any], keys: Keys | None) -> bool:
    """Return True if both rows have the same values.

    ``row``: decoded row of the topic. ``there``: row of the lake, Arrow scalars by column. ``keys``: None if not known.
    """
    undecoded = {} if there.get(UNDECODED) is None else dict(there[UNDECODED].as_py() or ())
    named: set[str] = set()
    for name, data in _expected_cells(row, keys):
        named.add(name)
        scalar = there.get(name)
        value = None if scalar is None or not scalar.is_valid else scalar
        if name in undecoded:
            if value is not None or bytes(undecoded[name]) != _bytes(data):
                return False
        elif value is None or not _holds(value, data):
            return False
    own = {name for name, scalar in there.items() if scalar.is_valid and _is_of_table(name)} | set(undecoded)
    if keys is None:
        own = {name for name in own if name.startswith("cdc$")}  # some of the other columns are key columns
    return own <= named


def _expected_cells(row: Mapping[str, Any], keys: Keys | None) -> Iterator[tuple[str, Any]]:
    """Yield the values of a row of the topic by the lake's column: bytes, True, or a list of keys."""
    if keys is not None:
        for names, prefix, parts in (
            (keys[0], "partition", row["partition_key"]),
            (keys[1], "clustering", row["clustering_key"]),
        ):
            for place, part in enumerate(parts):
                if part is not None:
                    yield names[place] if place < len(names) else f"{prefix}_{place}", part
    found = {cell["column"]: cell["value"] for cell in row["cells"] if cell["value"] is not None}
    yield from found.items()
    for column in row["deleted"]:
        yield DELETED + column, True
    for taken in row["deleted_elements"]:
        yield ELEMENTS + taken["column"], list(taken["keys"])


def _is_of_table(name: str) -> bool:
    return not name.startswith("cdc$") or name.startswith(DELETED)


def _bytes(data: Any) -> bytes:
    if data is True:
        return b"\1"
    return b",".join(key.hex().encode() for key in data) if isinstance(data, list) else bytes(data)


def _holds(value: Any, data: Any) -> bool:
    if data is True:
        return bool(value.as_py())
    if isinstance(data, list):
        return len(value) == len(data) and all(map(is_value, value, data))
    return is_value(value, data)


def is_value(value: Any, data: bytes) -> bool:
    """Return True if an Arrow scalar of the lake has the value of these bytes."""
    try:
        return _is_value(value, data)
    except (ValueError, struct.error, IndexError, OverflowError):
        return False


def _is_value(value: Any, data: bytes) -> bool:
    kind = str(value.type)
    if kind.startswith("timestamp"):
        micros = int.from_bytes(data, "big", signed=True) * 1_000
        return len(data) == 8 and bool(value.value == max(-TIMESTAMP_MAX, min(TIMESTAMP_MAX, micros)))
    if kind.startswith("date32"):
        return len(data) == 4 and bool(value.value == int.from_bytes(data, "big") - DATE_ZERO)
    if kind.startswith(("map", "list", "struct")):
        return _has_parts(kind, value, data)
    own = value.as_py()
    if isinstance(own, bool):
        return data == bytes([own])
    if isinstance(own, int):
        return own == int.from_bytes(data, "big", signed=True) and len(data) * 8 == value.type.bit_width
    if isinstance(own, float):
        (found,) = struct.unpack(FLOATS[len(data)], data)
        return bool(found == own) or (math.isnan(found) and math.isnan(own))
    if isinstance(own, bytes):
        return own == data
    return own in _texts(data)


def _texts(data: bytes) -> Iterator[str]:
    """Yield the texts that the bytes may represent."""
    if len(data) == 16:
        yield str(uuid.UUID(bytes=data))
    yield str(int.from_bytes(data, "big", signed=True))
    yield data.decode()


def _has_parts(kind: str, value: Any, data: bytes) -> bool:
    if kind.startswith("struct"):
        fields = list(_fields(data))
        own = [value[number] for number in range(len(value.type))]
        fields += [None] * (len(own) - len(fields))
        return len(fields) == len(own) and all(
            not element.is_valid if field is None else element.is_valid and is_value(element, field)
            for element, field in zip(own, fields, strict=True)
        )
    elements = list(_fields(data[4:]))
    own = (
        [part for pair in value.values for part in (pair["key"], pair["value"])] if kind.startswith("map") else [*value]
    )
    count = int.from_bytes(data[:4], "big")
    return (
        len(data) >= 4
        and len(elements) == len(own) == count * (1 + kind.startswith("map"))
        and all(field is not None and is_value(element, field) for element, field in zip(own, elements, strict=True))
    )


def _fields(data: bytes) -> Iterator[bytes | None]:
    """Yield length-prefixed parts. Raise ValueError if a part goes beyond the end."""
    at = 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big", signed=True)
        end = at + 4 + max(size, 0)
        if size < -1 or end > len(data):
            raise ValueError("a part ends after the end of the value")
        yield None if size < 0 else data[at + 4 : end]
        at = end
