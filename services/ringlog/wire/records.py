"""The records of all topics except the metadata log and the change topics, as frozen values, and their partitions.

Each record is a single object. Field meanings and units are in the schemas (``docs/reference/schemas.md``); types are
here. ``encode_*`` raises ``WireError`` for a value that does not fit; ``decode_*`` raises it for any bytes that are not
such a record. Mutations are partitioned here; ``ringlog_cdc.columnar.routing`` places the rows of the CDC topic, many
at once, and the audit has its own copy of the rule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, TypeVar
from zlib import crc32

from ringlog.kernel.values import Position, StreamReport
from ringlog.wire.avro.codec import layout, name_of
from ringlog.wire.avro.mapping import Mapper
from ringlog.wire.errors import WireError

T = TypeVar("T")

TOGETHER_MAX = 500
"""Requests in one record."""

APPLIED, REJECTED, EXPIRED = "applied", "rejected", "expired"
"""The outcomes of a ``Result``."""

INSERT, UPDATE, ROW_DELETE, PARTITION_DELETE = "INSERT", "UPDATE", "ROW_DELETE", "PARTITION_DELETE"
RANGE_DELETE = "RANGE_DELETE"
"""The operations of a ``Mutation``. ``UNKNOWN`` stands for one of a later release."""


@dataclass(frozen=True, slots=True)
class CommandRequest:
    """A command that somebody asks the validator to append."""

    request_id: str
    since_epoch: int
    submitter: str
    kind: str
    version: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class RequestBatch:
    """Requests in one record, each as its bytes would travel alone."""

    requests: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Result:
    """The validator's answer to a request. ``outcome``: applied, rejected or expired (unknown: a later release's)."""

    request_id: str
    digest: str
    outcome: str
    epoch: int
    code: str
    detail: str
    term: int
    instance: str
    since_epoch: int


@dataclass(frozen=True, slots=True)
class FailedTries:
    """A stream for ``operation`` that ``source`` was asked for in vain ``count`` times since epoch ``since``."""

    operation: str
    source: str
    count: int
    since: int
    at: int
    reason: str


@dataclass(frozen=True, slots=True)
class NodeAck:
    """How far a node is: ``applied`` durably, every write admitted below ``drained`` applied.

    ``incarnation``: see ``wire.acks``. ``state_id``: of the applied epoch.
    """

    cluster_id: str
    node: str
    incarnation: str
    applied: int
    drained: int
    reports: tuple[StreamReport, ...]
    rows: int
    at: int
    tries: tuple[FailedTries, ...] = ()
    state_id: str = ""


@dataclass(frozen=True, slots=True)
class CodedAck:
    """The bytes of a ``NodeAck``, and its code: see ``wire.acks``. No code: it came without."""

    ack: bytes
    code: bytes


@dataclass(frozen=True, slots=True)
class TableLoad:
    """The tablets of ``table`` that a node has, and the amounts of each, in their order.

    ``id``: of the table; ``count``: how many tablets it has when the node reports.
    """

    table: str
    tablets: tuple[int, ...]
    bytes: tuple[int, ...]
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    cpu: tuple[int, ...] = ()
    id: str = ""
    count: int = 0


@dataclass(frozen=True, slots=True)
class NodeLoad:
    """What the tablets of a node hold and take. ``at``: its clock, microseconds; ``capacity``: bytes, None
    if it has not measured them.
    """

    node: str
    at: int
    capacity: int | None
    tables: tuple[TableLoad, ...]
    judged: tuple[Position, ...] = ()
    """Of the mutations topic: the node has validated all records below them."""


@dataclass(frozen=True, slots=True)
class CodedLoad:
    """The bytes of a ``NodeLoad``, and its code: see ``wire.acks``. No code: it came without."""

    load: bytes
    code: bytes


@dataclass(frozen=True, slots=True)
class RefusedProposal:
    """What an agent would do and is refused ``since`` (microseconds, its clock): for whom, what, and why."""

    subject: str
    command: str
    code: str
    detail: str
    since: int


@dataclass(frozen=True, slots=True)
class AgentStatus:
    """What an agent is doing; ``state``: starting, standby, active or halted. ``why``: it ended by itself, and why."""

    role: str
    instance: str
    term: int
    epoch: int
    state: str
    at: int
    refused: tuple[RefusedProposal, ...] = ()
    why: str = ""


@dataclass(frozen=True, slots=True)
class SnapshotPart:
    """A part of a state: its name, how many canonical bytes it has, and their digest."""

    name: str
    size: int
    digest: str


@dataclass(frozen=True, slots=True)
class StoredSnapshot:
    """The head of a stored state: whose it is, where readers go on in the log (``position``), and what it is made of.

    ``chunks``: their digests; ``first``: the offset in its own topic at which they begin.
    """

    id: str
    cluster_id: str
    topic_id: str
    epoch: int
    state_id: str
    position: int
    digest: str
    parts: tuple[SnapshotPart, ...]
    chunks: tuple[str, ...]
    first: int
    by: str
    at: int


@dataclass(frozen=True, slots=True)
class SnapshotChunk:
    """Bytes of the snapshot ``id``: the chunk of that number."""

    id: str
    number: int
    data: bytes


@dataclass(frozen=True, slots=True)
class SnapshotConfirmation:
    """What a second reader has at that epoch, by its own fold."""

    cluster_id: str
    topic_id: str
    epoch: int
    state_id: str
    position: int
    digest: str
    by: str
    at: int


@dataclass(frozen=True, slots=True)
class Cell:
    """One column's value in CQL serialisation; None = null or deleted."""

    column: str
    value: bytes | None


