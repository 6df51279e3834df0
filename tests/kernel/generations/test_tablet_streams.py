"""Streams of tables in tablets, compared with a plain list of (start, tablet ends of each table)."""

from __future__ import annotations

import random

import pytest

from ringlog.cache.projection import delta, full_projection
from ringlog.kernel import size_limits
from ringlog.kernel.changes import ChangeRecord, StreamsChange, diff
from ringlog.kernel.commands.cdc import generations as cdc
from ringlog.kernel.commands.cdc.expiry import ExpireCdcGeneration, ForgetCdcGeneration
from ringlog.kernel.commands.cdc.generations import (
    CloseCdcGeneration,
    CommitCdcGeneration,
    PublishCdcGeneration,
    RequestCdcGeneration,
)
from ringlog.kernel.commands.cdc.writers import AdvanceCdcWriter, RegisterCdcWriter
from ringlog.kernel.commands.placement.resizes import DecideResize, FinishResize, members, resize_session
from ringlog.kernel.commands.schema.keyspaces import CreateKeyspace
from ringlog.kernel.commands.schema.tables import AlterTable, DropTable
from ringlog.kernel.encoding.decoder import decode_state
from ringlog.kernel.encoding.encoder import digest, encode
from ringlog.kernel.fold import fold
from ringlog.kernel.generations.acceptance import generation_at, stream_of
from ringlog.kernel.generations.describe import UNUSED_RANGES_MAX, fits_tablets, is_optimal, ranges_digest, size_of
from ringlog.kernel.invariants.check import violations
from ringlog.kernel.model.outcome import OutcomeKind
from ringlog.kernel.model.state import EMPTY_STATE, ClusterState, advance
from ringlog.kernel.model.stream_id import decode
from ringlog.kernel.model.tablet_streams import DescribedTable
from ringlog.kernel.operations.stages import in_flight
from ringlog.kernel.sections import CDC_STREAMS
from ringlog.kernel.values import CdcOptions, StreamReport, TabletOptions, Token, replace
from ringlog.protocol.coordinator.core import CoordinatorView, propose
from ringlog_sim.checks.cdc.judge import stream_for
from tests.kernel.entries import applied, entry, uuid
from tests.kernel.tablets import clusters
from tests.kernel.tablets.clusters import TABLE, witnesses

LOGGED = replace(clusters.create_table(tablets=TabletOptions(4)), cdc=CdcOptions(enabled=True, ttl=60))
TOKENS: tuple[Token, ...] = (-(2**63) + 1, -(2**62), -5, 0, 7, 2**62, 2**63 - 1)


def initial_state() -> ClusterState:
    """Return six nodes on the ring with a generation, and a keyspace in tablets."""
    state = clusters.three_racks()
    state = coordinated(applied(state, RequestCdcGeneration(bytes(16))))
    return applied(state, CreateKeyspace("ks", clusters.factor(3)))


def coordinated(state: ClusterState, now: int = 1_000) -> ClusterState:
    """Apply all proposals of the coordinator, with the publisher always up to date."""
    while True:
        commands = [one.command for one in propose(CoordinatorView(state, {}, state.epoch, now))]
        if not commands:
            return state
        state = applied(state, commands[0])


def cut(state: ClusterState, decision: str = "split", table: str = TABLE) -> ClusterState:
    sequence = state.tablets[table].sequence + 1
    state = applied(state, DecideResize(table, decision, sequence))
    own = resize_session(table, sequence)
    ready = tuple(StreamReport(node, own, 0, "00") for node in members(state.tablets[table]))
    return applied(state, FinishResize(table, sequence, witnesses(state), ready))


@pytest.fixture(scope="module")
def start() -> ClusterState:
    return applied(initial_state(), LOGGED)


def test_a_new_table_has_a_stream_for_each_tablet(start: ClusterState) -> None:
    (generation,) = start.generations
    (described,) = generation.tables
    assert (described.table, described.ends) == (LOGGED.id, start.tablets[TABLE].ends)
    streams = [stream_of(generation, end, LOGGED.id) for end in described.ends]
    fields = [decode(stream) for stream in streams]
    assert [found.token for found in fields] == list(described.ends)
    assert [found.index for found in fields] == [0, 1, 2, 3]
    assert len({*streams, *(one for part in generation.ranges for one in part.streams)}) == 4 + size_of_ring(start)
    assert coordinated(start) is start
    assert violations(start) == ()


def size_of_ring(state: ClusterState) -> int:
    return sum(len(part.streams) for part in state.generations[0].ranges)


