"""Is a body the one that encoding its record again would give? Answered from the bytes alone, without encoding.

Canonical means: every number in as few bytes as it needs and within its size, an array as one block without its size
in bytes, a boolean of 0 or 1. The check only measures; that the bytes are a record at all (UTF-8, lengths) was found
by decoding them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Step = Callable[[bytes, int], int]
"""From the position of a value to the position behind it; raises ``IndexError`` or ``ValueError`` if it is not
canonical.
"""


def canonical_check(schema: Any, types: Mapping[str, Any]) -> Callable[[bytes], bool]:
    """A function that tells whether a body of ``schema`` is canonical. ``types``: its named types by full name."""
    step = _step(schema, types)

    def check(body: bytes) -> bool:
        try:
            return step(body, 0) == len(body)
        except (IndexError, ValueError):
            return False

    return check


_SHIFTS = range(7, 64, 7)


def number_at(body: bytes, at: int) -> tuple[int, int]:
    """(zigzag-decoded number, position behind it); raises as a ``Step`` does."""
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


def _long(body: bytes, at: int) -> int:
    return at + 1 if body[at] < 0x80 else number_at(body, at)[1]


def _int(body: bytes, at: int) -> int:
    number, at = number_at(body, at)
    if not -(2**31) <= number < 2**31:
        raise ValueError("more than 32 bits")
    return at


def _sized(body: bytes, at: int) -> int:
    size = body[at]
    if size < 0x80 and not size & 1:
        return at + 1 + (size >> 1)
    size, at = number_at(body, at)
    if size < 0:
        raise ValueError("a negative length")
    return at + size


def _boolean(body: bytes, at: int) -> int:
    if body[at] > 1:
        raise ValueError("a boolean that is neither 0 nor 1")
    return at + 1


def _nothing(_body: bytes, at: int) -> int:
    return at


_PRIMITIVES: Mapping[str, Step] = {
    "null": _nothing,
    "boolean": _boolean,
    "int": _int,
    "long": _long,
    "float": lambda _, at: at + 4,
    "double": lambda _, at: at + 8,
    "bytes": _sized,
    "string": _sized,
}


def _step(schema: Any, types: Mapping[str, Any]) -> Step:
    if isinstance(schema, list):
        return _union([_step(branch, types) for branch in schema])
    kind = schema["type"] if isinstance(schema, Mapping) else schema
    if kind in _PRIMITIVES:
        return _PRIMITIVES[kind]
    if kind == "fixed":
        size = schema["size"]
        return lambda _, at: at + size
    if kind == "enum":
        return _union([_nothing] * len(schema["symbols"]))
    if kind == "array":
        return _array(_step(schema["items"], types))
    if kind == "record":
        return _record([_step(field["type"], types) for field in schema["fields"]])
    return _step(types[kind], types)


def _union(branches: list[Step]) -> Step:
    doubled = 2 * len(branches)

    def step(body: bytes, at: int) -> int:
        index = body[at]
        if index & 1 or index >= doubled:
            raise ValueError("no such branch")
        return branches[index >> 1](body, at + 1)

    return step


def _array(item: Step) -> Step:
    def step(body: bytes, at: int) -> int:
        count, at = number_at(body, at)
        if count == 0:
            return at
        if count < 0:
            raise ValueError("a block with its size in bytes")
        for _ in range(count):
            at = item(body, at)
        if body[at] != 0:
            raise ValueError("more than one block")
        return at + 1

    return step


def _record(fields: list[Step]) -> Step:
    def step(body: bytes, at: int) -> int:
        for field in fields:
            at = field(body, at)
        return at

    return step
