"""The topics of a cluster with a correct CDC log, for audits; the wire codecs and the kernel's routing write them."""

from __future__ import annotations

import copy
import time
import uuid
from dataclasses import dataclass

from confluent_kafka import OFFSET_END, Message, Producer, TopicPartition
from tests.cdc.images.memory import MemoryStates
from tests.node.world import cluster as nodes_and_table
from tests.node.world import write

from ringlog.client.creation.schemas import publish_schemas
from ringlog.kernel.changes import EPOCHS, ChangeRecord, project
from ringlog.kernel.generations.acceptance import generation_at, stream_of
from ringlog.kernel.generations.admission import refused, rules_of
from ringlog.kernel.generations.describe import generate
from ringlog.kernel.generations.statements import is_compound
from ringlog.kernel.model.settings import setting
from ringlog.kernel.model.state import ClusterState, Generation
from ringlog.kernel.ring.murmur3 import token_of
from ringlog.kernel.sections import CDC_GENERATIONS, CDC_STREAMS, SCHEMA
from ringlog.kernel.values import CdcOptions, replace
from ringlog.log.kafka.topics import (
    CDC,
    DEAD_LETTERS,
    METADATA,
    MUTATIONS,
    SCHEMAS,
    TOPICS,
    admin_client,
    create_topics,
)
from ringlog.runtime.kafka.config import QUIET
from ringlog.stack import StackInfo
from ringlog.wire.changes import encode_change_record
from ringlog.wire.errors import WireError
from ringlog.wire.records import (
    Bounds,
    CdcRow,
    Cell,
    DeadLetter,
    Mutation,
    MutationStatement,
    dead_letter_key,
    decode_mutation,
    encode_cdc_row,
    encode_dead_letter,
    encode_mutation,
    mutation_key,
    mutation_partition,
)
from ringlog_audit.report import AuditReport
from ringlog_audit.sources.topics import KafkaTopics, records
from ringlog_audit.verify import Expected, audit
from ringlog_cdc.definition.image_tables import image_tables, images_context
from ringlog_cdc.definition.images import imaged
from ringlog_cdc.definition.row import plain_piece
from ringlog_cdc.definition.split import Piece, split

HOUR_US = 3_600_000_000
LEEWAY = "cdc_leeway_us"
CODES = {"INSERT": 2, "UPDATE": 1, "ROW_DELETE": 3, "PARTITION_DELETE": 4}


@dataclass(slots=True)
class Out:
    """An outgoing record: a CDC row or a dead letter."""

    topic: str
    partition: int
    key: bytes
    row: CdcRow | DeadLetter

    @property
    def value(self) -> bytes:
        return encode_cdc_row(self.row) if isinstance(self.row, CdcRow) else encode_dead_letter(self.row)


