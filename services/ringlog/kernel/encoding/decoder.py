"""States from their canonical bytes: ``decode_state(encode(state)) == state``, with the same digest. ``decode_parts``
reads the bytes of the sections, whose digests follow without another encoding.

The decoder is derived from the dataclasses, like the encoder: the annotation of a field defines its legal values. The
decoder is strict, so it and ``encode`` are inverse to each other. It rejects bytes that no state encodes to (another
order, an explicit default, ``01`` for ``1``) and fields of a later release. It is total: for any bytes it returns a
state or raises ``StateUndecodable``.

A returned state is well formed, and its history covers the required epochs. Only a digest from another source can show
whether the fold of a log reached this state.

Equal texts, integers, groups and members of groups become one object, as they mostly are in a folded state: each token
is in three fields of a placement. Values are cached by their bytes, and so are the marks before a value.
"""

from __future__ import annotations

import types
import typing
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from itertools import pairwise
from operator import itemgetter
from typing import Any, Final

from immutables import Map

from ringlog.kernel.columns.blocks import in_blocks
from ringlog.kernel.encoding.encoder import DIGESTED, is_empty, layout_of
from ringlog.kernel.generations.packed import to_stored
from ringlog.kernel.model.applied_history import Applied, History, history_of
from ringlog.kernel.model.state import EMPTY_STATE, ClusterState, RangeGroup, Replica
from ringlog.kernel.values import NODEFAULT, GenerationRange, is_value_class

Read = Callable[["_Reader", int], Any]
"""A function that reads the value that ends at an offset."""

INTEGER_DIGITS_MAX: Final = 20
"""Maximum number of characters of an integer. Each fits into 64 signed bits, because change records have no more."""

_MARK: Final = 5
"""Bytes that hold tag and length of a short value. For a long value they match no cached mark."""


class StateUndecodable(ValueError):
    """These bytes are not a state of this release."""


def decode_state(data: bytes) -> ClusterState:
    """Return the state that ``encode`` made ``data`` from. Raise StateUndecodable, and nothing else."""
    reader = _Reader(data)
    state: ClusterState = reader.value(_reader_of(ClusterState))
    if reader.at != len(data):
        raise StateUndecodable(f"{len(data) - reader.at} bytes follow the state")
    return _with_its_history(state)


def decode_parts(parts: Mapping[str, bytes]) -> ClusterState:
    """Return the state with these ``encoded_parts``. Raise StateUndecodable, and nothing else."""
    if strange := sorted(parts.keys() - set(DIGESTED)):
        raise StateUndecodable(f"a state of this release has no section {strange[0]}")
    reader = _Reader(b"")
    return _with_its_history(ClusterState(**{name: _part(reader, name, data) for name, data in parts.items()}))


def decode_part(name: str, data: bytes) -> Any:
    """Return one of the sections of ``encoded_parts``; without bytes, that of the empty state.

    Raise StateUndecodable, and nothing else.
    """
    if name not in DIGESTED:
        raise StateUndecodable(f"a state of this release has no section {name}")
    return _part(_Reader(b""), name, data) if data else getattr(EMPTY_STATE, name)


def decode_record(kind: Any, data: bytes) -> Any:
    """Return the record of this class that ``encode`` made ``data`` from. Raise StateUndecodable, and nothing else.

    The bytes come from a command. So texts must be those that a topic can have: without lone surrogates.
    """
    reader = _Reader(data)
    found = reader.value(_reader_of(kind))
    if reader.at != len(data):
        raise StateUndecodable(f"{len(data) - reader.at} bytes follow the {kind.__name__}")
    _check_texts(reader)
    return found


def decode_forced(name: str, data: bytes) -> Any:
    """Return a section like ``decode_part``, from a command: with the texts that a topic can have."""
    reader = _Reader(b"")
    found = _part(reader, name, data) if data and name in DIGESTED else decode_part(name, data)
    _check_texts(reader)
    return found


def _check_texts(reader: _Reader) -> None:
    for body in reader.texts:
        try:
            bytes(body).decode()
        except UnicodeDecodeError:
            raise StateUndecodable(f"{bytes(body[:40])!r} is not text in UTF-8") from None


