"""Rules of CDC generations and writers: the life of a generation, and each rejection code."""

from typing import Any

import pytest

from ringlog.kernel.changes import GenerationChange, project
from ringlog.kernel.commands.cdc.generations import (
    CloseCdcGeneration,
    CommitCdcGeneration,
    PublishCdcGeneration,
    PutCdcGenerationData,
    RequestCdcGeneration,
    parts_of,
)
from ringlog.kernel.commands.cdc.writers import INCARNATIONS_KEPT_MAX, AdvanceCdcWriter, RegisterCdcWriter
from ringlog.kernel.commands.cluster.cluster import ChangeSettings
from ringlog.kernel.commands.schema.keyspaces import CreateKeyspace
from ringlog.kernel.commands.schema.tables import CreateTable, DropTable
from ringlog.kernel.commands.topology.movements import Join
from ringlog.kernel.commands.topology.operations import AdvanceOperation, CancelOperation
from ringlog.kernel.fold import decide
from ringlog.kernel.generations.admission import rules_of
from ringlog.kernel.generations.describe import generate_for, is_optimal, ranges_digest, to_prepare
from ringlog.kernel.model.outcome import Accepted, EntryContext, Rejected
from ringlog.kernel.model.settings import leeway_at
from ringlog.kernel.model.state import CdcWriter, ClusterState
from ringlog.kernel.model.stream_id import decode, encode
from ringlog.kernel.registry import CODES
from ringlog.kernel.sections import CDC_GENERATIONS
from ringlog.kernel.values import (
    CdcOptions,
    Column,
    Command,
    GenerationRange,
    Position,
    Replication,
    StreamReport,
    Witness,
    replace,
)
from tests.kernel.entries import applied, founded, node, uuid

SEED = bytes(range(16))
FIRST, SECOND = uuid(1, space=5), uuid(2, space=5)


def refused(state: ClusterState, command: Command) -> tuple[str, str]:
    """Return code and detail of the rejection. The detail starts with the field of the command that it concerns, if
    any.
    """
    decision = decide(state, command, EntryContext(state.epoch + 1, uuid(state.epoch + 1), 1))
    assert isinstance(decision, Rejected), decision
    assert decision.code in CODES
    field, colon, _ = decision.detail.partition(":")
    assert not colon or field in type(command).__slots__
    return decision.code, decision.detail


def code(state: ClusterState, command: Command) -> str:
    return refused(state, command)[0]


def unchanged(state: ClusterState, command: Command) -> bool:
    decision = decide(state, command, EntryContext(state.epoch + 1, uuid(state.epoch + 1), 1))
    return isinstance(decision, Accepted) and decision.state is state


def joining(state: ClusterState, number: int, *tokens: int) -> ClusterState:
    """Return the state after the join of node ``number`` has reached the stage that waits for a generation."""
    registration = node(number)
    state = applied(state, registration, Join(registration.id, tokens, SEED))
    return stepped(stepped(state, "prepared"), "commit_cdc_generation")


def operation_of(state: ClusterState) -> str:
    return max(state.operations, key=lambda name: state.operations[name].marks[0].epoch)


def stepped(state: ClusterState, stage: str) -> ClusterState:
    operation = state.operations[operation_of(state)]
    witnesses = tuple(Witness(name, state.epoch, state.epoch) for name in sorted(state.nodes))
    reports = (StreamReport(operation.node, operation.id, 0, "00"),) * (operation.stage == "write_both_read_old")
    return applied(state, AdvanceOperation(operation.id, stage, witnesses, reports))


def with_data(state: ClusterState) -> tuple[ClusterState, CommitCdcGeneration]:
    """Return the state with all data of the wanted generation, and the commit at 100 µs."""
    wanted = to_prepare(state)
    assert wanted is not None
    ranges = generate_for(state, wanted[1])
    state = applied(state, *parts_of(wanted[0], ranges, 4))
    return state, CommitCdcGeneration(wanted[0], 100, ranges_digest(ranges))


def switched(state: ClusterState, timestamp: int) -> ClusterState:
    """Commit the wanted generation at ``timestamp`` and publish it."""
    state, commit = with_data(state)
    commit = replace(commit, timestamp=timestamp)
    return applied(state, commit, PublishCdcGeneration(commit.generation))


