"""Admission, order of stages, barriers and cancels: rejection codes and records."""

from __future__ import annotations

from typing import Any

import pytest
from immutables import Map

from ringlog.kernel.commands.topology.movements import Join
from ringlog.kernel.commands.topology.operations import AdvanceOperation, CancelOperation
from ringlog.kernel.generations.describe import size_of
from ringlog.kernel.model.outcome import Rejected
from ringlog.kernel.model.state import ClusterState, Plan, PreparedGeneration
from ringlog.kernel.operations.gates import gate, missing, shortfalls
from ringlog.kernel.operations.rings import target_owners
from ringlog.kernel.operations.stages import JOIN_STAGES, STAGES, in_flight
from ringlog.kernel.registry import CODES
from ringlog.kernel.values import TOKEN_MIN, StreamReport, Witness, replace
from tests.kernel.operations.driver import (
    SEED,
    advance_of,
    all_witnesses,
    applied,
    at_every_stage,
    driven,
    joining,
    refused,
    report_of,
    stepped,
    with_generation,
)
from tests.kernel.ownership.rings import a_cluster

QUIET = a_cluster({"A": [100], "B": [200], "C": [300], "X": [], "Y": []})
JOINING, OPERATION = joining(QUIET, "X", [150])


def _at(stage: str) -> ClusterState:
    return driven(JOINING, OPERATION, stage)


# Admission


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"node": "Z"}, "unknown_node"),
        ({"node": "A"}, "wrong_node_state"),
        ({"tokens": ()}, "bad_field"),
        ({"tokens": (TOKEN_MIN - 1,)}, "bad_field"),
        ({"tokens": (2**63,)}, "bad_field"),
        ({"tokens": (5, 7, 5)}, "duplicate_token"),
        ({"tokens": (5, 200)}, "token_owned"),
        ({"seed": b"short"}, "bad_field"),
        ({"tokens": tuple(range(1_025))}, "bad_field"),
    ],
)
def test_a_join_that_is_refused(change: dict[str, Any], code: str) -> None:
    rejection = refused(QUIET, replace(Join("X", (150,), SEED), **change))
    assert rejection.code == code
    assert code in CODES


def test_ring_has_a_greatest_number_of_ranges() -> None:
    state = replace(QUIET, settings=Map({"ranges_max": 4, "tokens_per_node_max": 4}))
    assert refused(state, Join("X", (1, 2), SEED)).code == "bad_field"
    applied(state, Join("X", (1,), SEED))


def test_an_admitted_join_is_recorded_with_plan_and_locks() -> None:
    operation = JOINING.operations[OPERATION]
    assert (operation.kind, operation.stage, operation.stage_epoch) == ("join", "requested", JOINING.epoch)
    assert operation.plan.split_at == (150,)
    locked = {(lock.start, lock.end) for lock in operation.locks}
    assert locked == {(300, 100), (100, 200)}
    assert JOINING.nodes["X"].state == "joining"
    assert in_flight(JOINING) == (operation,)
    assert target_owners(JOINING)[150] == "X"
    assert JOINING.placements is QUIET.placements
    assert JOINING.changed == Map({"nodes": JOINING.epoch, "operations": JOINING.epoch})


@pytest.mark.parametrize("stage", JOIN_STAGES[:-1])
def test_a_second_join_is_refused_and_names_the_holder(stage: str) -> None:
    rejection = refused(_at(stage), Join("Y", (250,), SEED))
    assert rejection.code == "range_locked"
    assert OPERATION in rejection.detail
    assert "X" in rejection.detail


def test_tokens_asked_for_in_flight_are_owned() -> None:
    assert refused(JOINING, Join("Y", (150,), SEED)).code == "token_owned"


def test_the_next_join_is_admitted_after_the_first_one_ended() -> None:
    state, second = joining(_at("finished"), "Y", [250])
    assert second == f"join-{state.epoch}"
    assert in_flight(state) == (state.operations[second],)
    back = applied(_at("prepared"), CancelOperation(OPERATION, ""))
    joining(back, "Y", [150])


