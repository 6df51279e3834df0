"""Messages between coordinators and nodes, and records on a node's disk: the schemas of the family ``data``.

Every message is a single object. A request names its receiver, the epoch that the receiver must have reached, and the
sender's newest epoch. A response names the epoch that admitted the request. Each epoch comes with the id of its state,
because two logs may have the same epochs. Rejections are responses with a code of ``REFUSALS``, never errors of the
transport.

A register contains one cell, and the last write wins: the cell with the greater timestamp. With equal timestamps a
delete wins, else the greater value.

Invariant: ``newest`` is commutative, associative and idempotent. So cells may arrive in any order, repeatedly, and over
any route.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from functools import cache
from hashlib import sha256
from types import MappingProxyType
from typing import Any, TypeVar

from ringlog.kernel.ring.murmur3 import token_of
from ringlog.kernel.values import Token, Value
from ringlog.wire.avro.codec import layout
from ringlog.wire.avro.mapping import Mapper

DIGEST_BYTES = 16


class Key(Value, order=True):
    """The key of a register. ``token`` is the token of ``name``."""

    keyspace: str
    token: Token
    name: bytes


class RegisterCell(Value):
    """The content of a register. ``timestamp`` is the writer's; ``deleted`` marks a tombstone, whose value is empty."""

    timestamp: int
    value: bytes
    deleted: bool = False


def key_of(keyspace: str, name: bytes) -> Key:
    """Return the key of the register with that name."""
    return Key(keyspace, token_of(name), name)


def newest(one: RegisterCell | None, other: RegisterCell) -> RegisterCell:
    """Return the winning cell."""
    return other if one is None or rank(other) > rank(one) else one


def rank(cell: RegisterCell) -> tuple[int, bool, bytes]:
    """Return the sort key of a cell: the greater rank wins. Only equal cells have equal ranks."""
    return cell.timestamp, cell.deleted, cell.value


def digest_of(cell: RegisterCell | None) -> bytes:
    """Return a digest of 16 bytes that identifies the cell; empty without a cell."""
    if cell is None:
        return b""
    head = b"%d %d " % (cell.timestamp, cell.deleted)
    return hashlib.sha256(head + cell.value).digest()[:DIGEST_BYTES]


T = TypeVar("T")

SERVICE = "ringlog.data.Replica"
"""Name of the service. Methods: Write, Repair, Read, ReadRows, Stream and StreamRows (of pages), Entries, Status."""

KEY_BYTES_MAX = 64 * 1024 - 1
VALUE_BYTES_MAX = 1024 * 1024
PAGE_BYTES_MAX = 256 * 1024
"""A page of a stream is complete when it reaches this size."""
MESSAGE_BYTES_MAX = 8 * 1024 * 1024
PARTITION_BYTES_MAX = 4 * 1024 * 1024
"""Maximum size of the writes of one partition in a response."""
ENTRIES_BYTES_MAX = 4 * 1024 * 1024
"""Maximum size of a peer's entries in one response. Pages of entries end as those of streams do. One entry
is smaller.
"""
DISCOVERY = "ringlog.discovery.Peer"
"""Name of the service that processes use to find each other before there is a cluster. Method: Meet."""
SNAPSHOT_BYTES_MAX = 256 * 1024 * 1024
"""Maximum size of a peer's snapshot, over all pages."""

BEHIND, BUSY, FOREIGN_CLUSTER, WRONG_NODE = "behind", "busy", "foreign_cluster", "wrong_node"
BAD_STREAM, NOT_MEMBER, NOT_READY, TOO_LARGE = "bad_stream", "not_member", "not_ready", "too_large"
BAD_CELL, BAD_EPOCH, BAD_TOKEN, OTHER_HISTORY = "bad_cell", "bad_epoch", "bad_token", "other_history"
BAD_ENTRIES, BAD_POSITION, GAP = "bad_entries", "bad_position", "gap"
FOREIGN_CERTIFICATE, NOT_AUTHORIZED = "foreign_certificate", "not_authorized"

