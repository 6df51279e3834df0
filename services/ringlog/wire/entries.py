"""The envelope of the log. ``ringlog.log.LogEntry`` is frozen for ever; the command travels inside as kind, version,
payload.

An entry is read only in its canonical encoding, so that all replicas, whatever their Avro library, read the same or
nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from ringlog.kernel.columns.fast_dataclass import maker_of
from ringlog.kernel.encoding.encoder import command_digest
from ringlog.kernel.model.outcome import Entry, UnreadableEntry
from ringlog.kernel.values import Command, Epoch, Micros
from ringlog.wire.avro.codec import HEADER_BYTES, header, layout, split
from ringlog.wire.avro.mapping import cached_id_bytes, cached_id_text, id_bytes, uncached_id_text, uuid_text
from ringlog.wire.avro.reading import number_at, size_at, text_at
from ringlog.wire.avro.writing import integer, number, sized, text
from ringlog.wire.commands import cached_command, decode_command, encode_command
from ringlog.wire.errors import WireError
from ringlog_schemas import current

LOG_ENTRY = "ringlog.log.LogEntry"
_FINGERPRINT = current()[LOG_ENTRY].fingerprint
_HEADER = header(_FINGERPRINT)
_LAYOUT = layout(LOG_ENTRY)
_cached_number = lru_cache(maxsize=64, typed=True)(number)
_cached_text = lru_cache(maxsize=64)(text)
"""Of what the entries of a batch have in common."""


@dataclass(frozen=True, slots=True)
class EncodedEntry:
    """An entry and the bytes that carry it: sending it again means sending these bytes."""

    entry: Entry
    data: bytes


def author_entry(
    cluster_id: str,
    state_id: str,
    prev_state_id: str | None,
    request_id: str,
    since_epoch: Epoch,
    submitter: str,
    at: Micros,
    command: Command,
) -> EncodedEntry:
    """The entry of a command, for an author to append; ``WireError`` if an id is no UUID or a value does not fit."""
    kind, version, payload = encode_command(command)
    digest = command_digest(kind, version, payload)
    entry = new_entry(
        cluster_id, state_id, prev_state_id, request_id, since_epoch, submitter, at, kind, version, digest, command
    )
    return EncodedEntry(entry, encode_entry(entry, payload))


def encode_entry(entry: Entry, payload: bytes) -> bytes:
    """The bytes of an envelope around ``payload``; the entry's own command and digest are not looked at."""
    previous = entry.prev_state_id
    try:
        parts = (
            _HEADER,
            cached_id_bytes(entry.cluster_id),
            id_bytes(entry.state_id),
            b"\0" if previous is None else b"\2" + id_bytes(previous),
            id_bytes(entry.request_id),
            _cached_number(entry.since_epoch),
            _cached_text(entry.submitter),
            _cached_number(entry.at),
            _cached_text(entry.kind),
            integer(entry.version),
            sized(payload),
        )
    except (TypeError, ValueError, AttributeError) as error:
        raise WireError("not_encodable", LOG_ENTRY, f"{type(error).__name__}: {error}") from error
    return b"".join(parts)


new_entry = maker_of(Entry)


def decode_entry(data: bytes) -> Entry | UnreadableEntry:
    """The entry of one record of the log; never raises."""
    return _read(data) or _refused(data)


def _read(data: bytes) -> Entry | None:
    """An entry in its canonical encoding, field by field: the envelope is frozen, and every replica reads each one.

    None for all other bytes; what is wrong with them, the schema says (``_refused``). ``tests/wire/test_entries.py``
    compares the two.
    """
    try:
        if data[:HEADER_BYTES] != _HEADER:
            return None
        cluster_id, state_id = cached_id_text(data[10:26]), cached_id_text(data[26:42])
        previous, at = (cached_id_text(data[43:59]), 75) if data[42] else (None, 59)
        if data[42] not in (0, 2):
            return None
        request_id = uncached_id_text(data[at - 16 : at])
        since_epoch, at = number_at(data, at)
        submitter, at = text_at(data, at)
        when, at = number_at(data, at)
        kind, at = text_at(data, at)
        version, at = number_at(data, at)
        rest, at = size_at(data, at)
    except (IndexError, ValueError):
        return None
    if at + rest != len(data) or not -(2**31) <= version < 2**31:
        return None
    payload = data[at:]
    digest, command = cached_command(kind, version, payload)
    return new_entry(
        cluster_id, state_id, previous, request_id, since_epoch, submitter, when, kind, version, digest, command
    )


def _refused(data: bytes) -> Entry | UnreadableEntry:
    """The entry as its schema reads it, or what the schema has against the bytes."""
    try:
        fingerprint, body = split(data)
        if fingerprint != _FINGERPRINT:
            return UnreadableEntry(f"unknown_fingerprint: {fingerprint:016x}: the envelope is {_FINGERPRINT:016x}")
        record = _LAYOUT.decode(body, canonical=True)
    except WireError as error:
        return UnreadableEntry(str(error))
    kind, version, payload = record["kind"], record["version"], record["command"]
    previous = record["prev_state_id"]
    return Entry(
        cluster_id=uuid_text(record["cluster_id"]),
        state_id=uuid_text(record["state_id"]),
        prev_state_id=None if previous is None else uuid_text(previous),
        request_id=uuid_text(record["request_id"]),
        since_epoch=record["since_epoch"],
        submitter=record["submitter"],
        at=record["at"],
        kind=kind,
        version=version,
        digest=command_digest(kind, version, payload),
        command=decode_command(kind, version, payload),
    )
