"""Refusals and explanations use the names that operators typed, not the ids of the log."""

from __future__ import annotations

import pytest

from ringlog.kernel.balance.advice import advise
from ringlog.kernel.balance.reports import REPORT_CODES
from ringlog.kernel.commands.placement.tablets import Shard
from ringlog.kernel.commands.topology.movements import Assassinate, Leave, Remove, Replace
from ringlog.kernel.commands.topology.nodes import DeclareDown
from ringlog.kernel.commands.topology.operations import AdvanceOperation, CancelOperation
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.operations.stages import in_flight
from ringlog.kernel.values import replace
from ringlog.operator.answers import dry_run, explained, ways_after
from ringlog.operator.errors import Refused
from ringlog.operator.intents.intents import InvalidCommand, named, of_operation, operation_id
from ringlog.operator.rehearsal.rehearsal import acknowledgements
from ringlog.operator.views import tablets, views
from ringlog.operator.views.tablets import explanation, loads_view
from ringlog.operator.views.waiting import waiting
from ringlog.operator.views.words import with_names
from ringlog.protocol.balancer.load_book import REJECTED, UNREADABLE
from ringlog.protocol.coordinator.core import CoordinatorView, propose
from ringlog.protocol.submission.results import AppliedResult, RejectedResult
from ringlog.runtime.draw import SeededDraw
from ringlog.wire.records import NodeAck
from ringlog_sim.prefix import prefix_of
from ringlog_sim.shape import ClusterShape
from tests.kernel.entries import applied as folded
from tests.kernel.movements.clusters import placed, simple
from tests.kernel.operations.driver import applied, decided, refused
from tests.kernel.tablets import clusters
from tests.operator.printed_commands import state_after
from tests.operator.test_waiting import FIVE

STATE = clusters.with_table(clusters.three_racks(), clusters.factor(3), 4)


def ids() -> set[str]:
    return {*STATE.nodes, *STATE.table_ids}


def test_ids_of_nodes_and_tables_become_names() -> None:
    (node, *_), (table,) = sorted(STATE.nodes), STATE.table_ids
    other = "ffffffff-0000-4000-8000-000000000000"
    text = with_names(STATE, f"shard 0 of {node}, {table}: {other} and x{node}")
    assert text == f"shard 0 of {STATE.nodes[node].name}, {clusters.TABLE}: {other} and x{node}"


def test_refusals_of_tablets_name_nodes() -> None:
    one = clusters.migration(STATE)
    wrong = replace(one, from_=Shard(clusters.free_node(STATE), 0))
    rejected = clusters.outcome(STATE, clusters.MigrateTablets((wrong,)))
    assert any(one in rejected.detail for one in ids()), "the log has ids"
    shown = explained(STATE, rejected.code, rejected.detail)
    assert not any(one in shown for one in ids())
    assert STATE.nodes[wrong.from_.node].name in shown  # type: ignore[union-attr]


def test_explanations_of_tablets_name_nodes() -> None:
    for state in (STATE, folded(STATE, clusters.register(9))):
        for number in range(4):
            view = explanation(state, advise(state, {}), state.tablets[clusters.TABLE], number, {})
            assert not any(one in str(view) for one in ids())


def test_codes_of_the_balancer_follow_a_sentence() -> None:
    target = "each move would leave the source with less load than the target"
    assert tablets.stop_text("load_inversion") == f"no tablet needs to move: {target} (load_inversion)"
    assert (
        tablets.stop_text("streaming_limit")
        == "no tablet needs to move: the maximum number of streams is in progress (streaming_limit)"
    )
    row = {"node": None, "code": "unknown_node"}
    assert tablets.ignored_text(row).endswith("not registered is ignored: no such node was registered (unknown_node)")
    for code in (UNREADABLE, REJECTED, *REPORT_CODES):
        assert f"({code})" in tablets.ignored_text(row | {"code": code})
    view = explanation(STATE, advise(STATE, {}), STATE.tablets[clusters.TABLE], 0, {})
    *_, stop = view["stays"]
    assert list(tablets.explained(view))[-1].startswith(f"it stays: {stop['why']} ({stop['code']}, {stop['what']})")


def test_a_leave_refused_for_a_keyspace_names_the_keyspace() -> None:
    state = placed({name: place for name, place in FIVE.items() if name in ("n1", "n2", "n3")}, simple(3), simple(1))
    found = refused(state, Leave("n3"))
    assert found.code == "replication_impossible"
    assert explained(state, found.code, found.detail).endswith("(keyspaces: ks0)")


