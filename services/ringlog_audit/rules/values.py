"""Serialized values: whether they are of a CQL type, and the elements of collections.

Derived directly from the documentation, without ``ringlog.kernel.cql``.
"""

from __future__ import annotations

from functools import lru_cache

SIZES = {"boolean": 1, "tinyint": 1, "smallint": 2, "int": 4, "float": 4, "date": 4, "uuid": 16, "timeuuid": 16}
SIZES |= dict.fromkeys(("bigint", "double", "timestamp", "time"), 8)
DAY_NS = 86_400 * 10**9
NULL = -1
"""Length of a null field."""


def is_of_type(kind: str, value: bytes) -> bool:
    """Return True if the bytes are a value of a type, as in a log row: a list of separate cells is a map."""
    name, parts = _parsed(kind)
    if parts:
        try:
            return _is_made_of(name, parts, value)
        except ValueError:
            return False
    number = int.from_bytes(value, "big", signed=True)
    if kind in SIZES:
        rules = {
            "boolean": number in (0, 1),
            "time": 0 <= number < DAY_NS,
            "timeuuid": len(value) == 16 and value[6] >> 4 == 1,
        }
        return len(value) == SIZES[kind] and rules.get(kind, True)
    if kind == "varint":
        fits = (size for size in range(1, len(value) + 1) if -(2 ** (8 * size - 1)) <= number < 2 ** (8 * size - 1))
        return 0 < len(value) <= 1024 and next(fits) == len(value)
    try:
        if kind in ("text", "ascii"):
            value.decode("utf-8" if kind == "text" else "ascii")
    except UnicodeDecodeError:
        return False
    return True


def logged_type(kind: str) -> str:
    """Return the type of a column in log rows."""
    name, parts = _parsed(kind)
    return f"map<timeuuid, {parts[0]}>" if name == "list" else kind


def element_type(kind: str) -> str:
    """Return the type of the keys of a collection's elements."""
    name, parts = _parsed(kind)
    return {"list": "timeuuid", "udt": "smallint"}.get(name, parts[0])


def elements(kind: str, value: bytes) -> dict[bytes, bytes]:
    """Return key to value of a collection's elements. Raise ValueError for invalid bytes."""
    name, types = _parsed(kind)
    if name == "udt":
        fields = _pieces(value, NULL)
        if len(fields) > len(types):
            raise ValueError("the value has more fields than its type")
        return {number.to_bytes(2, "big"): field for number, field in enumerate(fields) if field is not None}
    parts = [part for part in _pieces(value[4:]) if part is not None]
    width = 1 if name == "set" else 2
    found = dict.fromkeys(parts, b"") if width == 1 else dict(zip(parts[::2], parts[1::2], strict=False))
    if len(value) < 4 or len(found) != _count(value) or len(parts) != len(found) * width:
        raise ValueError("the number of elements differs")
    return found


def _is_made_of(name: str, parts: tuple[str, ...], value: bytes) -> bool:
    """Return True if the bytes are a value of a type with parts. Raise ValueError for invalid bytes."""
    if name == "frozen":
        return is_of_type(parts[0], value)
    if name in ("tuple", "udt"):
        fields = _pieces(value, NULL)
        kinds = parts if name == "tuple" else tuple(part.split(None, 1)[1] for part in parts)
        given = zip(kinds, fields, strict=False)
        fits = len(fields) == len(kinds) or (name == "udt" and len(fields) < len(kinds))
        return fits and all(field is None or is_of_type(kind, field) for kind, field in given)
    pieces = [piece for piece in _pieces(value[4:]) if piece is not None]
    keys = pieces[:: len(parts)]
    is_unique = name == "list" or len({*keys}) == len(keys)
    is_whole = len(value) >= 4 and len(pieces) == _count(value) * len(parts)
    typed = (is_of_type(parts[number % len(parts)], piece) for number, piece in enumerate(pieces))
    return is_unique and is_whole and all(typed)


def _count(value: bytes) -> int:
    return int.from_bytes(value[:4], "big", signed=True)


def _pieces(value: bytes, least: int = 0) -> list[bytes | None]:
    """Return the parts of a value, each after its length of at least ``least``. Raise ValueError for invalid bytes."""
    found: list[bytes | None] = []
    at = 0
    while at < len(value):
        size = int.from_bytes(value[at : at + 4], "big", signed=True)
        at += 4
        if at > len(value) or not least <= size <= len(value) - at:
            raise ValueError("a part is cut off")
        found.append(value[at : at + size] if size >= 0 else None)
        at += max(size, 0)
    return found


@lru_cache(maxsize=4_096)
def _parsed(kind: str) -> tuple[str, tuple[str, ...]]:
    """Return the name of a type and its parts; a scalar has none."""
    name, _, inside = kind.strip().partition("<")
    parts, depth = [""], 0
    for letter in inside.strip()[:-1]:
        depth += {"<": 1, ">": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return name.strip(), tuple(part.strip() for part in parts if part.strip())
