"""Small values that all packages share: epochs, tokens, timestamps and identifiers.

Identifiers are text. A UUID is stored in its canonical lower-case form, whose text order equals the order of its 16
bytes. State ids are version-7 UUIDs, so their order is also time order. (Version-1 UUIDs do not sort by time: never
compare those.)

Tokens are signed 64-bit integers. ``TOKEN_MIN - 1`` (the smallest signed value) means "before all" and is never a token
of a key or of a node. A range is ``(start, end]``. It wraps when ``start >= end``, and ``(t, t]`` is the whole ring.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, TypeGuard, dataclass_transform

import msgspec
from msgspec import NODEFAULT, field

if TYPE_CHECKING:  # type checkers compare the arguments with the fields
    from dataclasses import replace
else:
    from msgspec.structs import replace

__all__ = ["NODEFAULT", "HidingValue", "Value", "asdict", "defaults_of", "field", "is_value_class", "replace"]


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class Value(msgspec.Struct, frozen=True):
    """The base of all immutable values: a class with typed fields, compared and hashed by their content.

    A frozen dataclass in all but two respects: msgspec makes instances and copies (``replace``) several times faster,
    and the class itself fifty times. ``__struct_fields__`` has the names of the fields.
    """


class HidingValue(Value):
    """A value whose ``repr`` leaves out the fields ``HIDDEN``, such as passwords."""

    HIDDEN: ClassVar[tuple[str, ...]]

    def __repr__(self) -> str:
        shown = (name for name in self.__struct_fields__ if name not in self.HIDDEN)
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"


def is_value_class(of: Any) -> TypeGuard[type[Value]]:
    """Return True for a class of values."""
    return isinstance(of, type) and issubclass(of, Value)


def defaults_of(kind: type[Value]) -> dict[str, Any]:
    """Return the default of each field, or NODEFAULT, by name in their order."""
    found = msgspec.structs.fields(kind)
    return {one.name: one.default if one.default_factory is NODEFAULT else one.default_factory() for one in found}


def asdict(value: Value) -> dict[str, Any]:
    """Return the fields by name; values in them, also in lists, tuples and dictionaries, become dictionaries, too."""
    return {name: _plain(getattr(value, name)) for name in value.__struct_fields__}


def _plain(item: Any) -> Any:
    if isinstance(item, Value):
        return asdict(item)
    if isinstance(item, list | tuple):
        inner = map(_plain, item)
        return type(item)(*inner) if hasattr(item, "_fields") else type(item)(inner)
    return {key: _plain(each) for key, each in item.items()} if isinstance(item, dict) else item


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
assert _IDENTIFIER.fullmatch("a" * IDENTIFIER_MAX) is not None, "the pattern admits this length"
assert _IDENTIFIER.fullmatch("a" * (IDENTIFIER_MAX + 1)) is None, "the pattern admits no greater length"


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


NO_ROLES: Final[tuple[str, ...]] = ()


class Command(Value):
    """The request of a log entry. Its subclasses, in the family files of ``commands``, are the commands.

    ``VERSION``: the version that this release writes; a released (kind, version) is frozen. The kind is the class's
    name. The fields are those of the Avro record ``ringlog.commands.<kind>`` and of the JSON that operators type.
    ``PAUSED_BY``: the scope of pauses that blocks the command (``kernel.model.modes``); empty: none. Each command
    declares it. ``NEEDS``: the roles of principals that may send it (``kernel.model.principals``); each command
    declares them. ``DANGEROUS``: whether the cluster can demand an approval (``commands.control.plans``).
    ``CHANGES_ITS_TABLE``: the only table that the command changes is the one named by ``keyspace`` and ``name``.
    """

    VERSION = 1
    PAUSED_BY = "all"
    NEEDS = NO_ROLES
    DANGEROUS = False
    CHANGES_ITS_TABLE = False


class Before(Value):
    """The default of a field that was added later: the value of records written before the field existed."""

    default: Any


class Fixed(Value):
    """Bytes of a fixed ``size``, which have their own ``name`` in the schemas."""

    name: str
    size: int
    doc: str


STREAM_ID: Final = Fixed(
    "ringlog.StreamId",
    16,
    "A CDC stream id: token (8 bytes, big-endian), then random bits, range index and version.",
)


class Setting(Value):
    """One setting of the cluster and its value.

    The element type of a command's ``settings``.
    """

    name: Annotated[str, "Name from the settings reference."]
    value: Annotated[int, "Value, in the unit of the setting."]


def public_name(field: str) -> str:
    """Return the name of a field in records and JSON. A class field named like a Python keyword ends with ``_``."""
    return field.removesuffix("_")


class DatacenterReplication(Value):
    """Replicas in one datacenter."""

    datacenter: Annotated[str, "Name of the datacenter."]
    factor: Annotated[int, "Number of replicas in the datacenter."]
    racks: Annotated[
        tuple[str, ...],
        "Racks with one replica each, by ascending name. Empty: any racks.",
    ] = ()


class Replication(Value):
    """Replication of a keyspace."""

    strategy: Annotated[str, "Strategy: simple, network, entire, tablets or zone."]
    factor: Annotated[int, "Replicas of each range. If datacenters are listed: their sum. entire, zone: 0."]
    datacenters: Annotated[
        tuple[DatacenterReplication, ...],
        "Replicas in each datacenter, by ascending name. Only for network and tablets.",
        Before(()),
    ] = ()
    zone: Annotated[str, "Name of the zone. Only for the strategy zone; otherwise empty.", Before("")] = ""


class Column(Value):
    """A column of a table."""

    name: Annotated[str, "Name of the column."]
    type: Annotated[str, "CQL type of the column, e.g. text, bigint, map<text, int>."]
    static: Annotated[bool, "Whether all rows of a partition share the value of the column.", Before(False)] = False


class ColumnRename(Value):
    """A new name for a column."""

    from_: Annotated[str, "Current name of the column."]
    to: Annotated[str, "New name of the column."]


class CdcOptions(Value):
    """Content of a table's CDC log."""

    enabled: Annotated[bool, "Whether writes to the table are logged."] = False
    preimage: Annotated[str, "Image of the row before the write: false, true or full."] = "false"
    postimage: Annotated[bool, "Whether an image of the row after the write is logged."] = False
    delta: Annotated[str, "Logged columns of a write: full (all that it sets) or keys (the key only)."] = "full"
    ttl: Annotated[int, "Retention of a log row in seconds. 0: no expiry."] = 86_400


