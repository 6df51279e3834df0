"""The envelope of the log, ``ringlog.log.LogEntry``. It contains a command as kind, version and payload.

Invariants: the schema of the envelope never changes. An entry is decoded only from its canonical encoding. So all
replicas, with any Avro library, decode the same entry or none.
"""

from __future__ import annotations

from functools import lru_cache

from ringlog.kernel.encoding.encoder import command_digest
from ringlog.kernel.model.outcome import Entry, UnreadableEntry
from ringlog.kernel.values import Command, Epoch, Micros, Value, replace
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
"""Caches for the fields that the entries of a batch have in common."""


class EncodedEntry(Value):
    """An entry and its bytes, which the entry also has. A repeated append must use the same bytes."""

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
    """Return an entry with a command. Raises WireError if an id is not a UUID or a value does not fit its field."""
    kind, version, payload = encode_command(command)
    digest = command_digest(kind, version, payload)
    ids = cluster_id, state_id, prev_state_id, request_id
    return encoded(Entry(*ids, since_epoch, submitter, at, kind, version, digest, command, b""), payload)


def encoded(entry: Entry, payload: bytes) -> EncodedEntry:
    """Return an entry with its bytes. ``payload`` is that of its command. Raises WireError."""
    data = encode_entry(entry, payload)
    return EncodedEntry(replace(entry, data=data), data)


def encode_entry(entry: Entry, payload: bytes) -> bytes:
    """Encode an envelope around ``payload``. The entry's own command and digest are not used. Raises WireError."""
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


def decode_entry(data: bytes) -> Entry | UnreadableEntry:
    """Decode a record of the log. Never raises."""
    return _read(data) or _refused(data)


def _read(data: bytes) -> Entry | None:
    """Decode a canonical entry field by field, or return None for any other bytes.

    Every replica decodes every entry, so this bypasses the general decoder. That is possible because the envelope never
    changes. ``_refused`` handles all other bytes by the schema. ``tests/wire/test_entries.py`` compares the two.
    """
    try:
        if data[:HEADER_BYTES] != _HEADER:
            return None
        # Layout: header 0-9, cluster id 10-25, state id 26-41, union branch 42, then the optional predecessor id, then
        # the request id. Branch 2 means that a predecessor is present.
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
    # Slices above may be short if the bytes are truncated; the total length detects that.
    if at + rest != len(data) or not -(2**31) <= version < 2**31:
        return None
    payload = data[at:]
    digest, command = cached_command(kind, version, payload)
    return Entry(
        cluster_id, state_id, previous, request_id, since_epoch, submitter, when, kind, version, digest, command, data
    )


def _refused(data: bytes) -> Entry | UnreadableEntry:
    """Decode an entry with its schema, or return the schema's objection to the bytes."""
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
        data=data,
    )
