"""Dataclasses to the records of the catalogue and back, by field names: one converter for every kind of value.

A dataclass and its schema must have the same fields; what a field becomes follows from both: text is a string, an
enum symbol or (in a ``ringlog.Uuid``) 16 bytes; a tuple is an array; a tuple of pairs is an array of records of two
fields; a dataclass is a record; ``| None`` is a union with null. The comparison is made once, when a converter is
built, and a difference raises ``TypeError``: it is a mistake in the program, not in the data.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from operator import attrgetter, itemgetter
from typing import Any, Generic, NamedTuple, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from ringlog.kernel.values import spoken
from ringlog.wire import reading
from ringlog.wire.binary import RecordCodec
from ringlog.wire.errors import WireError
from ringlog.wire.reading import Read

T = TypeVar("T")
Convert = Callable[[Any], Any]


class Way(NamedTuple):
    """How to get to the wire, and back from what a schema decodes (None: as it is), and how the bytes are read."""

    out: Convert | None
    back: Convert | None
    read: Read


_SCALARS = {"string": str, "long": int, "int": int, "boolean": bool, "bytes": bytes}


def uuid_bytes(text: str) -> bytes:
    """The 16 bytes of a canonical UUID; ``WireError`` (``bad_uuid``) for any other text."""
    try:
        data = bytes.fromhex(text.replace("-", ""))
    except (ValueError, AttributeError) as error:
        raise WireError("bad_uuid", repr(text)[:60], "a UUID in its canonical form") from error
    if len(data) != 16 or uuid_text(data) != text:
        raise WireError("bad_uuid", repr(text)[:60], "a UUID in its canonical form")
    return data


def uuid_text(data: bytes) -> str:
    """The canonical text of 16 bytes."""
    pairs = data.hex("-", 2)  # eight groups of four digits, of which the middle ones stand as they are
    return f"{pairs[:4]}{pairs[5:24]}-{pairs[25:29]}{pairs[30:34]}{pairs[35:]}"


class Mapper(Generic[T]):
    """Converts values of one dataclass to and from dictionaries of one record schema."""

    __slots__ = ("_attributes", "_full_name", "_made", "_names", "_out", "_read")

    def __init__(self, cls: type[T], layout: RecordCodec) -> None:
        known = layout.named_types()
        self._build(cls, known[layout.full_name], known)

    def _build(self, cls: type[T], schema: Mapping[str, Any], known: Mapping[str, Any]) -> None:
        self._full_name = schema["name"]
        hints = get_type_hints(cls)
        on_wire = {field["name"]: field["type"] for field in schema["fields"]}
        in_class = [field.name for field in fields(cls)]  # type: ignore[arg-type]
        self._names = tuple(map(spoken, in_class))
        if set(on_wire) != set(self._names):
            raise TypeError(f"{cls.__name__} and {self._full_name} differ in {sorted(set(on_wire) ^ set(self._names))}")
        ways = {
            spoken(name): _way(hints[name], on_wire[spoken(name)], known, f"{cls.__name__}.{name}") for name in in_class
        }
        self._out = tuple((name, way.out) for name, way in ways.items() if way.out is not None)
        back = tuple((index, way.back) for index, way in enumerate(ways.values()) if way.back is not None)
        self._made = _maker(cls, self._names, back)
        self._read = reading.record([ways[name].read for name in on_wire], _by_place(cls, self._names, tuple(on_wire)))
        self._attributes = _picked(attrgetter, tuple(in_class))

    def to_record(self, value: T) -> dict[str, Any]:
        """The dictionary of a value; ``WireError`` (``not_encodable``, ``bad_uuid``) if a field's content has another
        type.
        """
        record = dict(zip(self._names, self._attributes(value), strict=True))
        try:
            for name, convert in self._out:
                record[name] = convert(record[name])
        except WireError:
            raise
        except Exception as error:
            raise WireError("not_encodable", self._full_name, f"{type(error).__name__}: {error}") from error
        return record

    def from_record(self, record: Mapping[str, Any]) -> T:
        """The value of a dictionary that was decoded with the schema."""
        return self._made(record)

    def read(self, body: bytes) -> T | None:
        """The value of a body in its canonical encoding, as by way of its dictionary; None of any other bytes."""
        return reading.whole(self._read, body)


def _by_place(cls: type[T], names: tuple[str, ...], given: tuple[str, ...]) -> Callable[..., T]:
    """``cls`` as a function of its fields in the order ``given``."""
    if names == given:
        return cls
    in_order = _picked(itemgetter, tuple(given.index(name) for name in names))
    return lambda *values: cls(*in_order(values))


def _maker(cls: type[T], names: tuple[str, ...], back: tuple[tuple[int, Convert], ...]) -> Callable[[Any], T]:
    """``from_record`` of a class, by the positions of the fields that are to be converted.

    Cells are decoded by the million, and have nothing to convert: for these it is one call of the class.
    """
    fields_of = _picked(itemgetter, names)
    if not back:
        return lambda record: cls(*fields_of(record))

    def made(record: Mapping[str, Any]) -> T:
        values = list(fields_of(record))
        for index, convert in back:
            values[index] = convert(values[index])
        return cls(*values)

    return made


def _picked(getter: Any, names: tuple[Any, ...]) -> Callable[[Any], tuple[Any, ...]]:
    """What ``attrgetter`` or ``itemgetter`` finds under all names, as a tuple whatever their number is."""
    if len(names) > 1:
        return cast(Callable[[Any], tuple[Any, ...]], getter(*names))
    if names:
        only = getter(names[0])
        return lambda value: (only(value),)
    return lambda _: ()


def _way(hint: Any, schema: Any, known: Mapping[str, Any], where: str) -> Way:
    """How a field of type ``hint`` gets to ``schema`` and back."""
    schema = known.get(schema, schema) if isinstance(schema, str) else schema
    if get_origin(hint) in (Union, types.UnionType):
        return _optional(hint, schema, known, where)
    kind = schema["type"] if isinstance(schema, Mapping) else schema
    if isinstance(kind, str) and kind == "fixed" and hint is str and schema["name"] == "ringlog.Uuid":
        return Way(uuid_bytes, uuid_text, reading.fixed(16, uuid_text))
    if kind == "enum" and hint is str:
        return Way(None, None, reading.choice(schema["symbols"]))
    if kind == "fixed" and hint is bytes:
        return Way(None, None, reading.fixed(schema["size"], bytes))
    if kind == "array" and get_origin(hint) is tuple:
        return _array(hint, schema["items"], known, where)
    if kind == "record" and is_dataclass(hint):
        nested: Mapper[Any] = Mapper.__new__(Mapper)
        nested._build(hint, schema, known)  # type: ignore[arg-type]
        return Way(nested.to_record, nested._made, nested._read)
    if isinstance(kind, str) and _SCALARS.get(kind) is hint:
        return Way(None, None, reading.SCALARS[kind])
    raise TypeError(f"{where}: {hint} has no way to {schema}")


def _optional(hint: Any, schema: Any, known: Mapping[str, Any], where: str) -> Way:
    inner = [part for part in get_args(hint) if part is not types.NoneType]
    if not isinstance(schema, list) or len(inner) != 1 or len(schema) != 2 or schema[0] != "null":
        raise TypeError(f"{where}: {hint} has no way to {schema}")
    out, back, read = _way(inner[0], schema[1], known, where)
    return Way(_unless_none(out), _unless_none(back), reading.optional(read))


def _unless_none(convert: Convert | None) -> Convert | None:
    if convert is None:
        return None
    return lambda value: None if value is None else convert(value)


def _array(hint: Any, items: Any, known: Mapping[str, Any], where: str) -> Way:
    arguments = get_args(hint)
    if len(arguments) != 2 or arguments[1] is not Ellipsis:
        raise TypeError(f"{where}: {hint} is not a tuple of any length")
    if get_origin(arguments[0]) is tuple:
        return _pairs(arguments[0], items, known, where)
    out, back, read = _way(arguments[0], items, known, where)
    return Way(
        list if out is None else lambda values: [out(value) for value in values],
        tuple if back is None else lambda values: tuple([back(value) for value in values]),
        reading.array(read),
    )


def _pairs(hint: Any, items: Any, known: Mapping[str, Any], where: str) -> Way:
    """A tuple of pairs is an array of records of two fields, in the order of the schema."""
    record = known.get(items, items) if isinstance(items, str) else items
    inner = get_args(hint)
    names = [field["name"] for field in record["fields"]]
    if len(inner) != len(names):
        raise TypeError(f"{where}: {hint} and the fields {names} differ in number")
    ways = [_way(part, field["type"], known, where) for part, field in zip(inner, record["fields"], strict=True)]
    same: Convert = lambda value: value  # noqa: E731
    outs = [way.out or same for way in ways]
    backs = [way.back or same for way in ways]

    def to_wire(values: Any) -> list[dict[str, Any]]:
        return [{name: out(part) for name, out, part in zip(names, outs, value, strict=True)} for value in values]

    def from_wire(values: Any) -> tuple[tuple[Any, ...], ...]:
        return tuple([tuple([back(value[name]) for name, back in zip(names, backs, strict=True)]) for value in values])

    return Way(to_wire, from_wire, reading.array(reading.record([way.read for way in ways], _together)))


def _together(*values: Any) -> tuple[Any, ...]:
    return values
