"""The audit on a real broker: it passes on a right CDC log and finds every planted error.

The topics are written here with the wire codecs and the kernel's routing, so the audit's own reading and routing meet
those of everybody else.
"""

from __future__ import annotations

import socket
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace

import pytest
from confluent_kafka import Message, Producer
from tests.node.world import cluster as nodes_and_table
from tests.node.world import write

from ringlog.audit.report import Report
from ringlog.audit.topics import AuditError, records
from ringlog.audit.verify import Expected, audit
from ringlog.client.founding import publish_schemas
from ringlog.kernel.changes import CDC_GENERATIONS, CDC_STREAMS, EPOCHS, SCHEMA, ChangeRecord, project
from ringlog.kernel.commands.model import CdcOptions
from ringlog.kernel.generations.admission import refusal, rules_of
from ringlog.kernel.generations.describe import generate
from ringlog.kernel.generations.lookup import generation_at, stream_of
from ringlog.kernel.generations.statements import is_compound
from ringlog.kernel.ring.murmur3 import token_of
from ringlog.kernel.settings import setting
from ringlog.kernel.state import ClusterState, Generation
from ringlog.log.topics import CDC, DEAD_LETTERS, METADATA, MUTATIONS, SCHEMAS, TOPICS, admin_client, create_topics
from ringlog.stack import StackInfo
from ringlog.wire.changes import encode_change_record
from ringlog.wire.errors import WireError
from ringlog.wire.partitions import cdc_partition, dead_letter_key, mutation_key, mutation_partition
from ringlog.wire.records import (
    Bounds,
    CdcRow,
    Cell,
    Change,
    DeadLetter,
    Mutation,
    decode_mutation,
    encode_cdc_row,
    encode_dead_letter,
    encode_mutation,
)
from ringlog_cdc.images.define import imaged
from ringlog_cdc.images.memory import MemoryStates
from ringlog_cdc.images.tables import image_tables, images_context
from ringlog_cdc.pieces import plain_piece
from ringlog_cdc.split import Piece, split

pytestmark = pytest.mark.system

HOUR_US = 3_600_000_000
LEEWAY = "cdc_leeway_us"
CODES = {"INSERT": 2, "UPDATE": 1, "ROW_DELETE": 3, "PARTITION_DELETE": 4}


@dataclass(slots=True)
class Out:
    """A record to be written: a CDC row or a dead letter."""

    topic: str
    partition: int
    key: bytes
    row: CdcRow | DeadLetter

    @property
    def value(self) -> bytes:
        return encode_cdc_row(self.row) if isinstance(self.row, CdcRow) else encode_dead_letter(self.row)


