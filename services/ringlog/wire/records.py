"""The records of all topics except the metadata log and the change topics, and their keys and partitions.

Each record is a single object. The schemas document fields and units (``docs/reference/schemas.md``); this module
defines the types. ``encode_*`` raises ``WireError`` for a value that does not fit its schema. ``decode_*`` raises it
for bytes that are not such a record.

This module computes the partition of mutations. ``ringlog_cdc.definition.routing_table`` computes the partitions of CDC
rows, and the audit has an independent copy of the rule.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any, TypeVar
from zlib import crc32

from ringlog.kernel.ring.murmur3 import COMPONENT_BYTES_MAX, compose
from ringlog.kernel.values import Position, StreamReport, Value
from ringlog.wire.avro.codec import layout, name_of
from ringlog.wire.avro.mapping import Mapper
from ringlog.wire.errors import WireError

T = TypeVar("T")

APPLIED, REJECTED, EXPIRED = "applied", "rejected", "expired"
"""The outcomes of a ``Result``."""

INSERT, UPDATE, ROW_DELETE, PARTITION_DELETE = "INSERT", "UPDATE", "ROW_DELETE", "PARTITION_DELETE"
RANGE_DELETE = "RANGE_DELETE"
"""The operations of a ``Mutation``. ``UNKNOWN`` represents an operation of a later release."""


class CommandRequest(Value):
    """A request to the validator to append a command. ``answer_applied``: publish a result also if it is applied."""

    request_id: str
    since_epoch: int
    submitter: str
    kind: str
    version: int
    payload: bytes
    answer_applied: bool = False


class CodedRequest(Value):
    """The bytes of a ``CommandRequest`` and their MAC with key number ``key`` of ``principal`` (``wire.requests``)."""

    request: bytes
    principal: str
    key: int
    code: bytes


class RequestBatch(Value):
    """Several requests in one record, each in the encoding that it would have alone."""

    requests: tuple[bytes, ...]


class Result(Value):
    """The validator's response. ``outcome`` is applied, rejected or expired (unknown: of a later release)."""

    request_id: str
    digest: str
    outcome: str
    epoch: int
    code: str
    detail: str
    term: int
    instance: str
    since_epoch: int


class FailedTries(Value):
    """Failed attempts to stream for ``operation`` from ``source``: ``count`` of them since epoch ``since``."""

    operation: str
    source: str
    count: int
    since: int
    at: int
    reason: str


class NodeAck(Value):
    """The progress of a node: epochs up to ``applied`` are durable, and all writes admitted below ``drained`` are
    applied.

    ``incarnation``: see ``wire.acks``. ``state_id`` belongs to the applied epoch.
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


class CodedAck(Value):
    """The bytes of a ``NodeAck`` and their MAC (``wire.acks``). ``code`` is empty for a record without one."""

    ack: bytes
    code: bytes


class TableLoad(Value):
    """The tablets of ``table`` on a node, with the load of each in the same order.

    ``id`` is the table's id. ``count`` is the table's number of tablets at the time of the report.
    """

    table: str
    tablets: tuple[int, ...]
    bytes: tuple[int, ...]
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    cpu: tuple[int, ...] = ()
    id: str = ""
    count: int = 0


class NodeLoad(Value):
    """The load of a node, for the balancer, and the state of its machine, for operators.

    ``at`` is its clock in microseconds, as is ``certificate_end``. ``capacity`` and ``disk_free`` are in bytes. None:
    not measured, or no certificate.
    """

    node: str
    at: int
    capacity: int | None
    tables: tuple[TableLoad, ...]
    judged: tuple[Position, ...] = ()
    """Positions in the mutations topic. The node has validated all records before them."""
    disk_free: int | None = None
    certificate_end: int | None = None


class CodedLoad(Value):
    """The bytes of a ``NodeLoad`` and their MAC (``wire.acks``). ``code`` is empty for a record without one."""

    load: bytes
    code: bytes


class RefusedProposal(Value):
    """A rejected proposal of an agent. ``since`` is the agent's clock in microseconds."""

    subject: str
    command: str
    code: str
    detail: str
    since: int


class AgentStatus(Value):
    """The status of an agent. ``state`` is starting, standby, active or halted. ``why`` is the reason if it ended
    itself. ``release`` is empty if it is unknown.
    """

    role: str
    instance: str
    term: int
    epoch: int
    state: str
    at: int
    refused: tuple[RefusedProposal, ...] = ()
    why: str = ""
    release: str = ""


