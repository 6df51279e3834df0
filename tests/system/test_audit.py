"""The audit on a real broker: it passes on a correct CDC log and finds each planted error.

``audit_world`` writes the topics with the kernel's routing, and the audit compares them with its own.
"""

from __future__ import annotations

import socket
import uuid
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest
from tests.cdc.partitions import cdc_partition
from tests.system.audit_world import Out, World, timeuuid

from ringlog.kernel.sections import CDC_STREAMS
from ringlog.kernel.values import CdcOptions
from ringlog.stack import StackInfo
from ringlog.wire.records import CdcRow, Cell, DeadLetter, decode_mutation
from ringlog_audit.report import AuditReport
from ringlog_audit.sources import topics
from ringlog_audit.sources.topics import AuditError, records

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def shared(stack: StackInfo) -> World:
    return World(stack, f"audited-{uuid.uuid4().hex[:8]}")


@pytest.fixture
def world(shared: World) -> World:
    return shared.afresh()


@pytest.fixture
def own_world(stack: StackInfo, cluster_name: str) -> World:
    return World(stack, cluster_name)


def failed(report: AuditReport) -> set[str]:
    return {check.name for check in report.checks if not check.ok}


def test_a_correct_log_passes(world: World) -> None:
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


def test_a_log_with_images_passes_and_each_image_error_is_found(stack: StackInfo, cluster_name: str) -> None:
    world = World(stack, cluster_name, IMAGES)
    assert len(images(world, 0)) > 3 < len(images(world, 9))
    world.publish()
    report = world.audited(written=66, rejected=15, generations=2)
    assert report.ok, report.as_json()
    for plant in (_value_of_an_image, _null_of_an_image, _image_missing, _image_of_another_write):
        plant(world.afresh())
        world.publish()
        assert failed(world.audited()) & {"source", "complete", "stream"}, plant.__name__


def test_false_expectations_are_found(world: World) -> None:
    world.publish()
    assert failed(world.audited(written=64)) == {"complete"}
    assert failed(world.audited(rejected=9)) == {"complete"}
    assert failed(world.audited(generations=3)) == {"both_generations"}


def _part_missing(world: World) -> None:
    world.outgoing.remove(next(o for o in world.rows() if isinstance(o.row, CdcRow) and o.row.batch_seq_no == 1))


def _part_twice(world: World) -> None:
    again = [replace(o) for o in world.rows() if isinstance(o.row, CdcRow) and o.row.batch_seq_no == 1]
    for out in again:
        world.change(out, epoch=7)
    world.outgoing += again


def _part_changed(world: World) -> None:
    out = next(o for o in world.rows() if isinstance(o.row, CdcRow) and o.row.batch_seq_no == 1)
    world.change(out, end_of_batch=False)


def _twice(world: World) -> None:
    world.outgoing.append(again := replace(world.rows()[0]))
    world.change(again, epoch=7)


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
    assert len(rest) > 1, "the stream has other rows, which remain in place"


def _letters(world: World) -> Iterable[Out]:
    return [out for out in world.outgoing if out.topic == "dead-letters"]


def _wrong_reason(world: World) -> None:
    out = next(o for o in _letters(world) if isinstance(o.row, DeadLetter) and o.row.reason == "null_partition_key")
    world.change(out, reason="bad_key")


def _other_bytes(world: World) -> None:
    world.change(next(iter(_letters(world))), value=b"other")


def _letter_twice(world: World) -> None:
    world.outgoing.append(again := replace(next(iter(_letters(world)))))
    world.change(again, writer="another")


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


def test_a_repeated_batch_is_counted_and_correct(world: World) -> None:
    letters = [out for out in world.outgoing if out.topic == "dead-letters"]
    world.outgoing += [*world.rows()[-40:], *letters[-5:]]
    world.publish()
    report = world.audited()
    assert failed(report) == set()
    assert report.counts["repeated_rows"] == 40


@pytest.mark.parametrize("what", PLANTED)
def test_every_planted_error_is_found(world: World, what: str) -> None:
    plant, found_by = PLANTED[what]
    plant(world)
    world.publish()
    found = failed(world.audited())
    # A row in a wrong place, or a repeated one, may also be out of order there.
    assert found - {"order"} == found_by - {"order"}
    assert ("order" in found) or ("order" not in found_by)


def test_a_generation_without_its_ranges_ends_the_audit(own_world: World) -> None:
    own_world.changes.remove(next(change for change in own_world.changes if change.topic == CDC_STREAMS))
    own_world.publish()
    with pytest.raises(AuditError, match="ranges"):
        own_world.audited()


def test_unpublished_topics_end_the_audit(own_world: World) -> None:
    with pytest.raises(AuditError, match="publish"):
        own_world.audited()


def test_a_dead_broker_ends_the_audit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "ANSWER_S", 1.0)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        bootstrap = f"127.0.0.1:{nobody.getsockname()[1]}"
        with pytest.raises(AuditError, match="check that the broker is up"):
            next(records(bootstrap, "any.schemas"))
