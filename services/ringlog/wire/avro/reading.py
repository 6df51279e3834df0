"""Values straight from a canonical body, without a dictionary in between.

Canonical means: every number in as few bytes as it needs and within its size, an array as one block without its size
in bytes, a boolean of 0 or 1: what ``writing`` gives, and nothing else.

A reader answers only for the canonical encoding. Everything else is an exception, with nothing in it: what is wrong
with the bytes, or how another encoding is read, the schema says (``binary``).

Every step moves forward, and slices may be short: so bytes that end too early are found by who compares the position
behind the last step with the length. Numbers are bounded before they count anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

Read = Callable[[bytes, int], tuple[Any, int]]
"""From the position of a value to the value and the position behind it; raises ``IndexError`` or ``ValueError`` if it
is not canonical.
"""


_SHIFTS = range(7, 64, 7)


def number_at(body: bytes, at: int) -> tuple[int, int]:
    """(zigzag-decoded number, position behind it); raises as a ``Read`` does."""
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
    """The value of exactly these bytes; None if they are not its canonical encoding."""
    try:
        value, at = read(body, 0)
    except (IndexError, ValueError):
        return None
    return value if at == len(body) else None


def size_at(body: bytes, at: int) -> tuple[int, int]:
    """A length, and the position behind it."""
    size = body[at]
    if size < 0x80 and not size & 1:
        return size >> 1, at + 1
    size, at = number_at(body, at)
    if size < 0:
        raise ValueError("a negative length")
    return size, at


def sized_at(body: bytes, at: int) -> tuple[bytes, int]:
    """Bytes behind their length."""
    size, at = size_at(body, at)
    return body[at : at + size], at + size


def text_at(body: bytes, at: int) -> tuple[str, int]:
    """Text behind its length."""
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
"""What readers make of a zero, which is what most of a command's fields are: nothing is given, no item is there."""
_FIXED: Final[dict[Read, tuple[int, Callable[[bytes], Any]]]] = {}


def fixed(size: int, made: Callable[[bytes], Any]) -> Read:
    """Bytes of one size, as ``made`` has them."""

    def read(body: bytes, at: int) -> tuple[Any, int]:
        return made(body[at : at + size]), at + size

    _FIXED[read] = size, made
    return read


def choice(symbols: Sequence[str]) -> Read:
    """The symbol of an enum."""

    def read(body: bytes, at: int) -> tuple[str, int]:
        index, at = number_at(body, at)
        if index < 0:
            raise ValueError("no such symbol")
        return symbols[index], at

    return read


def optional(read: Read) -> Read:
    """A union of null and a value."""

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
    """A tuple: one block, and the zero that ends it."""

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
    """What is ``made`` of the fields, one behind the other: a function that is written once for them.

    ``order``: which of them, by place, ``made`` takes first, if not in their own order. Short encodings of what is most
    frequent are read on the spot: a call costs more than they do.
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
    """The lines that read one field into ``#``."""
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
