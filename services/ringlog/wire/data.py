"""Messages between coordinators and nodes, and records on a node's disk: the schemas of the family ``data``.

Every message is a single object. A request names its receiver, the epoch that the receiver must have reached, and the
newest epoch that the sender knows. An answer names the epoch at which the request was admitted. The id of the state
accompanies each epoch, because two logs may have the same epochs. Rejections are answers with a code of ``REFUSALS``,
never errors of the transport.

A register holds one cell, and the last write wins: the cell with the greater timestamp; of equal ones a delete, else
the greater value. ``newest`` is commutative, associative and idempotent, so cells may arrive in any order, any number
of times, over any route.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from types import MappingProxyType
from typing import Any, TypeVar

from ringlog.kernel.ring.murmur3 import token_of
from ringlog.kernel.values import Token
from ringlog.wire.avro.codec import layout
from ringlog.wire.avro.mapping import Mapper

DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """Names a register. ``token``: that of ``name``."""

    keyspace: str
    token: Token
    name: bytes


@dataclass(frozen=True, slots=True)
class RegisterCell:
    """What a register holds. ``timestamp``: the writer's; ``deleted``: a tombstone, whose value is empty."""

    timestamp: int
    value: bytes
    deleted: bool = False


def key_of(keyspace: str, name: bytes) -> Key:
    """The register of that name."""
    return Key(keyspace, token_of(name), name)


def newest(one: RegisterCell | None, other: RegisterCell) -> RegisterCell:
    """The cell that wins."""
    return other if one is None or rank(other) > rank(one) else one


def rank(cell: RegisterCell) -> tuple[int, bool, bytes]:
    """Of two cells the one of the greater rank wins; only equal cells have equal ranks."""
    return cell.timestamp, cell.deleted, cell.value


def digest_of(cell: RegisterCell | None) -> bytes:
    """16 bytes that tell cells apart; none for no cell."""
    if cell is None:
        return b""
    head = b"%d %d " % (cell.timestamp, cell.deleted)
    return hashlib.sha256(head + cell.value).digest()[:DIGEST_BYTES]


T = TypeVar("T")

SERVICE = "ringlog.data.Replica"
"""Name of the service; its methods are Write, Repair, Read, ReadRows, Stream and StreamRows (of pages), Entries,
Status.
"""

KEY_BYTES_MAX = 64 * 1024 - 1
VALUE_BYTES_MAX = 1024 * 1024
PAGE_BYTES_MAX = 256 * 1024
"""A page of a stream is closed when it has reached this size."""
MESSAGE_BYTES_MAX = 8 * 1024 * 1024
PARTITION_BYTES_MAX = 4 * 1024 * 1024
"""Writes of one partition that a replica gives as an answer."""
ENTRIES_BYTES_MAX = 4 * 1024 * 1024
"""What a node takes of a peer's log in one answer. A page is closed as those of streams are; one entry is smaller."""
DISCOVERY = "ringlog.discovery.Peer"
"""Name of the service by which processes find each other before there is a cluster; its method is Meet."""
SNAPSHOT_BYTES_MAX = 256 * 1024 * 1024
"""What a node takes of a peer's snapshot, page by page."""

BEHIND, BUSY, FOREIGN_CLUSTER, WRONG_NODE = "behind", "busy", "foreign_cluster", "wrong_node"
BAD_STREAM, NOT_MEMBER, NOT_READY, TOO_LARGE = "bad_stream", "not_member", "not_ready", "too_large"
BAD_CELL, BAD_EPOCH, BAD_TOKEN, OTHER_HISTORY = "bad_cell", "bad_epoch", "bad_token", "other_history"
BAD_ENTRIES, BAD_POSITION, GAP = "bad_entries", "bad_position", "gap"
FOREIGN_CERTIFICATE = "foreign_certificate"

