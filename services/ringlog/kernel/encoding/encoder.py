"""Canonical bytes of kernel values, and digests over them.

Equal values have equal bytes in every process, on every machine and Python version; different values have different
bytes. Every value is a tag, the length of its body and the body, so concatenated values stay unambiguous:

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

Omitted defaults let a later release add a field (with a default) without changing the digest of a state that does not
use it. So nodes of two releases can compare digests. The state must not contain floats, so they have no encoding.

The digest of a state covers the digests of its sections; ``digest`` is the definition. Only the entries of the history
count: its two indexes repeat them. For digests of consecutive epochs, use a ``Digester``
(``ringlog.kernel.encoding.digester``), which encodes only changes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any, Final

from immutables import Map

from ringlog.kernel.columns.blocks import Blocks
from ringlog.kernel.generations.canonical import canonical
from ringlog.kernel.generations.packed import PackedRanges
from ringlog.kernel.model.applied_history import Applied, History
from ringlog.kernel.model.plan_columns import IN_COLUMNS
from ringlog.kernel.model.state import EMPTY_STATE, PARTS, ClusterState, Replica
from ringlog.kernel.values import NODEFAULT, Value, defaults_of

DIGESTED: Final = ("cluster_id", "name", "epoch", "state_id", "time", "changed", *PARTS, "history", "chain")
"""The fields that the digest of a state covers: all of them."""
assert {*DIGESTED} == {*ClusterState.__struct_fields__}, "the digest covers each field of the state"
assert len({*DIGESTED}) == len(DIGESTED), "a section has one digest"

REPLICAS_KEPT_MAX: Final = 65_536
"""Maximum number of cached encoded replicas: for 1,000 nodes, 65 epochs that change members of groups."""


def encode(value: object) -> bytes:
    """Return the canonical bytes of ``value``. Raise TypeError for a class that no state holds (a float, a list, …)."""
    write = _WRITERS.get(type(value))
    if write is not None:
        return write(value)
    if isinstance(value, Value):
        return _record(value)
    raise TypeError(f"{type(value).__name__} has no canonical encoding")


_COPIED_MAX: Final = 4_096
"""Larger payloads are hashed in place: copying one costs more than a call."""


def command_digest(kind: str, version: int, payload: bytes) -> str:
    """Return the hex SHA-256 of ``encode((kind, version, payload))``, which distinguishes commands under one request
    id.
    """
    # Without a generic tuple: every reader computes one for each entry, and walking the tuple would cost more than the
    # rest.
    head, tail = _kind_and_version(kind, version), b"B%d:" % len(payload)
    begin = b"L%d:%b%b" % (len(head) + len(tail) + len(payload), head, tail)
    if len(payload) > _COPIED_MAX:
        return digest_of_chunks((begin, payload))
    return sha256_of(begin + payload)


@lru_cache(maxsize=256)
def _kind_and_version(kind: str, version: int) -> bytes:
    return encode(kind) + encode(version)


def sha256_of(data: bytes) -> str:
    """Return the hex SHA-256."""
    return hashlib.sha256(data).hexdigest()


def digest_of_chunks(chunks: Iterable[bytes]) -> str:
    """Return the hex SHA-256 of the concatenated chunks."""
    found = hashlib.sha256()
    for chunk in chunks:
        found.update(chunk)
    return found.hexdigest()


def encoded_parts(state: ClusterState) -> dict[str, bytes]:
    """Return section name to canonical bytes, for sections that differ from the empty state.

    ``decode_parts`` reads them.
    """
    parts = {name: getattr(state, name) for name in DIGESTED}
    return {name: encode(part) for name, part in parts.items() if not is_empty(name, part)}


def part_digests(state: ClusterState) -> dict[str, str]:
    """Return section name to hex SHA-256 of its canonical bytes, for sections that differ from the empty state."""
    return digests_of(encoded_parts(state))


def digests_of(parts: Mapping[str, bytes]) -> dict[str, str]:
    """Return section name to hex SHA-256 of these bytes. ``combined_digest`` makes the digest of the state from it."""
    return {name: sha256_of(data) for name, data in parts.items()}


def is_empty(name: str, part: object) -> bool:
    """Return True for a section that equals that of the empty state."""
    empty = getattr(EMPTY_STATE, name)
    return type(part) is type(empty) and part == empty


def combined_digest(parts: Mapping[str, str]) -> str:
    """Return the digest of a state: hex SHA-256 over (section name, section digest) by name."""
    return sha256_of(encode(tuple(sorted(parts.items()))))


def digest(state: ClusterState) -> str:
    """Return the digest of the whole state: hex SHA-256."""
    return combined_digest(part_digests(state))


def framed(tag: bytes, body: bytes) -> bytes:
    """Return a value with this tag and body."""
    return b"%b%d:%b" % (tag, len(body), body)


def joined(tag: bytes, parts: Sequence[bytes]) -> bytes:
    """Return a value with this tag and these parts: ``framed`` without a second copy of large data."""
    return b"".join((b"%b%d:" % (tag, sum(map(len, parts))), *parts))


def framed_map(pairs: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return a map of these encoded keys and values."""
    return joined(b"M", [part for pair in sorted(pairs) for part in pair])


