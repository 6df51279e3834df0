"""Encoding of values directly to canonical Avro bodies, without a dictionary: the inverse of ``reading``.

A writer raises ``TypeError``, ``ValueError``, ``KeyError`` or ``AttributeError`` for a value that does not fit. The
writer of a complete record converts them to ``WireError`` (``mapping``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

Write = Callable[[Any], bytes]

_SHORT = tuple(bytes([coded]) for coded in range(0x80))


def number(value: int) -> bytes:
    """Encode a 64-bit number in the minimum number of bytes."""
    coded = (value << 1) ^ (value >> 63)
    if 0 <= coded < 0x80:
        return _SHORT[coded]
    if 0 <= coded < 0x4000:
        return bytes((coded & 0x7F | 0x80, coded >> 7))
    return _long(coded)


@lru_cache(maxsize=1_024)
def _long(coded: int) -> bytes:
    """Encode a zigzag number. Cached, because times, tokens and epochs repeat: each range begins at the end of the
    previous one.
    """
    if not 0 <= coded < 2**64:
        raise ValueError("an integer of more than 64 bits")
    out = bytearray()
    while coded > 0x7F:
        out.append(coded & 0x7F | 0x80)
        coded >>= 7
    out.append(coded)
    return bytes(out)


def sized(value: bytes) -> bytes:
    """Encode bytes with a length prefix."""
    size = len(value)
    return (_SHORT[2 * size] if size < 0x40 else number(size)) + value


def text(value: str) -> bytes:
    """Encode text with a length prefix."""
    return sized(value.encode())


def integer(value: int) -> bytes:
    """Encode a 32-bit number."""
    if not -(2**31) <= value < 2**31:
        raise ValueError("must be an integer of 32 bits")
    return number(value)


SCALARS: Mapping[str, Write] = {
    "boolean": {False: b"\0", True: b"\1"}.__getitem__,
    "int": integer,
    "long": number,
    "bytes": sized,
    "string": text,
}


def fixed(size: int) -> Write:
    """Return a writer of a fixed number of bytes."""

    def write(value: bytes) -> bytes:
        if len(value) != size:
            raise ValueError(f"{size} bytes")
        return bytes(value)

    return write


def choice(symbols: Sequence[str]) -> Write:
    """Return a writer of an enum symbol."""
    return {symbol: number(index) for index, symbol in enumerate(symbols)}.__getitem__


def optional(write: Write) -> Write:
    """Return a writer of a union with null."""
    return lambda value: b"\0" if value is None else b"\2" + write(value)


def array(write: Write) -> Write:
    """Return a writer of items: one block, and the zero that ends it."""

    def items(values: Sequence[Any]) -> bytes:
        count = len(values)
        return b"%b%b\0" % (number(count), b"".join(map(write, values))) if count else b"\0"

    return items


def record(fields: Sequence[Write], parts: Callable[[Any], Iterable[Any]]) -> Write:
    """Return a writer of the ``parts`` of a value as fields, generated as source code for their number."""
    names = [f"_{place}" for place in range(len(fields))]
    if not names:
        return lambda _: b""
    written = ", ".join(f"write{name}({name})" for name in names)
    lines = ("def write(value):", f"    {', '.join(names)}, = parts(value)", f"    return join(({written},))")
    scope: dict[str, Any] = {f"write{name}": write for name, write in zip(names, fields, strict=True)}
    scope |= {"parts": parts, "join": b"".join}
    exec("\n".join(lines), scope)
    made: Write = scope["write"]
    return made
