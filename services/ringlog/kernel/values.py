"""Small values every room shares: what an epoch, a token, an instant and an identifier are.

Identifiers are text. A UUID is kept in its canonical lower-case form, whose text order equals the order of its 16
bytes; state ids are version-7 UUIDs, so that order is also time order. (Version-1 UUIDs do not sort by time: never
compare those.)

Tokens are signed 64-bit integers. ``TOKEN_MIN - 1`` (the smallest signed value) means "before all" and is never a token
of a key or of a node. A range is ``(start, end]``; it wraps when ``start >= end``, and ``(t, t]`` is the whole ring.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

Epoch = int
"""Number of applied entries; 0 is the empty state before founding."""

Token = int
"""Signed 64-bit position on the ring."""

Micros = int
"""Microseconds since 1970-01-01 UTC."""

NodeId = str
OperationId = str
GenerationId = str

TOKEN_MIN: Token = -(2**63) + 1
TOKEN_MAX: Token = 2**63 - 1
MICROS_MAX: Micros = 2**62

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_IDENTIFIER = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,47}")


def is_uuid(text: str) -> bool:
    """True for a canonical lower-case UUID."""
    return _UUID.fullmatch(text) is not None


def is_name(text: str) -> bool:
    """True for a name of a cluster, node, datacenter, rack, role or writer: 1-100 of letters, digits, ``_ . -``."""
    return _NAME.fullmatch(text) is not None


def is_identifier(text: str) -> bool:
    """True for a name of the schema (keyspace, table, column): a letter, then up to 47 letters, digits, ``_``."""
    return _IDENTIFIER.fullmatch(text) is not None


def is_token(value: int) -> bool:
    """True for a legal token of a node or key."""
    return TOKEN_MIN <= value <= TOKEN_MAX


# ----------------------------------------------------------------------------------- commands, and what they bring


@dataclass(frozen=True, slots=True)
class Command:
    """What an entry of the log asks for. The commands are its subclasses, in the family files of ``commands``.

    ``VERSION``: the version that this release writes; a released (kind, version) is frozen. The kind is the class's
    name, the fields are those of the Avro record ``ringlog.commands.<kind>`` and of the JSON that operators type.
    """

    VERSION: ClassVar[int] = 1


@dataclass(frozen=True, slots=True)
class DatacenterReplication:
    """Replicas of each range in one datacenter: ``factor`` of them, or one in each of ``racks`` (factor = their
    number).
    """

    datacenter: str
    factor: int
    racks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Replication:
    """How a keyspace is replicated.

    ``simple`` has a ``factor``; ``network`` has ``datacenters`` by ascending name, and ``factor`` is the sum of
    theirs; ``entire`` (every node has everything) has factor 0.
    """

    strategy: str
    factor: int
    datacenters: tuple[DatacenterReplication, ...] = ()


@dataclass(frozen=True, slots=True)
class Column:
    """A column and its CQL type name, e.g. ``text``, ``bigint``, ``map<text, int>``.

    ``static``: all rows of a partition share its value.
    """

    name: str
    type: str
    static: bool = False


@dataclass(frozen=True, slots=True)
class CdcOptions:
    """What a table's CDC log holds.

    ``preimage``: false, true or full; ``delta``: full or keys; ``ttl`` in seconds, 0 = never.
    """

    enabled: bool = False
    preimage: str = "false"
    postimage: bool = False
    delta: str = "full"
    ttl: int = 86_400


@dataclass(frozen=True, slots=True)
class TypeField:
    """A field of a user type and its CQL type name, which may be that of another user type, frozen."""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class GenerationRange:
    """One range of a generation, stored under its end token.

    ``streams``: 16-byte stream ids in slot order, slot j for shard j of the range's owner. **Slot order is data**:
    a reader that sorts them loses the mapping. ``ignore_msb``: the owner's number of ignored bits.
    """

    end: int
    ignore_msb: int
    streams: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Position:
    """``offset`` = the first offset not covered, of ``partition`` of the CDC topic."""

    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class Witness:
    """A node's acknowledgement: it applied epoch ``applied`` and every write admitted below ``drained`` is applied."""

    node: str
    applied: int
    drained: int


@dataclass(frozen=True, slots=True)
class StreamReport:
    """A gaining node has fetched all rows it gains: count and checksum (hex) agree with what the sources sent."""

    node: str
    operation: str
    rows: int
    checksum: str