@dataclass(frozen=True, slots=True)
class DeletedElements:
    """Elements that are taken out of one collection, by their keys in CQL serialisation."""

    column: str
    keys: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Bounds:
    """A range of rows of one partition: prefixes of the clustering key, empty where nothing bounds it."""

    start: tuple[bytes, ...]
    start_inclusive: bool
    end: tuple[bytes, ...]
    end_inclusive: bool


@dataclass(frozen=True, slots=True)
class MutationStatement:
    """One more statement of a mutation. ``timestamp`` and ``ttl`` None: the mutation's; ``ttl`` 0: never."""

    operation: str
    clustering_key: tuple[bytes | None, ...] = ()
    cells: tuple[Cell, ...] = ()
    timestamp: int | None = None
    ttl: int | None = None
    deleted_elements: tuple[DeletedElements, ...] = ()
    replaced: tuple[str, ...] = ()
    bounds: Bounds | None = None


@dataclass(frozen=True, slots=True)
class Mutation:
    """One write to a partition of a base table; key components in CQL serialisation, in key order.

    It is one statement, and ``more`` of them. ``replaced``: collections whose earlier elements are all deleted before
    those in ``cells`` are added; ``bounds``: of a range delete. ``epoch``, ``table_id``, ``table_version``: what its
    author knew of the table (``ringlog.kernel.generations.verdicts``); None: not said.
    """

    mutation_id: str | None
    cluster_id: str | None
    keyspace: str
    table: str
    timestamp: int
    ttl: int | None
    operation: str
    partition_key: tuple[bytes | None, ...]
    clustering_key: tuple[bytes | None, ...]
    cells: tuple[Cell, ...]
    deleted_elements: tuple[DeletedElements, ...] = ()
    replaced: tuple[str, ...] = ()
    bounds: Bounds | None = None
    more: tuple[MutationStatement, ...] = ()
    epoch: int | None = None
    table_id: str | None = None
    table_version: str | None = None