REFUSALS: Mapping[str, str] = MappingProxyType(
    {
        BAD_CELL: "A delete must not have a value.",
        BAD_ENTRIES: "The entries or the snapshot of a peer do not follow the requested epoch.",
        BAD_EPOCH: "An epoch must be 0 or greater.",
        BAD_POSITION: "Partitions must ascend without repetition; an offset must be 0 or greater.",
        BAD_STREAM: "This node is not, or no longer, the source of these ranges in the operation.",
        BAD_TOKEN: "The token does not match the key.",
        BEHIND: "The replica has not reached the required epoch or positions. Ask again.",
        BUSY: "The source sends the maximum number of streams. Ask again later.",
        FOREIGN_CERTIFICATE: "The client has no certificate of the requesting node, or that node has left.",
        FOREIGN_CLUSTER: "The message or its content belongs to another cluster.",
        GAP: "The peer's part of the log starts after the requested epoch. Ask another peer.",
        NOT_AUTHORIZED: "The principal of the certificate may not read and write the rows of the keyspace.",
        NOT_MEMBER: "The node is not a replica of the key, for this kind of access, at the named epoch.",
        NOT_READY: "The node is still catching up after a restart or as a source. Ask again.",
        OTHER_HISTORY: "The replica's log has another state at a named epoch. One of the two logs is wrong.",
        TOO_LARGE: "Key, value or a peer's page exceeds its limit, or the needed writes of a partition exceed 4 MiB.",
        WRONG_NODE: "The message is for another node. The address of that node has changed.",
    }
)
"""Rejection code to its description."""


class WriteRequest(Value):
    """A request to store ``cell`` if it wins.

    ``newest`` is the sender's newest epoch and ``newest_id`` the id of its state; 0: not given.
    """

    cluster_id: str
    node: str
    epoch: int
    state_id: str
    key: Key
    cell: RegisterCell
    newest: int = 0
    newest_id: str = ""


class WriteReply(Value):
    """The response to a write: the cell is on disk, or the write was rejected (``refused``).

    ``detail`` explains a rejection.
    """

    node: str
    epoch: int
    refused: str = ""
    state_id: str = ""
    detail: str = ""


class ReadRequest(Value):
    """A request for the content of a register. With ``digest`` the response may omit the value.

    ``newest`` and ``newest_id``: see ``WriteRequest``.
    """

    cluster_id: str
    node: str
    epoch: int
    state_id: str
    key: Key
    digest: bool
    newest: int = 0
    newest_id: str = ""


class ReadReply(Value):
    """The response to a read. ``cell`` lacks its value if ``digest`` replaces it. ``detail`` explains a rejection."""

    node: str
    epoch: int
    refused: str = ""
    cell: RegisterCell | None = None
    digest: bytes = b""
    state_id: str = ""
    detail: str = ""


class ReadRowsRequest(Value):
    """A request for the writes of a partition of table ``table_id``.

    ``at`` lists (partition of the mutations topic, offset) pairs that the replica must have reached. With ``digest``
    the response may omit the writes. With ``position`` the response only confirms that the offsets are reached.
    ``newest`` and ``newest_id``: see ``WriteRequest``.
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


class ReadRowsReply(Value):
    """The response with ``writes``: encoded mutations in ascending order. A ``digest`` that is not empty
    replaces them. ``detail`` explains a rejection.
    """

    node: str
    epoch: int
    refused: str = ""
    positions: tuple[tuple[int, int], ...] = ()
    writes: tuple[bytes, ...] = ()
    digest: bytes = b""
    state_id: str = ""
    detail: str = ""


def digest_of_writes(writes: Iterable[bytes]) -> bytes:
    """Return a digest of a set of encoded writes, independent of their order."""
    total = sha256()
    for write in sorted(writes):
        total.update(len(write).to_bytes(4, "big"))
        total.update(write)
    return total.digest()[:16]


class StreamRequest(Value):
    """A request for the cells of ``ranges`` after ``after``, to be sent to node ``target``.

    ``newest`` and ``newest_id``: see ``WriteRequest``.
    """

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


class RowVersion(Value):
    """One write of one row. ``value`` is the encoded mutation, as received."""

    table: str
    token: int
    partition_key: bytes
    clustering_key: tuple[bytes | None, ...]
    timestamp: int
    value: bytes


class RowsRequest(Value):
    """A request for the rows of ``ranges`` after ``after``, to be sent to node ``target``.

    ``positions`` lists (partition of the mutations topic, offset) pairs. The target itself stores all later mutations.
    ``newest`` and ``newest_id``: see ``WriteRequest``.
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


