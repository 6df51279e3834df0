"""Conversion between dataclasses and records of the catalogue, by field names.

A dataclass and its schema must have the same fields. The conversion of a field follows from both types. Text becomes a
string, an enum symbol, or 16 bytes for a ``ringlog.Uuid``. A tuple becomes an array, and a tuple of pairs an array of
records with two fields. A dataclass becomes a record, and ``| None`` a union with null.

Invariant: the types are compared once, when a converter is built. A difference raises ``TypeError``, because it is a
defect of the program and not of the data.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from functools import lru_cache
from operator import attrgetter, itemgetter
from typing import Any, Final, Generic, NamedTuple, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from ringlog.kernel.values import GenerationRange, Value, Witness, is_uuid, is_value_class, public_name
from ringlog.wire.avro import codec, reading, writing
from ringlog.wire.avro.ack_columns import witnesses_reader
from ringlog.wire.avro.binary import RecordCodec
from ringlog.wire.avro.codec import HEADER_BYTES, header_of
from ringlog.wire.avro.generation_columns import ranges_reader
from ringlog.wire.avro.reading import Read
from ringlog.wire.avro.writing import Write
from ringlog.wire.errors import WireError

T = TypeVar("T", bound=Value)
Convert = Callable[[Any], Any]


class FieldConverter(NamedTuple):
    """The conversion of a value: writer, reader, and the conversion of a value that the schema has decoded (None:
    none).
    """

    write: Write
    read: Read
    back: Convert | None = None


_SCALARS = {"string": str, "long": int, "int": int, "boolean": bool, "bytes": bytes}


def uuid_bytes(text: str) -> bytes:
    """Return the 16 bytes of a canonical UUID. Raises WireError (``bad_uuid``) for any other text."""
    if not isinstance(text, str) or not is_uuid(text):
        raise WireError("bad_uuid", repr(text)[:60], "a UUID in its canonical form")
    return bytes.fromhex(text.replace("-", ""))


def uuid_text(data: bytes) -> str:
    """Return the canonical text of 16 bytes."""
    # eight groups of four digits; a UUID lacks the hyphens at 4, 29 and 34
    pairs = data.hex("-", 2)
    return f"{pairs[:4]}{pairs[5:24]}-{pairs[25:29]}{pairs[30:34]}{pairs[35:]}"


cached_id_bytes = lru_cache(maxsize=64)(uuid_bytes)
cached_id_text = lru_cache(maxsize=64)(uuid_text)
"""Caches for ids that occur again soon: the cluster's id in each entry, a state's id in the next entry."""

IDS_CACHED_MAX: Final = 4_096
_texts: dict[bytes, str] = {}
_bytes: dict[str, bytes] = {}
"""Ids that this process created or read in a request, since it writes and reads each again soon.

At most ``IDS_CACHED_MAX``.
"""


def id_text(data: bytes) -> str:
    """Return the canonical text of 16 bytes, and cache it in both directions."""
    text = _texts.get(data)
    if text is None:
        if len(_texts) >= IDS_CACHED_MAX:
            _texts.clear()
            _bytes.clear()
        text = _texts[data] = uuid_text(data)
        _bytes[text] = data
    return text


def uncached_id_text(data: bytes) -> str:
    """Return the canonical text of 16 bytes, without caching it. For ids of other processes."""
    return _texts.get(data) or uuid_text(data)


def id_bytes(text: str) -> bytes:
    """Return the 16 bytes of a canonical UUID, from the cache if possible."""
    return _bytes.get(text) or uuid_bytes(text)


class Mapper(Generic[T]):
    """A converter between a class of values and a record schema."""

    __slots__ = ("_full_name", "_made", "_read", "_write")

    def __init__(self, cls: type[T], layout: RecordCodec) -> None:
        known = layout.named_types()
        self._build(cls, known[layout.full_name], known)

    def _build(self, cls: type[T], schema: Mapping[str, Any], known: Mapping[str, Any]) -> None:
        self._full_name = schema["name"]
        field_types = get_type_hints(cls)
        on_wire = {field["name"]: field["type"] for field in schema["fields"]}
        in_class = [*cls.__struct_fields__]
        names = tuple(map(public_name, in_class))
        if set(on_wire) != set(names):
            raise TypeError(f"{cls.__name__} and {self._full_name} differ in {sorted(set(on_wire) ^ set(names))}")
        ways = {
            public_name(name): _converter(
                field_types[name], on_wire[public_name(name)], known, f"{cls.__name__}.{name}"
            )
            for name in in_class
        }
        back = tuple((index, way.back) for index, way in enumerate(ways.values()) if way.back is not None)
        attributes = dict(zip(names, in_class, strict=True))
        picked = _picked(attrgetter, tuple(attributes[name] for name in on_wire))
        self._made = _maker(cls, names, back)
        given = tuple(on_wire)
        self._read = reading.record([ways[name].read for name in given], cls, [given.index(name) for name in names])
        self._write = writing.record([ways[name].write for name in on_wire], picked)

    def write(self, value: T) -> bytes:
        """Return the canonical body of a value.

        Raises WireError (``not_encodable``, ``bad_uuid``) if a field does not fit.
        """
        try:
            return self._write(value)
        except WireError:
            raise
        except Exception as error:
            raise WireError("not_encodable", self._full_name, f"{type(error).__name__}: {error}") from error

    def encode(self, value: T) -> bytes:
        """Return a value as a single object. Raises as ``write``."""
        return header_of(self._full_name) + self.write(value)

    def decode(self, data: bytes) -> T:
        """Return the value of a single object, written with any version of this schema. Raises WireError."""
        found = self.read(data[HEADER_BYTES:]) if data.startswith(header_of(self._full_name)) else None
        return self.from_record(codec.decode(data, self._full_name)[1]) if found is None else found

    def from_record(self, record: Mapping[str, Any]) -> T:
        """Return the value of a dictionary decoded with the schema."""
        return self._made(record)

    def read(self, body: bytes) -> T | None:
        """Return the value of a canonical body, or None for any other bytes."""
        return reading.whole(self._read, body)


def _maker(cls: type[T], names: tuple[str, ...], back: tuple[tuple[int, Convert], ...]) -> Callable[[Any], T]:
    """Return the function ``from_record`` of a class. ``back`` lists the positions of fields with a conversion.

    Cells are decoded by the million and have no conversions, so for them this is a single call of the class.
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
    """Return a function that gets all names from a value, always as a tuple.

    ``attrgetter`` and ``itemgetter`` return a plain value for a single name.
    """
    if len(names) > 1:
        return cast(Callable[[Any], tuple[Any, ...]], getter(*names))
    if names:
        only = getter(names[0])
        return lambda value: (only(value),)
    return lambda _: ()


