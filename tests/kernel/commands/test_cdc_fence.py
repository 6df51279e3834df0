"""A writer that is gone for good: what its fence ends, and what stays of it."""

from dataclasses import replace

import pytest

from ringlog.kernel.commands import model as m
from ringlog.kernel.state import ClusterState
from tests.kernel.commands.test_cdc import FIRST, LOGGED, SECOND, code, joined, joining, with_data, writer
from tests.kernel.entries import applied, founded


@pytest.fixture(scope="module")
def two() -> ClusterState:
    """Generations of 100 and 200, and a table with a log."""
    state = joined(founded(), 1, 100, -1000, 1000)
    return joined(applied(state, m.CreateKeyspace("ks", m.Replication("simple", 1)), LOGGED), 2, 200, 0)


GONE = m.FenceCdcWriter("w", FIRST, (m.Position(0, 50), m.Position(1, 7)), "its host burnt down")


def test_a_fence_ends_an_incarnation_for_ever(two: ClusterState) -> None:
    state = applied(two, m.RegisterCdcWriter("w", FIRST), m.AdvanceCdcWriter("w", FIRST, 500, 150, (m.Position(0, 9),)))
    assert code(state, replace(GONE, writer="v")) == "unknown_writer"
    assert code(state, replace(GONE, incarnation=SECOND)) == "stale_incarnation"
    assert code(state, replace(GONE, reason="")) == "bad_field"
    assert code(state, replace(GONE, positions=(m.Position(0, 8),))) == "positions_went_back"
    fenced = applied(state, GONE)
    found = writer(fenced)
    assert (found.fenced, found.fence_reason, found.horizon) == (fenced.epoch, GONE.reason, 500)
    assert found.positions == (m.Position(0, 50), m.Position(1, 7))
    assert code(fenced, GONE) == "writer_fenced"
    assert code(fenced, m.AdvanceCdcWriter("w", FIRST, 600, 150)) == "writer_fenced"
    assert code(fenced, m.RegisterCdcWriter("w", FIRST)) == "incarnation_reused"


def test_a_fenced_writer_holds_up_no_close_and_its_horizon_still_counts(two: ClusterState) -> None:
    first, second = (generation.id for generation in two.generations)
    state = applied(two, m.RegisterCdcWriter("w", FIRST), m.AdvanceCdcWriter("w", FIRST, 500, 150))
    state = applied(
        state, m.RegisterCdcWriter("v", FIRST), m.AdvanceCdcWriter("v", FIRST, 250, 200, (m.Position(0, 60),))
    )
    assert code(state, m.CloseCdcGeneration(first)) == "writers_behind"
    fenced = applied(state, GONE)
    closed = applied(fenced, m.CloseCdcGeneration(first))
    assert closed.generations[0].positions == (m.Position(0, 60), m.Position(1, 7)), "what it wrote is read, too"
    finer, commit = with_data(joining(closed, 3, 5))
    assert code(finer, replace(commit, timestamp=500)) == "timestamp_not_above_horizon"
    assert code(closed, m.CloseCdcGeneration(second)) == "next_generation_not_committed"


def test_a_generation_that_only_fenced_writers_saw_was_logged_by_nobody(two: ClusterState) -> None:
    first = two.generations[0].id
    state = applied(two, m.RegisterCdcWriter("w", FIRST), GONE)
    assert code(state, m.CloseCdcGeneration(first)) == "no_writers"
    done = applied(two, m.RegisterCdcWriter("w", FIRST), m.AdvanceCdcWriter("w", FIRST, 500, 200), GONE)
    assert applied(done, m.CloseCdcGeneration(first)).generations[0].status == "closed", "it had come through it"


def test_a_fenced_name_begins_again_with_the_oldest_open_generation(two: ClusterState) -> None:
    state = applied(two, m.RegisterCdcWriter("w", FIRST), m.AdvanceCdcWriter("w", FIRST, 500, 200), GONE)
    again = writer(applied(state, m.RegisterCdcWriter("w", SECOND)))
    assert (again.fenced, again.fence_reason, again.ended) == (None, "", (FIRST,))
    assert (again.horizon, again.floor, again.low_watermark) == (500, 500, 100), "the horizon of the fenced one counts"
    assert again.positions == GONE.positions
    closed = applied(state, m.CloseCdcGeneration(two.generations[0].id))
    assert writer(applied(closed, m.RegisterCdcWriter("w", SECOND))).low_watermark == 200
    low = applied(
        two, m.RegisterCdcWriter("w", FIRST), GONE, m.CloseCdcGeneration(two.generations[0].id, unwatched=True)
    )
    raised = writer(applied(low, m.RegisterCdcWriter("w", SECOND)))
    assert (raised.horizon, raised.floor, raised.low_watermark) == (200, 200, 200)
    state = applied(state, m.RegisterCdcWriter("w", SECOND))
    assert code(state, m.AdvanceCdcWriter("w", FIRST, 600, 200)) == "stale_incarnation"
