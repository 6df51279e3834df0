"""The rebalancer: a zone comes to rest by what it asks for and what nodes say, however many are silent or die."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from ringlog.kernel.commands.cluster.cluster import ChangeSettings
from ringlog.kernel.commands.control.recovery import EnterRecovery, LeaveRecovery
from ringlog.kernel.commands.placement.rebalances import CancelRebalance, FinishCancel, ResetPartitions
from ringlog.kernel.commands.placement.tablets import MigrateTablets
from ringlog.kernel.commands.placement.zones import AlterZone, SetDataNodes
from ringlog.kernel.commands.topology.nodes import DeclareUp
from ringlog.kernel.history import state_id_at
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.model.zones import HIGH_AVAILABILITY, NEVER, ZonePartition
from ringlog.kernel.zones.resets import has_quorum
from ringlog.node.protocol.groups import Member
from ringlog.protocol.controller import ReportRejections, Submit, Wait
from ringlog.protocol.coordinator.ack_book import NewAcks, ReadAcks
from ringlog.protocol.effects import Newest, Until, WallClock, run_steps
from ringlog.protocol.rebalancer.core import RebalancerView, propose
from ringlog.protocol.rebalancer.data_nodes import Timers, new_data_nodes, updated_timers
from ringlog.protocol.rebalancer.rebalancer import rebalance
from ringlog.protocol.rebalancer.zone_groups import (
    COPY,
    SessionReports,
    awaited,
    awaiting_return,
    session,
    session_reports,
)
from ringlog.protocol.submission.results import AppliedResult, RejectedResult
from ringlog.wire.ids import time_of
from ringlog.wire.records import NodeAck
from tests.kernel.entries import applied
from tests.kernel.zones.placed import with_data
from tests.kernel.zones.scenes import (
    NoRows,
    done,
    down,
    ids,
    joined,
    left,
    moved,
    partition,
    reset,
    shown,
    to,
    tried,
    trigger,
    with_zone,
)


class Late(NoRows):
    """Replicas that never follow, of these nodes."""

    def has_caught_up(self, partition: ZonePartition) -> bool:
        return False


def acks_of(state: ClusterState, letters: str, late: str = "") -> dict[str, NodeAck]:
    """What these nodes say under this state, all of it on their disks; replicas of ``late`` do not run."""
    found = {}
    for name in letters:
        (node,) = ids(name)
        words = Member(node, Late() if name in late else NoRows()).reports(state, state.epoch)
        where = state.epoch, state.epoch, words, 0, 0, (), state_id_at(state, state.epoch)
        found[node] = NodeAck(state.cluster_id, node, "1", *where)
    return found


def said(state: ClusterState, letters: str, late: str = "") -> SessionReports:
    return session_reports(state, acks_of(state, letters, late))


def led(state: ClusterState, letters: str, late: str = "", rounds: int = 40) -> tuple[ClusterState, list[str]]:
    """The state when the rebalancer has nothing more to ask for while these nodes speak, and what it asked for."""
    asked: list[str] = []
    for _ in range(rounds):
        timers = updated_timers(Timers(), state)
        late_enough = time_of(state.state_id) + 10**9
        found = propose(RebalancerView(state, said(state, letters, late), new_data_nodes(timers, state, late_enough)))
        if not found:
            return state, asked
        state = done(state, found[0].command)
        asked.append(type(found[0].command).__name__)
    raise AssertionError(f"no end: {asked}")


def test_who_comes_and_other_numbers_of_replicas() -> None:
    state, asked = led(joined(with_zone("AB", replicas=2, partitions=4), "C"), "ABC")
    assert asked[:2] == ["SetDataNodes", "TriggerRebalance"]
    assert set(asked[2:]) == {"SwitchStable"}
    state, _ = led(done(state, AlterZone("z", replicas=3)), "ABC")
    assert [shown(partition(state, number).stable) for number in range(4)] == ["ABC"] * 4
    assert led(state, "ABC")[1] == []


def test_partitions_that_come_later() -> None:
    state, _ = led(done(with_zone("ABC", replicas=3), AlterZone("z", partitions=3)), "ABC")
    assert [shown(partition(state, number).stable) for number in range(3)] == ["ABC"] * 3


def test_nobody_s_step_counts_before_who_comes_has_a_replica() -> None:
    state, asked = led(done(with_zone("ABC", replicas=1), AlterZone("z", replicas=3)), "ABC", late="ABC")
    assert asked == ["TriggerRebalance"]
    who = partition(state)
    assert len(awaited(who, said(state, "ABC", newcomers(state)))) == 2
    assert len(awaited(who, said(state, "ABC", "ABC"))) == 3, "nor does who has it before it has caught up"
    assert led(state, "ABC")[0].zone_partitions["z/0"].stable != who.stable


@pytest.mark.parametrize(("speak", "goes_on"), [("ABC", True), ("AB", True), ("AC", True), ("A", False), ("", False)])
def test_a_majority_of_the_voters_before_must_have_a_step(speak: str, goes_on: bool) -> None:
    state = done(with_zone("ABC", replicas=3), AlterZone("z", replicas=1))
    state, asked = led(state, speak)
    stays = shown(partition(led(state, "ABC")[0]).stable)
    expected = goes_on and stays in speak
    assert ("SwitchStable" in asked) is expected


def test_words_of_an_older_step_do_not_count() -> None:
    state, _ = led(done(with_zone("ABC", replicas=1), AlterZone("z", replicas=3)), "")
    old = said(state, "ABC")
    assert awaited(partition(state), old) == ()
    moved, _ = led(state, "ABC")
    again, _ = led(done(moved, AlterZone("z", replicas=1)), "")
    assert awaited(partition(again), old) == ids("ABC")


def test_no_word_is_said_of_what_is_not_on_the_disk() -> None:
    state, _ = led(done(with_zone("ABC", replicas=3), AlterZone("z", replicas=1)), "")
    revision = partition(state).revisions.pending
    for node in ids("ABC"):
        assert Member(node, NoRows()).reports(state, revision - 1) == ()
        assert len(Member(node, NoRows()).reports(state, revision)) == 1


def pending(letters: str = "ABC") -> ClusterState:
    """Partition 0 of one replica is to have three, and nobody has said anything."""
    return led(done(with_zone(letters, replicas=1), AlterZone("z", replicas=3)), "")[0]


def cancel_of(state: ClusterState) -> CancelRebalance:
    return CancelRebalance("z", 0, partition(state).revisions.pending)


def test_a_cancel_ends_when_the_voters_before_have_returned() -> None:
    state = done(pending(), cancel_of(pending()))
    was = partition(state).stable
    assert awaiting_return(partition(state), said(state, "")) == ids(shown(was))
    assert led(state, "")[1] == []
    ended, asked = led(state, "ABC")
    assert asked == ["FinishCancel"]
    assert partition(ended).stable == was
    assert not partition(ended).pending


def test_a_cancel_that_comes_too_late_is_answered_by_the_new_configuration() -> None:
    state = pending()
    words = said(state, "ABC")
    state = done(state, cancel_of(state))
    (found,) = propose(RebalancerView(state, words))
    assert found.command == FinishCancel("z", 0, partition(state).revisions.pending, "already_new")
    assert shown(partition(done(state, found.command)).stable) == "ABC"


def test_a_step_to_a_dead_node_gives_way_to_what_is_planned_and_only_to_that() -> None:
    state = pending()
    (dead, *_) = sorted(set("ABC") - set(shown(partition(state).stable)))
    alive = "".join(sorted(set("ABC") - {dead}))
    state = applied(state, *down(dead))
    assert led(state, alive)[1] == [], "it may come back"
    state, asked = led(done(state, AlterZone("z", replicas=1)), alive)
    assert asked == ["TriggerRebalance", "CancelRebalance", "FinishCancel"]
    assert not partition(state).pending


def test_a_step_whose_voters_are_lost_gives_way_to_what_is_planned() -> None:
    """Nobody comes with it: the only voter that it leaves is one of those before, and dies."""
    state = done(led(with_zone("ABC", replicas=3), "ABC")[0], AlterZone("z", replicas=1))
    state = done(state, trigger(state))
    dead = shown(partition(state).pending[0])
    alive = "".join(sorted(set("ABC") - {dead}))
    state = applied(state, *down(dead))
    assert led(state, alive)[1] == [], "it may come back"
    state, asked = led(moved(state, alive), alive)
    assert asked[:2] == ["CancelRebalance", "FinishCancel"]
    assert not partition(state).pending
    assert shown(partition(state).stable) in alive


@pytest.mark.parametrize("mode", ["strong", HIGH_AVAILABILITY])
def test_a_lost_majority_is_reset_where_zones_are_highly_available(mode: str) -> None:
    state = applied(led(with_zone("ABC", replicas=3, mode=mode), "ABC")[0], *down("BC"))
    assert led(state, "")[1] == [], "nobody has said what it has"
    state, asked = led(state, "A")
    assert (shown(partition(state).stable), "ResetPartitions" in asked) == (
        ("A", True) if mode == HIGH_AVAILABILITY else ("ABC", False)
    )
    for number, name in enumerate("BC", start=2):
        state = applied(state, DeclareUp(ids(name)[0], "mended"))
        state, _ = led(state, "ABC")
        grown = partition(state).stable
        assert grown is not None
        assert len(grown.nodes) == (number if mode == HIGH_AVAILABILITY else 3), "who is back is taken back, one by one"


def test_a_reset_ahead_of_what_is_pending_happens_once() -> None:
    """The forced step is not the last one, so it leaves stable without a majority: the group has one by then."""
    state, _ = led(with_zone("ABC", replicas=2, mode=HIGH_AVAILABILITY), "ABC")
    gone, stays = shown(partition(state).stable)
    state, asked = led(left(state, gone), "")
    assert asked == ["SetDataNodes", "TriggerRebalance"]
    state, asked = led(state, "ABC".replace(gone, ""))
    assert asked == ["ResetPartitions", "SwitchStable", "SwitchStable"]
    stable = partition(state).stable
    assert stable is not None
    assert stays in shown(stable)
    assert len(stable.nodes) == 2


def test_the_survivor_with_the_longest_log_goes_on() -> None:
    class Logs(NoRows):
        def __init__(self, length: int) -> None:
            self.length = length

        def log_length(self, partition: ZonePartition) -> int:
            return self.length

    state = applied(led(with_zone("ABCDE", replicas=5, mode=HIGH_AVAILABILITY), "ABCDE")[0], *down("CDE"))
    acks = {}
    for name, length in {"A": 3, "B": 5}.items():
        (node,) = ids(name)
        words = Member(node, Logs(length)).reports(state, state.epoch)
        acks[node] = NodeAck(
            state.cluster_id, node, "1", state.epoch, state.epoch, words, 0, 0, state_id=state.state_id
        )
    (found,) = propose(RebalancerView(state, session_reports(state, acks)))
    assert shown(partition(done(state, found.command)).pending[0]) == "B"


def test_a_word_that_no_log_takes_holds_up_the_partitions_that_need_it_and_no_others() -> None:
    """All that a zone resets is one entry: one length of a log that is none would have it refused as a whole."""
    state = led(with_zone("ABCDEF", replicas=1, partitions=6, mode=HIGH_AVAILABILITY), "ABCDEF")[0]
    state, _ = led(done(state, AlterZone("z", replicas=3)), "ABCDEF")
    state = applied(state, *down("DEF"))
    lost = [one for one in map(partial(partition, state), range(6)) if not has_quorum(state, state.zones["z"], one)]
    first, *others = lost
    acks, copy = acks_of(state, "ABC"), session(first, COPY)
    for node, ack in acks.items():
        wrong = tuple(replace(one, rows=-1) if one.operation == copy else one for one in ack.reports)
        acks[node] = replace(ack, reports=wrong)
    known = RebalancerView(state, session_reports(state, acks))
    resets = [one.command for one in propose(known) if isinstance(one.command, ResetPartitions)]
    assert [one.partitions for one in resets] == [tuple(one.number for one in others)]
    assert others, "there is more than one"


class Failing(NoRows):
    """A replica that does not follow before it was asked ``asks`` times; never, and says so, if that is 0."""

    def __init__(self, asks: int) -> None:
        self.asks = asks

    def has_caught_up(self, partition: ZonePartition) -> bool:
        self.asks -= 1
        return self.asks == 0

    def failure(self) -> int | None:
        return None if self.asks else 1


def words_with(state: ClusterState, replicas: dict[str, NoRows]) -> SessionReports:
    """What nodes with these replicas say."""
    acks = acks_of(state, "ABC")
    for name, one in replicas.items():
        (node,) = ids(name)
        acks[node] = replace(acks[node], reports=Member(node, one).reports(state, state.epoch))
    return session_reports(state, acks)


def newcomers(state: ClusterState) -> str:
    """The nodes that come to partition 0, by letter."""
    return "".join(sorted(set("ABC") - set(shown(partition(state).stable))))


def newcomer(state: ClusterState) -> str:
    """One of them."""
    return newcomers(state)[0]


def test_a_replica_that_can_never_follow_has_its_step_cancelled() -> None:
    state = pending()
    comes = newcomer(state)
    (found,) = propose(RebalancerView(state, words_with(state, {comes: Failing(0)})))
    assert found.command == CancelRebalance(
        "z", 0, partition(state).revisions.pending, f"the replica on {comes} can never follow it: rows_damaged"
    )
    was = partition(state).stable
    state, asked = led(done(state, found.command), "ABC", late=comes)
    assert asked == ["FinishCancel"]
    assert partition(state).stable == was
    assert led(state, "ABC")[1] == [], "its cause was acted on: the next change tries again"


def test_a_replica_that_fails_to_begin_five_times_comes_in_the_end() -> None:
    state = pending()
    comes, replica = newcomer(state), Failing(6)
    for _ in range(5):
        assert propose(RebalancerView(state, words_with(state, {comes: replica}))) == ()
    (found,) = propose(RebalancerView(state, words_with(state, {comes: replica})))
    assert shown(partition(done(state, found.command)).stable) == "ABC"


@pytest.mark.parametrize("mode", ["strong", HIGH_AVAILABILITY])
def test_a_minority_that_is_lost_is_no_reason_for_a_reset(mode: str) -> None:
    state = applied(led(with_zone("ABC", replicas=3, mode=mode), "ABC")[0], *down("C"))
    assert "ResetPartitions" not in led(state, "AB")[1]


def test_nodes_that_are_lost_together_are_one_reset_and_one_after_the_other_two() -> None:
    state, _ = led(with_zone("ABCDE", replicas=5, mode=HIGH_AVAILABILITY), "ABCDE")
    together, asked = led(applied(state, *down("CDE")), "AB")
    assert asked.count("ResetPartitions") == 1
    assert shown(partition(together).stable) == "AB"
    again, asked = led(applied(together, *down("B")), "A")
    assert asked.count("ResetPartitions") == 1
    assert shown(partition(again).stable) == "A"
    assert [len(link.nodes) for link in partition(again).chain] == [5, 2, 1]


def test_two_changes_of_data_nodes_are_two_requests_and_none_of_them_is_none() -> None:
    state, asked = led(joined(with_zone("A"), "B"), "ABC")
    state, more = led(joined(state, "C"), "ABC")
    assert [each.count("SetDataNodes") for each in (asked, more)] == [1, 1]
    state = done(state, SetDataNodes("z", (), state.epoch), AlterZone("z", scale_up=NEVER))
    assert led(state, "ABC")[1] == []


def test_who_was_given_up_by_a_reset_does_not_begin_when_it_is_back() -> None:
    state = applied(with_zone("ABC", replicas=3), *down("AB"))
    state = done(state, reset(state, {"C": 1}))
    state = applied(state, *(DeclareUp(node, "mended") for node in ids("AB")))
    assert [len(Member(node, NoRows()).reports(state, state.epoch)) for node in ids("ABC")] == [0, 0, 1]
    assert awaited(partition(state), said(state, "AB")) == ids("C")


def test_the_limit_on_moves_is_kept_and_those_behind_it_follow() -> None:
    state = applied(with_zone("ABC", replicas=1, partitions=6), ChangeSettings((("zone_moves_max", 2),)))
    state, asked = led(done(state, AlterZone("z", replicas=3)), "ABC")
    assert asked.count("TriggerRebalance") >= 3
    assert [shown(partition(state, number).stable) for number in range(6)] == ["ABC"] * 6


def test_every_request_that_comes_twice_changes_nothing() -> None:
    state = joined(with_zone("AB", replicas=2, partitions=2), "C")
    state = done(state, AlterZone("z", replicas=1))
    for _ in range(12):
        timers = updated_timers(Timers(), state)
        found = propose(RebalancerView(state, said(state, "ABC"), new_data_nodes(timers, state, 10**18)))
        if not found:
            return
        state = done(state, found[0].command)
        after, code = tried(state, found[0].command)
        assert code or (after.zones, after.zone_partitions) == (state.zones, state.zone_partitions)
    raise AssertionError("no end")


class Enough(Exception):
    pass


class Driver:
    """Performs the effects of one rebalancer on a log; ``dies_at``: before its n-th request is asked."""

    def __init__(self, state: ClusterState, answer: Callable[[Submit], Any] | None = None) -> None:
        self.state = state
        self.answer = answer
        self.dies_at = 10**9
        self.asked: list[Submit] = []
        self.noted: list[ReportRejections] = []
        self.waits: list[Wait] = []

    def perform(self, effect: Any) -> Any:
        match effect:
            case Newest():
                return self.state
            case WallClock():
                return time_of(self.state.state_id)
            case ReadAcks():
                return self._acks()
            case NewAcks():
                self.waits.append(effect.wait)
                if len(self.waits) > 20:
                    raise Enough
                return self._acks()
            case Submit():
                self.asked.append(effect)
                if len(self.asked) >= self.dies_at:
                    raise Enough
                return self._applied(effect) if self.answer is None else self.answer(effect)
            case ReportRejections():
                self.noted.append(effect)
            case Until():
                return effect.found(self.state)
        return None

    def _acks(self) -> list[tuple[int, NodeAck]]:
        return list(enumerate(acks_of(self.state, "ABC").values(), start=100 * len(self.waits)))

    def _applied(self, effect: Submit) -> Any:
        proposal = effect.proposal
        self.state, code = tried(self.state, proposal.command)
        if code:
            return RejectedResult(proposal.request_id, code, "", self.state.epoch)
        return AppliedResult(proposal.request_id, self.state.epoch)

    def run(self) -> None:
        try:
            run_steps(rebalance(), self.perform)
        except Enough:
            return


BEGIN = joined(with_zone("AB", replicas=2, partitions=2), "C")


def test_nothing_is_asked_twice_and_a_rest_is_a_wait_for_news() -> None:
    driver = Driver(done(BEGIN, AlterZone("z", replicas=1)))
    driver.run()
    assert driver.waits[-1] is Wait.NEWS
    assert len({one.proposal.request_id for one in driver.asked}) == len(driver.asked)
    assert not any(one.pending for one in driver.state.zone_partitions.values())
    assert driver.noted[-1].found == ()


@pytest.mark.parametrize("dies_at", range(1, 7))
def test_an_instance_that_dies_before_any_request_loses_and_doubles_none(dies_at: int) -> None:
    """Another one takes over, and asks for the same: the log ends alike."""
    whole = Driver(BEGIN)
    whole.run()
    first, second = Driver(BEGIN), Driver(BEGIN)
    first.dies_at = dies_at
    first.run()
    second.state = first.state
    second.run()
    if len(first.asked) == dies_at:
        assert second.asked[0].proposal.command == first.asked[-1].proposal.command
    applied_by_both = [*first.asked[: dies_at - 1], *second.asked]
    assert [one.proposal.command for one in applied_by_both] == [one.proposal.command for one in whole.asked]
    assert second.state.zone_partitions == whole.state.zone_partitions


def test_a_refusal_is_told_and_followed_by_a_pause() -> None:
    driver = Driver(BEGIN, lambda effect: RejectedResult(effect.proposal.request_id, "too_large", "z", 9))
    driver.run()
    assert driver.noted[0].found[-1].code == "too_large"
    assert driver.waits[1] is Wait.PAUSE
    assert len(driver.asked) > 1, "it is tried again"


def test_what_waits_for_a_dead_node_is_told() -> None:
    state = applied(pending(), *down("".join(sorted(set("ABC") - set(shown(partition(pending()).stable))))))
    driver = Driver(state, lambda _: None)
    driver._acks = list  # type: ignore[method-assign]
    driver.run()
    assert [(one.subject, one.kind, one.code) for one in driver.noted[-1].found] == [
        ("z/0", "SwitchStable", "gate_not_met")
    ]


def test_tablets_that_a_recovery_held_up_move_when_it_is_over() -> None:
    """Nothing else of the state changes with its end."""
    begun = done(to(with_data("ABC", "D", partitions=1, replicas=3), "ABD"), EnterRecovery("damaged", "ops"))

    class Recovering(Driver):
        def _acks(self) -> list[tuple[int, NodeAck]]:
            if len(self.waits) == 10:
                assert not self.asked, "a recovery goes on"
                self.state = done(self.state, LeaveRecovery("mended", "ops"))
            return list(enumerate(acks_of(self.state, "ABCD").values(), start=100 * len(self.waits)))

    driver = Recovering(begun)
    driver.run()
    assert [type(one.proposal.command) for one in driver.asked] == [MigrateTablets]