REFUSALS: Mapping[str, str] = MappingProxyType(
    {
        BAD_CELL: "A delete has no value.",
        BAD_ENTRIES: "Entries or a snapshot that a peer gives do not follow on the epoch that it was asked about.",
        BAD_EPOCH: "An epoch is 0 or greater.",
        BAD_POSITION: "Partitions ascend, each once; an offset is 0 or greater.",
        BAD_STREAM: "The operation does not have this node as the source of these ranges, or not any more.",
        BAD_TOKEN: "The token of the key is not that of its name.",
        BEHIND: "The replica has not adopted the epoch that it must, or not reached the positions: ask again.",
        BUSY: "The source sends as many streams as it may already: ask again.",
        FOREIGN_CERTIFICATE: "Who asks shows no certificate of the node that it asks for, or that node has left.",
        FOREIGN_CLUSTER: "The message is for another cluster, or what it brings is of another one.",
        GAP: "What the peer has of the log begins later than what was asked for: ask another one.",
        NOT_MEMBER: "The node is no replica of the key, for this kind of access, at the epoch that it names.",
        NOT_READY: "The node has not caught up yet with what it must know to answer: after a restart, or as a source.",
        OTHER_HISTORY: "The replica's log has another state at a named epoch: one of two logs is not the cluster's.",
        TOO_LARGE: "Key, value or a peer's page exceeds its limit, or the needed writes of a partition exceed 4 MiB.",
        WRONG_NODE: "The message is for another node: its address is not what it was.",
    }
)
"""Why a replica refuses."""


@dataclass(frozen=True, slots=True)
class WriteRequest:
    """Keep ``cell`` if it wins. ``newest``: the sender's newest epoch, ``newest_id`` of its state; 0: not named."""

    cluster_id: str
    node: str
    epoch: int
    state_id: str
    key: Key
    cell: RegisterCell
    newest: int = 0
    newest_id: str = ""


@dataclass(frozen=True, slots=True)
class WriteReply:
    """The cell is on disk, or was ``refused``."""

    node: str
    epoch: int
    refused: str = ""
    state_id: str = ""


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """What does the register hold? ``digest``: the value may stay away. ``newest``, ``newest_id``: as of a write."""

    cluster_id: str
    node: str
    epoch: int
    state_id: str
    key: Key
    digest: bool
    newest: int = 0
    newest_id: str = ""


@dataclass(frozen=True, slots=True)
class ReadReply:
    """``cell``: without its value where ``digest`` stands for it."""

    node: str
    epoch: int
    refused: str = ""
    cell: RegisterCell | None = None
    digest: bytes = b""
    state_id: str = ""


@dataclass(frozen=True, slots=True)
class ReadRowsRequest:
    """What does the partition of table ``table_id`` hold? ``at``: (partition of the mutations topic, offset) that must
    be reached; ``digest``: the writes may stay away; ``position``: nothing but that it is reached is wanted.
    ``newest``, ``newest_id``: as of a write.
    """

    cluster_id: str
    node: str
    epoch: int
    state_id: str
    table: str
    table_id: str
    partition_key: bytes
    at: tuple[tuple[int, int], ...]
    digest: bool
    position: bool
    newest: int = 0
    newest_id: str = ""


@dataclass(frozen=True, slots=True)
class ReadRowsReply:
    """``writes``: encoded mutations, ascending; ``digest`` stands for them if it is not empty."""

    node: str
    epoch: int
    refused: str = ""
    positions: tuple[tuple[int, int], ...] = ()
    writes: tuple[bytes, ...] = ()
    digest: bytes = b""
    state_id: str = ""


def digest_of_writes(writes: Iterable[bytes]) -> bytes:
    """Stands for a set of encoded writes, in any order."""
    total = sha256()
    for write in sorted(writes):
        total.update(len(write).to_bytes(4, "big"))
        total.update(write)
    return total.digest()[:16]


@dataclass(frozen=True, slots=True)
class StreamRequest:
    """The cells of ``ranges`` above ``after``, for node ``target``. ``newest``, ``newest_id``: as of a write."""

    cluster_id: str
    node: str
    epoch: int
    state_id: str
    target: str
    operation: str
    replication: str
    ranges: tuple[tuple[int, int], ...]
    after: Key | None
    newest: int = 0
    newest_id: str = ""


@dataclass(frozen=True, slots=True)
class RowVersion:
    """One write of one row as it came: ``value`` is the encoded mutation."""

    table: str
    token: int
    partition_key: bytes
    clustering_key: tuple[bytes | None, ...]
    timestamp: int
    value: bytes


