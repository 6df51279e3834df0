"""CQL types that have parts: collections, tuples, user types.

==============================  ===================================================================================
``list<T>`` ``set<T>``          a collection; also ``map<K, V>``
``udt<street text, zip int>``   a user type, by the names and types of its fields; the names of user types are resolved
``tuple<A, B>``                 a tuple, which is always frozen
``frozen<...>``                 of one of these
==============================  ===================================================================================

A collection or user type of a table is *multi-cell* unless it is frozen. Each element is then a separate cell with its
own timestamp and TTL, which can be added and deleted alone. The elements have *keys*: the element of a set, the key of
a map, a time UUID for each cell of a list, the number of a field from 0 on. A frozen value is a single value, and so is
a tuple. A type inside another type, and the type of a key column, is a scalar or frozen.

A collection is encoded as in the native protocol: the number of elements (4 bytes), then each element after its length
(4 bytes); for a map, key and value in turn. Its Python value is a tuple of the elements, for a map a tuple of pairs, in
the order of the encoding. A key must not occur twice. A tuple or a user type is its fields, each after its length, -1
for null. Names are written as in CQL; blanks that separate nothing do not count.

``log_type`` is the type of a multi-cell column in the CDC log, as in ScyllaDB: frozen, and a list as a map from time
UUID to value.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Final

from ringlog.kernel.values import Value, is_identifier

COLLECTIONS: Final = frozenset({"list", "set", "map"})
TUPLE, USER_TYPE, FROZEN = "tuple", "udt", "frozen"
PARTS: Final = {"list": 1, "set": 1, "map": 2, FROZEN: 1}
"""Name to number of parameters, if that is fixed."""

DEPTH_MAX: Final = 8
LENGTH_MAX: Final = 4_000
"""Bounds of a name, so that parsing a hostile one costs little."""

FIELD_KEY_BYTES: Final = 2

assert PARTS.keys() == {*COLLECTIONS, FROZEN}, "only tuples and user types have any number of parts"
assert LENGTH_MAX < 1 << 8 * FIELD_KEY_BYTES, "a type has fewer fields than there are keys of fields"

_TOKEN = re.compile(r"\s*([A-Za-z][A-Za-z0-9_]*|[<>,])\s*")


class TypeShape(Value):
    """A parsed type.

    ``parts``: the element type of a collection, its key and value types, or the types of the fields. ``fields``: the
    field names of a user type.
    """

    name: str
    parts: tuple[TypeShape, ...] = ()
    frozen: bool = False
    fields: tuple[str, ...] = ()

    @property
    def is_collection(self) -> bool:
        """Return True for list, set and map, frozen or not."""
        return self.name in COLLECTIONS

    @property
    def has_fields(self) -> bool:
        """Return True for a tuple or a user type, frozen or not."""
        return self.name in (TUPLE, USER_TYPE)

    @property
    def is_multi_cell(self) -> bool:
        """Return True if every element is a separate cell."""
        return bool(self.parts) and not self.frozen and self.name != TUPLE

    def __str__(self) -> str:
        parts = [str(part) for part in self.parts]
        if self.fields:
            parts = [f"{field} {part}" for field, part in zip(self.fields, parts, strict=True)]
        inner = f"{self.name}<{', '.join(parts)}>" if parts else self.name
        return f"frozen<{inner}>" if self.frozen else inner


@lru_cache(maxsize=4096)
def shape_of(type_name: str) -> TypeShape | None:
    """Return the shape of a type's name, or None if it is not a type. Scalar names are not checked here."""
    tokens = tokens_of(type_name)
    if tokens is None:
        return None
    found = _parse(tokens, 0)
    if found is None or found[1] != len(tokens):
        return None
    return found[0]


def tokens_of(text: str) -> tuple[str, ...] | None:
    """Return the words and signs of a type's name; None for a text that cannot be one."""
    found, at = [], 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None or len(text) > LENGTH_MAX:
            return None
        found.append(match[1])
        at = match.end()
    return tuple(found)


def _parse(tokens: tuple[str, ...], at: int, depth: int = 0) -> tuple[TypeShape, int] | None:
    """Return (shape, position after it), or None if the tokens are not a type."""
    name = tokens[at] if at < len(tokens) else ""
    if not (name.isalpha() and name.islower()) or depth > DEPTH_MAX:
        return None
    if name not in PARTS and name not in (TUPLE, USER_TYPE):
        return TypeShape(name), at + 1
    parts, fields, separator = [], [], "<"
    at += 1
    while at < len(tokens) and tokens[at] == separator:
        at, separator = at + 1, ","
        if name == USER_TYPE:
            if at >= len(tokens) or not is_identifier(tokens[at]):
                return None
            fields.append(tokens[at])
            at += 1
        found = _parse(tokens, at, depth + 1)
        if found is None or (name != FROZEN and found[0].is_multi_cell):
            return None
        parts.append(found[0])
        at = found[1]
    good = len(parts) == PARTS.get(name, len(parts)) and len(set(fields)) == len(fields)
    if not parts or not good or at >= len(tokens) or tokens[at] != ">":
        return None
    assert len(fields) == (len(parts) if name == USER_TYPE else 0), "each part of a user type has a name"
    if name != FROZEN:
        return TypeShape(name, tuple(parts), False, tuple(fields)), at + 1
    inner = parts[0]
    if inner.name == TUPLE:
        return inner, at + 1
    return (TypeShape(inner.name, inner.parts, True, inner.fields), at + 1) if inner.is_multi_cell else None