def _part(reader: _Reader, name: str, data: bytes) -> Any:
    """Return a section. ``reader`` is shared by all sections, which have texts in common."""
    reader.data, reader.at = data, 0
    found = reader.value(_reader_of(typing.get_type_hints(ClusterState)[name]))
    if reader.at != len(data):
        raise StateUndecodable(f"{len(data) - reader.at} bytes follow section {name}")
    if is_empty(name, found):
        raise StateUndecodable(f"section {name} is empty, but encoded")
    return found


def _with_its_history(state: ClusterState) -> ClusterState:
    first, last = state.history.first, state.history.at(state.epoch)
    if len(state.history) != state.epoch - first + 1 or (last is None and state.epoch >= first):
        raise StateUndecodable(f"its history does not have the epochs from {first} to {state.epoch}")
    return state


class _Reader:
    """Bytes, the read position, and caches.

    ``marks``: the first bytes of a value to its tag, the size of tag and length, and the size of the body.
    ``integers``, ``texts``, ``known``: values by their bytes. Each has at most as many items as values were read.
    """

    __slots__ = ("at", "data", "integers", "known", "marks", "texts")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.integers: dict[bytes, int] = {}
        self.texts: dict[bytes, str] = {}
        self.known: dict[Read, dict[bytes, Any]] = defaultdict(dict)
        self.marks: dict[bytes, tuple[bytes, int, int]] = {}

    def value(self, readers: dict[bytes, Read]) -> Any:
        """Return the next value, which must have one of these tags."""
        data, begin = self.data, self.at
        tag, width, length = self.marks.get(data[begin : begin + _MARK]) or self.mark()
        read = readers.get(tag)
        if read is None:
            raise StateUndecodable(f"offset {begin}: expected one of {b' '.join(sorted(readers)).decode()}")
        self.at = begin + width
        end = self.at + length
        if end > len(data):
            raise StateUndecodable(f"offset {begin + 1}: {len(data) - self.at} of {length} bytes remain")
        found = read(self, end)
        if self.at != end:
            raise StateUndecodable(f"offset {self.at}: the value at {begin + 1} must end at {end}")
        return found

    def mark(self) -> tuple[bytes, int, int]:
        """Return the tag of the next value, the size of tag and length, and the size of the body."""
        begin = self.at + 1
        colon = self.data.find(b":", begin, begin + 20)
        digits = self.data[begin:colon]
        if colon < 0 or not digits.isdigit() or (digits[:1] == b"0" and len(digits) > 1):
            raise StateUndecodable(f"offset {begin}: the length is missing")
        found = self.data[self.at : begin], colon + 1 - self.at, int(digits)
        if found[1] <= _MARK:
            self.marks[self.data[self.at : self.at + _MARK]] = found
        return found

    def rest(self, end: int) -> bytes:
        """Return all bytes up to ``end``."""
        body = self.data[self.at : end]
        self.at = end
        return body


# ------------------------------------------------------------------------------------------------------ scalars


def _nothing(value: Any) -> Read:
    return lambda _reader, _end: value


def _integer(reader: _Reader, end: int) -> int:
    body = reader.data[reader.at : end]
    found = reader.integers.get(body)
    if found is None:
        if len(body) > INTEGER_DIGITS_MAX:
            raise StateUndecodable(f"offset {reader.at}: an integer of {len(body)} digits")
        try:
            found = int(body)
        except ValueError:
            found = None
        if found is None or found.bit_length() > 63 or b"%d" % found != body:  # there are other spellings
            raise StateUndecodable(f"offset {end}: {body!r} is not an integer")
        reader.integers[body] = found
    reader.at = end
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
    """Return tag to reader for the values that this annotation allows."""
    if annotation in SCALARS:
        return SCALARS[annotation]
    if annotation is History:
        return {b"L": _history}
    if is_value_class(annotation):
        return {b"R": _record(annotation)}
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        readers = {tag: read for one in inner for tag, read in _reader_of(one).items()}
        assert len(readers) == sum(len(_reader_of(one)) for one in inner), "the tag of a value identifies its type"
        return readers
    if origin is tuple and inner[0] is GenerationRange:
        return {b"L": _ranges(_items(_reader_of(GenerationRange)))}
    if origin is tuple and inner == (RangeGroup, ...):
        return {b"L": _blocks(_items(_reader_of(RangeGroup)))}
    if origin is tuple and inner == (Replica, ...):
        return {b"L": _once(_members(_reader_of(Replica)))}
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


