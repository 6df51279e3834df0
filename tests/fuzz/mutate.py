"""Reproducible damage to input bytes, from a seed.

``blind`` changes any bytes. ``of_json`` replaces one value inside a JSON text. ``of_record`` replaces one value inside
a single object of the catalogue, including the command of an envelope or request. Both encode the result again, so that
the damage passes the outer decoder. Inputs that cannot be read go to ``blind``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from ringlog.kernel.registry import COMMANDS
from ringlog.wire.avro.codec import decode, encode, layout
from ringlog.wire.errors import WireError
from ringlog_schemas import current
from tests.wire.strategies import named_types

Mutator = Callable[[Random, bytes, tuple[bytes, ...]], bytes]
"""(random source, input, other inputs of the target) to a damaged input."""

NUMBERS = (0, 1, -1, 2, 63, 64, 127, 128, 255, 2**31 - 1, 2**31, -(2**31), 2**62, 2**63 - 1, -(2**63), 2**63, 2**64)
TEXTS = (
    "",
    "a",
    "n1",
    "ks",
    "\x00",
    "é☃",
    "a.b",
    "x" * 300,
    "[/red]",
    "[bold",
    "-1",
    "1e999999999",
    "NaN",
    "\x1b[31m",
    "../..",
)
JSON_VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    [],
    {},
    [[]],
    {"": 0},
    0.5,
    1e308,
    -0.0,
    float("inf"),
    float("nan"),
    "\ud800",
    10**400,
)
VARINTS = (b"\x80\x00", b"\xff" * 9 + b"\x01", b"\xfe\xff\xff\xff\x0f", b"\x01", b"\x80" * 12 + b"\x01", b"\xff" * 10)
BYTES_MAX = 4_096


def blind(chance: Random, data: bytes, others: tuple[bytes, ...]) -> bytes:
    """Return the bytes with one to four random changes."""
    changed = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        at = chance.randint(0, len(changed))
        match chance.randrange(7):
            case 0 if changed:
                changed[at % len(changed)] ^= 1 << chance.randrange(8)
            case 1 if changed:
                changed[at % len(changed)] = chance.choice((0, 1, 2, 0x7F, 0x80, 0xFE, 0xFF))
            case 2:
                del changed[at : at + chance.randint(1, 8)]
            case 3:
                changed[at:at] = chance.choice(VARINTS)
            case 4:
                changed[at:at] = changed[at : at + chance.randint(1, 40)]
            case 5 if others:
                other = chance.choice(others)
                cut = chance.randint(0, len(other))
                changed[at:] = other[cut:]
            case _:
                changed[at:at] = chance.randbytes(chance.randint(1, 4))
    return bytes(changed[:BYTES_MAX])


def of_json(chance: Random, data: bytes, others: tuple[bytes, ...]) -> bytes:
    """Replace one value or field name in a JSON text. Of several lines, change the last."""
    head, line, last = data.rpartition(b"\n")
    try:
        value = json.loads(last)
    except (ValueError, RecursionError):
        return blind(chance, data, others)
    if chance.random() < 0.1:
        return head + line + b"[" * 2_000 + last
    changed = _exchanged(chance, value, _any_json)
    return head + line + json.dumps(changed).encode()


def of_record(chance: Random, data: bytes, others: tuple[bytes, ...]) -> bytes:
    """Replace one value in a record of the catalogue."""
    try:
        name, record = decode(data)
        record = _with_command(chance, record) if chance.random() < 0.5 else _of_schema(chance, name, record)
        return encode(name, record)
    except WireError:
        return blind(chance, data, others)


def _with_command(chance: Random, record: Mapping[str, Any]) -> dict[str, Any]:
    """Replace one value in the command of an envelope or request, according to the command's schema."""
    field = next((name for name in ("command", "payload") if name in record), None)
    if field is None or record["kind"] not in COMMANDS:
        return dict(record)
    inner = layout(f"ringlog.commands.{record['kind']}")
    found = inner.decode(record[field], canonical=False)
    return {**record, field: inner.encode(_of_schema(chance, inner.full_name, found))}


def _of_schema(chance: Random, name: str, record: Mapping[str, Any]) -> dict[str, Any]:
    schema = current()[name].json
    types = named_types(schema)
    if not schema["fields"]:
        return dict(record)
    field = chance.choice(schema["fields"])
    return {**record, field["name"]: _of_type(chance, field["type"], types, record[field["name"]])}


def _of_type(chance: Random, schema: Any, types: Mapping[str, Any], value: Any) -> Any:
    """Return another value of the type, close to the given value."""
    schema = types.get(schema, schema) if isinstance(schema, str) else schema
    if isinstance(schema, list):
        branch = chance.choice(schema)
        return None if branch == "null" else _of_type(chance, branch, types, value)
    kind = schema["type"] if isinstance(schema, Mapping) else schema
    match kind:
        case "int" | "long":
            limit = 2**31 if kind == "int" else 2**63
            near = (value if isinstance(value, int) else 0) + chance.choice((-1, 1))
            return chance.choice([number for number in (*NUMBERS, near) if -limit <= number < limit])
        case "string":
            return chance.choice(TEXTS)
        case "bytes":
            return blind(chance, value or b"", ())
        case "boolean":
            return not value
        case "enum":
            return chance.choice(schema["symbols"])
        case "fixed":
            return chance.randbytes(schema["size"])
        case "array":
            return _of_array(chance, schema["items"], types, list(value or ()))
        case "record":
            found = dict(value) if isinstance(value, Mapping) else None
            made = found or {each["name"]: _of_type(chance, each["type"], types, None) for each in schema["fields"]}
            field = chance.choice(schema["fields"])
            return {**made, field["name"]: _of_type(chance, field["type"], types, made[field["name"]])}
    return value


def _of_array(chance: Random, items: Any, types: Mapping[str, Any], value: list[Any]) -> list[Any]:
    if not value or chance.random() < 0.3:
        return [*value, _of_type(chance, items, types, None)]
    at = chance.randrange(len(value))
    match chance.randrange(4):
        case 0:
            return value[:at] + value[at + 1 :]
        case 1:
            return value + value[at:]
        case 2:
            return value[::-1]
    return [*value[:at], _of_type(chance, items, types, value[at]), *value[at + 1 :]]


def _any_json(chance: Random, value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int) or chance.random() < 0.4:
        return chance.choice((*JSON_VALUES, *TEXTS, *NUMBERS))
    return chance.choice((*NUMBERS, value + 1, value - 1))


def _exchanged(chance: Random, value: Any, other: Callable[[Random, Any], Any]) -> Any:
    """Replace, remove, duplicate or rename one part of ``value``."""
    if isinstance(value, dict) and value and chance.random() < 0.85:
        name = chance.choice(sorted(value))
        match chance.randrange(8):
            case 0:
                return {key: item for key, item in value.items() if key != name}
            case 1:
                return {**value, chance.choice(TEXTS): value[name]}
        return {**value, name: _exchanged(chance, value[name], other)}
    if isinstance(value, list) and value and chance.random() < 0.85:
        at = chance.randrange(len(value))
        if chance.random() < 0.2:
            return value + value[at:]
        return [*value[:at], _exchanged(chance, value[at], other), *value[at + 1 :]]
    return other(chance, value)
