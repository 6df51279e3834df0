"""Generation requests: each has a record, from the requesting entry to the entry with its outcome."""

from __future__ import annotations

from ringlog.kernel.commands.cdc.generations import RequestCdcGeneration
from ringlog.kernel.commands.cluster.cluster import ChangeSettings
from ringlog.kernel.commands.topology.movements import Join
from ringlog.kernel.commands.topology.operations import CancelOperation
from ringlog.kernel.generations.describe import is_optimal, to_prepare
from ringlog.kernel.invariants.check import violations
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import replace
from tests.kernel.commands.test_cdc import joining, one, operation_of, parts, switched, unchanged
from tests.kernel.entries import SEED, applied, founded, node

__all__ = ["one"]


def test_each_request_is_recorded_with_its_outcome(one: ClusterState) -> None:
    nothing = applied(one, RequestCdcGeneration(SEED, "alice"))
    (record,) = nothing.requests.values()
    assert (record.requester, record.outcome, record.generation) == ("alice", "nothing_to_do", None)
    assert record.epoch == record.ended == nothing.epoch
    assert nothing.generations is one.generations
    cancelled = switched(joining(nothing, 2, 5), 200)
    cancelled = applied(cancelled, CancelOperation(operation_of(cancelled), "no"))
    asked = applied(cancelled, RequestCdcGeneration(SEED, "alice"), RequestCdcGeneration(bytes(16), "bob"))
    assert asked.prepared is not None
    assert asked.prepared.seed == SEED, "a later request waits for the same generation"
    waiting = {found.requester: found for found in asked.requests.values() if found.outcome == "in_progress"}
    assert {found.generation for found in waiting.values()} == {asked.prepared.id}
    assert set(waiting) == {"alice", "bob"}
    assert violations(asked) == ()
    repaired = switched(asked, 300)
    assert [repaired.requests[found.id].outcome for found in waiting.values()] == ["done", "done"]
    assert repaired.requests[waiting["bob"].id].ended == repaired.epoch
    assert violations(repaired) == ()


def test_a_request_ends_with_a_dropped_preparation() -> None:
    state = applied(joining(founded(), 1, 5), RequestCdcGeneration(SEED))
    state = applied(state, CancelOperation(operation_of(state), "no"))
    assert [found.outcome for found in state.requests.values()] == ["dropped"]
    assert violations(state) == ()


def test_a_request_ends_with_its_operation(one: ClusterState) -> None:
    state = joining(one, 2, 5)
    first, *_ = parts(state)
    state = applied(state, first, RequestCdcGeneration(SEED))
    assert [found.outcome for found in state.requests.values()] == ["in_progress"]
    assert state.prepared is not None
    assert state.prepared.operation == operation_of(state)
    state = applied(state, CancelOperation(operation_of(state), "no"))
    assert state.prepared is None
    assert [found.outcome for found in state.requests.values()] == ["dropped"]
    assert violations(state) == ()


def test_records_of_requests_that_ended_are_bounded(one: ClusterState) -> None:
    state = applied(one, ChangeSettings((("operations_kept_max", 2),)))
    state = applied(state, *(RequestCdcGeneration(SEED, name) for name in ("a", "b", "c")))
    assert sorted(found.requester for found in state.requests.values()) == ["b", "c"]


def test_a_replacement_by_a_node_with_other_shards_is_repaired(one: ClusterState) -> None:
    """Version 1 of the request compares only the ends of ranges, permanently."""
    (owner,) = (found for found in one.nodes.values() if found.tokens)
    other = replace(one, nodes=one.nodes.set(owner.id, replace(owner, shards=owner.shards + 1)))
    assert unchanged(other, RequestCdcGeneration(SEED, ""))
    repaired = switched(applied(other, RequestCdcGeneration(SEED)), 300)
    assert {len(part.streams) for part in repaired.generations[-1].ranges} == {owner.shards + 1}
    assert is_optimal(repaired)
    assert [found.outcome for found in repaired.requests.values()] == ["done"]


def test_a_preparation_survives_another_join() -> None:
    state = applied(joining(founded(), 1, 5), node(2))
    state = applied(state, RequestCdcGeneration(SEED))
    first = operation_of(state)
    state = applied(state, Join(node(2).id, (9,), SEED))
    state = applied(state, CancelOperation(first, "no"))
    assert state.prepared is not None
    assert to_prepare(state) is not None
