"""Canonical bytes of kernel values, and the digests made of them.

Equal values have equal bytes in every process, on every machine and Python version; different values have different
bytes. Every value is a tag, the length of its body and the body, so no two sequences of values run together:

====== =================================================================================
``N``  None
``T F``  true, false (never an integer's bytes: ``True == 1``, their encodings differ)
``I``  integer, decimal
``S``  text, UTF-8
``B``  bytes
``L``  tuple: its items
``M``  map: key, value, key, value, … by the encoded keys' order, never by iteration order
``R``  record (a frozen dataclass): its class name, then name and value of each field that
       does not hold its default
====== =================================================================================

Leaving defaults out lets a later release add a field (with a default) without changing the digest of a state that
does not use it, so that nodes of two releases can compare digests. There are no floats: nothing in the state may be
one.

The digest of a state is made of the digests of its parts; ``digest`` is the definition. The history is a part of which
only the entries count: the two indexes repeat them. Who needs the digest of one epoch after the other has a
``Digester`` (``ringlog.kernel.encoding.digester``), which encodes only what changed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache, lru_cache
from typing import Any, Final

from immutables import Map

from ringlog.kernel.columns.blocks import Blocks
from ringlog.kernel.generations.canonical import canonical
from ringlog.kernel.generations.packed import PackedRanges
from ringlog.kernel.model.applied_history import Applied, History
from ringlog.kernel.model.plan_columns import IN_COLUMNS
from ringlog.kernel.model.state import EMPTY_STATE, PARTS, ClusterState, Replica

DIGESTED: Final = ("cluster_id", "name", "epoch", "state_id", "time", "changed", *PARTS, "history")
"""What the digest of a state is made of: all of it."""

REPLICAS_KEPT_MAX: Final = 65_536
"""How many encoded replicas are remembered: for 1,000 nodes, 65 epochs at which members of groups changed."""


def encode(value: object) -> bytes:
    """The canonical bytes of ``value``. Raises TypeError for a class that no state holds (a float, a list, …)."""
    write = _WRITERS.get(type(value))
    if write is not None:
        return write(value)
    if is_dataclass(value):
        return _record(value)
    raise TypeError(f"{type(value).__name__} has no canonical encoding")


_COPIED_MAX: Final = 4_096
"""Larger payloads are hashed where they are: to copy one costs more than a call."""


def command_digest(kind: str, version: int, payload: bytes) -> str:
    """What tells two commands apart under one request id: hex SHA-256 of ``encode((kind, version, payload))``."""
    # Written out: every reader makes one for each entry, and walking the tuple would cost more than all the rest.
    head, tail = _kind_and_version(kind, version), b"B%d:" % len(payload)
    begin = b"L%d:%b%b" % (len(head) + len(tail) + len(payload), head, tail)
    if len(payload) > _COPIED_MAX:
        return digest_of_chunks((begin, payload))
    return sha256_of(begin + payload)


@lru_cache(maxsize=256)
def _kind_and_version(kind: str, version: int) -> bytes:
    return encode(kind) + encode(version)


def sha256_of(data: bytes) -> str:
    """Hex SHA-256."""
    return hashlib.sha256(data).hexdigest()


def digest_of_chunks(chunks: Iterable[bytes]) -> str:
    """Hex SHA-256 of what the pieces are together."""
    found = hashlib.sha256()
    for chunk in chunks:
        found.update(chunk)
    return found.hexdigest()


def encoded_parts(state: ClusterState) -> dict[str, bytes]:
    """Part name to its canonical bytes, for the parts that are not as in the empty state. ``decode_parts`` reads it."""
    parts = {name: getattr(state, name) for name in DIGESTED}
    return {name: encode(part) for name, part in parts.items() if not is_empty(name, part)}


def part_digests(state: ClusterState) -> dict[str, str]:
    """Part name to hex SHA-256 of its canonical bytes, for the parts that are not as in the empty state."""
    return digests_of(encoded_parts(state))


def digests_of(parts: Mapping[str, bytes]) -> dict[str, str]:
    """Part name to hex SHA-256 of these bytes; ``combined_digest`` of it is the digest of the state."""
    return {name: sha256_of(data) for name, data in parts.items()}


def is_empty(name: str, part: object) -> bool:
    """True for a part that is as in the empty state."""
    empty = getattr(EMPTY_STATE, name)
    return type(part) is type(empty) and part == empty


def combined_digest(parts: Mapping[str, str]) -> str:
    """The digest of a state from those of its parts: hex SHA-256 over (part name, part digest) by name."""
    return sha256_of(encode(tuple(sorted(parts.items()))))


def digest(state: ClusterState) -> str:
    """The digest of the whole state: hex SHA-256."""
    return combined_digest(part_digests(state))


def framed(tag: bytes, body: bytes) -> bytes:
    """A value of that tag."""
    return b"%b%d:%b" % (tag, len(body), body)


def joined(tag: bytes, parts: Sequence[bytes]) -> bytes:
    """A value of that tag and of these parts: ``framed`` without a second copy of what is large."""
    return b"".join((b"%b%d:" % (tag, sum(map(len, parts))), *parts))


def framed_map(pairs: Iterable[tuple[bytes, bytes]]) -> bytes:
    """A map of these encoded keys and values."""
    return joined(b"M", [part for pair in sorted(pairs) for part in pair])


def framed_record(value: Any, inner: Callable[[Any], bytes]) -> bytes:
    """A record, the values of its fields encoded by ``inner``."""
    class_name, layout = layout_of(value.__class__)
    body = [class_name]
    for name, encoded_name, default in layout:
        item = getattr(value, name)
        if type(item) is type(default) and item == default:
            continue
        body += (encoded_name, inner(item))
    return joined(b"R", body)


def entries_of(history: History) -> tuple[Applied, ...]:
    """What a history says, by epoch."""
    return tuple(history)


@cache
def layout_of(record: type) -> tuple[bytes, tuple[tuple[str, bytes, object], ...]]:
    """A record's encoded class name and, by name, each field's name, encoded name and default (or MISSING)."""
    layout = []
    for field in sorted(fields(record), key=lambda field: field.name):
        default = field.default_factory() if field.default_factory is not MISSING else field.default
        layout.append((field.name, encode(field.name), default))
    return encode(record.__name__), tuple(layout)


def _record(value: Any) -> bytes:
    return framed_record(value, encode)


def _applied(value: Applied) -> bytes:
    """As ``_record``, written out, in a quarter of the time: the digest of a state has one for each entry."""
    said, epoch, request, made = (
        value.digest.encode("utf-8", "surrogatepass"),
        b"%d" % value.epoch,
        value.request_id.encode("utf-8", "surrogatepass"),
        value.state_id.encode("utf-8", "surrogatepass"),
    )
    return framed(b"R", _APPLIED % (len(said), said, len(epoch), epoch, len(request), request, len(made), made))


@lru_cache(maxsize=REPLICAS_KEPT_MAX)
def _replica(value: Replica) -> bytes:
    """A member of a group: the same few are in the groups of a hundred thousand ranges."""
    return _record(value)


_WRITERS: Final[dict[type, Callable[[Any], bytes]]] = {
    type(None): lambda _: b"N0:",
    bool: lambda value: b"T0:" if value else b"F0:",
    int: lambda value: framed(b"I", b"%d" % value),
    # Text that is no legal UTF-8 (a lone surrogate) must not make a digest fail; the bytes stay unambiguous.
    str: lambda value: framed(b"S", value.encode("utf-8", "surrogatepass")),
    bytes: lambda value: framed(b"B", value),
    **dict.fromkeys(IN_COLUMNS, lambda value: encode(value.as_tuple())),
    PackedRanges: canonical,
    tuple: lambda value: framed(b"L", b"".join(map(encode, value))),
    Blocks: lambda value: framed(b"L", b"".join(map(encode, value))),
    Map: lambda value: framed_map((encode(key), encode(item)) for key, item in value.items()),
    History: lambda value: encode((value.oldest, entries_of(value))),
    Replica: _replica,
    Applied: _applied,
}

_NAMED, _FIELDS = layout_of(Applied)
_APPLIED: Final = _NAMED + b"".join(
    encoded + (b"I%d:%b" if name == "epoch" else b"S%d:%b") for name, encoded, _ in _FIELDS
)
