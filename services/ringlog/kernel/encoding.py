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

The digest of a state is made of the digests of its parts. A part that is the same object as in an earlier state keeps
its digest without being walked (``part_digests`` with ``known``). The history is a part of which only the entries
count: the two indexes repeat them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache, lru_cache
from typing import Any, Final

from immutables import Map

from ringlog.kernel.state import EMPTY_STATE, PARTS, ClusterState, History, Replica

HEAD: Final = ("cluster_id", "name", "epoch", "state_id", "time", "changed")
"""What a digest covers besides ``PARTS`` and the history."""

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


def command_digest(kind: str, version: int, payload: bytes) -> str:
    """What tells two commands apart under one request id: hex SHA-256 of ``encode((kind, version, payload))``."""
    # Written out: every reader makes one for each entry, and walking the tuple would cost more than all the rest.
    name, number = kind.encode("utf-8", "surrogatepass"), b"%d" % version
    body = b"S%d:%bI%d:%bB%d:%b" % (len(name), name, len(number), number, len(payload), payload)
    return hashlib.sha256(b"L%d:%b" % (len(body), body)).hexdigest()


def part_digests(state: ClusterState, known: tuple[ClusterState, Mapping[str, str]] | None = None) -> dict[str, str]:
    """Part name to hex SHA-256 of its canonical bytes, for the parts that are not as in the empty state.

    ``known``: an earlier state and its part digests; a part that is the same object there is not encoded again.
    """
    digests = {}
    for name in (*HEAD, *PARTS, "history"):
        part = getattr(state, name)
        if known is not None and part is getattr(known[0], name):
            digest = known[1].get(name)
        elif type(part) is type(getattr(EMPTY_STATE, name)) and part == getattr(EMPTY_STATE, name):
            digest = None
        else:
            digest = hashlib.sha256(encode(part)).hexdigest()
        if digest is not None:
            digests[name] = digest
    return digests


def combined_digest(parts: Mapping[str, str]) -> str:
    """The digest of a state from those of its parts: hex SHA-256 over (part name, part digest) by name."""
    return hashlib.sha256(encode(tuple(sorted(parts.items())))).hexdigest()


def digest(state: ClusterState) -> str:
    """The digest of the whole state: hex SHA-256."""
    return combined_digest(part_digests(state))


def _framed(tag: bytes, body: bytes) -> bytes:
    return b"%b%d:%b" % (tag, len(body), body)


def _map(value: Mapping[Any, Any]) -> bytes:
    pairs = sorted((encode(key), encode(item)) for key, item in value.items())
    return _framed(b"M", b"".join(part for pair in pairs for part in pair))


@lru_cache(maxsize=REPLICAS_KEPT_MAX)
def _replica(value: Replica) -> bytes:
    """A member of a group: the same few are in the groups of a hundred thousand ranges."""
    return _record(value)


_WRITERS: Final[dict[type, Callable[[Any], bytes]]] = {
    type(None): lambda _: b"N0:",
    bool: lambda value: b"T0:" if value else b"F0:",
    int: lambda value: _framed(b"I", b"%d" % value),
    # Text that is no legal UTF-8 (a lone surrogate) must not make a digest fail; the bytes stay unambiguous.
    str: lambda value: _framed(b"S", value.encode("utf-8", "surrogatepass")),
    bytes: lambda value: _framed(b"B", value),
    tuple: lambda value: _framed(b"L", b"".join(map(encode, value))),
    Map: _map,
    History: lambda value: _history(value),
    Replica: _replica,
}


@cache
def _layout(record: type) -> tuple[bytes, tuple[tuple[str, bytes, object], ...]]:
    """A record's encoded class name and, by name, each field's name, encoded name and default (or MISSING)."""
    layout = []
    for field in sorted(fields(record), key=lambda field: field.name):
        default = field.default_factory() if field.default_factory is not MISSING else field.default
        layout.append((field.name, encode(field.name), default))
    return encode(record.__name__), tuple(layout)


def _record(value: Any) -> bytes:
    class_name, layout = _layout(value.__class__)
    body = [class_name]
    for name, encoded_name, default in layout:
        item = getattr(value, name)
        if type(item) is type(default) and item == default:
            continue
        body += (encoded_name, encode(item))
    return _framed(b"R", b"".join(body))


def _history(value: History) -> bytes:
    entries = tuple(value.entries[epoch] for epoch in sorted(value.entries))
    return encode((value.oldest, entries))
