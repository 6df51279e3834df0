"""The balancer's protocol, effect by effect, and the newest load of each node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ringlog.kernel.balance.advice import Advice, advise
from ringlog.kernel.balance.model import BalancePlan
from ringlog.kernel.balance.reports import WINDOW_US, Reports
from ringlog.kernel.balance.source import collect_input
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import replace
from ringlog.protocol.balancer import balancer
from ringlog.protocol.balancer.balancer import PLANS_PER_ROUND, NewLoads, ReadLoads, balance, complaints
from ringlog.protocol.balancer.load_book import UNREADABLE, ReceivedLoad, ignored, measured, take
from ringlog.protocol.balancer.load_reports import BRIEFLY_US, SELDOM_US, LoadReportSchedule, load_of, own_tablets
from ringlog.protocol.controller import ReportRejections, Submit, Wait
from ringlog.protocol.effects import Newest, Until, run_steps
from ringlog.protocol.submission.results import AppliedResult, RejectedResult
from ringlog.wire.records import NodeLoad, TableLoad, decode_node_load, encode_node_load
from tests.kernel.balance.test_advice import PILED
from tests.kernel.balance.test_source import node

N1, N2 = "n1", "n2"
T = PILED.tables["ks.t"].id


def load(node: str, sizes: dict[int, int], capacity: int = 1 << 40, at: int = 0) -> NodeLoad:
    return NodeLoad(node, at, capacity, (TableLoad("ks.t", tuple(sizes), tuple(sizes.values()), id=T, count=8),))


class Enough(Exception):
    pass


class Driver:
    """Performs the effects of one balancer; ``answer`` returns the outcome of a proposal."""

    def __init__(self, state: ClusterState, answer: Callable[[Submit], Any]) -> None:
        self.state = state
        self.answer = answer
        self.loads: tuple[ReceivedLoad, ...] = ()
        self.heard: list[tuple[ReceivedLoad, ...]] = []
        self.asked: list[Submit] = []
        self.noted: list[ReportRejections] = []
        self.waits: list[Wait] = []

    def perform(self, effect: Any) -> Any:
        match effect:
            case Newest():
                return self.state
            case ReadLoads():
                return self.loads
            case NewLoads():
                self.waits.append(effect.wait)
                if len(self.waits) > max(4, len(self.heard)):
                    raise Enough
                return self.heard[len(self.waits) - 1] if len(self.waits) <= len(self.heard) else ()
            case Submit():
                self.asked.append(effect)
                return self.answer(effect)
            case ReportRejections():
                self.noted.append(effect)
            case Until():
                return effect.found(self.state)
        return None

    def run(self) -> None:
        try:
            run_steps(balance(), self.perform)
        except Enough:
            return


def test_plans_follow_at_once_and_each_state_is_planned_once() -> None:
    def applied(effect: Submit) -> AppliedResult:
        driver.state = replace(driver.state, epoch=driver.state.epoch + 1)
        return AppliedResult(effect.proposal.request_id, driver.state.epoch)

    driver = Driver(PILED, applied)
    driver.run()
    assert len(driver.asked) == 1, "the inputs of a plan have not changed"
    assert driver.waits[:2] == [Wait.NOTHING, Wait.NOTHING]
    assert driver.waits[2] is Wait.NEWS


def test_a_standby_sends_the_same_request_with_the_same_id() -> None:
    first, second = (Driver(PILED, lambda _: None) for _ in range(2))
    for driver in (first, second):
        driver.answer = lambda effect: RejectedResult(effect.proposal.request_id, "awaits_tablets", "", 9)
        driver.run()
    assert first.asked[0].proposal == second.asked[0].proposal


def test_a_refusal_is_reported_and_followed_by_a_pause() -> None:
    driver = Driver(PILED, lambda effect: RejectedResult(effect.proposal.request_id, "streaming_limit", "n1", 9))
    driver.run()
    assert driver.noted[0].found[-1].code == "streaming_limit"
    assert driver.waits[1] is Wait.PAUSE
    assert len(driver.asked) > 1, "the balancer tries again"


def test_only_the_newest_report_of_each_node_counts() -> None:
    heard = [ReceivedLoad(load(N1, {0: 5}), 1), ReceivedLoad(load(N1, {0: 7}), 2), ReceivedLoad(load(N2, {1: 3}), 3)]
    reports = take(Reports(), heard, PILED)
    assert {node: one.loads["bytes"]["ks.t"] for node, one in measured(reports, PILED).items()} == {
        N1: {0: 7},
        N2: {1: 3},
    }
    later = take(reports, [ReceivedLoad(load(N2, {1: 3}), 3 + WINDOW_US)], PILED)
    assert measured(later, PILED).keys() == {N2}


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (None, UNREADABLE),
        (load(N1, {0: -1}), "negative"),
        (load("n9", {}), "unknown_node"),
        (load(N1, {99: 1}), "unknown_tablet"),
        (load(N1, {}, at=10**15), "clock_ahead"),
        (NodeLoad(N1, 0, 1, (TableLoad("ks.t", (0, 1), (5,), id=T, count=8),)), "not_a_number"),
    ],
)
def test_invalid_reports_are_ignored(bad: NodeLoad | None, code: str) -> None:
    reports = take(Reports(), [ReceivedLoad(load(N2, {}), 1), ReceivedLoad(bad, 1)], PILED)
    assert [found for _, found in ignored(reports, PILED)] == [code]
    assert measured(reports, PILED).keys() == {N2}


def test_complaints_end_with_their_cause() -> None:
    """The complaint about a node without a valid report ends with its next valid one."""

    def complaints_of(*heard: ReceivedLoad) -> list[tuple[str, str]]:
        reports = take(Reports(), heard, PILED)
        advice = advise(PILED, measured(reports, PILED))
        return [(one.code, one.detail) for one in complaints(PILED, advice, reports)]

    bad = ReceivedLoad(load(N1, {}, capacity=0), 1)
    names = PILED.nodes[N1].name
    good = [ReceivedLoad(load(node, {}), 1) for node in PILED.nodes if node != N1]
    assert complaints_of(bad, *good) == [
        ("no_capacity", f"the last report of {names} is ignored"),
        ("statistics_missing", f"{names}: it has not reported"),
    ]
    assert complaints_of(bad, *good, ReceivedLoad(load(N1, dict.fromkeys(range(8), 1)), 2)) == []


def test_a_node_reports_its_load_on_schedule() -> None:
    due = LoadReportSchedule(N1)
    own = due.due(PILED, 0)
    assert own == {"ks.t": tuple(range(8))} == own_tablets(PILED, N1)
    due.sent(own, 0)
    assert due.due(PILED, SELDOM_US - 1) is None
    assert due.due(PILED, SELDOM_US) == own
    assert own_tablets(PILED, N2) == {}
    made = load_of(PILED, N1, own, {"ks.t": {3: 9}}, 5)
    assert made.tables[0].bytes == (0, 0, 0, 9, 0, 0, 0, 0)
    assert decode_node_load(encode_node_load(made)) == made


def test_arrived_tablets_are_reported_soon() -> None:
    due = LoadReportSchedule(N1)
    due.sent({}, 0)
    assert due.due(PILED, BRIEFLY_US - 1) is None
    assert due.due(PILED, BRIEFLY_US) is not None


def test_a_report_without_capacity_is_ignored_and_does_not_stop_the_balancer() -> None:
    driver = Driver(PILED, lambda effect: AppliedResult(effect.proposal.request_id, driver.state.epoch))
    driver.loads = (ReceivedLoad(decode_node_load(encode_node_load(load(N1, {}, capacity=0))), 1),)
    driver.run()
    assert driver.asked, "the balancer plans by counts"
    assert [(one.subject, one.code) for one in driver.noted[0].found] == [("load", "no_capacity")]


def plans(monkeypatch: pytest.MonkeyPatch, state: ClusterState, *rounds: tuple[ReceivedLoad, ...]) -> list[int]:
    """Return the numbers of the rounds of reports after which the balancer planned."""
    planned: list[int] = []
    at_rest = Advice(collect_input(state, [], {}), BalancePlan(()))
    driver = Driver(state, lambda effect: None)
    monkeypatch.setattr(balancer, "advise", lambda *given: planned.append(len(driver.waits) - 1) or at_rest)
    driver.heard = list(rounds)
    driver.run()
    return planned


def test_an_unchanged_report_causes_no_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    first, again = ReceivedLoad(load(N1, {0: 5}), 1), ReceivedLoad(load(N1, {0: 5}, at=2), 2)
    (table,) = first.load.tables if first.load else ()
    busy = ReceivedLoad(NodeLoad(N1, 3, 1 << 40, (replace(table, reads=(7,)),)), 3)
    assert plans(monkeypatch, PILED, (first,), (again,), (busy,), (ReceivedLoad(load(N1, {0: 6}), 4),)) == [0, 3]
    rates = replace(PILED, settings=PILED.settings.set("balance_load_reads_percent", 10))
    assert plans(monkeypatch, rates, (first,), (again,), (busy,)) == [0, 2]


def test_plans_for_reports_do_not_grow_with_the_number_of_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of 64 nodes reports a new size, one after the other, twice."""
    names = [f"m{number}" for number in range(64)]
    state = replace(PILED, nodes=PILED.nodes.update({name: node(name) for name in names}))
    full = tuple(ReceivedLoad(load(name, {}), 1) for name in names)
    later = [(ReceivedLoad(load(name, {}, capacity=(1 << 30) + time), time),) for time in (2, 3) for name in names]
    assert len(plans(monkeypatch, state, full, *later)) == 1 + 2 * PLANS_PER_ROUND