class SnapshotPart(Value):
    """A section of a state: its name, its size in canonical bytes, and their digest."""

    name: str
    size: int
    digest: str


class StoredSnapshot(Value):
    """The head of a stored state. Readers continue at the log offset ``position``.

    ``chunks`` contains the digests of the chunks; ``first`` is the offset of the first chunk in the snapshot topic.
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


class SnapshotChunk(Value):
    """The bytes of one chunk of the snapshot ``id``."""

    id: str
    number: int
    data: bytes


class SnapshotConfirmation(Value):
    """A second reader's state of an epoch, from its own fold."""

    cluster_id: str
    topic_id: str
    epoch: int
    state_id: str
    position: int
    digest: str
    by: str
    at: int


class Cell(Value):
    """The value of one column in CQL serialization. None: null or deleted."""

    column: str
    value: bytes | None


class DeletedElements(Value):
    """Elements deleted from one collection, by their keys in CQL serialization."""

    column: str
    keys: tuple[bytes, ...]


class Bounds(Value):
    """A range of rows in one partition, by prefixes of the clustering key. An empty prefix means unbounded."""

    start: tuple[bytes, ...]
    start_inclusive: bool
    end: tuple[bytes, ...]
    end_inclusive: bool


class MutationStatement(Value):
    """An additional statement of a mutation.

    ``timestamp`` and ``ttl`` None: the mutation's values. ``ttl`` 0: no expiry.
    """

    operation: str
    clustering_key: tuple[bytes | None, ...] = ()
    cells: tuple[Cell, ...] = ()
    timestamp: int | None = None
    ttl: int | None = None
    deleted_elements: tuple[DeletedElements, ...] = ()
    replaced: tuple[str, ...] = ()
    bounds: Bounds | None = None


class Mutation(Value):
    """One write to a partition of a base table. Key components are in CQL serialization, in key order.

    It consists of one statement and the statements in ``more``. ``replaced`` lists collections whose earlier elements
    are deleted before those in ``cells`` are added. ``bounds`` belongs to a range delete. ``epoch``, ``table_id`` and
    ``table_version`` describe the author's knowledge of the table (``ringlog.kernel.generations.verdicts``); None: not
    given.
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


class CdcRow(Value):
    """One row of the CDC log. ``stream_id`` and ``time`` have 16 bytes; ``generation`` and ``timestamp`` are
    microseconds.

    ``epoch`` is the metadata epoch that decided the row, 0 if not given.
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


VALUE_KEPT, KEY_KEPT = 3 * 1024 * 1024, 64 * 1024
"""Bytes of an original that a dead letter keeps. Brokers limit *compressed* sizes, so an original can be larger."""


class DeadLetter(Value):
    """A record that cannot become a CDC row: the reason, its position, and its bytes."""

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
REQUEST_BATCH, CODED_REQUEST = "ringlog.requests.RequestBatch", "ringlog.requests.CodedRequest"
NODE_LOAD, CODED_LOAD = "ringlog.load.NodeLoad", "ringlog.load.CodedLoad"
NODE_ACK, CODED_ACK = "ringlog.acks.NodeAck", "ringlog.acks.CodedAck"
AGENT_STATUS = "ringlog.agents.AgentStatus"
STORED_SNAPSHOT, SNAPSHOT_CHUNK = "ringlog.snapshots.StoredSnapshot", "ringlog.snapshots.SnapshotChunk"
SNAPSHOT_CONFIRMATION = "ringlog.snapshots.SnapshotConfirmation"
MUTATION, CDC_ROW, DEAD_LETTER = "ringlog.mutations.Mutation", "ringlog.cdc.CdcRow", "ringlog.cdc.DeadLetter"