def joined(state: ClusterState, number: int, timestamp: int, *tokens: int) -> ClusterState:
    """Complete a join with its generation."""
    state = switched(joining(state, number, *tokens), timestamp)
    for stage in ("publish_cdc_generation", "write_both_read_old", "write_both_read_new", "finished"):
        state = stepped(state, stage)
    return state


LOGGED = CreateTable(
    "ks", "logged", uuid(1, space=6), (Column("k", "int"),), ("k",), (), CdcOptions(enabled=True, ttl=60)
)


@pytest.fixture(scope="module")
def one() -> ClusterState:
    """One node with two tokens, its generation published at 100, and a table with CDC."""
    state = joined(founded(), 1, 100, -1000, 1000)
    return applied(state, CreateKeyspace("ks", Replication("simple", 1)), LOGGED)


@pytest.fixture(scope="module")
def two(one: ClusterState) -> ClusterState:
    """The state after the join of a second node, with a generation that starts at 200."""
    return joined(one, 2, 200, 0)


# Life of a generation


def test_a_join_gets_its_generation() -> None:
    state = joining(founded(), 1, -1000, 1000)
    operation = operation_of(state)
    assert to_prepare(state) == (f"generation-of-{operation}", SEED)
    state, commit = with_data(state)
    assert state.prepared is not None
    assert (state.prepared.operation, state.prepared.id) == (operation, commit.generation)
    assert state.operations[operation].generation == commit.generation
    state = applied(state, commit)
    assert state.prepared is None
    (generation,) = state.generations
    assert (generation.status, generation.timestamp, generation.committed) == ("committed", 100, state.epoch)
    assert [part.end for part in generation.ranges] == [-1000, 1000]
    assert to_prepare(state) is None
    state = applied(state, PublishCdcGeneration(generation.id))
    assert (state.generations[0].status, state.generations[0].published) == ("published", state.epoch)
    assert stepped(state, "publish_cdc_generation").operations[operation].stage == "publish_cdc_generation"


def test_check_and_repair(one: ClusterState) -> None:
    """A repair changes nothing with optimal streams or on an empty ring. After a cancelled join it starts once for all
    requests.
    """
    assert is_optimal(one)
    assert unchanged(one, RequestCdcGeneration(SEED, ""))
    assert unchanged(founded(), RequestCdcGeneration(SEED, ""))
    finer = joining(one, 2, 5)
    finer = switched(finer, 200)
    cancelled = applied(finer, CancelOperation(operation_of(finer), "no"))
    assert not is_optimal(cancelled)
    requested = applied(cancelled, RequestCdcGeneration(SEED))
    assert requested.prepared is not None
    assert requested.prepared.id == f"generation-{requested.epoch}"
    assert unchanged(requested, RequestCdcGeneration(bytes(16), ""))
    repaired = switched(requested, 300)
    assert is_optimal(repaired)
    assert [part.end for part in repaired.generations[-1].ranges] == [-1000, 1000]


def test_a_preparation_for_an_empty_ring_is_dropped() -> None:
    """Otherwise writers could not raise their leases before the next join, and all writes would wait."""
    state = applied(founded(), RegisterCdcWriter("w", FIRST))
    state = applied(joining(state, 1, 5), RequestCdcGeneration(SEED))
    assert state.prepared is not None
    assert code(state, AdvanceCdcWriter("w", FIRST, 500, 0)) == "horizon_frozen"
    state = applied(state, CancelOperation(operation_of(state), "no"))
    assert state.prepared is None
    assert to_prepare(state) is None
    assert applied(state, AdvanceCdcWriter("w", FIRST, 500, 0)).writers["w"].horizon == 500