def test_first_node_of_an_empty_cluster() -> None:
    state, operation = joining(a_cluster({"X": []}, factors=[]), "X", [9, -9])
    for stage, at in at_every_stage(state, operation).items():
        needs = gate(at, at.operations[operation])
        assert needs.needs == ()
        assert needs.must == (("X",) if stage in ("prepared", "write_both_read_old") else ())
    last = driven(state, operation, "finished")
    assert dict(last.token_owners.items()) == {9: "X", -9: "X"}
    assert last.nodes["X"].tokens == (-9, 9)
    assert last.nodes["X"].state == "normal"


# Order of stages


@pytest.mark.parametrize("stage", JOIN_STAGES)
def test_only_the_next_stage_follows(stage: str) -> None:
    state = _at(stage)
    following = JOIN_STAGES[JOIN_STAGES.index(stage) + 1 : JOIN_STAGES.index(stage) + 2]
    for to in (*STAGES, "nonsense"):
        if (to,) == following:
            continue
        rejection = refused(state, AdvanceOperation(OPERATION, to, all_witnesses(state)))
        assert rejection.code == "wrong_stage"
        assert stage in rejection.detail


def test_unknown_operations() -> None:
    assert refused(QUIET, AdvanceOperation("join-1", "prepared")).code == "unknown_operation"
    assert refused(QUIET, CancelOperation("join-1", "")).code == "unknown_operation"


def test_the_stage_requested_has_no_barrier() -> None:
    assert applied(JOINING, AdvanceOperation(OPERATION, "prepared")).operations[OPERATION].stage == "prepared"


def test_generation_must_be_committed_and_refine_the_new_tokens() -> None:
    state = _at("commit_cdc_generation")
    command = advance_of(state, OPERATION)
    assert refused(state, command).code == "generation_not_committed"
    made = with_generation(state, state.operations[OPERATION], "committed")
    coarse = replace(made.generations[0], ranges=tuple(r for r in made.generations[0].ranges if r.end != 150))
    assert refused(replace(made, generations=(coarse,)), command).code == "generation_outdated"
    applied(made, command)


def test_an_operation_with_a_removed_generation_uses_the_newest() -> None:
    state = _at("commit_cdc_generation")
    made = with_generation(state, state.operations[OPERATION])
    ours = made.generations[0]
    ended = replace(ours, ranges=(), status="expired", closed=1, expired=1, forgotten=size_of(ours))
    newest = replace(ours, id="newest")
    assert applied(replace(made, generations=(ended, newest)), advance_of(made, OPERATION))
    coarse = replace(newest, ranges=tuple(one for one in ours.ranges if one.end != 150))
    refusal = refused(replace(made, generations=(ended, coarse)), advance_of(made, OPERATION))
    assert refusal == Rejected("generation_outdated", "operation: newest has no range that ends at 150")


def test_generation_must_be_published() -> None:
    state = _at("commit_cdc_generation")
    state = with_generation(state, state.operations[OPERATION], "committed")
    state = applied(state, advance_of(state, OPERATION))
    assert refused(state, advance_of(state, OPERATION)).code == "generation_not_published"
    published = with_generation(state, state.operations[OPERATION], "published")
    assert stepped(published, OPERATION).operations[OPERATION].stage == "write_both_read_old"


def test_an_ended_operation_keeps_its_record_only() -> None:
    ended = _at("finished").operations[OPERATION]
    assert (ended.plan, ended.locks) == (Plan(), ())
    assert [mark.stage for mark in ended.marks] == list(JOIN_STAGES)
    assert [mark.epoch for mark in ended.marks] == sorted(mark.epoch for mark in ended.marks)
    assert ended.reports == (report_of(ended),)


def test_only_the_last_ended_operations_are_kept() -> None:
    state = replace(QUIET, settings=Map({"operations_kept_max": 2}))
    ids = []
    for _ in range(4):
        state, operation = joining(state, "X", [150])
        state = applied(state, CancelOperation(operation, ""))
        ids.append(operation)
    state, flying = joining(state, "X", [150])
    assert sorted(state.operations) == sorted([*ids[-2:], flying])


