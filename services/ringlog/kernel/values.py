"""Small values that all packages share: epochs, tokens, timestamps and identifiers.

Identifiers are text. A UUID is stored in its canonical lower-case form, whose text order equals the order of its 16
bytes. State ids are version-7 UUIDs, so their order is also time order. (Version-1 UUIDs do not sort by time: never
compare those.)

Tokens are signed 64-bit integers. ``TOKEN_MIN - 1`` (the smallest signed value) means "before all" and is never a token
of a key or of a node. A range is ``(start, end]``. It wraps when ``start >= end``, and ``(t, t]`` is the whole ring.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, Final

Epoch = int
"""Number of applied entries; 0 is the empty state before the cluster is created."""

Token = int
"""Signed 64-bit position on the ring."""

Micros = int
"""Microseconds since 1970-01-01 UTC."""

SECOND_US: Final[Micros] = 1_000_000

NodeId = str
OperationId = str
GenerationId = str

TOKEN_MIN: Token = -(2**63) + 1
TOKEN_MAX: Token = 2**63 - 1
MICROS_MAX: Micros = 2**62

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_IDENTIFIER = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,47}")

IDENTIFIER_MAX = 48
"""Characters of an identifier."""


def is_uuid(text: str) -> bool:
    """Return True for a canonical lower-case UUID."""
    return _UUID.fullmatch(text) is not None


def is_name(text: str) -> bool:
    """Return True for a name of a cluster, node, rack, role and the like: 1-100 of letters, digits, ``_ . -``."""
    return _NAME.fullmatch(text) is not None


def is_identifier(text: str) -> bool:
    """Return True for a schema name (keyspace, table, column): a letter, then up to 47 letters, digits, ``_``."""
    return _IDENTIFIER.fullmatch(text) is not None


def is_token(value: int) -> bool:
    """Return True for a legal token of a node or key."""
    return TOKEN_MIN <= value <= TOKEN_MAX


# ----------------------------------------------------------------------------------- commands, and what they bring


@dataclass(frozen=True, slots=True)
class Command:
    """The request of a log entry. Its subclasses, in the family files of ``commands``, are the commands.

    ``VERSION``: the version that this release writes; a released (kind, version) is frozen. The kind is the class's
    name. The fields are those of the Avro record ``ringlog.commands.<kind>`` and of the JSON that operators type.
    ``PAUSED_BY``: the scope of pauses that blocks the command (``kernel.model.modes``); empty: none. Each command
    declares it. ``CHANGES_ITS_TABLE``: the only table that the command changes is the one named by ``keyspace`` and
    ``name``.
    """

    VERSION = 1
    PAUSED_BY = "all"
    CHANGES_ITS_TABLE = False


@dataclass(frozen=True, slots=True)
class Before:
    """The default of a field that was added later: the value of records written before the field existed."""

    default: Any


@dataclass(frozen=True, slots=True)
class Fixed:
    """Bytes of a fixed ``size``, which have their own ``name`` in the schemas."""

    name: str
    size: int
    doc: str


STREAM_ID: Final = Fixed(
    "ringlog.StreamId",
    16,
    "A CDC stream id: token (8 bytes, big-endian), then random bits, range index and version.",
)


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of the cluster and its value.

    The element type of a command's ``settings``.
    """

    name: Annotated[str, "A name of the settings reference."]
    value: Annotated[int, "Its value, in the unit of the setting."]


def spoken(field: str) -> str:
    """Return the name of a field in records and JSON. A class field named like a Python keyword ends with ``_``."""
    return field.removesuffix("_")


@dataclass(frozen=True, slots=True)
class DatacenterReplication:
    """Replicas in one datacenter."""

    datacenter: Annotated[str, "Its name."]
    factor: Annotated[int, "Number of replicas there."]
    racks: Annotated[
        tuple[str, ...],
        "One replica in each of these racks, by ascending name; empty if any will do.",
    ] = ()


@dataclass(frozen=True, slots=True)
class Replication:
    """How a keyspace is replicated."""

    strategy: Annotated[str, "Name of the strategy: simple, network, entire, tablets or zone."]
    factor: Annotated[int, "Number of replicas of each range; network: the sum over the datacenters; entire, zone: 0."]
    datacenters: Annotated[
        tuple[DatacenterReplication, ...], "For network, and tablets without a number: by ascending name.", Before(())
    ] = ()
    zone: Annotated[str, "For zone: its name.", Before("")] = ""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table."""

    name: Annotated[str, "Its name."]
    type: Annotated[str, "Its CQL type, e.g. text, bigint, map<text, int>."]
    static: Annotated[bool, "Whether all rows of a partition share its value.", Before(False)] = False


@dataclass(frozen=True, slots=True)
class ColumnRename:
    """Another name for a column."""

    from_: Annotated[str, "Its name."]
    to: Annotated[str, "The new one."]


@dataclass(frozen=True, slots=True)
class CdcOptions:
    """What a table's CDC log holds."""

    enabled: Annotated[bool, "Whether writes are logged."] = False
    preimage: Annotated[str, "false, true or full."] = "false"
    postimage: Annotated[bool, "Whether the row after the write is logged too."] = False
    delta: Annotated[str, "full or keys."] = "full"
    ttl: Annotated[int, "Seconds that a row of the log is kept; 0 = for ever."] = 86_400


@dataclass(frozen=True, slots=True)
class TabletOptions:
    """How a table is cut into tablets; what is null is chosen."""

    count: Annotated[int | None, "The first number of tablets.", Before(None)] = None
    base: Annotated[str, "The table of the same keyspace whose tablets it shares; empty: its own.", Before("")] = ""
    min_count: Annotated[int | None, "Hint: the least number of tablets.", Before(None)] = None
    max_count: Annotated[int | None, "Hint: the greatest number of tablets.", Before(None)] = None
    expected_bytes: Annotated[int | None, "Hint: how much data it will have.", Before(None)] = None


@dataclass(frozen=True, slots=True)
class TypeField:
    """A field of a user type."""

    name: Annotated[str, "Its name."]
    type: Annotated[str, "Its CQL type; another user type is frozen."]


@dataclass(frozen=True, slots=True)
class GenerationRange:
    """One range of a generation, stored under its end token."""

    end: Annotated[int, "The range's last token."]
    ignore_msb: Annotated[
        int,
        "How many of the highest bits of a token the range's owner ignores when it chooses a shard.",
    ]
    streams: Annotated[
        tuple[bytes, ...],
        "Stream ids in slot order: slot j is for shard j. The order is data; sorting loses the mapping.",
        STREAM_ID,
    ]


@dataclass(frozen=True, slots=True)
class Position:
    """A position in a topic."""

    partition: Annotated[int, "The partition."]
    offset: Annotated[int, "The first offset that is not covered."]


@dataclass(frozen=True, slots=True)
class Witness:
    """A node's acknowledgement."""

    node: Annotated[str, "Id of the node."]
    applied: Annotated[int, "It has applied this epoch durably."]
    drained: Annotated[int, "Every write that it admitted below this epoch is applied."]


@dataclass(frozen=True, slots=True)
class StreamReport:
    """A gaining node has fetched all rows it gains."""

    node: Annotated[str, "Id of the gaining node."]
    operation: Annotated[str, "Id of the operation that the rows were streamed for."]
    rows: Annotated[int, "How many rows it received."]
    checksum: Annotated[str, "Checksum of the rows in hex; it agrees with what the sources sent."]