def test_a_generation_keeps_the_leeway_of_its_commit(two: ClusterState) -> None:
    assert {generation.leeway for generation in two.generations} == {None}
    assert [leeway_at(two, generation) for generation in two.generations] == [5_000_000] * 2
    raised = applied(two, ChangeSettings((("cdc_leeway_us", 9),)))
    assert [leeway_at(raised, generation) for generation in raised.generations] == [5_000_000] * 2
    assert applied(raised, ChangeSettings((("history_entries", 100),))).generations is raised.generations
    later = switched(joining(raised, 3, 700), 300)
    assert [leeway_at(later, generation) for generation in later.generations] == [5_000_000, 5_000_000, 9]
    again = applied(later, ChangeSettings((("cdc_leeway_us", 7),)))
    assert [leeway_at(again, generation) for generation in again.generations] == [5_000_000, 5_000_000, 9]
    assert rules_of(again).reaches == (5_000_000, 5_000_000, 9)
    assert rules_of(again).leeway == 7


def test_a_requested_generation_serves_a_later_join(one: ClusterState) -> None:
    """The existing data of the generation is outdated. The same preparation starts again and also serves the
    operation.
    """
    state = switched(joining(one, 2, 5), 200)
    state = applied(state, CancelOperation(operation_of(state), "no"), RequestCdcGeneration(SEED))
    state, commit = with_data(state)
    state = joining(state, 3, 700)
    assert code(state, replace(commit, timestamp=300)) == "generation_outdated"
    assert to_prepare(state) == (commit.generation, SEED)
    state = switched(state, 300)
    assert state.operations[operation_of(state)].generation == commit.generation
    assert [part.end for part in state.generations[-1].ranges] == [-1000, 700, 1000]
    stepped(state, "publish_cdc_generation")


def test_data_of_a_cancelled_operation_is_dropped(one: ClusterState) -> None:
    state, commit = with_data(joining(one, 2, 5))
    state = applied(state, CancelOperation(operation_of(state), "no"))
    assert state.prepared is None
    assert code(state, commit) == "unknown_generation"


# Data


def parts(state: ClusterState, streams: int = 2) -> tuple[PutCdcGenerationData, ...]:
    wanted = to_prepare(state)
    assert wanted is not None
    return parts_of(wanted[0], generate_for(state, wanted[1]), streams)


def test_parts_come_in_any_order_and_more_than_once() -> None:
    state = joining(founded(), 1, -1000, 0, 1000)
    first, second, third = parts(state)
    state = applied(state, third, first)
    assert unchanged(state, third)
    whole = applied(state, second)
    assert whole.prepared is not None
    assert [number for number, _ in whole.prepared.received] == [0, 1, 2]
    digest = ranges_digest(first.ranges + second.ranges + third.ranges)
    assert code(state, CommitCdcGeneration(first.generation, 100, digest)) == "generation_incomplete"
    applied(whole, CommitCdcGeneration(first.generation, 100, digest))


def test_a_different_part_restarts_the_data() -> None:
    state = joining(founded(), 1, -1000, 1000)
    first, second = parts(state)
    (other, _) = parts_of(first.generation, generate_for(state, bytes(16)), 2)
    state = applied(state, first, second, other)
    assert state.prepared is not None
    assert state.prepared.received == ((0, other.ranges),)
    (whole,) = parts(state, 100)
    state = applied(state, whole)
    assert state.prepared is not None
    assert (state.prepared.parts, state.prepared.received) == (1, ((0, whole.ranges),))


def test_a_request_is_rejected_if_its_generation_id_is_taken(one: ClusterState) -> None:
    (last,) = one.generations
    taken = replace(last, id=f"generation-{one.epoch + 1}", ranges=last.ranges[1:])
    assert code(replace(one, generations=(taken,)), RequestCdcGeneration(SEED)) == "generation_exists"


def test_data_needs_a_prepared_generation(one: ClusterState) -> None:
    waiting = joining(founded(), 1, -1000, 1000)
    (data,) = parts(waiting, 100)
    assert code(founded(), data) == "unknown_generation"
    assert code(one, replace(data, generation=one.generations[0].id)) == "generation_exists"
    begun = applied(waiting, data)
    assert code(begun, replace(data, generation="another")) == "generation_prepared"
    state, commit = with_data(joining(one, 2, 5))
    committed = applied(state, replace(commit, timestamp=200))
    committed = applied(committed, CancelOperation(operation_of(committed), "no"))
    unpublished = joining(committed, 3, 6)
    assert to_prepare(unpublished) is None
    assert code(unpublished, replace(data, generation="another")) == "generation_prepared"
    assert code(unpublished, RequestCdcGeneration(SEED)) == "generation_prepared"


