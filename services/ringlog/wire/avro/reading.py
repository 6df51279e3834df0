"""Decoding of canonical Avro bodies directly to values, without a dictionary.

In a canonical body, every number is within its range and has the minimum number of bytes. An array is one block without
a size in bytes. A boolean is 0 or 1. This is exactly the output of ``writing``.

A reader only handles the canonical encoding. It raises an exception without details for all other bytes. The schema
(``binary``) then decodes another encoding, or describes the error.

Invariants: every step moves forward. Slices may be short, so the caller compares the final position with the length to
detect truncated bytes. Numbers are checked before they are used as counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

Read = Callable[[bytes, int], tuple[Any, int]]
"""Read the value at a position. Return the value and the position after it.

Raises IndexError or ValueError if the bytes are not canonical.
"""


_SHIFTS = range(7, 64, 7)


def number_at(body: bytes, at: int) -> tuple[int, int]:
    """Return a zigzag-decoded number and the position after it. Raises as ``Read``."""
    byte = body[at]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at + 1
    number = byte & 0x7F
    for shift in _SHIFTS:
        at += 1
        byte = body[at]
        if byte < 0x80:
            break
        number |= (byte & 0x7F) << shift
    number |= byte << shift
    if byte == 0 or number >= 2**64:
        raise ValueError("not minimal, or more than 64 bits")
    return (number >> 1) ^ -(number & 1), at + 1


def whole(read: Read, body: bytes) -> Any | None:
    """Return the value of exactly these bytes, or None if they are not canonical."""
    try:
        value, at = read(body, 0)
    except (IndexError, ValueError):
        return None
    return value if at == len(body) else None


def size_at(body: bytes, at: int) -> tuple[int, int]:
    """Return a length and the position after it."""
    size = body[at]
    # One byte below 0x80 with the lowest bit clear is a length from 0 to 63 in zigzag encoding.
    if size < 0x80 and not size & 1:
        return size >> 1, at + 1
    size, at = number_at(body, at)
    if size < 0:
        raise ValueError("a negative length")
    return size, at


def sized_at(body: bytes, at: int) -> tuple[bytes, int]:
    """Return bytes with a length prefix, and the position after them."""
    size, at = size_at(body, at)
    return body[at : at + size], at + size


def text_at(body: bytes, at: int) -> tuple[str, int]:
    """Return text with a length prefix, and the position after it."""
    size, at = size_at(body, at)
    return body[at : at + size].decode("utf-8"), at + size


def _int_at(body: bytes, at: int) -> tuple[int, int]:
    number, at = number_at(body, at)
    if not -(2**31) <= number < 2**31:
        raise ValueError("more than 32 bits")
    return number, at


def _boolean_at(body: bytes, at: int) -> tuple[bool, int]:
    return (False, True)[body[at]], at + 1


SCALARS: Mapping[str, Read] = {
    "boolean": _boolean_at,
    "int": _int_at,
    "long": number_at,
    "bytes": sized_at,
    "string": text_at,
}


_EMPTY: Final[dict[Read, str]] = {}
"""Readers of values that are empty if their byte is zero, with the source text of the empty value.

Most fields of a command are empty, so generated code tests for zero before it calls a reader.
"""
_FIXED: Final[dict[Read, tuple[int, Callable[[bytes], Any]]]] = {}
"""Readers of fixed-size values, with size and conversion, for generated code."""


def fixed(size: int, made: Callable[[bytes], Any]) -> Read:
    """Return a reader of a fixed number of bytes, converted by ``made``."""

    def read(body: bytes, at: int) -> tuple[Any, int]:
        return made(body[at : at + size]), at + size

    _FIXED[read] = size, made
    return read


def choice(symbols: Sequence[str]) -> Read:
    """Return a reader of an enum symbol."""

    def read(body: bytes, at: int) -> tuple[str, int]:
        index, at = number_at(body, at)
        if index < 0:
            raise ValueError("no such symbol")
        return symbols[index], at

    return read


def optional(read: Read) -> Read:
    """Return a reader of a union with null."""

    def either(body: bytes, at: int) -> tuple[Any, int]:
        branch = body[at]
        if branch == 0:
            return None, at + 1
        if branch != 2:
            raise ValueError("no such branch")
        return read(body, at + 1)

    _EMPTY[either] = "None"
    return either


def array(read: Read) -> Read:
    """Return a reader of a tuple: one block, and the zero that ends it."""

    def items(body: bytes, at: int) -> tuple[tuple[Any, ...], int]:
        count, at = number_at(body, at)
        if count == 0:
            return (), at
        if not 0 < count <= len(body) - at:
            raise ValueError("a block with its size in bytes, or more items than bytes")
        found = []
        for _ in range(count):
            item, at = read(body, at)
            found.append(item)
        if body[at] != 0:
            raise ValueError("more than one block")
        return tuple(found), at + 1

    _EMPTY[items] = "()"
    return items


def record(fields: Sequence[Read], made: Callable[..., Any], order: Sequence[int] = ()) -> Read:
    """Return a reader that passes the fields, in sequence, to ``made``.

    The reader is generated as source code for these fields. It decodes the most frequent short values inline, because a
    function call costs more than their decoding.

    Args:
        order: Field numbers in the order of the arguments of ``made``. Default: the order of the schema.
    """
    scope: dict[str, Any] = {"made": made}
    lines = ["def read(body, at):"]
    for place, field in enumerate(fields):
        scope[f"read_{place}"] = field
        lines += [line.replace("#", f"_{place}") for line in _lines(field, f"made_{place}", scope)]
    names = [f"_{place}" for place in order or range(len(fields))]
    lines.append(f"    return made({', '.join(names)}), at")
    exec("\n".join(lines), scope)
    read: Read = scope["read"]
    return read


def _lines(field: Read, made: str, scope: dict[str, Any]) -> list[str]:
    """Return the source lines that read one field into ``#``, the placeholder for its variable."""
    call = "#, at = read#(body, at)"
    if field in _FIXED:
        size, scope[made] = _FIXED[field]
        return [f"    # = {made}(body[at : at + {size}])", f"    at += {size}"]
    if field in _EMPTY:
        return ["    if body[at] == 0:", f"        # = {_EMPTY[field]}; at += 1", "    else:", f"        {call}"]
    if field is number_at:
        short, then = "# < 0x80", "# = (# >> 1) ^ -(# & 1); at += 1"
    elif field is text_at:
        short, then = (
            "# < 0x80 and not # & 1",
            'size = #; at += 1; # = str(body[at : at + (size >> 1)], "utf-8"); at += size >> 1',
        )
    else:
        return [f"    {call}"]
    return ["    # = body[at]", f"    if {short}:", f"        {then}", "    else:", f"        {call}"]
