"""The audit's own definitions of acceptance, streams and images agree with the kernel and the CDC job."""

from __future__ import annotations

import random
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringlog.kernel.cql.collections import join_elements, key_type, log_type
from ringlog.kernel.cql.types import TYPES as SCALARS
from ringlog.kernel.generations import statements
from ringlog.kernel.generations.acceptance import RefusedWrite, accept, stream_of
from ringlog.kernel.generations.statements import is_value
from ringlog.kernel.model.state import Generation
from ringlog.kernel.model.tablet_streams import DescribedTable, ranges_of
from ringlog.kernel.values import TOKEN_MAX, TOKEN_MIN, GenerationRange, replace
from ringlog.wire.avro.codec import decode
from ringlog.wire.records import encode_mutation
from ringlog_audit.rules.compound import AuditColumns, is_compound, log_rows, plain_row
from ringlog_audit.rules.images import Images, Wanted
from ringlog_audit.rules.lateness import SKEW_US, Leeways, LeewayStep, always
from ringlog_audit.rules.streams import PublishedGeneration, PublishedRange, stream_for
from ringlog_audit.rules.values import element_type, elements, is_of_type, logged_type
from ringlog_audit.writes.history import TableHistory
from ringlog_audit.writes.refusals import AuditRules
from ringlog_cdc.definition.images import imaged
from ringlog_cdc.definition.row import plain_piece
from ringlog_cdc.definition.split import Piece, split
from tests.cdc.images.memory import MemoryStates
from tests.cdc.images.tables import image_table
from tests.client.cdc.test_table import TABLE
from tests.kernel.rows.histories import KEYS, SECOND, SHAPE, TYPES, draw, mutation_of

STEP = 1_000_000
DEFAULT_US = 5 * STEP


def test_audit_and_kernel_accept_the_same_writes_in_each_epoch() -> None:
    met = set()
    for seed in range(300):
        chance = Random(seed)
        steps = [LeewayStep(0, 0, DEFAULT_US)]
        steps += [
            LeewayStep(epoch, epoch, chance.randint(0, 6) * STEP) for epoch in sorted(chance.sample(range(1, 9), 3))
        ]
        leeways = Leeways(tuple(steps))
        starts = sorted(chance.sample(range(20), chance.randint(1, 4)))
        committed = sorted(chance.choices(range(1, 9), k=len(starts)))
        generations = [
            PublishedGeneration(start * STEP, (), epoch) for start, epoch in zip(starts, committed, strict=True)
        ]
        rules = AuditRules(b"", TableHistory(), generations, leeways)
        timestamps = tuple(start * STEP for start in starts)
        reaches = tuple(map(leeways.at_epoch, committed))
        for _ in range(40):
            now, epoch = chance.randint(0, 24) * STEP, chance.randint(1, 9)
            timestamp = now + chance.randint(-8, 8) * STEP + chance.randint(-1, 1)
            verdict = accept(timestamp, now, timestamps, leeways.at_epoch(epoch), reaches)
            wanted = verdict.code if isinstance(verdict, RefusedWrite) else ""
            assert rules._outside(timestamp, now, epoch) == wanted, (seed, timestamp, now)
            met.add(wanted)
    assert len(met) == 4


def test_without_an_epoch_the_widest_leeway_since_then_counts() -> None:
    found = Leeways((LeewayStep(0, 0, 5), LeewayStep(3, 10 * SKEW_US, 9), LeewayStep(6, 20 * SKEW_US, 2)))
    assert [found.at_epoch(epoch) for epoch in (0, 2, 3, 5, 6, 7)] == [5, 5, 9, 9, 2, 2]
    assert [found.widest(minutes * SKEW_US) for minutes in (0, 12, 20, 22)] == [9, 9, 9, 2]
    assert always(7).widest(0) == always(7).at_epoch(99) == 7


# The audit computes the stream of a write. The reference is the definition in the kernel.


def published(ranges: tuple[GenerationRange, ...]) -> tuple[PublishedRange, ...]:
    return tuple(PublishedRange(one.end, one.ignore_msb, one.streams) for one in ranges)