def changed_stream(ranges: tuple[GenerationRange, ...], place: int, slot: int, **fields: int) -> Any:
    described = ranges[place]
    if "raw" in fields:
        stream = described.streams[slot][:15] + bytes([fields["raw"]])
    else:
        stream = encode(replace(decode(described.streams[slot]), **fields))
    streams = (*described.streams[:slot], stream, *described.streams[slot + 1 :])
    return (*ranges[:place], replace(described, streams=streams), *ranges[place + 1 :])


def test_malformed_data_is_refused_at_once() -> None:
    state = joining(founded(), 1, -1000, 0, 1000)
    (data,) = parts(state, 100)
    ranges = data.ranges
    head, middle, tail = ranges
    twice = replace(middle, streams=(middle.streams[0],) * 2)
    for wrong, named in (
        ((), "at least one range"),
        ((replace(head, streams=()), middle, tail), "at least one range"),
        ((head, replace(middle, streams=()), tail), "1 to 4096 streams"),
        ((head, replace(middle, streams=middle.streams * 2049), tail), "1 to 4096 streams"),
        ((head, replace(middle, streams=(b"short",)), tail), "16 bytes"),
        ((head, twice, tail), "twice"),
        ((head, replace(middle, ignore_msb=64), tail), "ignore_msb"),
        ((replace(head, end=-(2**63)), middle, tail), "not a token"),
        ((middle, head, tail), "index"),
        ((head, tail), "index"),
        (changed_stream(ranges, 1, 0, index=7), "index 1"),
        (changed_stream(ranges, 1, 1, raw=0x10), "version 1"),
        (changed_stream(ranges, 1, 0, token=-1000), "outside the range"),
        (changed_stream(ranges, 1, 0, token=1), "outside the range"),
    ):
        found, detail = refused(state, replace(data, ranges=wrong))
        assert (found, named in detail) == ("bad_field", True), detail
    for fields in ({"parts": 0}, {"parts": 5000}, {"part": 1}, {"part": -1}, {"generation": "a b"}):
        assert code(state, replace(data, **fields)) == "bad_field"


def test_inconsistent_parts_are_rejected_at_the_commit() -> None:
    """Each part is valid. Only the commit validates the whole."""
    state = joining(founded(), 1, -1000, 0, 1000)
    first, second, third = parts(state)
    moved = changed_stream(first.ranges, 0, 0, token=-900)  # range 0 starts at 1000
    for wrong in (
        (first, replace(second, ranges=third.ranges), replace(third, ranges=second.ranges)),
        (replace(first, ranges=moved), second, third),
        (first, replace(second, ranges=first.ranges), third),
    ):
        whole = applied(state, *wrong)
        digest = ranges_digest([one for part in wrong for one in part.ranges])
        assert code(whole, CommitCdcGeneration(first.generation, 100, digest)) == "generation_malformed"


# Commit


def test_commit_refusals(one: ClusterState) -> None:
    state, commit = with_data(joining(one, 2, 5))
    assert code(state, replace(commit, generation="another")) == "unknown_generation"
    assert code(state, replace(commit, generation=one.generations[0].id)) == "generation_exists"
    assert code(state, replace(commit, digest="00" * 32)) == "digest_mismatch"
    assert code(state, replace(commit, timestamp=0)) == "bad_field"
    assert code(state, replace(commit, timestamp=2**62 + 1)) == "bad_field"
    assert code(state, replace(commit, timestamp=100)) == "timestamp_not_above_previous"
    applied(state, replace(commit, timestamp=101))


def test_commit_is_above_every_horizon_and_names_the_writer(one: ClusterState) -> None:
    state = applied(
        one,
        RegisterCdcWriter("w1", FIRST),
        RegisterCdcWriter("w2", FIRST),
        AdvanceCdcWriter("w1", FIRST, 500, 100),
        AdvanceCdcWriter("w2", FIRST, 700, 100),
    )
    state, commit = with_data(joining(state, 2, 5))
    found, detail = refused(state, replace(commit, timestamp=700))
    assert (found, "w2" in detail) == ("timestamp_not_above_horizon", True)
    applied(state, replace(commit, timestamp=701))
    lowered = applied(state, AdvanceCdcWriter("w2", FIRST, 300, 100))
    assert code(lowered, replace(commit, timestamp=500)) == "timestamp_not_above_horizon"
    applied(lowered, replace(commit, timestamp=501))


