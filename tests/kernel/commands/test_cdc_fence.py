"""A writer that is gone for good: what its fence ends, and what stays of it."""

from dataclasses import replace

import pytest

from ringlog.kernel.commands.cdc import CloseCdcGeneration
from ringlog.kernel.commands.cdc_writers import AdvanceCdcWriter, FenceCdcWriter, RegisterCdcWriter
from ringlog.kernel.commands.keyspaces import CreateKeyspace
from ringlog.kernel.state import ClusterState
from ringlog.kernel.values import Position, Replication
from tests.kernel.commands.test_cdc import FIRST, LOGGED, SECOND, code, joined, joining, with_data, writer
from tests.kernel.entries import applied, founded


@pytest.fixture(scope="module")
def two() -> ClusterState:
    """Generations of 100 and 200, and a table with a log."""
    state = joined(founded(), 1, 100, -1000, 1000)
    return joined(applied(state, CreateKeyspace("ks", Replication("simple", 1)), LOGGED), 2, 200, 0)


GONE = FenceCdcWriter("w", FIRST, (Position(0, 50), Position(1, 7)), "its host burnt down")


def test_a_fence_ends_an_incarnation_for_ever(two: ClusterState) -> None:
    state = applied(two, RegisterCdcWriter("w", FIRST), AdvanceCdcWriter("w", FIRST, 500, 150, (Position(0, 9),)))
    assert code(state, replace(GONE, writer="v")) == "unknown_writer"
    assert code(state, replace(GONE, incarnation=SECOND)) == "stale_incarnation"
    assert code(state, replace(GONE, reason="")) == "bad_field"
    assert code(state, replace(GONE, positions=(Position(0, 8),))) == "positions_went_back"
    fenced = applied(state, GONE)
    found = writer(fenced)
    assert (found.fenced, found.fence_reason, found.horizon) == (fenced.epoch, GONE.reason, 500)
    assert found.positions == (Position(0, 50), Position(1, 7))
    assert code(fenced, GONE) == "writer_fenced"
    assert code(fenced, AdvanceCdcWriter("w", FIRST, 600, 150)) == "writer_fenced"
    assert code(fenced, RegisterCdcWriter("w", FIRST)) == "incarnation_reused"


def test_a_fenced_writer_holds_up_no_close_and_its_horizon_still_counts(two: ClusterState) -> None:
    first, second = (generation.id for generation in two.generations)
    state = applied(two, RegisterCdcWriter("w", FIRST), AdvanceCdcWriter("w", FIRST, 500, 150))
    state = applied(state, RegisterCdcWriter("v", FIRST), AdvanceCdcWriter("v", FIRST, 250, 200, (Position(0, 60),)))
    assert code(state, CloseCdcGeneration(first)) == "writers_behind"
    fenced = applied(state, GONE)
    closed = applied(fenced, CloseCdcGeneration(first))
    assert closed.generations[0].positions == (Position(0, 60), Position(1, 7)), "what it wrote is read, too"
    finer, commit = with_data(joining(closed, 3, 5))
    assert code(finer, replace(commit, timestamp=500)) == "timestamp_not_above_horizon"
    assert code(closed, CloseCdcGeneration(second)) == "next_generation_not_committed"


def test_a_generation_that_only_fenced_writers_saw_was_logged_by_nobody(two: ClusterState) -> None:
    first = two.generations[0].id
    state = applied(two, RegisterCdcWriter("w", FIRST), GONE)
    assert code(state, CloseCdcGeneration(first)) == "no_writers"
    done = applied(two, RegisterCdcWriter("w", FIRST), AdvanceCdcWriter("w", FIRST, 500, 200), GONE)
    assert applied(done, CloseCdcGeneration(first)).generations[0].status == "closed", "it had come through it"


def test_a_fenced_name_begins_again_with_the_oldest_open_generation(two: ClusterState) -> None:
    state = applied(two, RegisterCdcWriter("w", FIRST), AdvanceCdcWriter("w", FIRST, 500, 200), GONE)
    again = writer(applied(state, RegisterCdcWriter("w", SECOND)))
    assert (again.fenced, again.fence_reason, again.ended) == (None, "", (FIRST,))
    assert (again.horizon, again.floor, again.low_watermark) == (500, 500, 100), "the horizon of the fenced one counts"
    assert again.positions == GONE.positions
    closed = applied(state, CloseCdcGeneration(two.generations[0].id))
    assert writer(applied(closed, RegisterCdcWriter("w", SECOND))).low_watermark == 200
    low = applied(two, RegisterCdcWriter("w", FIRST), GONE, CloseCdcGeneration(two.generations[0].id, unwatched=True))
    raised = writer(applied(low, RegisterCdcWriter("w", SECOND)))
    assert (raised.horizon, raised.floor, raised.low_watermark) == (200, 200, 200)
    state = applied(state, RegisterCdcWriter("w", SECOND))
    assert code(state, AdvanceCdcWriter("w", FIRST, 600, 200)) == "stale_incarnation"