def test_a_split_adds_streams_above_each_lease(start: ClusterState) -> None:
    state = applied(start, RegisterCdcWriter("w", "one"))
    writer = state.writers["w"]
    state = applied(state, AdvanceCdcWriter("w", "one", 9_000_000, writer.low_watermark))
    split = cut(state)
    assert split.generations is state.generations
    assert not fits_tablets(split)
    after = coordinated(split, 10_000_000)
    old, new = after.generations
    assert new.timestamp > 9_000_000
    assert [len(one.tables[0].ends) for one in (old, new)] == [4, 8]
    assert not {one.stream for one in old.tablet_streams} & {one.stream for one in new.tablet_streams}
    assert fits_tablets(after)
    frozen = fold(split, entry(split, RequestCdcGeneration(bytes(16), ""))).state
    refused = fold(frozen, entry(frozen, AdvanceCdcWriter("w", "one", 9_000_001, writer.low_watermark)))
    assert refused.outcome.code == "horizon_frozen"


def test_a_split_generation_must_be_above_each_lease(start: ClusterState) -> None:
    state = applied(start, RegisterCdcWriter("w", "one"))
    state = cut(applied(state, AdvanceCdcWriter("w", "one", 9_000_000, state.writers["w"].low_watermark)))
    view = CoordinatorView(state, {}, state.epoch, 10_000_000)
    while not any(isinstance(one.command, CommitCdcGeneration) for one in propose(view)):
        state = applied(state, propose(view)[0].command)
        view = CoordinatorView(state, {}, state.epoch, 10_000_000)
    (commit,) = (one.command for one in propose(view) if isinstance(one.command, CommitCdcGeneration))
    low = fold(state, entry(state, replace(commit, timestamp=9_000_000)))
    assert low.outcome.code == "timestamp_not_above_horizon"


def test_a_merge_and_a_second_table_take_one_generation(start: ClusterState) -> None:
    second = replace(clusters.create_table("u", TabletOptions(2), 2), cdc=LOGGED.cdc)
    state = cut(cut(applied(start, second)), table="ks.u")
    after = coordinated(state, 10_000)
    assert len(after.generations) == 2
    assert [len(one.ends) for one in after.generations[-1].tables] == [8, 4]


def test_a_table_without_a_log_gets_streams_when_it_has_one() -> None:
    quiet = replace(LOGGED, cdc=CdcOptions())
    state = applied(initial_state(), quiet)
    assert state.generations[-1].tables == ()
    assert coordinated(cut(state)).generations[-1].tables == ()
    logged = applied(state, AlterTable("ks", "t", cdc=LOGGED.cdc))
    (ring,) = logged.generations
    assert stream_of(ring, 5, LOGGED.id) == stream_of(ring, 5)
    after = coordinated(logged, 10_000)
    assert [one.table for one in after.generations[-1].tables] == [LOGGED.id]


def test_a_shared_map_gives_each_table_streams_of_its_own(start: ClusterState) -> None:
    shares = replace(clusters.create_table("u", TabletOptions(base="t"), 2), cdc=LOGGED.cdc)
    state = applied(start, shares)
    one, two = state.generations[-1].tables
    assert one.ends == two.ends
    assert not {s.stream for s in state.generations[-1].tablet_streams if s.table == one.table} & {
        s.stream for s in state.generations[-1].tablet_streams if s.table == two.table
    }


def table_stream_records(records: tuple[ChangeRecord, ...]) -> list[tuple[str, str | None]]:
    """Return the key and table id of each stream record of a table. The id is None for a removed record."""
    found = [record for record in records if record.topic == CDC_STREAMS and record.key.count("/") == 2]
    return [(one.key, one.value.table if isinstance(one.value, StreamsChange) else None) for one in found]


def test_stream_records_name_their_table(start: ClusterState) -> None:
    ring = initial_state()
    told = table_stream_records(diff(ring, start))
    name = start.generations[0].id
    assert told == [(f"{name}/{LOGGED.id}/{end}", LOGGED.id) for end in start.tablets[TABLE].ends]
    assert len([one for one in diff(ring, start) if one.topic == CDC_STREAMS]) == 4
    after = coordinated(cut(start), 10_000)
    assert len(table_stream_records(diff(start, after))) == 8
    closed = applied(after, CloseCdcGeneration(name, closed_at=50_000_000, unwatched=True))
    assert table_stream_records(diff(after, closed)) == []
    expired = applied(closed, ExpireCdcGeneration(name, 200_000_000))
    assert len(table_stream_records(diff(closed, expired))) == 4
    gone = applied(expired, ForgetCdcGeneration(name))
    assert table_stream_records(diff(expired, gone)) == [(key, None) for key, _ in told]
    assert gone.generations[0].tables == ()
    assert size_of(gone.generations[0]) == size_of(closed.generations[0])
    assert violations(gone) == ()