def two_generations(now: int) -> ClusterState:
    """Three nodes, the table, a generation of an hour ago and one of ten minutes ago."""
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
    """(key, value) of 60 writes, by turns before and after the switch, and one of each kind that is refused."""
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
    late, key = Change("UPDATE", (bytes(8),), (note,), now - HOUR_US // 4), (bytes(7) + b"\2",)
    found += [
        write("c3", 3, now, more=(late, Change("INSERT", key, (note,)), Change("ROW_DELETE", key, (), now + 1))),
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
        write("c1", 1, now, more=(Change("INSERT", key, (Cell("number", bytes(8)),)),)),
        write("c1", 1, now, cluster_id=str(uuid.uuid4())),
    ]
    pairs = [(mutation_key("shop", "orders", m.partition_key[0] or b""), encode_mutation(m)) for m in found + refused]
    return [*pairs, (b"what", b"no mutation"), (b"cut", encode_mutation(found[0])[:-1])]


def timeuuid(timestamp: int, low: int) -> bytes:
    ticks = timestamp * 10 + 0x01B21DD213814000
    fields = (ticks & 0xFFFFFFFF, ticks >> 32 & 0xFFFF, ticks >> 48 & 0x0FFF | 0x1000)
    return uuid.UUID(fields=(*fields, 0x80 | low >> 32 & 0x3F, low >> 24 & 0xFF, low)).bytes


class World:
    """One cluster's topics. ``outgoing``: what a right job writes, for tests to change before ``publish``."""

    def __init__(self, stack: StackInfo, cluster: str, images: CdcOptions | None = None) -> None:
        """``images``: the table's options, if it keeps any."""
        self.bootstrap, self.cluster = stack.bootstrap_servers, cluster
        now = time.time_ns() // 1000
        self.state = two_generations(now)
        if images is not None:
            table = replace(self.state.tables["shop.orders"], cdc=images)
            self.state = replace(self.state, tables=self.state.tables.set("shop.orders", table))
        self._images = image_tables(images_context(self.state, 0)).get("shop.orders")
        self._states = MemoryStates()
        wanted = (METADATA, MUTATIONS, CDC, DEAD_LETTERS, SCHEMAS)
        names = {spec.suffix for spec in wanted} | {SCHEMA, CDC_GENERATIONS, CDC_STREAMS, EPOCHS}
        create_topics(admin_client(self.bootstrap), cluster, specs=[spec for spec in TOPICS if spec.suffix in names])
        publish_schemas(self.bootstrap, cluster)
        self._producer = Producer({"bootstrap.servers": self.bootstrap, "enable.idempotence": True})
        self.changes = [
            ChangeRecord(topic, key, value) for (topic, key), value in project(self.state).items() if topic in names
        ]
        for key, value in mutations(now):
            self._send("mutations", mutation_partition(key, 4), key, value)
        self._producer.flush()
        self.rules = rules_of(self.state)
        mutated = records(self.bootstrap, f"{cluster}.mutations")
        self.outgoing = [out for message in mutated for out in self._judged(message)]

    def _send(self, suffix: str, partition: int, key: bytes, value: bytes | None) -> None:
        self._producer.produce(f"{self.cluster}.{suffix}", value, key=key, partition=partition)

    def _judged(self, message: Message) -> list[Out]:
        value, key = message.value() or b"", message.key() or b""
        place = (message.partition() or 0, message.offset() or 0)
        now = message.timestamp()[1] * 1000
        try:
            mutation = decode_mutation(value)
            reason = refusal(self.rules, mutation, now)
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
        self.change(out, **{field.name: getattr(piece, field.name) for field in fields(Piece)})
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
        return Out("cdc", cdc_partition(stream, 8), stream, row)

    def rows(self) -> list[Out]:
        """The CDC rows to be written, for changing in place."""
        return [out for out in self.outgoing if out.topic == "cdc"]

    def change(self, out: Out, **fields: object) -> None:
        """Other fields in a row or a letter."""
        out.row = replace(out.row, **fields)  # type: ignore[arg-type]

    def publish(self) -> None:
        """Write what the publisher and the job would."""
        for change in self.changes:
            self._send(change.topic, 0, *encode_change_record(change)[1:])
        for out in self.outgoing:
            self._send(out.topic, out.partition, out.key, out.value)
        self._producer.flush()

    def audited(self, *, by_log: bool = False, **expected: int) -> Report:
        """The audit's report on what was published. ``by_log``: there is a metadata log."""
        leeway = None if by_log else setting(self.state, LEEWAY)
        return audit(self.bootstrap, self.cluster, Expected(leeway_us=leeway, **expected), lambda _: None)


@pytest.fixture
def world(stack: StackInfo, cluster_name: str) -> World:
    return World(stack, cluster_name)


def failed(report: Report) -> set[str]:
    return {check.name for check in report.checks if not check.ok}


def test_a_right_log_passes(world: World) -> None:
    world.publish()
    report = world.audited(written=66, rejected=15, generations=2)
    assert report.ok, report.as_json()
    assert (report.counts["mutations"], report.counts["skipped"]) == (82, 1)
    assert (report.counts["written"], report.counts["cdc_rows"]) == (66, 71)
    assert [generation["rows"] for generation in report.generations] == [30, 36]
    reasons = Counter(out.row.reason for out in world.outgoing if isinstance(out.row, DeadLetter))
    assert len(reasons) == 12
    assert reasons["unreadable"] == reasons["unknown_column"] == 2


IMAGES = CdcOptions(True, preimage="full", postimage=True)


def images(world: World, operation: int) -> list[Out]:
    return [o for o in world.rows() if isinstance(o.row, CdcRow) and o.row.operation == operation]


def _value_of_an_image(world: World) -> None:
    world.change(images(world, 0)[3], cells=())


def _null_of_an_image(world: World) -> None:
    world.change(images(world, 0)[3], deleted=("amount",))


def _image_missing(world: World) -> None:
    world.outgoing.remove(images(world, 9)[3])


def _image_of_another_write(world: World) -> None:
    one, other = images(world, 9)[2:4]
    one.row, other.row = other.row, one.row


def test_a_right_log_with_images_passes_and_every_error_in_one_is_found(stack: StackInfo, cluster_name: str) -> None:
    world = World(stack, cluster_name, IMAGES)
    assert len(images(world, 0)) > 3 < len(images(world, 9))
    world.publish()
    report = world.audited(written=66, rejected=15, generations=2)
    assert report.ok, report.as_json()
    for number, plant in enumerate((_value_of_an_image, _null_of_an_image, _image_missing, _image_of_another_write)):
        world = World(stack, f"{cluster_name}{number}", IMAGES)
        plant(world)
        world.publish()
        assert failed(world.audited()) & {"source", "complete", "stream"}, plant.__name__


def test_expectations_that_do_not_hold_are_found(world: World) -> None:
    world.publish()
    assert failed(world.audited(written=64)) == {"complete"}
    assert failed(world.audited(rejected=9)) == {"complete"}
    assert failed(world.audited(generations=3)) == {"both_generations"}


def _part_missing(world: World) -> None:
    world.outgoing.remove(next(o for o in world.rows() if isinstance(o.row, CdcRow) and o.row.batch_seq_no == 1))


def _part_twice(world: World) -> None:
    world.outgoing += [o for o in world.rows() if isinstance(o.row, CdcRow) and o.row.batch_seq_no == 1]


def _part_changed(world: World) -> None:
    out = next(o for o in world.rows() if isinstance(o.row, CdcRow) and o.row.batch_seq_no == 1)
    world.change(out, end_of_batch=False)


def _twice(world: World) -> None:
    world.outgoing.append(world.rows()[0])


def _missing(world: World) -> None:
    world.outgoing.remove(world.rows()[0])


def _wrong_stream(world: World) -> None:
    out = world.rows()[0]
    same = [o.row for o in world.rows() if isinstance(o.row, CdcRow)]
    assert isinstance(out.row, CdcRow)
    other = next(r for r in same if r.generation == out.row.generation and r.stream_id != out.row.stream_id)
    world.change(out, stream_id=other.stream_id)
    out.key, out.partition = other.stream_id, cdc_partition(other.stream_id, 8)


def _key_is_another_stream(world: World) -> None:
    first = world.rows()[0]
    other = next(out for out in world.rows() if out.key != first.key)
    first.key, first.partition = other.key, other.partition


def _wrong_generation(world: World) -> None:
    out = world.rows()[0]
    assert isinstance(out.row, CdcRow)
    old = out.row.generation
    world.change(out, generation=next(g.timestamp for g in world.state.generations if g.timestamp != old))


def _cell(world: World) -> None:
    out = next(o for o in world.rows() if isinstance(o.row, CdcRow) and o.row.cells)
    world.change(out, cells=(Cell("note", b"changed"),))


def _null_lost(world: World) -> None:
    world.change(next(o for o in world.rows() if isinstance(o.row, CdcRow) and o.row.deleted), deleted=())


def _field(name: str, value: object) -> Callable[[World], None]:
    def plant(world: World) -> None:
        world.change(world.rows()[0], **{name: value})

    return plant


def _order(world: World) -> None:
    seen: dict[tuple[object, ...], int] = {}
    for index, out in enumerate(world.outgoing):
        if not isinstance(out.row, CdcRow):
            continue
        base = (out.row.generation, out.row.partition_key)
        if base in seen:
            first = seen[base]
            world.outgoing[first], world.outgoing[index] = out, world.outgoing[first]
            return
        seen[base] = index


def _two_partitions(world: World) -> None:
    out = world.rows()[0]
    world.outgoing.append(replace(world.rows()[0], partition=(out.partition + 1) % 8))
    world.outgoing.remove(next(o for o in world.rows() if o.key == out.key))
    rest = [o for o in world.rows() if o.key == out.key]
    assert len(rest) > 1, "the stream has other rows, which stay where they belong"


def _letters(world: World) -> Iterable[Out]:
    return [out for out in world.outgoing if out.topic == "dead-letters"]


def _wrong_reason(world: World) -> None:
    out = next(o for o in _letters(world) if isinstance(o.row, DeadLetter) and o.row.reason == "null_partition_key")
    world.change(out, reason="bad_key")


def _other_bytes(world: World) -> None:
    world.change(next(iter(_letters(world))), value=b"other")


def _letter_twice(world: World) -> None:
    world.outgoing.append(next(iter(_letters(world))))


def _written_and_rejected(world: World) -> None:
    out = world.rows()[0]
    assert isinstance(out.row, CdcRow)
    place = (out.row.source_partition, out.row.source_offset)
    letter = DeadLetter("timestamp_too_old", "", f"{world.cluster}.mutations", *place, 0, b"", b"", "w", 1)
    world.outgoing.append(Out("dead-letters", 0, b"k", letter))


def _refused_but_written(world: World) -> None:
    out = next(o for o in _letters(world) if isinstance(o.row, DeadLetter) and o.row.reason == "timestamp_too_old")
    assert isinstance(out.row, DeadLetter)
    assert out.row.value is not None
    world.outgoing.remove(out)
    world.outgoing.append(world._row(decode_mutation(out.row.value), (out.row.partition, out.row.offset)))


def _identity(world: World) -> None:
    rows = [o for o in world.rows() if isinstance(o.row, CdcRow) and o.row.mutation_id is None]
    for one in rows:
        for other in rows:
            assert isinstance(one.row, CdcRow)
            assert isinstance(other.row, CdcRow)
            if one is not other and one.key == other.key and one.row.timestamp == other.row.timestamp:
                world.change(other, time=one.row.time)
                return
    pytest.fail("no two rows of one stream and moment")


PLANTED: dict[str, tuple[Callable[[World], None], set[str]]] = {
    "a row twice": (_twice, {"exactly_once"}),
    "a part missing": (_part_missing, {"complete"}),
    "parts twice": (_part_twice, {"exactly_once"}),
    "a part changed": (_part_changed, {"source", "complete"}),
    "a row missing": (_missing, {"complete"}),
    "under another stream": (_wrong_stream, {"stream"}),
    "key of another stream": (_key_is_another_stream, {"stream"}),
    "another generation": (_wrong_generation, {"stream"}),
    "a cell changed": (_cell, {"source", "complete"}),
    "a deleted cell forgotten": (_null_lost, {"source", "complete"}),
    "another operation": (_field("operation", 4), {"source", "complete"}),
    "a time to live": (_field("ttl", 5), {"source", "complete"}),
    "another time": (_field("time", timeuuid(1, 1)), {"source", "complete"}),
    "another partition key": (_field("partition_key", (b"other",)), {"source", "complete"}),
    "another clustering key": (_field("clustering_key", (b"other",)), {"source", "complete"}),
    "a source that is not there": (_field("source_offset", 10_000), {"source", "complete"}),
    "order within a key": (_order, {"order"}),
    "a stream in two partitions": (_two_partitions, {"partition"}),
    "a dead letter for another reason": (_wrong_reason, {"dead_letters"}),
    "a dead letter with other bytes": (_other_bytes, {"dead_letters"}),
    "a dead letter twice": (_letter_twice, {"dead_letters"}),
    "written and rejected": (_written_and_rejected, {"dead_letters", "complete"}),
    "written though refused": (_refused_but_written, {"stream"}),
    "two rows with one identity": (_identity, {"exactly_once"}),
}


@pytest.mark.parametrize("what", PLANTED)
def test_every_planted_error_is_found(world: World, what: str) -> None:
    plant, found_by = PLANTED[what]
    plant(world)
    world.publish()
    found = failed(world.audited())
    # What lies in another place, or comes again, may be out of order there as well.
    assert found - {"order"} == found_by - {"order"}
    assert ("order" in found) or ("order" not in found_by)


def test_a_generation_without_its_ranges_ends_the_audit(world: World) -> None:
    world.changes.remove(next(change for change in world.changes if change.topic == CDC_STREAMS))
    world.publish()
    with pytest.raises(AuditError, match="ranges"):
        world.audited()


def test_nothing_published_ends_the_audit(world: World) -> None:
    with pytest.raises(AuditError, match="publish"):
        world.audited()


def test_no_broker_ends_the_audit() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        bootstrap = f"127.0.0.1:{nobody.getsockname()[1]}"
        with pytest.raises(AuditError, match="is the broker up"):
            next(records(bootstrap, "any.schemas"))