@dataclass(frozen=True, slots=True)
class CdcRow:
    """One row of the CDC log. ``stream_id`` and ``time``: 16 bytes; ``generation`` and ``timestamp``: microseconds.

    ``epoch``: the metadata epoch that it was decided by, 0: not said.
    """

    stream_id: bytes
    generation: int
    time: bytes
    batch_seq_no: int
    operation: int
    ttl: int | None
    end_of_batch: bool
    keyspace: str
    table: str
    mutation_id: str | None
    source_topic: str
    source_partition: int
    source_offset: int
    timestamp: int
    partition_key: tuple[bytes, ...]
    clustering_key: tuple[bytes | None, ...]
    cells: tuple[Cell, ...]
    deleted: tuple[str, ...]
    deleted_elements: tuple[DeletedElements, ...] = ()
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record that cannot become a CDC row: why, where it was, and its bytes."""

    reason: str
    detail: str
    topic: str
    partition: int
    offset: int
    append_time: int
    key: bytes | None
    value: bytes | None
    writer: str
    epoch: int


REQUEST, RESULT = "ringlog.requests.Request", "ringlog.requests.Result"
REQUEST_BATCH = "ringlog.requests.RequestBatch"
NODE_LOAD, CODED_LOAD = "ringlog.load.NodeLoad", "ringlog.load.CodedLoad"
NODE_ACK, CODED_ACK = "ringlog.acks.NodeAck", "ringlog.acks.CodedAck"
AGENT_STATUS = "ringlog.agents.AgentStatus"
STORED_SNAPSHOT, SNAPSHOT_CHUNK = "ringlog.snapshots.StoredSnapshot", "ringlog.snapshots.SnapshotChunk"
SNAPSHOT_CONFIRMATION = "ringlog.snapshots.SnapshotConfirmation"
MUTATION, CDC_ROW, DEAD_LETTER = "ringlog.mutations.Mutation", "ringlog.cdc.CdcRow", "ringlog.cdc.DeadLetter"

RECORDS: dict[str, type[Any]] = {
    REQUEST: CommandRequest,
    REQUEST_BATCH: RequestBatch,
    RESULT: Result,
    NODE_ACK: NodeAck,
    CODED_ACK: CodedAck,
    NODE_LOAD: NodeLoad,
    CODED_LOAD: CodedLoad,
    AGENT_STATUS: AgentStatus,
    STORED_SNAPSHOT: StoredSnapshot,
    SNAPSHOT_CHUNK: SnapshotChunk,
    SNAPSHOT_CONFIRMATION: SnapshotConfirmation,
    MUTATION: Mutation,
    CDC_ROW: CdcRow,
    DEAD_LETTER: DeadLetter,
}
"""Full name to class."""


@cache
def mapper(full_name: str) -> Mapper[Any]:
    """The converter between a record's class and its schema."""
    return Mapper(RECORDS[full_name], layout(full_name))


def _encode(full_name: str, value: Any) -> bytes:
    return mapper(full_name).encode(value)


def _decode(full_name: str, data: bytes) -> Any:
    return mapper(full_name).decode(data)


def _codec(full_name: str, _cls: type[T]) -> tuple[Callable[[T], bytes], Callable[[bytes], T]]:
    """What makes bytes of a record, and the record of bytes: that raises WireError."""
    return partial(_encode, full_name), partial(_decode, full_name)


encode_request, decode_request = _codec(REQUEST, CommandRequest)
encode_result, decode_result = _codec(RESULT, Result)
encode_node_ack, _decode_plain_ack = _codec(NODE_ACK, NodeAck)
encode_coded_ack, _decode_coded_ack = _codec(CODED_ACK, CodedAck)
encode_node_load, _decode_plain_load = _codec(NODE_LOAD, NodeLoad)
encode_coded_load, _decode_coded_load = _codec(CODED_LOAD, CodedLoad)
encode_agent_status, decode_agent_status = _codec(AGENT_STATUS, AgentStatus)
encode_mutation, decode_mutation = _codec(MUTATION, Mutation)
encode_cdc_row, decode_cdc_row = _codec(CDC_ROW, CdcRow)
encode_dead_letter, decode_dead_letter = _codec(DEAD_LETTER, DeadLetter)


