"""Plain Avro binary of one record, encoded and decoded by fastavro, with a strict check of the bytes.

This module is the reference implementation. It handles records of other libraries and of earlier schema versions.
``mapping`` encodes and decodes the records that this release writes itself.

fastavro accepts some invalid bytes. Examples are numbers longer than 64 bits, union branches counted from the end, any
byte as a boolean, and numbers beyond 32 bits in an ``int``. Its builds differ in that.

Invariant: accepted bytes are either canonical, or, if another encoding is allowed, have passed ``check``. ``check``
accepts exactly the Avro specification, for example arrays in several blocks, as other libraries write them.
"""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from typing import Any

from fastavro import parse_schema, schemaless_reader, schemaless_writer

from ringlog.wire.errors import WireError

_INT_MAX = 2**31 - 1
_INT_MIN = -(2**31)


class RecordCodec:
    """An encoder and decoder of bodies for one schema, without any header."""

    __slots__ = ("_ints", "_parsed", "_types", "full_name", "schema")

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self.schema = schema
        self.full_name = f"{schema['namespace']}.{schema['name']}"
        self._types: dict[str, Any] = {}
        self._parsed = parse_schema(dict(schema), self._types)
        self._ints = tuple(field["name"] for field in schema["fields"] if field["type"] == "int")

    def named_types(self) -> Mapping[str, Any]:
        """Return the named types of the schema by full name, including the record itself.

        Each type contains its full name in ``name``.
        """
        return self._types

    def encode(self, record: Mapping[str, Any]) -> bytes:
        """Return the canonical body of a record.

        Raises WireError (``not_encodable``) if a field is missing, unknown or of another type.
        """
        for name in self._ints:
            number = record.get(name)
            if not isinstance(number, int) or not _INT_MIN <= number <= _INT_MAX:
                raise WireError("not_encodable", f"{self.full_name}.{name}", "must be an integer of 32 bits")
        out = BytesIO()
        try:
            schemaless_writer(out, self._parsed, record, strict=True)
        except Exception as error:
            raise WireError("not_encodable", self.full_name, f"{type(error).__name__}: {error}") from error
        return out.getvalue()

    def decode(self, body: bytes, *, canonical: bool) -> dict[str, Any]:
        """Return the record of exactly these bytes.

        Args:
            canonical: Accept only the output of ``encode``, so that one value has one byte string.

        Raises:
            WireError: ``not_decodable``, ``trailing_bytes`` or ``not_canonical``.
        """
        source = BytesIO(body)
        try:
            record = schemaless_reader(source, self._parsed, None)
        except Exception as error:
            raise WireError("not_decodable", self.full_name, f"{type(error).__name__}: {error}") from error
        if not isinstance(record, dict):
            raise WireError("not_decodable", self.full_name, "must be a record")
        if source.tell() != len(body):
            rule = f"{len(body) - source.tell()} bytes follow the record"
            raise WireError("trailing_bytes", self.full_name, rule)
        if not self._gives(record, body):
            if canonical:
                raise WireError("not_canonical", self.full_name, "the same value has another encoding")
            self.check(body)
        return record

    def _gives(self, record: Mapping[str, Any], body: bytes) -> bool:
        """Return True if encoding the record gives the body."""
        try:
            return self.encode(record) == body
        except WireError:  # fastavro decodes some numbers that it does not encode
            return False

    def resolve(self, body: bytes, writer: RecordCodec) -> dict[str, Any]:
        """Return the record of a body with another schema version, with defaults for new fields and without removed
        ones.

        ``body`` must have passed the check of ``writer``.
        """
        try:
            record = schemaless_reader(BytesIO(body), writer._parsed, self._parsed)
        except Exception as error:
            raise WireError("not_resolvable", self.full_name, f"{type(error).__name__}: {error}") from error
        if not isinstance(record, dict):
            raise WireError("not_resolvable", self.full_name, "must be a record")
        return record

    def check(self, body: bytes) -> None:
        """Check the bytes against the Avro specification. Raises WireError (``not_decodable``, ``trailing_bytes``)."""
        walk = _Walk(body, self._types, self.full_name)
        try:
            walk.value(self._parsed)
        except (KeyError, RecursionError) as error:
            raise WireError("not_decodable", self.full_name, f"{type(error).__name__}: {error}") from error
        if walk.at != len(body):
            raise WireError("trailing_bytes", self.full_name, f"{len(body) - walk.at} bytes follow the record")


class _Walk:
    """A reader that only checks. ``at`` is the position. Every number is checked before it is used."""

    def __init__(self, body: bytes, types: Mapping[str, Any], full_name: str) -> None:
        self.body = body
        self.types = types
        self.full_name = full_name
        self.at = 0

    def fail(self, rule: str) -> WireError:
        return WireError("not_decodable", self.full_name, f"{rule} at byte {self.at}")

    def long(self) -> int:
        number = shift = 0
        while True:
            if self.at >= len(self.body):
                raise self.fail("the bytes end inside a number")
            byte = self.body[self.at]
            self.at += 1
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
            if shift >= 70:
                raise self.fail("an integer of more than 10 bytes")
        if number >= 2**64:
            raise self.fail("an integer of more than 64 bits")
        return (number >> 1) ^ -(number & 1)

    def skip(self, count: int) -> bytes:
        if not 0 <= count <= len(self.body) - self.at:
            raise self.fail(f"a length of {count}")
        self.at += count
        return self.body[self.at - count : self.at]

    def value(self, schema: Any) -> None:
        if isinstance(schema, list):
            return self.value(schema[self.index(len(schema))])
        kind = schema["type"] if isinstance(schema, Mapping) else schema
        match kind:
            case "null":
                pass
            case "long":
                self.long()
            case "int":
                if not _INT_MIN <= self.long() <= _INT_MAX:
                    raise self.fail("an integer of more than 32 bits")
            case "boolean":
                if self.skip(1) not in (b"\0", b"\1"):
                    raise self.fail("a boolean that is neither 0 nor 1")
            case "bytes":
                self.skip(self.long())
            case "string":
                self.text()
            case "float":
                self.skip(4)
            case "double":
                self.skip(8)
            case "fixed":
                self.skip(schema["size"])
            case "enum":
                self.index(len(schema["symbols"]))
            case "array":
                self.array(schema["items"])
            case "record":
                for field in schema["fields"]:
                    self.value(field["type"])
            case _:
                self.value(self.types[kind])
        return None

    def index(self, count: int) -> int:
        index = self.long()
        if not 0 <= index < count:
            raise self.fail(f"union branch {index} of {count}")
        return index

    def text(self) -> None:
        try:
            self.skip(self.long()).decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.fail(f"text that is not UTF-8 ({error.reason})") from error

    def array(self, items: Any) -> None:
        while (count := self.long()) != 0:
            size = None
            if count < 0:
                count, size = -count, self.long()
            left = len(self.body) - self.at
            if count > left or (size is not None and not 0 <= size <= left):
                raise self.fail(f"a block of {count} items")
            start = self.at
            for _ in range(count):
                self.value(items)
            if size is not None and self.at - start != size:
                raise self.fail(f"a block of {self.at - start} bytes announced as {size}")