@pytest.mark.parametrize("seed", range(5))
def test_a_table_in_tablets_has_its_published_streams(seed: int) -> None:
    draw = random.Random(seed)
    ring = tuple(GenerationRange(end, 12, (bytes([slot]) * 16,)) for slot, end in enumerate((-9, 9)))
    ends = (*sorted(draw.sample(range(-100, 100), 5)), TOKEN_MAX)
    table = DescribedTable("t", ends)
    generation = Generation("g", 7, ring, "committed", 1, None, None, (), tables=(table,))
    found = PublishedGeneration(7, published(ring), 1, {"t": published(ranges_of(7, table))})
    for token in (TOKEN_MIN + 1, -9, 9, 10, TOKEN_MAX, *ends, *(end + 1 for end in ends[:-1])):
        for name in ("t", "other"):
            assert stream_for(found, token, name) == stream_of(generation, token, name)
    assert stream_for(found, 0, "t") != stream_for(found, 0)
    later = replace(generation, timestamp=8)
    assert stream_of(later, 0, "t") != stream_of(generation, 0, "t")


# The audit and the job compute images with separate code. Random histories of all write operations must agree.


COLUMNS = AuditColumns(("text",), ("int", "int"), frozenset("s"), {name: TYPES[name] for name in KEYS})


def row_values(piece: Piece) -> tuple[Any, ...]:
    values = {
        one.column: elements(TYPES[one.column], one.value or b"") if one.column in KEYS else one.value
        for one in piece.cells
    }
    taken = {one.column: set(one.keys) for one in piece.deleted_elements}
    place = (piece.timestamp, piece.batch_seq_no, piece.end_of_batch, piece.operation, piece.ttl)
    return (*place, piece.clustering_key, values, set(piece.deleted), taken)


@pytest.mark.parametrize("preimage", ["false", "true", "full"])
@pytest.mark.parametrize("keys_only", [False, True])
def test_random_histories(preimage: str, keys_only: bool) -> None:
    for seed in range(30):
        chance = Random(seed)
        wanted = Wanted(preimage, seed % 2 > 0 or preimage == "false", ("v", "w", *KEYS), ("s",))
        table = image_table(TABLE.columns, TABLE.clustering_key, preimage, wanted.postimage, partition=("p",))
        states, audited = MemoryStates(), Images()
        for number in range(chance.randint(1, 15)):
            now = (5 + 3 * number) * SECOND
            mutation = mutation_of([draw(chance) for _ in range(chance.choice((1, 1, 3)))])
            _, record = decode(encode_mutation(mutation))
            compound = statements.is_compound(mutation, SHAPE)
            assert is_compound(record, COLUMNS) == compound
            pieces = split(mutation, SHAPE) if compound else (plain_piece(mutation),)
            made = imaged(states, "k.t", table, b"p", pieces, now, keys_only)
            for state in made.states.items():
                states.put(*state)
            logged = log_rows(record, COLUMNS, keys_only) if compound else plain_row(record, keys_only)
            rows = audited.rows("k.t", b"p", record, logged, COLUMNS, wanted, now)
            found = [
                (r.timestamp, r.sequence, r.last, r.operation, r.ttl, r.clustering_key, r.values, r.deleted, r.taken)
                for r in rows
            ]
            assert found == [row_values(piece) for piece in made.pieces], (seed, number)


KINDS = (
    *sorted(SCALARS),
    *("frozen<list<int>>", "frozen<set<text>>", "frozen<map<text, int>>", "tuple<int, text>"),
    *("frozen<udt<a int, b frozen<set<int>>>>", "list<text>", "set<int>", "map<ascii, frozen<list<int>>>"),
)
PIECES = st.one_of(
    st.binary(max_size=9),
    st.sampled_from([b"", b"a", b"\xff", bytes(4), bytes(8), bytes(6) + b"\x11" + bytes(9)]),
)
LENGTHS = st.integers(-2, 9).map(lambda size: size.to_bytes(4, "big", signed=True))
VALUES = st.one_of(
    PIECES,
    st.lists(PIECES.map(lambda one: len(one).to_bytes(4, "big") + one) | LENGTHS, max_size=4).flatmap(
        lambda parts: st.sampled_from([b"".join(parts), len(parts).to_bytes(4, "big") + b"".join(parts)])
    ),
    st.lists(st.sampled_from([bytes(4), b"\0\0\0\1", b"a"]), max_size=4).map(
        lambda parts: join_elements(tuple((part,) for part in parts))
    ),
)


@settings(max_examples=400)
@given(st.sampled_from(KINDS), VALUES)
def test_audit_and_kernel_accept_the_same_values(kind: str, value: bytes) -> None:
    assert is_of_type(logged_type(kind), value) == is_value(log_type(kind), value)
    assert not key_type(kind) or element_type(kind) == key_type(kind)
