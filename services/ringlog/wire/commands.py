"""Commands to payloads and back. A payload is the plain Avro body of ``ringlog.commands.<Kind>``, without a header.

Kind and version name the schema of a payload, so a released (kind, version) never changes. A payload is read only in
its canonical encoding: then encoding the command again gives the same bytes, and the same digest.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any

from ringlog.kernel.encoding import command_digest
from ringlog.kernel.outcome import Undecodable, UnknownCommand
from ringlog.kernel.registry import COMMANDS, VERSIONS
from ringlog.kernel.values import Command
from ringlog.wire.binary import RecordCodec
from ringlog.wire.codec import layout
from ringlog.wire.errors import WireError
from ringlog.wire.mapping import Mapper
from ringlog_schemas import VERSION, current, frozen, frozen_versions

Decoded = Command | Undecodable | UnknownCommand
KNOWN_MAX, KNOWN_BYTES_MAX = 1_024, 256
"""How many commands are remembered with their digests, and up to which size of a payload."""


@cache
def _layouts() -> dict[tuple[str, int], RecordCodec]:
    """Every (kind, version) that this release can read; of equal ones the present layout."""
    found: dict[tuple[str, int], RecordCodec] = {}
    for number in frozen_versions():
        for schema in frozen(number).values():
            if schema.family == "commands" and schema.name in COMMANDS:
                found[schema.name, int(schema.json[VERSION])] = RecordCodec(schema.json)
    for schema in current().values():
        if schema.family == "commands" and schema.name in COMMANDS:
            found[schema.name, int(schema.json[VERSION])] = layout(schema.full_name)
    return found


@cache
def mapper(kind: str) -> Mapper[Any]:
    """The converter between the class of a kind and today's schema of it."""
    return Mapper(COMMANDS[kind], layout(f"ringlog.commands.{kind}"))


def encode_command(command: Command) -> tuple[str, int, bytes]:
    """(kind, version, payload) as this release writes it; ``WireError`` if a value does not fit its field's type."""
    kind = type(command).__name__
    return kind, VERSIONS[kind], mapper(kind).write(command)


def known_command(kind: str, version: int, payload: bytes) -> tuple[str, Decoded]:
    """The digest of a command, and the command; never raises.

    Small ones are remembered: who asks reads the same bytes in the log soon after, and who decides asks for both.
    """
    if len(payload) <= KNOWN_BYTES_MAX:
        return _known(kind, version, payload)
    return command_digest(kind, version, payload), decode_command(kind, version, payload)


def digest_of(kind: str, version: int, payload: bytes) -> str:
    """The digest alone: a larger command is not decoded for it."""
    small = len(payload) <= KNOWN_BYTES_MAX
    return _known(kind, version, payload)[0] if small else command_digest(kind, version, payload)


@lru_cache(maxsize=KNOWN_MAX)
def _known(kind: str, version: int, payload: bytes) -> tuple[str, Decoded]:
    return command_digest(kind, version, payload), decode_command(kind, version, payload)


def decode_command(kind: str, version: int, payload: bytes) -> Decoded:
    """The command of a payload; never raises."""
    # What this release writes itself is read without a dictionary in between.
    found = mapper(kind).read(payload) if VERSIONS.get(kind) == version else None
    return _by_schema(kind, version, payload) if found is None else found


def _by_schema(kind: str, version: int, payload: bytes) -> Decoded:
    """The command as its schema reads it, or what the schema has against the bytes."""
    written = _layouts().get((kind, version))
    if written is None:
        return UnknownCommand(kind, version)
    today = layout(f"ringlog.commands.{kind}")
    try:
        record = written.decode(payload, canonical=True)
        if written is not today:
            record = today.resolve(payload, written)
        command: Command = mapper(kind).from_record(record)
    except WireError as error:
        return Undecodable(str(error))
    return command
