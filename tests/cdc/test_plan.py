"""The plan chain: valid successors of an entry, and the end of a part."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringlog.kernel.model.state import ClusterState, Generation
from ringlog.kernel.values import replace
from ringlog_cdc.errors import ChainBroken
from ringlog_cdc.plan.decisions import still_known, table_of
from ringlog_cdc.plan.plan import (
    GENESIS,
    OffsetRange,
    PartitionFacts,
    PlanEntry,
    append_limits,
    check_link,
    close_entry,
    decode,
    digest,
    encode,
    is_before,
    most_used,
    next_ranges,
    route_entry,
    used_by,
)
from ringlog_cdc.stored_files import encode_file
from tests.cdc.held import is_held, used_time


def part_after(
    before: PlanEntry, *ranges: OffsetRange, used: int = 10, number: int = 0, last: bool = True
) -> PlanEntry:
    """Return a plan part of batch 0."""
    return route_entry(
        before,
        batch=0,
        part=number,
        last=last,
        ranges=ranges,
        epoch=5,
        context="c",
        horizon=100,
        used=used,
        incarnation="i",
        starts={0: 0, 1: 0},
    )


def test_an_entry_is_read_back_as_it_was_stored() -> None:
    entry = part_after(GENESIS, OffsetRange(1, 0, 7), OffsetRange(0, 0, 3))
    assert decode(encode(entry)) == entry
    assert entry.ranges == (OffsetRange(0, 0, 3), OffsetRange(1, 0, 7))
    assert entry.positions == ((0, 3), (1, 7))


def test_ranges_continue_at_the_previous_positions() -> None:
    first = part_after(GENESIS, OffsetRange(0, 0, 3), last=False)
    second = part_after(first, OffsetRange(0, 3, 9), OffsetRange(1, 0, 2), number=1)
    assert second.positions == ((0, 9), (1, 2))
    assert second.previous == digest(first)


@pytest.mark.parametrize("start", [2, 4])
def test_a_range_that_leaves_a_gap_or_overlaps_is_refused(start: int) -> None:
    first = part_after(GENESIS, OffsetRange(0, 0, 3))
    with pytest.raises(ChainBroken, match="gap or overlaps"):
        part_after(first, OffsetRange(0, start, 9))


def test_used_times_only_grow() -> None:
    first = part_after(GENESIS, OffsetRange(0, 0, 3), used=50)
    assert part_after(first, OffsetRange(0, 3, 4), used=20).used == 50


def test_a_closing_is_stored_as_an_entry() -> None:
    first = part_after(GENESIS, OffsetRange(0, 0, 3))
    closing = close_entry(first, generations=["g1"], low_watermark=40, epoch=6, incarnation="i")
    later = part_after(closing, OffsetRange(0, 3, 4))
    assert (closing.closed, closing.low_watermark, closing.positions) == (("g1",), 40, first.positions)
    assert (later.closed, later.low_watermark) == (("g1",), 40)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"sequence": 5}, "sequence"),
        ({"previous": "0" * 64}, "digest"),
        ({"used": 1}, "value decreases"),
        ({"closed": ()}, "active again"),
        ({"positions": ((0, 2),)}, "positions"),
    ],
)
def test_a_contradiction_in_the_chain_is_detected(change: dict[str, object], fault: str) -> None:
    first = part_after(GENESIS, OffsetRange(0, 0, 3))
    closing = close_entry(first, generations=["g1"], low_watermark=40, epoch=6, incarnation="i")
    second = part_after(closing, OffsetRange(0, 3, 4))
    check_link(closing, second)
    with pytest.raises(ChainBroken, match=fault):
        check_link(closing, replace(second, **change))  # type: ignore[arg-type]


def content_of(entry: PlanEntry) -> dict[str, object]:
    return json.loads(encode(entry))["content"]  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "change",
    [
        {"sequence": True},
        {"sequence": 0.0},
        {"context": None},
        {"closed": "ab"},
        {"closed": [1]},
        {"positions": {}},
        {"ranges": [[0, 0]]},
        {"ranges": [[0, 0, "3"]]},
        {"more": 1},
    ],
)
def test_content_that_is_not_an_entry_is_refused(change: dict[str, object]) -> None:
    first = part_after(GENESIS, OffsetRange(0, 0, 3))
    with pytest.raises(ChainBroken, match=r"7\.json is unreadable"):
        decode(encode_file("plan", content_of(first) | change), "7.json")
    with pytest.raises(ChainBroken):
        decode(encode_file("plan", {}))


# ------------------------------------------------------------------------------------------------ held writes


@pytest.mark.parametrize(
    ("timestamp", "appended", "held"),
    [
        (99, 99, False),
        (100, 99, True),  # not below the lease
        (99, 100, True),  # the append time is not below it
        (104, 99, True),  # ahead, within the allowed lateness
        (105, 99, False),  # beyond the allowed lateness: refused under every set of generations
        (0, 99, False),
    ],
)
def test_a_write_waits_unless_both_times_are_below_the_lease(timestamp: int, appended: int, held: bool) -> None:
    assert is_held(timestamp, appended, horizon=100, leeway=5) is held
    assert (used_time(timestamp, appended, leeway=5) >= 100) is held


def test_a_part_stops_before_the_first_held_write_of_each_partition() -> None:
    facts = [PartitionFacts(0, 5, 80), PartitionFacts(1, None, 90), PartitionFacts(2, 0, 0)]
    ranges, complete = next_ranges(facts, {0: 2, 1: 0, 2: 0, 3: 4}, {0: 9, 1: 3, 2: 6, 3: 4})
    assert ranges == (OffsetRange(0, 2, 5), OffsetRange(1, 0, 3))
    assert not complete
    assert used_by(facts, 100) == 99


writes = st.tuples(st.integers(0, 3), st.integers(90, 110), st.integers(90, 110))


@given(st.lists(writes, max_size=40), st.lists(st.integers(85, 130), min_size=1, max_size=8))
def test_parts_cover_a_batch_once_without_held_writes(found: list[tuple[int, int, int]], horizons: list[int]) -> None:
    """Against a plain loop: for any sequence of leases, each offset is planned once, and only when it is not held."""
    leeway = 5
    topic: dict[int, list[tuple[int, int]]] = {partition: [] for partition in range(4)}
    for partition, timestamp, appended in found:
        topic[partition].append((timestamp, appended))
    ends = {partition: len(rows) for partition, rows in topic.items()}
    positions = dict.fromkeys(topic, 0)
    planned: list[tuple[int, int]] = []
    complete = False
    for horizon in (*horizons, 1_000):
        facts = []
        for partition, rows in topic.items():
            rest = range(positions[partition], len(rows))
            held = next((offset for offset in rest if is_held(*rows[offset], horizon, leeway)), None)
            facts.append(PartitionFacts(partition, held, 0))
        ranges, complete = next_ranges(facts, positions, ends)
        for item in ranges:
            for offset in range(item.start, item.end):
                assert not is_held(*topic[item.partition][offset], horizon, leeway)
                planned.append((item.partition, offset))
            positions[item.partition] = item.end
        if complete:
            break
    assert complete
    assert sorted(planned) == [(partition, offset) for partition, rows in topic.items() for offset in range(len(rows))]


@given(
    now=st.integers(0, 10**7),
    horizon=st.integers(0, 10**7),
    leeway=st.integers(0, 10**6),
    writes=st.lists(st.tuples(st.integers(0, 2 * 10**7), st.integers(0, 10**4)), min_size=1),
)
def test_writes_before_a_limit_are_not_held(now: int, horizon: int, leeway: int, writes: list[tuple[int, int]]) -> None:
    """This holds for every requested limit; brokers store append times in milliseconds."""
    for limit in append_limits(now, horizon, leeway):
        for timestamp, milliseconds in writes:
            appended = milliseconds * 1000
            if milliseconds < limit:
                assert used_time(timestamp, appended, leeway) <= most_used(limit, leeway) < horizon
                assert not is_held(timestamp, appended, horizon, leeway)


def test_the_tighter_limit_comes_first_if_the_clock_sets_one() -> None:
    assert append_limits(7_000_400, 13_000_000, 5_000_000) == (7001, 8000)
    assert append_limits(8_000_400, 13_000_000, 5_000_000) == (8000,)


def test_a_batch_precedes_generations_at_its_end() -> None:
    ends = {0: 10, 1: 5}
    assert is_before({0: 10, 1: None}, ends)
    assert not is_before({0: 9, 1: None}, ends)
    assert not is_before({0: None, 1: 0}, ends)


# A stored context and a later log: withdrawn generations, and generations of another log.


CONTEXT = {"generations": [["a", 100], ["b", 200], ["c", 300]], "reaches_us": [5, 6, 7], "tables": {}}


def state(*known: tuple[str, int]) -> ClusterState:
    found = (Generation(name, start, (), "published", 1, 1, None, ()) for name, start in known)
    return ClusterState(generations=tuple(found))


def test_an_unused_withdrawn_generation_is_removed() -> None:
    assert still_known(CONTEXT, state(("a", 100), ("b", 200), ("c", 300), ("d", 400)), 350) is CONTEXT
    left = still_known(CONTEXT, state(("a", 100)), 199)
    assert left == {"generations": [["a", 100]], "reaches_us": [5], "tables": {}}
    again = still_known(CONTEXT, state(("a", 100), ("b", 200), ("c", 250)), 199)
    assert again["generations"] == [["a", 100], ["b", 200]], "the same name at another time is another generation"


@pytest.mark.parametrize("used", [300, 1_000])
def test_a_used_missing_generation_means_another_log(used: int) -> None:
    with pytest.raises(ChainBroken):
        table_of(
            dict(still_known(CONTEXT, state(("a", 100), ("b", 200)), used)) | {"source_topic": "t"}, (), ClusterState()
        )
    assert still_known(CONTEXT, state(("a", 100), ("b", 200)), used) is CONTEXT
