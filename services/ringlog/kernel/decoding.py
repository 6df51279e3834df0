"""States from their canonical bytes: ``decode_state(encode(state)) == state``, with the same digest; so from those of
their parts (``decode_parts``), of which the digest follows without encoding anything again.

Derived from the dataclasses, as the encoder is: what a field may hold is said by its annotation, and nothing else is
read there. The decoder is strict, so that it and ``encode`` are inverse to each other: bytes that no state encodes to
(another order, a default that is spelled out, ``01`` for ``1``) are refused, as are those of a later release's field.
It is total: whatever the bytes are, the answer is a state or ``StateUndecodable``.

What it gives is well formed, and its history covers the epochs that it must. Whether it is a state that the fold of
some log has come to only its digest can tell, to who has that from elsewhere.

Equal texts, equal groups and equal members of groups become one object, as they mostly are in a folded state.
"""

from __future__ import annotations

import types
import typing
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from itertools import pairwise
from typing import Any, Final

from immutables import Map

from ringlog.kernel.encoding import DIGESTED, is_empty, layout_of
from ringlog.kernel.generations.packed import kept
from ringlog.kernel.memory import Applied, History, history_of
from ringlog.kernel.state import EMPTY_STATE, ClusterState, Replica
from ringlog.kernel.swift import is_plain, maker_of
from ringlog.kernel.values import GenerationRange

Read = Callable[["_Reader", int], Any]
"""Reads the value that ends at an offset."""

INTEGER_DIGITS_MAX: Final = 40
"""No integer of a state has more: they are epochs, counters, tokens and microseconds."""


class StateUndecodable(ValueError):
    """These bytes are no state of this release."""


def decode_state(data: bytes) -> ClusterState:
    """The state that ``encode`` made ``data`` of. Raises StateUndecodable, and nothing else."""
    reader = _Reader(data)
    state: ClusterState = reader.value(_reader_of(ClusterState))
    if reader.at != len(data):
        raise StateUndecodable(f"{len(data) - reader.at} bytes follow the state")
    return _with_its_history(state)


def decode_parts(parts: Mapping[str, bytes]) -> ClusterState:
    """The state of which ``encoded_parts`` gave these. Raises StateUndecodable, and nothing else."""
    if strange := sorted(parts.keys() - set(DIGESTED)):
        raise StateUndecodable(f"a state of this release has no part {strange[0]}")
    reader = _Reader(b"")
    return _with_its_history(ClusterState(**{name: _part(reader, name, data) for name, data in parts.items()}))


def decode_part(name: str, data: bytes) -> Any:
    """One of the parts of ``encoded_parts``; of no bytes, as in the empty state. Raises StateUndecodable, and nothing
    else.
    """
    if name not in DIGESTED:
        raise StateUndecodable(f"a state of this release has no part {name}")
    return _part(_Reader(b""), name, data) if data else getattr(EMPTY_STATE, name)


def _part(reader: _Reader, name: str, data: bytes) -> Any:
    """``reader``: of this and other parts, which share equal texts."""
    reader.data, reader.at = data, 0
    found = reader.value(_reader_of(typing.get_type_hints(ClusterState)[name]))
    if reader.at != len(data):
        raise StateUndecodable(f"{len(data) - reader.at} bytes follow part {name}")
    if is_empty(name, found):
        raise StateUndecodable(f"part {name} is empty and spelled out")
    return found


def _with_its_history(state: ClusterState) -> ClusterState:
    first, last = state.history.first, state.history.at(state.epoch)
    if len(state.history) != state.epoch - first + 1 or (last is None and state.epoch >= first):
        raise StateUndecodable(f"its history is not that of the epochs from {first} to {state.epoch}")
    return state


class _Reader:
    """Bytes, and how far they are read."""

    __slots__ = ("at", "data", "known", "texts")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.texts: dict[bytes, str] = {}
        self.known: dict[Read, dict[bytes, Any]] = defaultdict(dict)

    def value(self, readers: dict[bytes, Read]) -> Any:
        """The next value, of one of these tags."""
        read = readers.get(self.data[self.at : self.at + 1])
        if read is None:
            raise StateUndecodable(f"offset {self.at}: none of {b' '.join(sorted(readers)).decode()} is there")
        begin = self.at + 1
        colon = self.data.find(b":", begin, begin + 20)
        digits = self.data[begin:colon]
        if colon < 0 or not digits.isdigit() or (digits[:1] == b"0" and len(digits) > 1):
            raise StateUndecodable(f"offset {begin}: no length is there")
        self.at = colon + 1
        end = self.at + int(digits)
        if end > len(self.data):
            raise StateUndecodable(f"offset {begin}: {len(self.data) - self.at} of {int(digits)} bytes are there")
        found = read(self, end)
        if self.at != end:
            raise StateUndecodable(f"offset {self.at}: the value from {begin} on ends at {end}")
        return found

    def rest(self, end: int) -> bytes:
        """All bytes up to there."""
        body = self.data[self.at : end]
        self.at = end
        return body


# ------------------------------------------------------------------------------------------------------ scalars


def _nothing(value: Any) -> Read:
    return lambda _reader, _end: value


