"""What a clock that was ahead left in the log is taken back, as far as nobody used it."""

from dataclasses import replace

import pytest

from ringlog.kernel.changes import CDC_GENERATIONS, CDC_STREAMS, diff
from ringlog.kernel.commands.cdc import CloseCdcGeneration
from ringlog.kernel.commands.cdc_clock import LowerCdcWriter, WithdrawCdcGeneration
from ringlog.kernel.commands.cdc_writers import AdvanceCdcWriter, FenceCdcWriter, RegisterCdcWriter
from ringlog.kernel.generations.describe import to_prepare
from ringlog.kernel.state import ClusterState
from tests.kernel.commands.test_cdc import FIRST, SECOND, code, joined, joining, with_data, writer
from tests.kernel.entries import SEED, applied, founded

FAR = 1_000_000
GONE = FenceCdcWriter("w", FIRST, (), "its clock was ahead")
LOWER = LowerCdcWriter("w", FIRST, 300, "no write was appended later")


@pytest.fixture(scope="module")
def ahead() -> ClusterState:
    """Generations of 100 and 200; a writer that has promised up to a far future."""
    state = joined(joined(founded(), 1, 100, -1000, 1000), 2, 200, 0)
    return applied(state, RegisterCdcWriter("w", FIRST), AdvanceCdcWriter("w", FIRST, FAR, 150))


def test_the_horizon_of_a_fenced_writer_sinks_and_generations_start_near_again(ahead: ClusterState) -> None:
    fenced = applied(ahead, GONE)
    waiting, commit = with_data(joining(fenced, 3, 5))
    near = replace(commit, timestamp=400)
    assert code(waiting, near) == "timestamp_not_above_horizon"
    lowered = applied(waiting, LOWER)
    assert (writer(lowered).horizon, writer(lowered).floor) == (300, 100)
    assert applied(lowered, near).generations[-1].timestamp == 400
    again = writer(applied(lowered, RegisterCdcWriter("w", SECOND)))
    assert (again.horizon, again.floor, again.fenced) == (300, 300, None), "the name comes back with what was lowered"


def test_what_lowers_for_others_is_refused(ahead: ClusterState) -> None:
    assert code(ahead, LOWER) == "writer_not_fenced"
    fenced = applied(ahead, GONE)
    assert code(fenced, replace(LOWER, writer="v")) == "unknown_writer"
    assert code(fenced, replace(LOWER, incarnation=SECOND)) == "stale_incarnation"
    assert code(fenced, replace(LOWER, reason="")) == "bad_field"
    assert code(fenced, replace(LOWER, horizon=-1)) == "bad_field"
    assert code(fenced, replace(LOWER, horizon=FAR + 1)) == "horizon_not_lower"
    assert code(fenced, replace(LOWER, horizon=149)) == "horizon_below_low_watermark"
    assert applied(fenced, replace(LOWER, horizon=FAR)).writers == fenced.writers
    assert code(applied(fenced, RegisterCdcWriter("w", SECOND)), LOWER) == "stale_incarnation"


def withdrawal(state: ClusterState) -> WithdrawCdcGeneration:
    return WithdrawCdcGeneration(state.generations[-1].id, SEED, "committed by a clock that was ahead")


@pytest.fixture(scope="module")
def committed_far() -> ClusterState:
    """A generation of 100, and one of a far future that a join brought; the join has ended."""
    state = applied(joined(founded(), 1, 100, -1000, 1000), RegisterCdcWriter("w", FIRST))
    return joined(state, 2, FAR, 0)


def test_a_generation_of_a_far_future_goes_and_the_ring_gets_another_one(committed_far: ClusterState) -> None:
    far = committed_far.generations[-1]
    waiting, commit = with_data(joining(committed_far, 3, 5))
    near = replace(commit, timestamp=400)
    assert code(waiting, near) == "timestamp_not_above_previous"
    gone = applied(waiting, withdrawal(waiting))
    assert [one.timestamp for one in gone.generations] == [100]
    assert gone.prepared == waiting.prepared, "what is prepared already is for all tokens"
    assert applied(gone, near).generations[-1].timestamp == 400
    records = {(record.topic, record.key) for record in diff(waiting, gone) if record.value is None}
    assert (CDC_GENERATIONS, far.id) in records
    assert {(CDC_STREAMS, f"{far.id}/{described.end}") for described in far.ranges} <= records

    alone = applied(committed_far, withdrawal(committed_far))
    prepared = to_prepare(alone)
    assert prepared is not None, "the tokens of the node that joined need streams"
    assert prepared[0] != far.id


def test_a_generation_that_may_be_used_stays(committed_far: ClusterState) -> None:
    first, _ = committed_far.generations
    assert code(committed_far, replace(withdrawal(committed_far), generation=first.id)) == "generation_not_last"
    assert code(committed_far, replace(withdrawal(committed_far), generation="none")) == "unknown_generation"
    assert code(committed_far, replace(withdrawal(committed_far), reason="")) == "bad_field"
    assert code(committed_far, replace(withdrawal(committed_far), seed=b"")) == "bad_field"
    promised = applied(committed_far, AdvanceCdcWriter("w", FIRST, FAR + 1, 100))
    assert code(promised, withdrawal(promised)) == "generation_in_use", "it may have routed a write of its start"
    fenced = applied(promised, replace(GONE, incarnation=FIRST))
    assert code(fenced, withdrawal(fenced)) == "generation_in_use"
    lowered = applied(fenced, LOWER)
    assert applied(lowered, withdrawal(lowered)).generations == (first,), "until it is known that it has not"
    done = applied(committed_far, AdvanceCdcWriter("w", FIRST, FAR, FAR))
    assert code(done, withdrawal(done)) == "generation_in_use", "it has come through the one before"
    closed = applied(lowered, CloseCdcGeneration(first.id, unwatched=True))
    assert code(closed, withdrawal(closed)) == "generation_in_use", "consumers may be in it"


def test_an_operation_that_rests_on_a_generation_keeps_it() -> None:
    state = joined(founded(), 1, 100, -1000, 1000)
    waiting, commit = with_data(joining(state, 2, 5))
    far = applied(waiting, replace(commit, timestamp=FAR))
    assert code(far, withdrawal(far)) == "generation_in_use"
