"""Encoding of commands as payloads. A payload is the plain Avro body of ``ringlog.commands.<Kind>``, without a header.

Kind and version determine the schema of a payload. A version that this release does not have becomes an
``UnknownCommand``. An earlier version in the catalogue is resolved to the present schema of its kind.

Invariants:

- A command is encoded in the earliest version that can express it. So earlier releases can decode every command that
  does not use a new field. The rule of the kind rejects new fields until a feature is enabled.

- A payload is decoded only in its canonical encoding and version. Encoding the decoded command again gives the same
  bytes and digest.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Any, Final

from ringlog.kernel.encoding.encoder import command_digest
from ringlog.kernel.model.outcome import Undecodable, UnknownCommand
from ringlog.kernel.registry import COMMANDS, VERSIONS
from ringlog.kernel.values import Command
from ringlog.wire.avro.binary import RecordCodec
from ringlog.wire.avro.codec import layout
from ringlog.wire.avro.mapping import Mapper
from ringlog.wire.errors import WireError
from ringlog_schemas import VERSION, earlier

Decoded = Command | Undecodable | UnknownCommand
CACHED_MAX, CACHED_BYTES_MAX = 1_024, 256
"""Number of cached commands with their digests, and the maximum size of their payloads in bytes."""


_NONE: Final[Mapping[int, RecordCodec]] = {}


@cache
def _earlier() -> Mapping[str, Mapping[int, RecordCodec]]:
    """Return the layouts of earlier versions by kind and version, in ascending order."""
    found: dict[str, dict[int, RecordCodec]] = {}
    for schema in earlier():
        if schema.family == "commands":
            found.setdefault(schema.name, {})[int(schema.json[VERSION])] = RecordCodec(schema.json)
    return found


@cache
def mapper(kind: str) -> Mapper[Any]:
    """Return the converter between the class of a kind and its present schema."""
    return Mapper(COMMANDS[kind], layout(f"ringlog.commands.{kind}"))


def encode_command(command: Command) -> tuple[str, int, bytes]:
    """Return (kind, version, payload) of a command. Raises WireError if a value does not fit its field."""
    kind = type(command).__name__
    payload = mapper(kind).write(command)
    today = layout(f"ringlog.commands.{kind}") if kind in _earlier() else None
    for version, written in _earlier().get(kind, _NONE).items():
        assert today is not None
        try:
            shorter = written.encode(written.resolve(payload, today))
            # The earlier version expresses the command if no information is lost on the way back.
            if today.encode(today.resolve(shorter, written)) == payload:
                return kind, version, shorter
        except WireError:  # the earlier version cannot express the command
            continue
    return kind, VERSIONS[kind], payload


def cached_command(kind: str, version: int, payload: bytes) -> tuple[str, Decoded]:
    """Return the digest and the command of a payload. Never raises.

    Small commands are cached. A submitter reads the same bytes in the log soon after, and the validator needs both
    values.
    """
    if len(payload) <= CACHED_BYTES_MAX:
        return _cached(kind, version, payload)
    return command_digest(kind, version, payload), decode_command(kind, version, payload)


def digest_of(kind: str, version: int, payload: bytes) -> str:
    """Return the digest of a payload, without decoding a large command."""
    small = len(payload) <= CACHED_BYTES_MAX
    return _cached(kind, version, payload)[0] if small else command_digest(kind, version, payload)


@lru_cache(maxsize=CACHED_MAX)
def _cached(kind: str, version: int, payload: bytes) -> tuple[str, Decoded]:
    return command_digest(kind, version, payload), decode_command(kind, version, payload)


def decode_command(kind: str, version: int, payload: bytes) -> Decoded:
    """Decode a payload. Never raises."""
    if VERSIONS.get(kind) == version:
        read = mapper(kind).read(payload)
        found = _by_schema(kind, payload, layout(f"ringlog.commands.{kind}")) if read is None else read
    elif version in _earlier().get(kind, _NONE):
        found = _by_schema(kind, payload, _earlier()[kind][version])
    else:
        return UnknownCommand(kind, version)
    if kind in _earlier() and isinstance(found, Command) and encode_command(found)[1] != version:
        return Undecodable(f"not_canonical: {kind}: version {version} of what an earlier version expresses")
    return found


def _by_schema(kind: str, payload: bytes, written: RecordCodec) -> Decoded:
    """Decode a command with its schema, or return the schema's objection to the bytes."""
    today = layout(f"ringlog.commands.{kind}")
    try:
        record = written.decode(payload, canonical=True)
        command: Command = mapper(kind).from_record(record if written is today else today.resolve(payload, written))
    except WireError as error:
        return Undecodable(str(error))
    return command