def test_a_generation_contains_count_and_digest(start: ClusterState) -> None:
    ring = replace(start.generations[0], tables=())
    size, whole = size_of(ring), size_of(start.generations[0])
    assert size.digest == ranges_digest(ring.ranges) != whole.digest
    assert (whole.ranges, whole.streams) == (size.ranges + 4, size.streams + 4)


def test_caches_contain_each_stream(start: ClusterState) -> None:
    rows = [row for row in full_projection(start).put if row[0] == "tablet_streams"]
    assert len(rows) == 4
    after = coordinated(cut(start), 10_000)
    changed = [row for row in delta(start, after).put if row[0] == "tablet_streams"]
    assert len(changed) == 8
    assert decode_state(encode(after)) == after
    assert digest(decode_state(encode(after))) == digest(after)


def test_dropped_tables_do_not_accumulate_in_generations(start: ClusterState) -> None:
    """A table is created and dropped 60 times with an active CDC writer. Old descriptions expire."""
    state, now = applied(start, RegisterCdcWriter("w", "one")), 10**6
    made = replace(LOGGED, tablets=TabletOptions(256))
    most = 0
    for number in range(60):
        now += 10**8
        state = applied(state, replace(made, name="u", id=uuid(number, space=3)), DropTable("ks", "u"))
        state = coordinated(state, now)
        horizon = max(state.writers["w"].horizon, state.generations[-1].timestamp + 1)
        state = coordinated(applied(state, AdvanceCdcWriter("w", "one", horizon, horizon)), now)
        most = max(most, sum(len(one.ends) for found in state.generations for one in found.tables))
    # One active and one expiring generation each contain the permitted unused ranges and one more table.
    assert most < 2 * (UNUSED_RANGES_MAX + 2 * 256)
    assert [one.table for one in state.generations[-1].tables][:1] == [LOGGED.id]
    assert len(state.generations) < 60 // 4 + 1
    assert violations(state) == ()


def test_dropped_tables_start_one_generation_without_sealing(start: ClusterState) -> None:
    state = start
    for number in range(20):
        made = replace(LOGGED, tablets=TabletOptions(256), name="u", id=uuid(number, space=3))
        state = coordinated(applied(state, made, DropTable("ks", "u")), 10_000)
    assert [one.closed for one in state.generations] == [None, None]