# Barriers

GATED = ("prepared", "write_both_read_old", "write_both_read_new")


def _with_witnesses(state: ClusterState, witnesses: list[Witness]) -> AdvanceOperation:
    return replace(advance_of(state, OPERATION), witnesses=tuple(witnesses))


def _behind(witness: Witness, field: str, epoch: int) -> Witness:
    return replace(witness, applied=epoch) if field == "applied" else replace(witness, drained=epoch)


@pytest.mark.parametrize("stage", GATED)
def test_majority_of_the_union_is_not_enough(stage: str) -> None:
    """B and X are a majority of {A, B, X}, but not of both {A, B} and {A, X}."""
    state = _at(stage)
    for told in (("B", "X"), ("A", "X"), ("A", "B", "X"), ("C", "X", "B")):
        command = _with_witnesses(state, [w for w in all_witnesses(state) if w.node in told])
        rejection = refused(state, command)
        assert rejection.code == "gate_not_met"
        for node in {"A", "B", "C", "X"}.difference(told):
            assert node in rejection.detail


def test_one_of_three_replicas_may_be_down() -> None:
    state, operation = joining(a_cluster({"A": [100], "B": [200], "C": [300], "X": []}, [3]), "X", [150])
    state = driven(state, operation, "write_both_read_new")
    needs = gate(state, state.operations[operation])
    for down in "ABCX":
        assert missing(needs, [w for w in all_witnesses(state) if w.node != down]) == ()
    assert missing(needs, [w for w in all_witnesses(state) if w.node in "AX"]) == ("B", "C")


@pytest.mark.parametrize("stage", ["prepared", "write_both_read_old"])
def test_the_gaining_node_must_be_among_the_witnesses(stage: str) -> None:
    state, operation = joining(a_cluster({"A": [100], "B": [200], "C": [300], "X": []}, [3]), "X", [150])
    state = driven(state, operation, stage)
    command = replace(advance_of(state, operation), witnesses=tuple(w for w in all_witnesses(state) if w.node != "X"))
    rejection = refused(state, command)
    assert rejection.code == "gate_not_met"
    assert "gaining node X" in rejection.detail


@pytest.mark.parametrize("stage", GATED)
@pytest.mark.parametrize("behind", ["applied", "drained"])
def test_an_acknowledgement_is_applied_and_drained(stage: str, behind: str) -> None:
    state = _at(stage)
    epoch = state.operations[OPERATION].stage_epoch
    late = [_behind(w, behind, epoch - 1) if w.node == "B" else w for w in all_witnesses(state)]
    assert refused(state, _with_witnesses(state, late)).code == "gate_not_met"
    exact = [_behind(w, behind, epoch) for w in all_witnesses(state)]
    applied(state, _with_witnesses(state, exact))


def test_a_repeated_witness_counts_once() -> None:
    state = _at("prepared")
    assert refused(state, _with_witnesses(state, [Witness("X", state.epoch, state.epoch)] * 6)).code == "gate_not_met"
    applied(state, _with_witnesses(state, [*all_witnesses(state), *all_witnesses(state)]))


@pytest.mark.parametrize(
    ("witness", "code"),
    [
        (Witness("Z", 1, 1), "unknown_node"),
        (Witness("A", 99, 1), "bad_field"),
        (Witness("A", 1, 99), "bad_field"),
        (Witness("A", -1, 0), "bad_field"),
        (Witness("A", 0, -1), "bad_field"),
    ],
)
def test_impossible_witnesses(witness: Witness, code: str) -> None:
    state = _at("prepared")
    assert refused(state, _with_witnesses(state, [*all_witnesses(state), witness])).code == code