def _members(of_each: dict[bytes, Read]) -> Read:
    """Return a reader like ``_items`` for members of groups, which are few: each is cached with its mark."""

    def read(reader: _Reader, end: int) -> tuple[Any, ...]:
        data, at, marks, found = reader.data, reader.at, reader.marks, []
        known = reader.known[of_each[b"R"]]
        while at < end:
            mark = marks.get(data[at : at + _MARK])
            whole = b"" if mark is None else data[at : at + mark[1] + mark[2]]
            one = known.get(whole)
            if one is None:
                reader.at = at
                one = reader.value(of_each)
                whole = data[at : reader.at]
                known[whole] = one
            found.append(one)
            at += len(whole)
        reader.at = at
        return tuple(found)

    return read


def _ranges(read: Read) -> Read:
    return lambda reader, end: to_stored(read(reader, end))


def _blocks(read: Read) -> Read:
    return lambda reader, end: in_blocks(read(reader, end))


def _fixed(*of_places: dict[bytes, Read]) -> Read:
    return lambda reader, _end: tuple(reader.value(of_place) for of_place in of_places)


def _map(of_keys: dict[bytes, Read], of_items: dict[bytes, Read]) -> Read:
    def read(reader: _Reader, end: int) -> Map[Any, Any]:
        found, before = {}, b""
        while reader.at < end:
            begin = reader.at
            key = reader.value(of_keys)
            encoded = reader.data[begin : reader.at]
            # Ascending encoded keys are the only order that ``encode`` writes; this also rejects a key that occurs
            # twice.
            if encoded <= before:
                raise StateUndecodable(f"offset {begin}: key {key!r} is not above the previous key")
            found[key], before = reader.value(of_items), encoded
        return Map(found)

    return read


def _record(kind: Any) -> Read:
    class_name, layout = layout_of(kind)
    field_types = typing.get_type_hints(kind)
    of_fields = [(name, encoded, default, _reader_of(field_types[name])) for name, encoded, default in layout]
    names = [name for name, *_ in of_fields]
    in_place = _arranged([names.index(name) for name in kind.__struct_fields__])

    def read(reader: _Reader, end: int) -> Any:
        if not reader.data.startswith(class_name, reader.at):
            raise StateUndecodable(f"offset {reader.at}: expected a {kind.__name__}")
        reader.at += len(class_name)
        found = []
        data = reader.data
        for name, encoded, default, of_field in of_fields:
            at = reader.at
            if at < end and data.startswith(encoded, at):
                reader.at = at + len(encoded)
                item = reader.value(of_field)
                if default is not NODEFAULT and type(item) is type(default) and item == default:
                    raise StateUndecodable(f"offset {reader.at}: {kind.__name__}.{name} is its default, but encoded")
                found.append(item)
            elif default is NODEFAULT:
                raise StateUndecodable(f"offset {at}: {kind.__name__}.{name} is missing")
            else:
                found.append(default)
        return kind(*in_place(found))

    return read


def _arranged(order: list[int]) -> Callable[[list[Any]], Iterable[Any]]:
    """Return a function that puts items into this order."""
    assert sorted(order) == [*range(len(order))], "the order is a permutation"
    if order == sorted(order):
        return lambda items: items
    return itemgetter(*order)


def _once(read: Read) -> Read:
    """Return a caching reader: a few groups occur in a hundred thousand ranges. Equal bytes are read once, as one
    object.
    """

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
        raise StateUndecodable("its history contains an id twice")
    return history_of(oldest, applied)
