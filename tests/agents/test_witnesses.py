"""Malformed acknowledgements of a node block no other node, and the coordinator reports the field and the rule."""

from __future__ import annotations

import pytest

from ringlog.client.node_reports import RowsSum, checked
from ringlog.kernel.commands.topology.operations import AdvanceOperation
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import StreamReport, replace
from ringlog.operator.views.views import operation as shown
from ringlog.operator.views.waiting import COORDINATOR, waiting
from ringlog.operator.views.words import described
from ringlog.protocol.coordinator.ack_book import AckBook
from ringlog.protocol.coordinator.core import CoordinatorView, propose, rejections
from ringlog.protocol.coordinator.witnesses import complaints, reports_of, witnesses_of
from ringlog.wire.records import NodeAck, RefusedProposal
from tests.kernel.operations.driver import driven
from tests.operator.test_waiting import all_acks, asked, goes_on

Acks = dict[str, NodeAck]


@pytest.fixture(scope="module")
def streaming() -> tuple[ClusterState, str]:
    """Return a join of x in write_both_read_old that waits only for the report of x."""
    state, operation = asked("join")
    return driven(state, operation, "write_both_read_old"), operation


def reported(state: ClusterState, **wrong: object) -> Acks:
    """Return the acknowledgements of all nodes, with one changed field in x's report."""
    acks = all_acks(state)
    report = acks["x"].reports[-1]
    return acks | {"x": replace(acks["x"], reports=(replace(report, **wrong),))}  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"checksum": ""}, "report of x is malformed: checksum '' must be 2 to 128 lower-case hex digits"),
        ({"checksum": "ABCD"}, "report of x is malformed: checksum 'ABCD' must be"),
        ({"rows": -1}, "report of x is malformed: rows -1 must be 0 or above"),
        ({"node": "n1"}, "report of x names node 'n1', not its id x"),
    ],
)
def test_an_unusable_report_is_reported(
    streaming: tuple[ClusterState, str], wrong: dict[str, object], told: str
) -> None:
    state, name = streaming
    found = state.operations[name]
    assert waiting(state, found, all_acks(state)).text == COORDINATOR
    acks = reported(state, **wrong)
    assert not goes_on(state, name, acks)
    assert reports_of(state, acks, found) == ()
    waits = waiting(state, found, acks)
    assert f"bad_field: {told}" in waits.text
    assert waits.nodes == ("x",)
    (refusal,) = rejections(CoordinatorView(state, acks, state.epoch, 0))
    assert (refusal.subject, refusal.kind, refusal.code) == (name, "AdvanceOperation", "bad_field")
    assert refusal.detail.startswith(told)


def test_a_malformed_acknowledgement_of_an_uninvolved_node_blocks_no_operation(
    streaming: tuple[ClusterState, str],
) -> None:
    """Every proposal contains the acknowledging nodes: one that the log refuses would stop all operations."""
    state, name = streaming
    acks = all_acks(state)
    state = replace(state, nodes=state.nodes.set("y", replace(state.nodes["n5"], id="y", name="y")))
    acks["y"] = replace(acks["n5"], node="y", applied=-1)
    assert "y" not in {witness.node for witness in witnesses_of(state, acks)}
    proposals = [one.command for one in propose(CoordinatorView(state, acks, state.epoch, 0))]
    assert [one.operation for one in proposals if isinstance(one, AdvanceOperation)] == [name]
    (complaint,) = complaints(state, acks, state.operations[name])
    assert complaint[0] == "y"
    assert complaint[1].startswith("the acknowledgement of y is malformed: applied -1 ")


def test_an_acknowledgement_with_a_wrong_name_or_cluster_is_reported(streaming: tuple[ClusterState, str]) -> None:
    state, name = streaming
    ids = replace(state, nodes=state.nodes.set("id-x", replace(state.nodes["x"], id="id-x")).delete("x"))
    ids = replace(ids, node_names=ids.node_names.set("x", "id-x"))
    acks = all_acks(state)
    told = dict(complaints(ids, {"x": acks["x"]}, replace(state.operations[name], stage="prepared")))
    assert told == {"id-x": "x acknowledges with its name as the node; the node must be its id, id-x"}
    foreign = {"n1": replace(acks["n1"], cluster_id="d")}
    assert dict(complaints(state, foreign, state.operations[name])) == {
        "n1": f"n1 acknowledges cluster d, this cluster is {state.cluster_id}"
    }


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"cluster_id": "d"}, "n1 acknowledges cluster d, this cluster is c"),
        ({"applied": -1, "state_id": "its own"}, "the acknowledgement of n1 is malformed: applied -1"),
    ],
)
def test_ignored_last_acknowledgements_are_reported(
    streaming: tuple[ClusterState, str], wrong: dict[str, object], told: str
) -> None:
    """The book returns only counted acknowledgements, which have no fault."""
    state, name = streaming
    book = AckBook()
    for number, ack in enumerate(all_acks(state).values()):
        book.take(number, ack)
    book.take(100, replace(all_acks(state)["n1"], **wrong))  # type: ignore[arg-type]
    (refusal,) = rejections(CoordinatorView(state, book.newest(state), state.epoch, 0, latest_acks=book.latest()))
    assert (refusal.subject, refusal.code) == (name, "bad_field")
    assert refusal.detail.startswith(told)


def test_a_refusal_of_the_coordinator_is_shown_with_code_and_time(streaming: tuple[ClusterState, str]) -> None:
    state, name = streaming
    view = shown(state, state.operations[name], all_acks(state))
    view["refused"] = [
        {"subject": name, "command": "AdvanceOperation", "code": "bad_field", "detail": "no", "since": 5_000_000}
    ]
    assert RefusedProposal(**view["refused"][0]).since == 5_000_000
    wanted = f"AdvanceOperation of {name} was rejected since 1970-01-01 00:00:05.000000 UTC: bad_field: no"
    assert wanted in described(view)


def test_a_sum_of_rows_makes_a_report_that_the_log_takes(streaming: tuple[ClusterState, str]) -> None:
    state, name = streaming
    sent, got = RowsSum(), RowsSum()
    for row in (b"a", b"b", b"b"):
        sent.add(row)
    for row in (b"b", b"a", b"b"):
        got.add(row)
    assert sent.checksum == got.checksum != RowsSum().checksum
    report = got.report("x", name)
    assert report.rows == 3
    acks = all_acks(state)
    assert goes_on(state, name, acks | {"x": replace(acks["x"], reports=(report,))})
    assert goes_on(state, name, acks | {"x": replace(acks["x"], reports=(RowsSum().report("x", name),))})
    with pytest.raises(ValueError, match="checksum 'XY' must be"):
        checked(StreamReport("x", name, 0, "XY"))


def test_nodes_that_left_do_not_acknowledge(streaming: tuple[ClusterState, str]) -> None:
    """Otherwise each step of every operation would contain all former nodes."""
    state, _ = streaming
    acks = all_acks(state)
    assert "n1" in {witness.node for witness in witnesses_of(state, acks)}
    gone = replace(state, nodes=state.nodes.set("n1", replace(state.nodes["n1"], state="left")))
    assert "n1" not in {witness.node for witness in witnesses_of(gone, acks)}