def _integer(reader: _Reader, end: int) -> int:
    if end - reader.at > INTEGER_DIGITS_MAX:
        raise StateUndecodable(f"offset {reader.at}: an integer of {end - reader.at} digits")
    body = reader.rest(end)
    try:
        found = int(body)
    except ValueError:
        found = None
    if found is None or b"%d" % found != body:  # there are other ways to write it
        raise StateUndecodable(f"offset {end}: {body!r} is no integer")
    return found


def _text(reader: _Reader, end: int) -> str:
    body = reader.rest(end)
    found = reader.texts.get(body)
    if found is None:
        try:
            found = reader.texts[body] = body.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError as error:
            raise StateUndecodable(f"offset {end}: {error.reason}") from error
    return found


SCALARS: Final[dict[Any, dict[bytes, Read]]] = {
    type(None): {b"N": _nothing(None)},
    bool: {b"T": _nothing(True), b"F": _nothing(False)},
    int: {b"I": _integer},
    str: {b"S": _text},
    bytes: {b"B": _Reader.rest},
}


# ----------------------------------------------------------------------------------------------- what holds more


@cache
def _reader_of(annotation: Any) -> dict[bytes, Read]:
    """What may stand where this annotation is: tag to reader."""
    if annotation in SCALARS:
        return SCALARS[annotation]
    if annotation is History:
        return {b"L": _history}
    if is_dataclass(annotation):
        return {b"R": _once(_record(Replica)) if annotation is Replica else _record(annotation)}
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return {tag: read for one in inner for tag, read in _reader_of(one).items()}
    if origin is tuple and inner[0] is GenerationRange:
        return {b"L": _ranges(_items(_reader_of(GenerationRange)))}
    if origin is tuple and inner == (Replica, ...):
        return {b"L": _once(_items(_reader_of(Replica)))}
    if origin is tuple:
        return {b"L": _items(_reader_of(inner[0])) if inner[1:] == (...,) else _fixed(*map(_reader_of, inner))}
    assert origin is Map, f"{annotation} has no canonical encoding"
    return {b"M": _map(_reader_of(inner[0]), _reader_of(inner[1]))}


def _items(of_each: dict[bytes, Read]) -> Read:
    def read(reader: _Reader, end: int) -> tuple[Any, ...]:
        found = []
        while reader.at < end:
            found.append(reader.value(of_each))
        return tuple(found)

    return read


def _ranges(read: Read) -> Read:
    return lambda reader, end: kept(read(reader, end))


def _fixed(*of_places: dict[bytes, Read]) -> Read:
    return lambda reader, _end: tuple(reader.value(of_place) for of_place in of_places)


def _map(of_keys: dict[bytes, Read], of_items: dict[bytes, Read]) -> Read:
    def read(reader: _Reader, end: int) -> Map[Any, Any]:
        found, before = {}, b""
        while reader.at < end:
            begin = reader.at
            key = reader.value(of_keys)
            encoded = reader.data[begin : reader.at]
            if encoded <= before:
                raise StateUndecodable(f"offset {begin}: key {key!r} is not above the one before it")
            found[key], before = reader.value(of_items), encoded
        return Map(found)

    return read


def _record(kind: Any) -> Read:
    class_name, layout = layout_of(kind)
    hints = typing.get_type_hints(kind)
    of_fields = [(name, encoded, default, _reader_of(hints[name])) for name, encoded, default in layout]
    make, names = maker_of(kind) if is_plain(kind) else kind, [field.name for field in fields(kind)]

    def read(reader: _Reader, end: int) -> Any:
        if not reader.data.startswith(class_name, reader.at):
            raise StateUndecodable(f"offset {reader.at}: no {kind.__name__} is there")
        reader.at += len(class_name)
        found = {}
        for name, encoded, default, of_field in of_fields:
            if reader.at < end and reader.data.startswith(encoded, reader.at):
                reader.at += len(encoded)
                item = reader.value(of_field)
                if type(item) is type(default) and item == default:
                    raise StateUndecodable(f"offset {reader.at}: the default of {kind.__name__}.{name} is spelled out")
                found[name] = item
            elif default is MISSING:
                raise StateUndecodable(f"offset {reader.at}: {kind.__name__}.{name} is missing")
            else:
                found[name] = default
        return make(*[found[name] for name in names])

    return read


def _once(read: Read) -> Read:
    """The same few stand in a hundred thousand ranges: equal bytes are read once, and give one object."""

    def once(reader: _Reader, end: int) -> Any:
        known, body = reader.known[read], reader.data[reader.at : end]
        found = known.get(body)
        if found is None:
            found = known[body] = read(reader, end)
        else:
            reader.at = end
        return found

    return once


def _history(reader: _Reader, _end: int) -> History:
    oldest = reader.value(SCALARS[int])
    applied: tuple[Applied, ...] = reader.value(_reader_of(tuple[Applied, ...]))
    if any(one.epoch + 1 != other.epoch or one.state_id >= other.state_id for one, other in pairwise(applied)):
        raise StateUndecodable("epochs and state ids of its history do not ascend")
    if applied and applied[0].epoch != max(oldest, 1):
        raise StateUndecodable(f"its history begins with epoch {applied[0].epoch}, not {max(oldest, 1)}")
    if len({one.request_id for one in applied}) != len(applied):
        raise StateUndecodable("an id is twice in its history")
    return history_of(oldest, applied)