def _converter(field_type: Any, schema: Any, known: Mapping[str, Any], where: str) -> FieldConverter:
    """Return the conversion between a field of type ``field_type`` and ``schema``."""
    schema = known.get(schema, schema) if isinstance(schema, str) else schema
    if get_origin(field_type) in (Union, types.UnionType):
        return _optional(field_type, schema, known, where)
    kind = schema["type"] if isinstance(schema, Mapping) else schema
    if isinstance(kind, str) and kind == "fixed" and field_type is str and schema["name"] == "ringlog.Uuid":
        return FieldConverter(id_bytes, reading.fixed(16, id_text), uuid_text)
    if kind == "enum" and field_type is str:
        return FieldConverter(writing.choice(schema["symbols"]), reading.choice(schema["symbols"]))
    if kind == "fixed" and field_type is bytes:
        return FieldConverter(writing.fixed(schema["size"]), reading.fixed(schema["size"], bytes))
    if kind == "array" and get_origin(field_type) is tuple:
        return _array(field_type, schema["items"], known, where)
    if kind == "record" and is_value_class(field_type):
        nested: Mapper[Any] = Mapper.__new__(Mapper)
        nested._build(field_type, schema, known)
        return FieldConverter(nested._write, nested._read, nested._made)
    if isinstance(kind, str) and _SCALARS.get(kind) is field_type:
        return FieldConverter(writing.SCALARS[kind], reading.SCALARS[kind])
    raise TypeError(f"{where}: {field_type} has no mapping to {schema}")


def _optional(field_type: Any, schema: Any, known: Mapping[str, Any], where: str) -> FieldConverter:
    inner = [part for part in get_args(field_type) if part is not types.NoneType]
    if not isinstance(schema, list) or len(inner) != 1 or len(schema) != 2 or schema[0] != "null":
        raise TypeError(f"{where}: {field_type} has no mapping to {schema}")
    write, read, back = _converter(inner[0], schema[1], known, where)
    return FieldConverter(writing.optional(write), reading.optional(read), _unless_none(back))


def _unless_none(convert: Convert | None) -> Convert | None:
    if convert is None:
        return None
    return lambda value: None if value is None else convert(value)


def _array(field_type: Any, items: Any, known: Mapping[str, Any], where: str) -> FieldConverter:
    arguments = get_args(field_type)
    if len(arguments) != 2 or arguments[1] is not Ellipsis:
        raise TypeError(f"{where}: {field_type} is not a tuple of any length")
    is_pair = get_origin(arguments[0]) is tuple
    write, read, back = (_pair if is_pair else _converter)(arguments[0], items, known, where)
    from_wire = tuple if back is None else lambda values: tuple([back(value) for value in values])
    all_read = reading.array(read)
    if arguments[0] is GenerationRange:
        all_read = ranges_reader(items, all_read)
    if arguments[0] is Witness:
        all_read = witnesses_reader(known.get(items, items) if isinstance(items, str) else items, all_read)
    return FieldConverter(writing.array(write), all_read, from_wire)


def _pair(field_type: Any, items: Any, known: Mapping[str, Any], where: str) -> FieldConverter:
    """Return the conversion of a pair: a record of two fields, in the order of the schema."""
    record = known.get(items, items) if isinstance(items, str) else items
    inner = get_args(field_type)
    names = [field["name"] for field in record["fields"]]
    if len(inner) != len(names):
        raise TypeError(f"{where}: {field_type} and the fields {names} differ in number")
    ways = [_converter(part, field["type"], known, where) for part, field in zip(inner, record["fields"], strict=True)]
    backs = [way.back or _same for way in ways]

    def from_wire(value: Any) -> tuple[Any, ...]:
        return tuple([back(value[name]) for name, back in zip(names, backs, strict=True)])

    write = writing.record([way.write for way in ways], _same)
    return FieldConverter(write, reading.record([way.read for way in ways], _together), from_wire)


def _same(value: Any) -> Any:
    return value


def _together(*values: Any) -> tuple[Any, ...]:
    return values
