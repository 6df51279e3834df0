"""A new kind of operation needs only one row. The test adds one at run time, without any other change.

The kind is *shrink*: a node gives up some of its tokens. Its row goes into ``KINDS``, and its rule replaces that of
``Move``, which has the same fields. Planning, barriers, streams, cancels, views, change topics and caches must handle
it. A hidden list of kinds in one of them makes these tests fail.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise

import pytest

from ringlog.cache import projection
from ringlog.kernel import registry
from ringlog.kernel.changes import OperationChange, diff
from ringlog.kernel.commands.topology.movements import Join, Leave, Move
from ringlog.kernel.invariants.check import violations
from ringlog.kernel.model.outcome import Decision, EntryContext, Rejected
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.movements.admission import admit, requested
from ringlog.kernel.movements.progress import waits_behind
from ringlog.kernel.operations import kinds
from ringlog.kernel.operations.kinds import KINDS, LEAVING, MOVING, Changes, OperationKind
from ringlog.kernel.operations.node_states import node_statuses
from ringlog.kernel.operations.plan import plan_movement
from ringlog.kernel.operations.stages import SWAP_STAGES, in_flight
from ringlog.kernel.values import replace
from ringlog.operator.views import views
from ringlog.operator.views.waiting import waiting
from ringlog.operator.views.words import described
from ringlog.wire.changes import decode_change, encode_change
from ringlog_testing.quorums import plans
from ringlog_testing.quorums.case import SEED, Case, CaseOptions, members
from ringlog_testing.quorums.description import Numbers, state_of
from ringlog_testing.quorums.description import described as cluster_of
from ringlog_testing.quorums.explore import Explorer, Findings
from ringlog_testing.quorums.model import QuorumRules
from ringlog_testing.quorums.walk import WalkStep, WalkWorld, drive
from tests.kernel.movements.clusters import network, placed, simple
from tests.kernel.operations.driver import admitted, applied

SHRINK = OperationKind("shrink", SWAP_STAGES, Changes.TOKENS, MOVING, reorders=True, shown="moving")


def decide_shrink(state: ClusterState, command: Move, context: EntryContext) -> Decision:
    """Admit a shrink that keeps the given tokens."""
    node = state.nodes[command.node]
    gone = tuple(token for token in node.tokens if token not in command.tokens)
    if not gone or node.state != "normal":
        return Rejected("bad_field", "tokens: it keeps all")
    operation = replace(requested(SHRINK, node.id, context), tokens=command.tokens, gone=gone)
    return admit(state, operation, plan_movement(state, operation), context)


def shrinks(state: ClusterState, options: CaseOptions) -> Iterator[Case]:
    """Yield a case for each node that gives up its first token, or all but the last."""
    for node in members(state):
        for kept in {node.tokens[1:], node.tokens[-1:]}:
            yield Case(f"{node.name} keeps {kept}", (), Move(node.id, kept, SEED))


@pytest.fixture(autouse=True)
def shrinking(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds.check_row(SHRINK)
    monkeypatch.setitem(KINDS, SHRINK.name, SHRINK)
    monkeypatch.setitem(registry.RULES, Move, decide_shrink)
    monkeypatch.setitem(plans.KINDS, SHRINK.name, shrinks)


def explored(numbers: Numbers) -> Findings:
    return Explorer(QuorumRules()).plans(state_of(cluster_of(numbers)), SHRINK.name, CaseOptions())


@pytest.mark.parametrize(
    "numbers",
    [
        Numbers(nodes=2, factor=1, tokens=2),
        Numbers(nodes=3, factor=2, tokens=3, racks=3),
        Numbers(nodes=5, tokens=2),
        Numbers(nodes=4, tokens=2, datacenters=2),
    ],
)
def test_each_shrink_plan_keeps_quorums_and_can_be_cancelled(numbers: Numbers) -> None:
    found = explored(numbers)
    assert (found.counterexamples, found.broken) == ({}, [])
    assert (found.refused, found.unpromised) == (0, 0)
    assert found.plans >= numbers.nodes
    assert found.entries == found.plans * len(SHRINK.stages)
    assert found.pairs > 0


def test_a_wrong_row_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The changed row claims that the node has left with its tokens, although it still owns others."""
    monkeypatch.setitem(KINDS, SHRINK.name, replace(SHRINK, node=LEAVING, reorders=False))
    walked, _ = drive(WalkWorld(state_of(cluster_of(Numbers(nodes=4, tokens=2)))), shrink_of_the_first())
    assert list(violations(walked[-1].state))


@pytest.fixture
def steps() -> tuple[WalkStep, ...]:
    walked, fault = drive(WalkWorld(state_of(cluster_of(Numbers(nodes=4, tokens=2)))), shrink_of_the_first())
    assert fault is None
    return walked


def shrink_of_the_first() -> Move:
    node = members(state_of(cluster_of(Numbers(nodes=4, tokens=2))))[0]
    return Move(node.id, node.tokens[:1], SEED)


def test_each_intermediate_state_is_valid_and_shown(steps: tuple[WalkStep, ...]) -> None:
    seen = []
    for step in steps[1:]:
        assert step.operation is not None
        assert list(violations(step.state)) == []
        view = views.operation(step.state, step.operation, {})
        assert (view["kind"], view["stage"]) == ("shrink", step.stage)
        assert described(view)[0].startswith(f"{step.operation.id} of ")
        if in_flight(step.state):
            assert waiting(step.state, step.operation, {}).text
            assert node_statuses(step.state)[step.operation.node].state == "moving"
        seen.append(step.stage)
    assert tuple(seen) == SHRINK.stages
    assert steps[-1].state.nodes[shrink_of_the_first().node].tokens == shrink_of_the_first().tokens


def test_change_topics_and_caches_contain_the_new_kind(steps: tuple[WalkStep, ...]) -> None:
    told, cached = [], []
    for before, after in pairwise(steps):
        for record in diff(before.state, after.state):
            if isinstance(record.value, OperationChange):
                assert decode_change(encode_change(record.value)) == record.value
                told.append((record.value.kind, record.value.stage))
        put = projection.delta(before.state, after.state).put
        cached += [json.loads(value)["stage"] for part, _, value in put if part == "operations"]
    assert told == [("shrink", stage) for stage in SHRINK.stages]
    assert cached == list(SHRINK.stages)


def test_the_new_kind_has_the_lowest_priority() -> None:
    """The order of rows is that of priorities: the newest kind waits for a later join."""
    nodes = {f"n{n}": ("d/r", [1000 * n, 1000 * n + 100]) for n in range(1, 9)} | {"x": ("d/r", [])}
    state = placed(nodes, simple(1))
    state = replace(state, settings=state.settings.set("operations_concurrent_max", 1))
    state, shrink = admitted(state, Move("n2", (2000,), SEED))
    state, join = admitted(state, Join("x", (7500,), SEED))
    assert [one.id for one in waits_behind(state, state.operations[shrink])] == [join]
    assert waits_behind(state, state.operations[join]) == ()


def test_exclusive_kinds_do_not_run_with_the_new_kind() -> None:
    state = placed({f"n{n}": ("dc1/r1", [1000 * n, 1000 * n + 100]) for n in range(1, 5)}, network(dc1=2))
    state = applied(state, Move("n2", (2000,), SEED))
    decision = registry.RULES[Leave](state, Leave("n2"), EntryContext(state.epoch + 1, "s", 1))
    assert isinstance(decision, Rejected)
    assert decision.code == "wrong_node_state"