def test_dropped_tables_are_limited_without_sealing(start: ClusterState, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a CDC writer, other commands and new generations are not rejected."""
    monkeypatch.setattr(size_limits, "DESCRIBED_RANGES_MAX", 3_000)
    state, made = start, replace(LOGGED, tablets=TabletOptions(256), name="u")
    for number in range(16):  # five until the second generation, then eleven
        state = coordinated(applied(state, replace(made, id=uuid(number, space=3)), DropTable("ks", "u")), 10_000)
    outcome = fold(state, entry(state, replace(made, id=uuid(99, space=3)))).outcome
    assert (outcome.code, "start the CDC job" in outcome.detail) == ("too_many", True)
    unlogged = replace(made, id=uuid(99, space=3), cdc=replace(made.cdc, enabled=False))
    assert len(applied(state, unlogged, DropTable("ks", "u")).generations) == len(state.generations)


def test_dropped_tables_start_no_generation_on_a_ring_without_tokens(start: ClusterState) -> None:
    unused = DescribedTable(uuid(1, space=3), tuple(range(UNUSED_RANGES_MAX)))
    last = replace(start.generations[-1], tables=(unused,))
    state = advance(applied(start, DropTable("ks", "t")), start.epoch, generations=(last,))
    assert fits_tablets(state)
    larger = advance(state, state.epoch, generations=(replace(last, tables=(unused, replace(unused, table="u"))),))
    assert not fits_tablets(larger)
    assert fits_tablets(advance(larger, larger.epoch, token_owners=EMPTY_STATE.token_owners))


# Random histories


@pytest.mark.parametrize("seed", range(8))
def test_random_histories_agree_with_a_list_of_starts_and_cuts(seed: int) -> None:
    """The model stores the tablet ends of each CDC table at each switch. A new table is part of each active
    generation.
    """
    draw, state, now = random.Random(seed), initial_state(), 10_000
    model: list[tuple[int, dict[str, tuple[Token, ...]]]] = [(state.generations[0].timestamp, {})]
    number = 0
    for _ in range(24):
        now += 5_000_000
        names = sorted(state.tablets)
        kind = draw.choice(["make", "split", "merge", "log", "drop", "switch", "switch", "close"])
        if kind == "make" and number < 6:
            number += 1
            made = replace(
                clusters.create_table(f"t{number}", TabletOptions(draw.choice([1, 2, 3, 8])), number),
                cdc=CdcOptions(enabled=draw.random() < 0.7),
            )
            state = applied(state, made)
            if made.cdc.enabled:
                for found, (_, tables) in zip(state.generations, model, strict=True):
                    if found.closed is None:
                        tables[made.id] = state.tablets[f"ks.t{number}"].ends
        elif kind in ("split", "merge") and names:
            state = tried(state, kind, draw.choice(names))
        elif kind == "log" and names:
            table = state.tables[draw.choice(names)]
            options = CdcOptions(enabled=not table.cdc.enabled)
            state = applied(state, AlterTable("ks", table.name, cdc=options))
        elif kind == "drop" and names and draw.random() < 0.4:
            state = applied(state, DropTable("ks", state.tables[draw.choice(names)].name))
        elif kind == "close" and len(state.generations) > 1 and state.generations[-2].closed is None:
            oldest = next(one for one in state.generations if one.closed is None)
            state = applied(state, CloseCdcGeneration(oldest.id, closed_at=now, unwatched=True))
        elif kind == "switch":
            before = len(state.generations)
            state = switched(state, now)
            if len(state.generations) > before:
                logged = {t.id: state.tablets[t.full_name].ends for t in state.tables.values() if t.cdc.enabled}
                model.append((state.generations[-1].timestamp, logged))
        assert violations(state) == ()
    compared(state, model)


def tried(state: ClusterState, decision: str, table: str) -> ClusterState:
    """The table is cut otherwise, if it can be."""
    sequence = state.tablets[table].sequence + 1
    decided = fold(state, entry(state, DecideResize(table, decision, sequence)))
    if decided.outcome.kind is not OutcomeKind.APPLIED:
        return state
    state, own = decided.state, resize_session(table, sequence)
    ready = tuple(StreamReport(node, own, 0, "00") for node in members(state.tablets[table]))
    done = fold(state, entry(state, FinishResize(table, sequence, witnesses(state), ready)))
    return done.state if done.outcome.kind is OutcomeKind.APPLIED else state


def switched(state: ClusterState, now: int) -> ClusterState:
    """Apply the coordinator's proposals until the streams fit, without sealing a generation."""
    assert in_flight(state) == ()
    while not fits_tablets(state) or state.prepared is not None or state.generations[-1].published is None:
        steps = [one.command for one in propose(CoordinatorView(state, {}, state.epoch, now))]
        state = applied(state, next(one for one in steps if not isinstance(one, ENDS)))
    assert is_optimal(state)
    return state


ENDS = (CloseCdcGeneration, ExpireCdcGeneration, ForgetCdcGeneration)


def compared(state: ClusterState, model: list[tuple[int, dict[str, tuple[Token, ...]]]]) -> None:
    """Assert the stream of each table at each time against the model, the ring and the simulator's oracle."""
    ids = {table for _, tables in model for table in tables} | {"unknown"}
    for place, (since, tables) in enumerate(model):
        last = model[place + 1][0] - 1 if place + 1 < len(model) else since + 10**9
        for at in (since, last):
            generation = generation_at(state.generations, at)
            assert generation is not None
            assert generation.timestamp == since
            for table in ids:
                for token in TOKENS:
                    stream = stream_of(generation, token, table)
                    assert (since, stream) == stream_for(state.generations, at, token, table)
                    if table in tables:
                        owner = next(number for number, end in enumerate(tables[table]) if token <= end)
                        found = decode(stream)
                        assert (found.index, found.token) == (owner, tables[table][owner])
                    else:
                        assert stream == stream_of(generation, token)


def test_published_streams_can_be_prepared_again_only_when_published(start: ClusterState) -> None:
    """A split waits for the publication of the last generation. The next generation then contains all changes."""
    state = cut(start)
    view = CoordinatorView(state, {}, state.epoch, 10_000)
    while state.prepared is not None or len(state.generations) < 2:
        state = applied(state, propose(view)[0].command)
        view = CoordinatorView(state, {}, 0, 10_000)
    again = cut(state)
    assert propose(CoordinatorView(again, {}, 0, 10_000)) == ()
    published = applied(again, PublishCdcGeneration(again.generations[-1].id))
    after = coordinated(published, 10_000_000)
    assert [len(one.tables[0].ends) for one in after.generations] == [4, 8, 16]


def test_a_switch_that_keeps_the_old_tablets_is_found(start: ClusterState, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug commits the tables of the previous generation."""
    monkeypatch.setattr(cdc, "tables_in_tablets", lambda state: state.generations[-1].tables)
    state = cut(start)
    while len(state.generations) < 2:
        state = applied(state, propose(CoordinatorView(state, {}, state.epoch, 10_000))[0].command)
    model = [(one.timestamp, {LOGGED.id: state.tablets[TABLE].ends}) for one in state.generations]
    model[0] = (state.generations[0].timestamp, {LOGGED.id: start.tablets[TABLE].ends})
    assert not fits_tablets(state)
    with pytest.raises(AssertionError):
        compared(state, model)