def ack_in(data: bytes) -> CodedAck:
    """What a record of the topic of acknowledgements has: that with a code, or one without."""
    return _decode_coded_ack(data) if name_of(data, (CODED_ACK, NODE_ACK)) == CODED_ACK else CodedAck(data, b"")


def decode_node_ack(data: bytes) -> NodeAck:
    """The acknowledgement of a record of its topic, with a code or without. Whose it is, ``wire.acks`` says."""
    return _decode_plain_ack(ack_in(data).ack)


def load_in(data: bytes) -> CodedLoad:
    """What a record of the topic ``load`` has: that with a code, or one without."""
    return _decode_coded_load(data) if name_of(data) == CODED_LOAD else CodedLoad(data, b"")


def decode_node_load(data: bytes) -> NodeLoad:
    """The report of a record of its topic, with a code or without. Whose it is, ``wire.acks`` says."""
    return _decode_plain_load(load_in(data).load)


def encode_request_batch(requests: Sequence[bytes]) -> bytes:
    """Bytes of a record with several requests, which are given as bytes."""
    return _encode(REQUEST_BATCH, RequestBatch(tuple(requests)))


def decode_requests(data: bytes) -> tuple[CommandRequest | None, ...]:
    """The requests of a record of their topic, be it one or several; None: a part that is no request.

    Raises WireError for a record that is neither, or has more than ``TOGETHER_MAX``.
    """
    full_name = name_of(data, (REQUEST, REQUEST_BATCH))
    if full_name == REQUEST:
        return (decode_request(data),)
    if full_name != REQUEST_BATCH:
        raise WireError("wrong_record", full_name, f"a {REQUEST} or a {REQUEST_BATCH}")
    parts = _decode(REQUEST_BATCH, data).requests
    if len(parts) > TOGETHER_MAX:
        raise WireError("too_many_requests", str(len(parts)), f"at most {TOGETHER_MAX} in one record")
    return tuple(_request_or_none(part) for part in parts)


def _request_or_none(data: bytes) -> CommandRequest | None:
    try:
        return decode_request(data)
    except WireError:
        return None


SnapshotRecord = StoredSnapshot | SnapshotChunk | SnapshotConfirmation
_SNAPSHOT_RECORDS = {RECORDS[name]: name for name in (STORED_SNAPSHOT, SNAPSHOT_CHUNK, SNAPSHOT_CONFIRMATION)}


def encode_snapshot_record(value: SnapshotRecord) -> bytes:
    """Bytes of a record of the topic ``snapshots``."""
    return _encode(_SNAPSHOT_RECORDS[type(value)], value)


def decode_snapshot_record(data: bytes) -> SnapshotRecord:
    """Record of the bytes."""
    full_name = name_of(data, _SNAPSHOT_RECORDS.values())
    if full_name not in _SNAPSHOT_RECORDS.values():
        raise WireError("wrong_record", full_name, "a record of the topic snapshots")
    value: SnapshotRecord = mapper(full_name).decode(data)
    return value


def mutation_key(keyspace: str, table: str, partition_key: bytes) -> bytes:
    """Key of a mutation: ``keyspace.table`` in UTF-8, a zero byte, the composed partition key (see ``kernel.ring``)."""
    return f"{keyspace}.{table}".encode() + b"\0" + partition_key


def mutation_partition(key: bytes, partitions: int) -> int:
    """Partition of a mutation: all writes of one base partition key lie in one, in the order they were produced."""
    return crc32(key) % partitions


def dead_letter_key(topic: str, partition: int, offset: int) -> bytes:
    """Key of a dead letter: the position that it came from, so that a repetition replaces it."""
    return f"{topic}/{partition}/{offset}".encode()