class TabletOptions(Value):
    """Division of a table into tablets. Null: chosen automatically."""

    count: Annotated[int | None, "Initial number of tablets.", Before(None)] = None
    base: Annotated[str, "Table of the keyspace that shares its tablets with this one. Empty: none.", Before("")] = ""
    min_count: Annotated[int | None, "Hint: minimum number of tablets.", Before(None)] = None
    max_count: Annotated[int | None, "Hint: maximum number of tablets.", Before(None)] = None
    expected_bytes: Annotated[int | None, "Hint: expected size of the table's data in bytes.", Before(None)] = None


class TypeField(Value):
    """A field of a user type."""

    name: Annotated[str, "Name of the field."]
    type: Annotated[str, "CQL type of the field. A user type in it is frozen."]


class GenerationRange(Value):
    """One range of a generation, stored under its end token."""

    end: Annotated[int, "Last token of the range."]
    ignore_msb: Annotated[
        int,
        "Number of highest token bits that the owner of the range ignores to choose a shard.",
    ]
    streams: Annotated[
        tuple[bytes, ...],
        "Stream ids in slot order: slot j is for shard j. Do not sort them, the order is data.",
        STREAM_ID,
    ]


class Position(Value):
    """A position in a topic."""

    partition: Annotated[int, "Number of the partition."]
    offset: Annotated[int, "First offset after the covered records."]


class Witness(Value):
    """A node's acknowledgement."""

    node: Annotated[str, "Id of the node."]
    applied: Annotated[int, "Last epoch that the node has applied durably."]
    drained: Annotated[int, "The node has applied all writes that it admitted below this epoch."]


class StreamReport(Value):
    """A report of a node that has received all rows it gains."""

    node: Annotated[str, "Id of the gaining node."]
    operation: Annotated[str, "Id of the operation or session that the report is for."]
    rows: Annotated[int, "Number of received rows."]
    checksum: Annotated[str, "Checksum of the received rows in hex. It matches the checksums of the sources."]