def test_publish_refusals(one: ClusterState) -> None:
    state, commit = with_data(joining(one, 2, 5))
    assert code(state, PublishCdcGeneration(commit.generation)) == "generation_not_committed"
    assert code(state, PublishCdcGeneration("another")) == "unknown_generation"
    assert code(state, PublishCdcGeneration(one.generations[0].id)) == "generation_published"


# Sealing


def test_close_waits_for_every_writer_and_records_positions(two: ClusterState) -> None:
    first, second = (generation.id for generation in two.generations)
    state = applied(two, RegisterCdcWriter("w1", FIRST), RegisterCdcWriter("w2", FIRST))
    state = applied(state, AdvanceCdcWriter("w1", FIRST, 300, 200, (Position(0, 5), Position(2, 9))))
    state = applied(state, AdvanceCdcWriter("w2", FIRST, 300, 199, (Position(0, 7),)))
    found, detail = refused(state, CloseCdcGeneration(first))
    assert (found, "w2" in detail, "w1" in detail) == ("writers_behind", True, False)
    state = applied(state, AdvanceCdcWriter("w2", FIRST, 300, 200))
    assert code(state, CloseCdcGeneration(second)) == "earlier_generation_open"
    state = applied(state, CloseCdcGeneration(first))
    closed = state.generations[0]
    assert (closed.status, closed.closed) == ("closed", state.epoch)
    assert closed.positions == (Position(0, 7), Position(2, 9))
    told = project(state)[CDC_GENERATIONS, first]
    assert isinstance(told, GenerationChange)
    assert (told.status, told.positions) == ("closed", closed.positions)
    assert code(state, CloseCdcGeneration(first)) == "generation_closed"
    assert code(state, CloseCdcGeneration(second)) == "next_generation_not_committed"
    assert code(state, CloseCdcGeneration("another")) == "unknown_generation"


def test_sealing_without_any_writer_needs_consent(two: ClusterState) -> None:
    first = two.generations[0].id
    assert code(two, CloseCdcGeneration(first)) == "no_writers"
    assert applied(two, CloseCdcGeneration(first, unwatched=True)).generations[0].status == "closed"


def test_sealing_without_cdc_tables_waits_for_no_writer(two: ClusterState) -> None:
    """The same applies after the drop of the last CDC log, for generations committed later."""
    first = two.generations[0].id
    dropped = applied(two, DropTable("ks", "logged"))
    assert code(dropped, CloseCdcGeneration(first)) == "no_writers", "rows were written before"
    bare = joined(joined(founded(), 1, 100, -1000, 1000), 2, 200, 0)
    assert applied(bare, CloseCdcGeneration(first)).generations[0].status == "closed"
    early = applied(two, CloseCdcGeneration(first, unwatched=True), DropTable("ks", "logged"))
    third = joined(joined(early, 3, 300, 50), 4, 400, 60)
    second = applied(third, CloseCdcGeneration(third.generations[1].id, unwatched=True))
    assert applied(second, CloseCdcGeneration(second.generations[2].id)).generations[2].status == "closed"


# Writers


def writer(state: ClusterState) -> CdcWriter:
    return state.writers["w"]


def test_a_new_writer_starts_at_the_oldest_open_generation(two: ClusterState) -> None:
    for state, start in (
        (founded(), 0),
        (two, 100),
        (applied(two, CloseCdcGeneration(two.generations[0].id, unwatched=True)), 200),
    ):
        found = writer(applied(state, RegisterCdcWriter("w", FIRST)))
        assert (found.horizon, found.floor, found.low_watermark, found.positions) == (start, start, start, ())