def framed_record(value: Any, inner: Callable[[Any], bytes]) -> bytes:
    """Return a record whose field values ``inner`` encodes."""
    class_name, layout = layout_of(value.__class__)
    body = [class_name]
    for name, encoded_name, default in layout:
        item = getattr(value, name)
        # Types first: ``True == 1``, and a skipped field must decode to the same value.
        if type(item) is type(default) and item == default:
            continue
        body += (encoded_name, inner(item))
    return joined(b"R", body)


def entries_of(history: History) -> tuple[Applied, ...]:
    """Return the entries of a history, by epoch."""
    return tuple(history)


@cache
def layout_of(record: type) -> tuple[bytes, tuple[tuple[str, bytes, object], ...]]:
    """Return a record's encoded class name and, by name, each field's name, encoded name and default (or NODEFAULT)."""
    defaults = sorted(defaults_of(record).items())
    return encode(record.__name__), tuple((name, encode(name), default) for name, default in defaults)


def _record(value: Any) -> bytes:
    return framed_record(value, encode)


def _applied(value: Applied) -> bytes:
    """Return the bytes of ``_record`` in a quarter of the time: the digest of a state has one per remembered entry."""
    said, epoch, request, made = (
        value.digest.encode("utf-8", "surrogatepass"),
        b"%d" % value.epoch,
        value.request_id.encode("utf-8", "surrogatepass"),
        value.state_id.encode("utf-8", "surrogatepass"),
    )
    return framed(b"R", _APPLIED % (len(said), said, len(epoch), epoch, len(request), request, len(made), made))


@lru_cache(maxsize=REPLICAS_KEPT_MAX)
def _replica(value: Replica) -> bytes:
    """Return the bytes of a member, cached: the same few members are in the groups of a hundred thousand ranges."""
    return _record(value)


_WRITERS: Final[dict[type, Callable[[Any], bytes]]] = {
    type(None): lambda _: b"N0:",
    bool: lambda value: b"T0:" if value else b"F0:",
    int: lambda value: framed(b"I", b"%d" % value),
    # Text that is not legal UTF-8 (a lone surrogate) must not make a digest fail; the bytes stay unambiguous.
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
assert [name for name, *_ in _FIELDS] == ["digest", "epoch", "request_id", "state_id"], "``_applied`` has this order"
assert all(default is NODEFAULT for *_, default in _FIELDS), "``_applied`` encodes all fields"
_APPLIED: Final = _NAMED + b"".join(
    encoded + (b"I%d:%b" if name == "epoch" else b"S%d:%b") for name, encoded, _ in _FIELDS
)