RECORDS: dict[str, type[Any]] = {
    REQUEST: CommandRequest,
    REQUEST_BATCH: RequestBatch,
    CODED_REQUEST: CodedRequest,
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
    """Return the converter between the class of a record and its schema."""
    return Mapper(RECORDS[full_name], layout(full_name))


def _encode(full_name: str, value: Any) -> bytes:
    return mapper(full_name).encode(value)


def _decode(full_name: str, data: bytes) -> Any:
    return mapper(full_name).decode(data)


def _codec(full_name: str, _cls: type[T]) -> tuple[Callable[[T], bytes], Callable[[bytes], T]]:
    """Return the encoder and the decoder of a record. The decoder raises WireError."""
    return partial(_encode, full_name), partial(_decode, full_name)


encode_request, decode_plain_request = _codec(REQUEST, CommandRequest)
encode_coded_request, decode_coded_request = _codec(CODED_REQUEST, CodedRequest)
encode_batch, decode_batch = _codec(REQUEST_BATCH, RequestBatch)
encode_result, decode_result = _codec(RESULT, Result)
encode_node_ack, _decode_plain_ack = _codec(NODE_ACK, NodeAck)
encode_coded_ack, _decode_coded_ack = _codec(CODED_ACK, CodedAck)
encode_node_load, _decode_plain_load = _codec(NODE_LOAD, NodeLoad)
encode_coded_load, _decode_coded_load = _codec(CODED_LOAD, CodedLoad)
encode_agent_status, decode_agent_status = _codec(AGENT_STATUS, AgentStatus)
encode_mutation, decode_mutation = _codec(MUTATION, Mutation)
encode_cdc_row, decode_cdc_row = _codec(CDC_ROW, CdcRow)
encode_dead_letter, decode_dead_letter = _codec(DEAD_LETTER, DeadLetter)


def unwrap_ack(data: bytes) -> CodedAck:
    """Return the content of a record of the topic ``acks``, with or without a MAC."""
    return _decode_coded_ack(data) if name_of(data, (CODED_ACK, NODE_ACK)) == CODED_ACK else CodedAck(data, b"")


def decode_node_ack(data: bytes) -> NodeAck:
    """Decode an acknowledgement with or without a MAC. ``wire.acks`` checks the MAC."""
    return _decode_plain_ack(unwrap_ack(data).ack)


def unwrap_load(data: bytes) -> CodedLoad:
    """Return the content of a record of the topic ``load``, with or without a MAC."""
    return _decode_coded_load(data) if name_of(data) == CODED_LOAD else CodedLoad(data, b"")


def decode_node_load(data: bytes) -> NodeLoad:
    """Decode a load report with or without a MAC. ``wire.acks`` checks the MAC."""
    return _decode_plain_load(unwrap_load(data).load)


SnapshotRecord = StoredSnapshot | SnapshotChunk | SnapshotConfirmation
_SNAPSHOT_RECORDS = {RECORDS[name]: name for name in (STORED_SNAPSHOT, SNAPSHOT_CHUNK, SNAPSHOT_CONFIRMATION)}


def encode_snapshot_record(value: SnapshotRecord) -> bytes:
    """Encode a record of the topic ``snapshots``."""
    return _encode(_SNAPSHOT_RECORDS[type(value)], value)


def decode_snapshot_record(data: bytes) -> SnapshotRecord:
    """Decode a record of the topic ``snapshots``. Raises WireError."""
    full_name = name_of(data, _SNAPSHOT_RECORDS.values())
    if full_name not in _SNAPSHOT_RECORDS.values():
        raise WireError("wrong_record", full_name, "must be a record of the topic snapshots")
    value: SnapshotRecord = mapper(full_name).decode(data)
    return value


def mutation_key(keyspace: str, table: str, partition_key: bytes) -> bytes:
    """Return the key of a mutation: ``keyspace.table``, a zero byte, and the composed partition key (see
    ``kernel.ring``).
    """
    return f"{keyspace}.{table}".encode() + b"\0" + partition_key


def is_key_of(mutation: Mutation, key: bytes | None) -> bool:
    """Return True if ``key`` is the record key of this mutation. No key fits a partition key without composed form."""
    parts = [part for part in mutation.partition_key if part is not None and len(part) <= COMPONENT_BYTES_MAX]
    if key is None or not parts or len(parts) < len(mutation.partition_key):
        return False
    return key == mutation_key(mutation.keyspace, mutation.table, compose(parts))


def mutation_partition(key: bytes, partitions: int) -> int:
    """Return the topic partition of a mutation. All writes of one base partition key have the same one."""
    return crc32(key) % partitions


def dead_letter_key(topic: str, partition: int, offset: int) -> bytes:
    """Return the key of a dead letter: its original position. So a repeated dead letter replaces the first."""
    return f"{topic}/{partition}/{offset}".encode()