@dataclass(frozen=True, slots=True)
class RowsRequest:
    """The rows of ``ranges`` after ``after``, for node ``target``, which keeps by itself what lies above
    ``positions``: (partition of the mutations topic, offset). ``newest``, ``newest_id``: as of a write.
    """

    cluster_id: str
    node: str
    epoch: int
    state_id: str
    target: str
    operation: str
    replication: str
    ranges: tuple[tuple[int, int], ...]
    positions: tuple[tuple[int, int], ...]
    after: RowVersion | None
    newest: int = 0
    newest_id: str = ""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows in the order of the store; ``tables``: the id of each table that they name."""

    rows: tuple[RowVersion, ...]
    tables: tuple[tuple[str, str], ...] = ()

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.rows)


@dataclass(frozen=True, slots=True)
class StreamPage:
    """``body``: a ``Cells`` or ``Rows``; ``crc`` and ``count`` are its own. The last message sums up the whole call."""

    node: str
    epoch: int
    refused: str = ""
    detail: str = ""
    body: bytes = b""
    crc: int = 0
    count: int = 0
    is_end: bool = False


@dataclass(frozen=True, slots=True)
class Cells:
    """Cells in ascending order of their keys; ``made``: the epoch that created each keyspace, or table in tablets, that
    they name.
    """

    cells: tuple[tuple[Key, RegisterCell], ...]
    made: tuple[tuple[str, int], ...] = ()

    def __len__(self) -> int:
        """Number of cells."""
        return len(self.cells)


@dataclass(frozen=True, slots=True)
class EntriesRequest:
    """Which entries follow on ``epoch``, whose state has the id? ``snapshot``: the epoch of a snapshot of which the
    chunks from number ``chunk`` on are missing; 0: none.
    """

    cluster_id: str
    node: str
    epoch: int
    state_id: str
    snapshot: int = 0
    chunk: int = 0


@dataclass(frozen=True, slots=True)
class EntriesReply:
    """``epoch`` and ``state_id``: the newest that the peer's own log has shown it. ``entries``: as the log has them,
    the first one follows on the epoch that was asked about. ``snapshot``: where what it has begins later, the head of a
    snapshot and the next chunk, as records of the topic.
    """

    node: str
    epoch: int
    refused: str = ""
    state_id: str = ""
    entries: tuple[bytes, ...] = ()
    snapshot: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class MetPeer:
    """Who answered at an address."""

    address: str
    id: str


@dataclass(frozen=True, slots=True)
class DiscoveryView:
    """What a process that looks for its cluster knows: its question, its answer, and its file.

    See ``ringlog.protocol.discovery``.
    """

    cluster: str
    address: str
    id: str
    known: tuple[str, ...] = ()
    met: tuple[MetPeer, ...] = ()
    founder: str = ""
    cluster_id: str = ""


@dataclass(frozen=True, slots=True)
class StatusRequest:
    """How is the node?"""

    cluster_id: str
    node: str


@dataclass(frozen=True, slots=True)
class StatusReply:
    """How it is. ``start``: how many times it has been started; ``streams``: those that it waits for."""

    node: str
    epoch: int
    refused: str = ""
    start: int = 0
    ready: bool = False
    acknowledgeable: int = 0
    cells: int = 0
    pending: int = 0
    streams: int = 0


@dataclass(frozen=True, slots=True)
class StreamMark:
    """Everything of the stream up to ``after`` is here."""

    operation: str
    source: str
    replication: str
    after: Key


@dataclass(frozen=True, slots=True)
class JournalRecord:
    """One step of what a node has on its disk; ``total`` is -1 unless the record ends a whole image.

    ``gone``: keyspace, first and last token. ``node``: whose registers these are. On the disk ``cells`` are beside the
    record (``ringlog.node.registers.packed``).
    """

    epoch: int = 0
    start: int = 0
    dropped: tuple[Key, ...] = ()
    cells: tuple[tuple[Key, RegisterCell], ...] = ()
    marks: tuple[StreamMark, ...] = ()
    ended: tuple[str, ...] = ()
    total: int = -1
    state_id: str = ""
    gone: tuple[tuple[str, int, int], ...] = ()
    node: str = ""


RECORDS: tuple[type[Any], ...] = (
    WriteRequest,
    WriteReply,
    ReadRequest,
    ReadReply,
    ReadRowsRequest,
    ReadRowsReply,
    StreamRequest,
    RowsRequest,
    StreamPage,
    Cells,
    Rows,
    EntriesRequest,
    EntriesReply,
    DiscoveryView,
    StatusRequest,
    StatusReply,
    JournalRecord,
)


def full_name(record: type[Any]) -> str:
    """The schema of a class."""
    return f"ringlog.data.{record.__name__}"


_BY_NAME = {full_name(record): record for record in RECORDS}


@cache
def _mapper(name: str) -> Mapper[Any]:
    return Mapper(_BY_NAME[name], layout(name))


def pack(value: Any) -> bytes:
    """The bytes of a message; raises WireError if a field does not fit."""
    return _mapper(full_name(type(value))).encode(value)


def unpack(record: type[T], data: bytes) -> T:
    """The message of the bytes, which is to be a ``record``; raises WireError."""
    value: T = _mapper(full_name(record)).decode(data)
    return value
