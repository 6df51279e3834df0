"""The balancer's protocol, effect by effect; the newest load of each node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ringlog.kernel.balance.reports import WINDOW_US, Reports
from ringlog.kernel.state import ClusterState
from ringlog.kernel.swift import replaced
from ringlog.protocol.answers import AppliedResult, RejectedResult
from ringlog.protocol.balancer import NewLoads, ReadLoads, balance
from ringlog.protocol.coordinator import Note, Submit, Wait
from ringlog.protocol.effects import Newest, Until, carry_out
from ringlog.protocol.load_book import UNREADABLE, Heard, measured, take
from ringlog.protocol.load_reports import BRIEFLY_US, SELDOM_US, LoadDue, load_of, own_tablets
from ringlog.wire.records import NodeLoad, TableLoad, decode_node_load, encode_node_load
from tests.kernel.balance.test_advice import PILED

N1, N2 = "n1", "n2"


def load(node: str, sizes: dict[int, int], capacity: int = 1 << 40, at: int = 0) -> NodeLoad:
    return NodeLoad(node, at, capacity, (TableLoad("ks.t", tuple(sizes), tuple(sizes.values())),))


class Enough(Exception):
    pass


class Driver:
    """Performs the effects of one balancer; ``answer`` gives what becomes of a proposal."""

    def __init__(self, state: ClusterState, answer: Callable[[Submit], Any]) -> None:
        self.state = state
        self.answer = answer
        self.asked: list[Submit] = []
        self.noted: list[Note] = []
        self.waits: list[Wait] = []

    def perform(self, effect: Any) -> Any:
        match effect:
            case Newest():
                return self.state
            case ReadLoads():
                return ()
            case NewLoads():
                self.waits.append(effect.wait)
                if len(self.waits) > 4:
                    raise Enough
                return ()
            case Submit():
                self.asked.append(effect)
                return self.answer(effect)
            case Note():
                self.noted.append(effect)
            case Until():
                return effect.found(self.state)
        return None

    def run(self) -> None:
        try:
            carry_out(balance(), self.perform)
        except Enough:
            return


def test_plans_follow_each_other_at_once_and_nothing_is_planned_twice_on_one_state() -> None:
    def applied(effect: Submit) -> AppliedResult:
        driver.state = replaced(driver.state, epoch=driver.state.epoch + 1)
        return AppliedResult(effect.proposal.request_id, driver.state.epoch)

    driver = Driver(PILED, applied)
    driver.run()
    assert len(driver.asked) == 1, "what a plan depends on has not changed"
    assert driver.waits[:2] == [Wait.NOTHING, Wait.NOTHING]
    assert driver.waits[2] is Wait.NEWS


def test_a_stand_by_asks_for_the_same_under_the_same_id() -> None:
    first, second = (Driver(PILED, lambda _: None) for _ in range(2))
    for driver in (first, second):
        driver.answer = lambda effect: RejectedResult(effect.proposal.request_id, "awaits_tablets", "", 9)
        driver.run()
    assert first.asked[0].proposal == second.asked[0].proposal


def test_a_refusal_is_told_and_followed_by_a_pause() -> None:
    driver = Driver(PILED, lambda effect: RejectedResult(effect.proposal.request_id, "streaming_limit", "n1", 9))
    driver.run()
    assert driver.noted[0].found[-1].code == "streaming_limit"
    assert driver.waits[1] is Wait.PAUSE
    assert len(driver.asked) > 1, "it is tried again"


def test_the_newest_report_of_each_node_counts_and_old_ones_do_not() -> None:
    heard = [Heard(load(N1, {0: 5}), 1), Heard(load(N1, {0: 7}), 2), Heard(load(N2, {1: 3}), 3)]
    reports = take(Reports(), heard, PILED)
    assert {node: one.loads["bytes"]["ks.t"] for node, one in measured(reports).items()} == {N1: {0: 7}, N2: {1: 3}}
    later = take(reports, [Heard(load(N2, {1: 3}), 3 + WINDOW_US)], PILED)
    assert measured(later).keys() == {N2}


def test_nonsense_is_counted() -> None:
    heard = [
        Heard(None, 1),
        Heard(load(N1, {0: -1}), 1),
        Heard(load("n9", {}), 1),
        Heard(load(N1, {99: 1}), 1),
        Heard(load(N1, {}, at=10**15), 1),
        Heard(NodeLoad(N1, 0, 1, (TableLoad("ks.t", (0, 1), (5,)),)), 1),
    ]
    found = dict(take(Reports(), heard, PILED).ignored)
    codes = {UNREADABLE, "negative", "unknown_node", "unknown_tablet", "clock_ahead", "not_a_number"}
    assert found == dict.fromkeys(codes, 1)


def test_what_a_node_reports_and_when() -> None:
    due = LoadDue(N1)
    own = due.due(PILED, 0)
    assert own == {"ks.t": tuple(range(8))} == own_tablets(PILED, N1)
    due.sent(own, 0)
    assert due.due(PILED, SELDOM_US - 1) is None
    assert due.due(PILED, SELDOM_US) == own
    assert own_tablets(PILED, N2) == {}
    made = load_of(PILED, N1, own, {"ks.t": {3: 9}}, 5)
    assert made.tables[0].bytes == (0, 0, 0, 9, 0, 0, 0, 0)
    assert decode_node_load(encode_node_load(made)) == made


def test_tablets_that_have_come_are_reported_soon() -> None:
    due = LoadDue(N1)
    due.sent({}, 0)
    assert due.due(PILED, BRIEFLY_US - 1) is None
    assert due.due(PILED, BRIEFLY_US) is not None