def scalars(shape: TypeShape) -> tuple[str, ...]:
    """Return the names of the scalar types within a shape."""
    return tuple(name for part in shape.parts for name in scalars(part)) if shape.parts else (shape.name,)


def log_type(type_name: str) -> str:
    """Return the type of a column in the CDC log: frozen, a list as a map from time UUID to value."""
    shape = shape_of(type_name)
    if shape is None or not shape.is_multi_cell:
        return type_name
    if shape.name == "list":
        return str(TypeShape("map", (TypeShape("timeuuid"), *shape.parts), True))
    return str(TypeShape(shape.name, shape.parts, True, shape.fields))


def key_type(type_name: str) -> str:
    """Return the type of the keys of a multi-cell column's elements; empty for any other type."""
    shape = shape_of(type_name)
    if shape is None or not shape.is_multi_cell:
        return ""
    return {"list": "timeuuid", USER_TYPE: "smallint"}.get(shape.name) or str(shape.parts[0])


# ------------------------------------------------------------------------------------------------------ bytes


def join_elements(elements: tuple[tuple[bytes, ...], ...]) -> bytes:
    """Return the bytes of a collection. Each element has one part; in a map it has two."""
    parts = [len(elements).to_bytes(4, "big")]
    for element in elements:
        for part in element:
            parts += (len(part).to_bytes(4, "big"), part)
    return b"".join(parts)


def split_elements(data: bytes, width: int) -> tuple[tuple[bytes, ...], ...]:
    """Return the elements of a collection, ``width`` parts each. Raise ValueError for other bytes."""
    assert 1 <= width <= 2, "an element is a value, or a key and a value"
    count, at = int.from_bytes(data[:4], "big", signed=True), 4
    # An element takes at least its lengths, so a count cannot promise more than the bytes can hold.
    if len(data) < 4 or not 0 <= count <= (len(data) - 4) // (4 * width):
        raise ValueError("the number of elements does not fit")
    elements = []
    for _ in range(count):
        element = []
        for _ in range(width):
            size = int.from_bytes(data[at : at + 4], "big", signed=True)
            at += 4
            if size < 0 or at + size > len(data):
                raise ValueError("an element goes beyond the end")
            element.append(data[at : at + size])
            at += size
        elements.append(tuple(element))
    if at != len(data):
        raise ValueError("there are bytes after the last element")
    if len({element[0] for element in elements}) < count and width == 2:
        raise ValueError("a key appears twice")
    return tuple(elements)


def join_fields(fields: tuple[bytes | None, ...]) -> bytes:
    """Return the bytes of a tuple or user type; None: null."""
    parts = [b"\xff\xff\xff\xff" if field is None else len(field).to_bytes(4, "big") + field for field in fields]
    return b"".join(parts)


def split_fields(data: bytes, width: int) -> tuple[bytes | None, ...]:
    """Return the fields of a value, at most ``width``. Raise ValueError for other bytes."""
    fields: list[bytes | None] = []
    at = 0
    while at < len(data) and len(fields) < width:
        size = int.from_bytes(data[at : at + 4], "big", signed=True)
        end = at + 4 + max(size, 0)
        if size < -1 or end > len(data):
            raise ValueError("a field goes beyond the end")
        fields.append(None if size < 0 else data[at + 4 : end])
        at = end
    if at != len(data):
        raise ValueError("there are bytes after the last field")
    return tuple(fields)


def _multi_cell(type_name: str) -> TypeShape:
    shape = shape_of(type_name)
    if shape is None or not shape.is_multi_cell:
        raise ValueError(f"{type_name} is not a multi-cell collection")
    return shape


def cells_of(type_name: str, data: bytes) -> tuple[tuple[bytes, bytes], ...]:
    """Return (key, value) of each element of a multi-cell column's value in the log.

    The values of a set are empty. Null fields are left out, because a value in the log does not set them. Raise
    ValueError for other bytes and for any other type.
    """
    shape = _multi_cell(type_name)
    if shape.name == "set":
        found = tuple((element, b"") for (element,) in split_elements(data, 1))
        if len(set(found)) < len(found):
            raise ValueError("an element appears twice")
        return found
    if shape.name == USER_TYPE:
        fields = enumerate(split_fields(data, len(shape.parts)))
        return tuple((_field_key(number), value) for number, value in fields if value is not None)
    return tuple((key, value) for key, value in split_elements(data, 2))


def _field_key(number: int) -> bytes:
    return number.to_bytes(FIELD_KEY_BYTES, "big")


def value_of(type_name: str, cells: Any) -> bytes:
    """Return the inverse of ``cells_of``."""
    shape = _multi_cell(type_name)
    if shape.name == USER_TYPE:
        known = dict(cells)
        return join_fields(tuple(known.get(_field_key(number)) for number in range(len(shape.parts))))
    return join_elements(tuple((key,) if shape.name == "set" else (key, value) for key, value in cells))