def test_a_new_incarnation_keeps_the_leases_and_ends_earlier_ones(one: ClusterState) -> None:
    state = applied(one, RegisterCdcWriter("w", FIRST), AdvanceCdcWriter("w", FIRST, 500, 150, (Position(1, 2),)))
    state = applied(state, RegisterCdcWriter("w", SECOND))
    found = writer(state)
    assert (found.horizon, found.floor, found.low_watermark) == (500, 500, 150)
    assert (found.positions, found.ended, found.registered) == ((Position(1, 2),), (FIRST,), state.epoch)
    assert code(state, AdvanceCdcWriter("w", FIRST, 600, 150)) == "stale_incarnation"
    assert code(state, RegisterCdcWriter("w", FIRST)) == "stale_incarnation"
    assert code(state, RegisterCdcWriter("w", SECOND)) == "incarnation_reused"
    assert code(state, AdvanceCdcWriter("w", SECOND, 499, 150)) == "horizon_below_floor"
    raised = applied(state, AdvanceCdcWriter("w", SECOND, 600, 150))
    assert writer(applied(raised, AdvanceCdcWriter("w", SECOND, 500, 150))).horizon == 500


def test_ended_incarnations_are_bounded(one: ClusterState) -> None:
    names = [uuid(number, space=6) for number in range(INCARNATIONS_KEPT_MAX + 3)]
    state = applied(one, *(RegisterCdcWriter("w", name) for name in names))
    assert writer(state).ended == tuple(names[2:-1])


def test_a_preparation_freezes_leases(one: ClusterState) -> None:
    state = applied(one, RegisterCdcWriter("w", FIRST), AdvanceCdcWriter("w", FIRST, 500, 100))
    prepared, commit = with_data(joining(state, 2, 5))
    found, detail = refused(prepared, AdvanceCdcWriter("w", FIRST, 501, 100))
    assert (found, commit.generation in detail) == ("horizon_frozen", True)
    assert writer(applied(prepared, AdvanceCdcWriter("w", FIRST, 500, 400))).low_watermark == 400
    lowered = applied(prepared, AdvanceCdcWriter("w", FIRST, 200, 100))
    assert code(lowered, AdvanceCdcWriter("w", FIRST, 500, 100)) == "horizon_frozen"
    done = applied(lowered, replace(commit, timestamp=201))
    assert writer(applied(done, AdvanceCdcWriter("w", FIRST, 900, 100))).horizon == 900


def test_a_writer_never_lowers_its_positions(one: ClusterState) -> None:
    state = applied(one, RegisterCdcWriter("w", FIRST))
    claim = AdvanceCdcWriter("w", FIRST, 500, 300, (Position(0, 10), Position(3, 4)))
    state = applied(state, claim)
    assert unchanged(state, claim)
    assert unchanged(state, replace(claim, positions=()))
    assert code(state, replace(claim, low_watermark=299)) == "low_watermark_went_back"
    assert code(state, replace(claim, positions=(Position(0, 9),))) == "positions_went_back"
    more = applied(state, replace(claim, positions=(Position(0, 11), Position(1, 0))))
    assert writer(more).positions == (Position(0, 11), Position(1, 0), Position(3, 4))


@pytest.mark.parametrize(
    "fields",
    [
        {"low_watermark": 501},
        {"low_watermark": -1},
        {"horizon": 2**62 + 1},
        {"positions": (Position(0, 1), Position(0, 2))},
        {"positions": (Position(-1, 1),)},
        {"positions": (Position(0, -1),)},
        {"positions": tuple(Position(number, 1) for number in range(4097))},
    ],
)
def test_bad_fields_of_an_advance(one: ClusterState, fields: dict[str, Any]) -> None:
    state = applied(one, RegisterCdcWriter("w", FIRST))
    assert code(state, replace(AdvanceCdcWriter("w", FIRST, 500, 300), **fields)) == "bad_field"


def test_names(one: ClusterState) -> None:
    assert code(one, RegisterCdcWriter("", FIRST)) == "bad_field"
    assert code(one, RegisterCdcWriter("w", "a b")) == "bad_field"
    assert code(one, AdvanceCdcWriter("nobody", FIRST, 500, 300)) == "unknown_writer"
    assert code(one, RequestCdcGeneration(b"short")) == "bad_field"
    assert code(one, RequestCdcGeneration(SEED, "a name with spaces")) == "bad_field"