class Rows(Value):
    """Rows in the order of the store. ``tables`` maps each table name to its id."""

    rows: tuple[RowVersion, ...]
    tables: tuple[tuple[str, str], ...] = ()

    def __len__(self) -> int:
        return len(self.rows)


class StreamPage(Value):
    """A page of a stream. ``body`` is an encoded ``Cells`` or ``Rows``, with its own ``crc`` and ``count``.

    The last message contains the totals of the whole call.
    """

    node: str
    epoch: int
    refused: str = ""
    detail: str = ""
    body: bytes = b""
    crc: int = 0
    count: int = 0
    is_end: bool = False


class Cells(Value):
    """Cells in ascending order of their keys.

    ``made`` lists the creation epoch of each keyspace, or table in tablets, in these keys.
    """

    cells: tuple[tuple[Key, RegisterCell], ...]
    made: tuple[tuple[str, int], ...] = ()

    def __len__(self) -> int:
        return len(self.cells)


class EntriesRequest(Value):
    """A request for the entries after ``epoch``, whose state has the given id.

    ``snapshot`` is the epoch of a snapshot that the requester receives, from chunk number ``chunk`` on; 0: none.
    """

    cluster_id: str
    node: str
    epoch: int
    state_id: str
    snapshot: int = 0
    chunk: int = 0


class EntriesReply(Value):
    """The response with log entries. ``epoch`` and ``state_id`` are the newest of the peer's own log.

    ``entries`` are unchanged records; the first one follows the requested epoch. If the peer's entries begin later,
    ``snapshot`` contains the head of a snapshot and its next chunk, as records of the topic.
    """

    node: str
    epoch: int
    refused: str = ""
    state_id: str = ""
    entries: tuple[bytes, ...] = ()
    snapshot: tuple[bytes, ...] = ()


class MetPeer(Value):
    """A process that answered at an address."""

    address: str
    id: str


class DiscoveryView(Value):
    """The knowledge of a process that looks for its cluster: the format of its request, response and file.

    See ``ringlog.protocol.discovery``.
    """

    cluster: str
    address: str
    id: str
    known: tuple[str, ...] = ()
    met: tuple[MetPeer, ...] = ()
    founder: str = ""
    cluster_id: str = ""


class StatusRequest(Value):
    """A request for the status of a node."""

    cluster_id: str
    node: str


class StatusReply(Value):
    """The status of a node. ``start`` is the number of its starts; ``streams`` counts the streams that it waits for."""

    node: str
    epoch: int
    refused: str = ""
    start: int = 0
    ready: bool = False
    acknowledgeable: int = 0
    cells: int = 0
    pending: int = 0
    streams: int = 0


class StreamMark(Value):
    """A position in a stream: the node has everything up to ``after``."""

    operation: str
    source: str
    replication: str
    after: Key


class JournalRecord(Value):
    """One step of a node's journal. ``total`` is -1 unless the record ends a complete image.

    ``gone`` contains (keyspace, first token, last token). ``node`` is the owner of the registers. On disk, ``cells``
    are stored separately from the record (``ringlog.node.registers.packed``).
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
    """Return the schema name of a class."""
    return f"ringlog.data.{record.__name__}"


_BY_NAME = {full_name(record): record for record in RECORDS}


@cache
def _mapper(name: str) -> Mapper[Any]:
    return Mapper(_BY_NAME[name], layout(name))


def pack(value: Any) -> bytes:
    """Encode a message. Raises WireError if a field does not fit."""
    return _mapper(full_name(type(value))).encode(value)


def unpack(record: type[T], data: bytes) -> T:
    """Decode a message of the class ``record``. Raises WireError."""
    value: T = _mapper(full_name(record)).decode(data)
    return value