@pytest.mark.parametrize("command", [Remove("n2"), Replace("x", "n2")])
def test_a_refused_departure_names_the_last_resort(command: Remove | Replace) -> None:
    state = applied(placed(FIVE, simple(1)), DeclareDown("n2", "burnt"))
    found = refused(state, command)
    answer = RejectedResult("r", found.code, found.detail, state.epoch)
    (way,) = ways_after(state, named(command), answer)
    assert way.startswith("no other node has all rows of n2, as a last resort: ringlog node assassinate n2 (")
    assert state_after(state, way).nodes["n2"].state == "left"
    assert ways_after(state, named(command), replace(answer, code="range_locked")) == ()
    assert ways_after(state, named(command), AppliedResult("r", 1)) == ()
    assert decided(state, command) == found


def test_refusals_before_a_request_name_nodes() -> None:
    node = min(STATE.nodes)
    with pytest.raises(Refused) as error:
        dry_run(STATE, named(Assassinate(node)), SeededDraw(b"x"))
    assert not any(one in str(error.value) for one in ids())


# The displayed state of an operation.


CLUSTER = "11111111-1111-4111-8111-111111111111"


def _joining(stage: str) -> ClusterState:
    """Return a state with a second node whose join is in ``stage``."""
    states = prefix_of(ClusterShape(2, 0, 1, 1, 10_000, old=False)).states
    return next(state for state in states if [op.stage for op in in_flight(state)] == [stage] and len(state.nodes) == 2)


def test_an_operation_is_named_by_an_id_prefix() -> None:
    state, draw = _joining("prepared"), SeededDraw(b"x")
    (one,) = in_flight(state)
    for cancel in (CancelOperation("join", "why"), CancelOperation(one.id, "why")):
        assert of_operation(cancel)(state, draw) == CancelOperation(one.id, "why")
    unknown = CancelOperation("leave", "why")
    assert of_operation(unknown)(state, draw) == unknown
    cut = one.id[:-1]
    may_be = InvalidCommand("ambiguous_operation", f"{cut} may be {one.id}: pass the whole id")
    assert of_operation(CancelOperation(cut, "why"))(state, draw) == may_be, "the number may be of another one"
    assert operation_id(state, cut) == one.id
    found = operation_id(state, "join")
    assert isinstance(found, InvalidCommand), "a finished operation, too"
    assert all(f" {name}" in found.detail for name in state.operations)


def _moves_on(state: ClusterState, acks: dict[str, NodeAck]) -> bool:
    """Return whether the coordinator would advance the operation."""
    proposals = propose(CoordinatorView(state, acks, state.epoch, 0))
    return any(isinstance(proposal.command, AdvanceOperation) for proposal in proposals)


@pytest.mark.parametrize("stage", ["prepared", "write_both_read_old"])
def test_nodes_that_acknowledged_are_not_awaited(stage: str) -> None:
    state = _joining(stage)
    (operation,) = in_flight(state)
    assert waiting(state, operation, acknowledgements(state, 0)).text == "the coordinator"
    assert _moves_on(state, acknowledgements(state, 0))


@pytest.mark.parametrize("stage", ["prepared", "write_both_read_old"])
def test_acknowledgements_of_another_cluster_do_not_count(stage: str) -> None:
    state = _joining(stage)
    (operation,) = in_flight(state)
    acks = {node: replace(ack, cluster_id=CLUSTER) for node, ack in acknowledgements(state, 0).items()}
    assert "n2" in waiting(state, operation, acks).text
    assert not _moves_on(state, acks)


def test_a_report_of_a_node_that_gains_nothing_does_not_count() -> None:
    state = _joining("write_both_read_old")
    (operation,) = in_flight(state)
    acks: dict[str, NodeAck] = acknowledgements(state, 0)
    other = next(node for node in acks if node != operation.node)
    report = acks[operation.node].reports[0]
    acks[other] = replace(acks[other], reports=(replace(report, node=other),))
    acks[operation.node] = replace(acks[operation.node], reports=())
    assert waiting(state, operation, acks).text == "n2 to stream its rows"
    assert not _moves_on(state, acks)


def test_a_node_has_one_state_in_every_view() -> None:
    state = _joining("prepared")
    shown = {row["node"]: row["state"] for row in loads_view(state, {})}
    assert "bootstrapping" in shown.values()
    assert shown == {row["name"]: row["state"] for row in views.nodes(state)}