def two_generations(now: int) -> ClusterState:
    """Return three nodes, the table, a generation from an hour ago and one from ten minutes ago."""
    state = nodes_and_table((-(2**62),), (0,), (2**62,), cdc=True)
    generations = tuple(
        Generation(name, now - age, generate(owners, state.nodes, bytes([age % 251]) * 16), "published", 1, 1, None, ())
        for name, age, owners in (
            ("g1", HOUR_US, dict(sorted(state.token_owners.items())[:2])),
            ("g2", HOUR_US // 6, dict(state.token_owners.items())),
        )
    )
    return replace(state, generations=generations, settings=state.settings.set(LEEWAY, HOUR_US // 2))


def mutations(now: int) -> list[tuple[bytes, bytes]]:
    """Return (key, value) of 60 writes, alternately before and after the switch, and one of each rejected kind."""
    found = []
    for number in range(60):
        at = now - (HOUR_US // 4 if number % 2 else 1000 - number)
        extra: dict[str, object] = {"mutation_id": str(uuid.uuid4())} if number % 3 else {}
        if number % 7 == 0:
            extra["cells"] = (Cell("note", b"n"), Cell("other", None))
        found.append(write(f"c{number % 9}", number, at, **extra))
    found.append(write("c1", 1, now, operation="PARTITION_DELETE", clustering_key=(), cells=()))
    found.append(write("c1", 1, now, operation="ROW_DELETE", cells=(), ttl=None))
    found.append(write("c2", 2, now, operation="UPDATE", ttl=77))
    note = Cell("note", b"n")
    late, key = MutationStatement("UPDATE", (bytes(8),), (note,), now - HOUR_US // 4), (bytes(7) + b"\2",)
    found += [
        write(
            "c3",
            3,
            now,
            more=(late, MutationStatement("INSERT", key, (note,)), MutationStatement("ROW_DELETE", key, (), now + 1)),
        ),
        write("c3", 3, now, ttl=60, cells=(note, Cell("other", None))),
        write("c3", 3, now, operation="RANGE_DELETE", clustering_key=(), cells=(), bounds=Bounds(key, True, (), True)),
    ]
    nothing = Bounds(key, True, key, False)
    refused = [
        write("c3", 3, now, operation="RANGE_DELETE", clustering_key=(), cells=(), bounds=nothing),
        write("c3", 3, now, more=(replace(late, timestamp=now - 2 * HOUR_US),)),
        write("c3", 3, now, more=(replace(late, replaced=("note",)),)),
        replace(write("c3", 3, now), partition_key=(b"\xff",)),
        write(None, 1, now),
        write("c1", 1, now - 2 * HOUR_US),
        write("c1", 1, now + 2 * HOUR_US),
        write("c1", 1, now - HOUR_US * 4 // 5),
        write("c1", 1, now, table="none"),
        write("c1", 1, now, operation="UNKNOWN"),
        write("c1", 1, now, clustering_key=()),
        write("c1", 1, now, cells=(note, Cell("lost", None))),
        write("c1", 1, now, more=(MutationStatement("INSERT", key, (Cell("number", bytes(8)),)),)),
        write("c1", 1, now, cluster_id=str(uuid.uuid4())),
    ]
    pairs = [(mutation_key("shop", "orders", m.partition_key[0] or b""), encode_mutation(m)) for m in found + refused]
    return [*pairs, (b"what", b"no mutation"), (b"cut", encode_mutation(found[0])[:-1])]


def timeuuid(timestamp: int, low: int) -> bytes:
    ticks = timestamp * 10 + 0x01B21DD213814000
    fields = (ticks & 0xFFFFFFFF, ticks >> 32 & 0xFFFF, ticks >> 48 & 0x0FFF | 0x1000)
    return uuid.UUID(fields=(*fields, 0x80 | low >> 32 & 0x3F, low >> 24 & 0xFF, low)).bytes


class World:
    """The topics of one cluster. ``outgoing``: rows of a correct job, which tests may change before ``publish``.

    Several tests may use it in sequence and call ``afresh`` first: the mutations and the change records remain.
    """

    def __init__(
        self, stack: StackInfo, cluster: str, images: CdcOptions | None = None, also: tuple[str, ...] = ()
    ) -> None:
        """Create the topics. ``images``: the image options of the table; ``also``: additional change topics."""
        self.bootstrap, self.cluster = stack.bootstrap_servers, cluster
        now = time.time_ns() // 1000
        self.state = two_generations(now)
        if images is not None:
            table = replace(self.state.tables["shop.orders"], cdc=images)
            self.state = replace(self.state, tables=self.state.tables.set("shop.orders", table))
        self._images = image_tables(images_context(self.state, 0)).get("shop.orders")
        self._states = MemoryStates()
        wanted = (METADATA, MUTATIONS, CDC, DEAD_LETTERS, SCHEMAS)
        names = {spec.suffix for spec in wanted} | {*also, SCHEMA, CDC_GENERATIONS, CDC_STREAMS, EPOCHS}
        self._admin = admin_client(self.bootstrap)
        create_topics(self._admin, cluster, specs=[spec for spec in TOPICS if spec.suffix in names])
        publish_schemas(self.bootstrap, cluster)
        self._producer = Producer({**QUIET, "bootstrap.servers": self.bootstrap, "enable.idempotence": True})
        self.changes = [
            ChangeRecord(topic, key, value) for (topic, key), value in project(self.state).items() if topic in names
        ]
        for key, value in mutations(now):
            self._send("mutations", mutation_partition(key, 4), key, value)
        self._producer.flush()
        self.rules = rules_of(self.state)
        mutated = records(self.bootstrap, f"{cluster}.mutations")
        self._right = [out for message in mutated for out in self._judged(message)]
        self.outgoing = self._copies()

    def afresh(self) -> World:
        """Remove all rows and letters of the mutations."""
        self.outgoing = self._copies()
        written = {f"{self.cluster}.{spec.suffix}": spec.partitions for spec in (CDC, DEAD_LETTERS)}
        places = [TopicPartition(topic, n, OFFSET_END) for topic, count in written.items() for n in range(count)]
        for emptied in self._admin.delete_records(places).values():
            emptied.result()
        return self

    def _copies(self) -> list[Out]:
        return [copy.copy(out) for out in self._right]

    def _send(self, suffix: str, partition: int, key: bytes, value: bytes | None) -> None:
        self._producer.produce(f"{self.cluster}.{suffix}", value, key=key, partition=partition)

    def _judged(self, message: Message) -> list[Out]:
        value, key = message.value() or b"", message.key() or b""
        place = (message.partition() or 0, message.offset() or 0)
        now = message.timestamp()[1] * 1000
        try:
            mutation = decode_mutation(value)
            reason, _ = refused(self.rules, mutation, now)
        except WireError:
            reason = "unreadable"
        if not reason:
            shape = self.rules.tables["shop.orders"]
            compound = is_compound(mutation, shape)
            if not compound and self._images is None:
                return [self._row(mutation, place)]
            pieces = split(mutation, shape) if compound else (plain_piece(mutation),)
            return [self._part(mutation, place, piece) for piece in self._imaged(mutation, pieces, now)]
        topic = f"{self.cluster}.mutations"
        letter = DeadLetter(reason, "", topic, *place, now, key, value, "w", 1)
        return [Out("dead-letters", 0, dead_letter_key(topic, *place), letter)]

    def _imaged(self, mutation: Mutation, pieces: tuple[Piece, ...], now: int) -> tuple[Piece, ...]:
        if self._images is None:
            return pieces
        key = mutation.partition_key[0] or b""
        found = imaged(self._states, "shop.orders", self._images, key, pieces, now, False)
        for state in found.states.items():
            self._states.put(*state)
        return found.pieces

    def _part(self, mutation: Mutation, place: tuple[int, int], piece: Piece) -> Out:
        out = self._row(replace(mutation, timestamp=piece.timestamp, operation="INSERT", cells=()), place)
        self.change(out, **{name: getattr(piece, name) for name in Piece.__struct_fields__})
        return out

    def _row(self, mutation: Mutation, place: tuple[int, int]) -> Out:
        generation = generation_at(self.state.generations, mutation.timestamp)
        assert generation is not None
        key = mutation.partition_key[0] or b""
        stream = stream_of(generation, token_of(key))
        row = CdcRow(
            stream_id=stream,
            generation=generation.timestamp,
            time=timeuuid(mutation.timestamp, place[0] << 24 | place[1]),
            batch_seq_no=0,
            operation=CODES[mutation.operation],
            ttl=mutation.ttl,
            end_of_batch=True,
            keyspace=mutation.keyspace,
            table=mutation.table,
            mutation_id=mutation.mutation_id,
            source_topic=f"{self.cluster}.mutations",
            source_partition=place[0],
            source_offset=place[1],
            timestamp=mutation.timestamp,
            partition_key=(key,),
            clustering_key=mutation.clustering_key,
            cells=tuple(cell for cell in mutation.cells if cell.value is not None),
            deleted=tuple(cell.column for cell in mutation.cells if cell.value is None),
        )
        return Out("cdc", mutation_partition(stream, 8), stream, row)

    def rows(self) -> list[Out]:
        """Return the outgoing CDC rows, for changes in place."""
        return [out for out in self.outgoing if out.topic == "cdc"]

    def change(self, out: Out, **fields: object) -> None:
        """Change fields of a row or a letter."""
        out.row = replace(out.row, **fields)  # type: ignore[arg-type]

    def publish(self) -> None:
        """Write the records of the publisher and the job."""
        for change in self.changes:
            self._send(change.topic, 0, *encode_change_record(change)[1:])
        for out in self.outgoing:
            self._send(out.topic, out.partition, out.key, out.value)
        self._producer.flush()

    def audited(self, *, by_log: bool = False, **expected: int) -> AuditReport:
        """Return the audit's report on the published records. ``by_log``: a metadata log exists."""
        leeway = None if by_log else setting(self.state, LEEWAY)
        return audit(KafkaTopics(self.bootstrap, self.cluster), Expected(leeway_us=leeway, **expected), lambda _: None)