def test_each_datacenter_needs_its_own_quorum() -> None:
    east = dict.fromkeys("ABX", "east")
    state = a_cluster({"A": [10], "B": [20], "C": [30], "D": [40], "X": []}, [4], {**east, "C": "west", "D": "west"})
    state, operation = joining(state, "X", [15])
    state = driven(state, operation, "write_both_read_new")
    needs = gate(state, state.operations[operation])
    assert {need.datacenter for need in needs.needs} == {"east", "west"}
    told = [w for w in all_witnesses(state) if w.node != "C"]
    short = shortfalls(needs, told)
    assert short
    assert {(need.datacenter, need.need) for need in short} <= {("west", 2), ("west", 1)}
    assert missing(needs, told) == ("C",)


def test_stages_without_a_gate_have_no_needs() -> None:
    for stage in set(JOIN_STAGES).difference(GATED):
        state = _at(stage)
        needs = gate(state, state.operations[OPERATION])
        assert (needs.must, needs.needs) == ((), ())


def test_streaming_ends_with_the_report_of_the_joiner() -> None:
    state = _at("write_both_read_old")
    command = advance_of(state, OPERATION)
    silent = refused(state, replace(command, reports=()))
    assert silent.code == "gate_not_met"
    assert "X" in silent.detail
    good = report_of(state.operations[OPERATION])
    for late in (
        replace(good, operation="join-1"),
        replace(good, node="A"),
        replace(good, rows=-1),
        replace(good, checksum="not hex"),
    ):
        assert refused(state, replace(command, reports=(late,))).code == "bad_field"
    assert refused(state, replace(command, reports=(good, good))).code == "bad_field"
    assert applied(state, command).operations[OPERATION].reports == (good,)


# Cancels


def test_a_cancel_past_the_point_of_no_return_is_rejected() -> None:
    assert refused(_at("write_both_read_new"), CancelOperation(OPERATION, "")).code == "past_point_of_no_return"


def test_an_ended_operation_cannot_be_cancelled() -> None:
    assert refused(_at("finished"), CancelOperation(OPERATION, "")).code == "wrong_stage"
    cancelled = applied(JOINING, CancelOperation(OPERATION, "no"))
    assert refused(cancelled, CancelOperation(OPERATION, "no")).code == "wrong_stage"
    assert refused(cancelled, AdvanceOperation(OPERATION, "prepared")).code == "wrong_stage"


def test_the_length_of_a_reason_is_bounded() -> None:
    assert refused(JOINING, CancelOperation(OPERATION, "x" * 501)).code == "bad_field"


def test_a_cancelled_operation_frees_node_and_locks() -> None:
    after = applied(_at("write_both_read_old"), CancelOperation(OPERATION, "wrong rack"))
    operation = after.operations[OPERATION]
    assert (operation.stage, operation.reason, operation.locks, operation.plan) == (
        "cancelled",
        "wrong rack",
        (),
        Plan(),
    )
    assert after.nodes["X"].state == "none"
    assert in_flight(after) == ()
    assert 150 not in target_owners(after)


def test_a_cancel_drops_an_uncommitted_generation() -> None:
    state = _at("commit_cdc_generation")
    begun = replace(
        state,
        prepared=PreparedGeneration("g", OPERATION, SEED, 2, ()),
        operations=state.operations.set(OPERATION, replace(state.operations[OPERATION], generation="g")),
    )
    after = applied(begun, CancelOperation(OPERATION, ""))
    assert after.prepared is None
    assert after.operations[OPERATION].generation is None

    committed = with_generation(state, state.operations[OPERATION], "committed")
    kept = applied(committed, CancelOperation(OPERATION, ""))
    assert kept.generations == committed.generations
    assert kept.operations[OPERATION].generation is not None

    others = replace(state, prepared=PreparedGeneration("h", None, SEED, 0, ()))
    assert applied(others, CancelOperation(OPERATION, "")).prepared == others.prepared


def test_reports_of_another_operation_are_rejected() -> None:
    stray = StreamReport("X", "join-1", 1, "00")
    assert refused(JOINING, AdvanceOperation(OPERATION, "prepared", (), (stray,))).code == "bad_field"
