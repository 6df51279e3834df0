"""The rebalancer moves a zone to its target by requests and reports, even if nodes are silent or die."""

from __future__ import annotations

from collections.abc import Callable
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
from ringlog.kernel.values import replace
from ringlog.kernel.zones.resets import has_quorum
from ringlog.protocol.controller import ReportRejections, Submit, Wait
from ringlog.protocol.coordinator.ack_book import NewAcks, ReadAcks
from ringlog.protocol.effects import Newest, Until, WallClock, run_steps
from ringlog.protocol.nodes.groups import Member
from ringlog.protocol.rebalancer.core import RebalancerView, propose
from ringlog.protocol.rebalancer.data_nodes import Timers, new_data_nodes, updated_timers
from ringlog.protocol.rebalancer.rebalancer import rebalance
from ringlog.protocol.rebalancer.zone_groups import (
    COPY,
    SessionReports,
    awaiting_return,
    session,
    session_reports,
    unanswered_nodes,
)
from ringlog.protocol.submission.results import AppliedResult, RejectedResult
from ringlog.wire.ids import time_of
from ringlog.wire.records import NodeAck
from tests.kernel.entries import applied
from tests.kernel.zones.states import (
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
from tests.kernel.zones.zone_keyspaces import with_data


class Late(NoRows):
    """The replicas of these nodes never catch up."""

    def has_caught_up(self, partition: ZonePartition) -> bool:
        return False


def acks_of(state: ClusterState, letters: str, late: str = "") -> dict[str, NodeAck]:
    """Return the acknowledgements of these nodes under this state, with everything on disk; replicas of ``late`` do not
    run.
    """
    found = {}
    for name in letters:
        (node,) = ids(name)
        words = Member(node, Late() if name in late else NoRows()).reports(state, state.epoch)
        where = state.epoch, state.epoch, words, 0, 0, (), state_id_at(state, state.epoch)
        found[node] = NodeAck(state.cluster_id, node, "1", *where)
    return found


def reports_of(state: ClusterState, letters: str, late: str = "") -> SessionReports:
    return session_reports(state, acks_of(state, letters, late))


def final_state(state: ClusterState, letters: str, late: str = "", rounds: int = 40) -> tuple[ClusterState, list[str]]:
    """Return the state after the rebalancer's last request while these nodes report, and its requests."""
    asked: list[str] = []
    for _ in range(rounds):
        timers = updated_timers(Timers(), state)
        late_enough = time_of(state.state_id) + 10**9
        found = propose(
            RebalancerView(state, reports_of(state, letters, late), new_data_nodes(timers, state, late_enough))
        )
        if not found:
            return state, asked
        state = done(state, found[0].command)
        asked.append(type(found[0].command).__name__)
    raise AssertionError(f"no end: {asked}")


def test_new_nodes_and_other_replication_factors() -> None:
    state, asked = final_state(joined(with_zone("AB", replicas=2, partitions=4), "C"), "ABC")
    assert asked[:2] == ["SetDataNodes", "TriggerRebalance"]
    assert set(asked[2:]) == {"SwitchStable"}
    state, _ = final_state(done(state, AlterZone("z", replicas=3)), "ABC")
    assert [shown(partition(state, number).stable) for number in range(4)] == ["ABC"] * 4
    assert final_state(state, "ABC")[1] == []


def test_partitions_added_later() -> None:
    state, _ = final_state(done(with_zone("ABC", replicas=3), AlterZone("z", partitions=3)), "ABC")
    assert [shown(partition(state, number).stable) for number in range(3)] == ["ABC"] * 3


def test_a_step_counts_only_after_the_new_node_has_a_replica() -> None:
    state, asked = final_state(done(with_zone("ABC", replicas=1), AlterZone("z", replicas=3)), "ABC", late="ABC")
    assert asked == ["TriggerRebalance"]
    who = partition(state)
    assert len(unanswered_nodes(who, reports_of(state, "ABC", newcomers(state)))) == 2
    assert len(unanswered_nodes(who, reports_of(state, "ABC", "ABC"))) == 3, (
        "an existing member does not count either before it has caught up"
    )
    assert final_state(state, "ABC")[0].zone_partitions["z/0"].stable != who.stable


@pytest.mark.parametrize(("speak", "goes_on"), [("ABC", True), ("AB", True), ("AC", True), ("A", False), ("", False)])
def test_a_majority_of_the_voters_before_must_have_a_step(speak: str, goes_on: bool) -> None:
    state = done(with_zone("ABC", replicas=3), AlterZone("z", replicas=1))
    state, asked = final_state(state, speak)
    stays = shown(partition(final_state(state, "ABC")[0]).stable)
    expected = goes_on and stays in speak
    assert ("SwitchStable" in asked) is expected


def test_reports_of_an_older_step_do_not_count() -> None:
    state, _ = final_state(done(with_zone("ABC", replicas=1), AlterZone("z", replicas=3)), "")
    old = reports_of(state, "ABC")
    assert unanswered_nodes(partition(state), old) == ()
    moved, _ = final_state(state, "ABC")
    again, _ = final_state(done(moved, AlterZone("z", replicas=1)), "")
    assert unanswered_nodes(partition(again), old) == ids("ABC")


def test_only_durable_data_is_reported() -> None:
    state, _ = final_state(done(with_zone("ABC", replicas=3), AlterZone("z", replicas=1)), "")
    revision = partition(state).revisions.pending
    for node in ids("ABC"):
        assert Member(node, NoRows()).reports(state, revision - 1) == ()
        assert len(Member(node, NoRows()).reports(state, revision)) == 1


def pending(letters: str = "ABC") -> ClusterState:
    """Return a state with a step of partition 0 from one replica to three, without any report."""
    return final_state(done(with_zone(letters, replicas=1), AlterZone("z", replicas=3)), "")[0]


def cancel_of(state: ClusterState) -> CancelRebalance:
    return CancelRebalance("z", 0, partition(state).revisions.pending)


def test_a_cancel_ends_when_the_voters_before_have_returned() -> None:
    state = done(pending(), cancel_of(pending()))
    was = partition(state).stable
    assert awaiting_return(partition(state), reports_of(state, "")) == ids(shown(was))
    assert final_state(state, "")[1] == []
    ended, asked = final_state(state, "ABC")
    assert asked == ["FinishCancel"]
    assert partition(ended).stable == was
    assert not partition(ended).pending


def test_a_late_cancel_gets_the_new_configuration() -> None:
    state = pending()
    words = reports_of(state, "ABC")
    state = done(state, cancel_of(state))
    (found,) = propose(RebalancerView(state, words))
    assert found.command == FinishCancel("z", 0, partition(state).revisions.pending, "already_new")
    assert shown(partition(done(state, found.command)).stable) == "ABC"


def test_a_step_to_a_dead_node_yields_only_to_a_planned_step() -> None:
    state = pending()
    (dead, *_) = sorted(set("ABC") - set(shown(partition(state).stable)))
    alive = "".join(sorted(set("ABC") - {dead}))
    state = applied(state, *down(dead))
    assert final_state(state, alive)[1] == [], "the node may come back"
    state, asked = final_state(done(state, AlterZone("z", replicas=1)), alive)
    assert asked == ["TriggerRebalance", "CancelRebalance", "FinishCancel"]
    assert not partition(state).pending


def test_a_step_with_lost_voters_yields_to_a_planned_step() -> None:
    """The step adds no node: its only remaining voter is one of the previous ones, and dies."""
    state = done(final_state(with_zone("ABC", replicas=3), "ABC")[0], AlterZone("z", replicas=1))
    state = done(state, trigger(state))
    dead = shown(partition(state).pending[0])
    alive = "".join(sorted(set("ABC") - {dead}))
    state = applied(state, *down(dead))
    assert final_state(state, alive)[1] == [], "the node may come back"
    state, asked = final_state(moved(state, alive), alive)
    assert asked[:2] == ["CancelRebalance", "FinishCancel"]
    assert not partition(state).pending
    assert shown(partition(state).stable) in alive


@pytest.mark.parametrize("mode", ["strong", HIGH_AVAILABILITY])
def test_a_lost_majority_is_reset_in_highly_available_zones(mode: str) -> None:
    state = applied(final_state(with_zone("ABC", replicas=3, mode=mode), "ABC")[0], *down("BC"))
    assert final_state(state, "")[1] == [], "no node has reported its position"
    state, asked = final_state(state, "A")
    assert (shown(partition(state).stable), "ResetPartitions" in asked) == (
        ("A", True) if mode == HIGH_AVAILABILITY else ("ABC", False)
    )
    for number, name in enumerate("BC", start=2):
        state = applied(state, DeclareUp(ids(name)[0], "mended"))
        state, _ = final_state(state, "ABC")
        grown = partition(state).stable
        assert grown is not None
        assert len(grown.nodes) == (number if mode == HIGH_AVAILABILITY else 3), (
            "returning nodes are added again one by one"
        )


def test_a_reset_before_pending_steps_happens_once() -> None:
    """The forced step is not the last one: the group has a majority when the step ends."""
    state, _ = final_state(with_zone("ABC", replicas=2, mode=HIGH_AVAILABILITY), "ABC")
    gone, stays = shown(partition(state).stable)
    state, asked = final_state(left(state, gone), "")
    assert asked == ["SetDataNodes", "TriggerRebalance"]
    state, asked = final_state(state, "ABC".replace(gone, ""))
    assert asked == ["ResetPartitions", "SwitchStable", "SwitchStable"]
    stable = partition(state).stable
    assert stable is not None
    assert stays in shown(stable)
    assert len(stable.nodes) == 2


def test_the_survivor_with_the_longest_log_continues() -> None:
    class Logs(NoRows):
        def __init__(self, length: int) -> None:
            self.length = length

        def log_length(self, partition: ZonePartition) -> int:
            return self.length

    state = applied(final_state(with_zone("ABCDE", replicas=5, mode=HIGH_AVAILABILITY), "ABCDE")[0], *down("CDE"))
    acks = {}
    for name, length in {"A": 3, "B": 5}.items():
        (node,) = ids(name)
        words = Member(node, Logs(length)).reports(state, state.epoch)
        acks[node] = NodeAck(
            state.cluster_id, node, "1", state.epoch, state.epoch, words, 0, 0, state_id=state.state_id
        )
    (found,) = propose(RebalancerView(state, session_reports(state, acks)))
    assert shown(partition(done(state, found.command)).pending[0]) == "B"


def test_an_invalid_report_blocks_only_its_own_partitions() -> None:
    """One entry contains all resets of a zone: one invalid log length would make the log refuse all of them."""
    state = final_state(with_zone("ABCDEF", replicas=1, partitions=6, mode=HIGH_AVAILABILITY), "ABCDEF")[0]
    state, _ = final_state(done(state, AlterZone("z", replicas=3)), "ABCDEF")
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
    assert others, "there are several"


class Failing(NoRows):
    """A replica that catches up after ``asks`` checks; with 0 it never does and reports a failure."""

    def __init__(self, asks: int) -> None:
        self.asks = asks

    def has_caught_up(self, partition: ZonePartition) -> bool:
        self.asks -= 1
        return self.asks == 0

    def failure(self) -> int | None:
        return None if self.asks else 1


def words_with(state: ClusterState, replicas: dict[str, NoRows]) -> SessionReports:
    """Return the reports of nodes with these replicas."""
    acks = acks_of(state, "ABC")
    for name, one in replicas.items():
        (node,) = ids(name)
        acks[node] = replace(acks[node], reports=Member(node, one).reports(state, state.epoch))
    return session_reports(state, acks)


def newcomers(state: ClusterState) -> str:
    """Return the letters of the nodes that join partition 0."""
    return "".join(sorted(set("ABC") - set(shown(partition(state).stable))))


def newcomer(state: ClusterState) -> str:
    """Return one of them."""
    return newcomers(state)[0]


def test_a_replica_that_can_never_follow_has_its_step_cancelled() -> None:
    state = pending()
    comes = newcomer(state)
    (found,) = propose(RebalancerView(state, words_with(state, {comes: Failing(0)})))
    assert found.command == CancelRebalance(
        "z", 0, partition(state).revisions.pending, f"the replica on {comes} cannot follow the partition: rows_damaged"
    )
    was = partition(state).stable
    state, asked = final_state(done(state, found.command), "ABC", late=comes)
    assert asked == ["FinishCancel"]
    assert partition(state).stable == was
    assert final_state(state, "ABC")[1] == [], "its cause is done: the next change tries again"


def test_a_replica_that_fails_five_times_still_joins() -> None:
    state = pending()
    comes, replica = newcomer(state), Failing(6)
    for _ in range(5):
        assert propose(RebalancerView(state, words_with(state, {comes: replica}))) == ()
    (found,) = propose(RebalancerView(state, words_with(state, {comes: replica})))
    assert shown(partition(done(state, found.command)).stable) == "ABC"


@pytest.mark.parametrize("mode", ["strong", HIGH_AVAILABILITY])
def test_a_lost_minority_causes_no_reset(mode: str) -> None:
    state = applied(final_state(with_zone("ABC", replicas=3, mode=mode), "ABC")[0], *down("C"))
    assert "ResetPartitions" not in final_state(state, "AB")[1]


def test_nodes_lost_together_cause_one_reset_and_nodes_lost_in_turn_two() -> None:
    state, _ = final_state(with_zone("ABCDE", replicas=5, mode=HIGH_AVAILABILITY), "ABCDE")
    together, asked = final_state(applied(state, *down("CDE")), "AB")
    assert asked.count("ResetPartitions") == 1
    assert shown(partition(together).stable) == "AB"
    again, asked = final_state(applied(together, *down("B")), "A")
    assert asked.count("ResetPartitions") == 1
    assert shown(partition(again).stable) == "A"
    assert [len(link.nodes) for link in partition(again).chain] == [5, 2, 1]


def test_each_change_of_data_nodes_is_one_request() -> None:
    state, asked = final_state(joined(with_zone("A"), "B"), "ABC")
    state, more = final_state(joined(state, "C"), "ABC")
    assert [each.count("SetDataNodes") for each in (asked, more)] == [1, 1]
    state = done(state, SetDataNodes("z", (), state.epoch), AlterZone("z", scale_up=NEVER))
    assert final_state(state, "ABC")[1] == []


def test_a_node_removed_by_a_reset_does_not_start_after_its_return() -> None:
    state = applied(with_zone("ABC", replicas=3), *down("AB"))
    state = done(state, reset(state, {"C": 1}))
    state = applied(state, *(DeclareUp(node, "mended") for node in ids("AB")))
    assert [len(Member(node, NoRows()).reports(state, state.epoch)) for node in ids("ABC")] == [0, 0, 1]
    assert unanswered_nodes(partition(state), reports_of(state, "AB")) == ids("C")


def test_the_move_limit_holds_and_queued_moves_follow() -> None:
    state = applied(with_zone("ABC", replicas=1, partitions=6), ChangeSettings((("zone_moves_max", 2),)))
    state, asked = final_state(done(state, AlterZone("z", replicas=3)), "ABC")
    assert asked.count("TriggerRebalance") >= 3
    assert [shown(partition(state, number).stable) for number in range(6)] == ["ABC"] * 6


def test_a_repeated_request_changes_nothing() -> None:
    state = joined(with_zone("AB", replicas=2, partitions=2), "C")
    state = done(state, AlterZone("z", replicas=1))
    for _ in range(12):
        timers = updated_timers(Timers(), state)
        found = propose(RebalancerView(state, reports_of(state, "ABC"), new_data_nodes(timers, state, 10**18)))
        if not found:
            return
        state = done(state, found[0].command)
        after, code = tried(state, found[0].command)
        assert code or (after.zones, after.zone_partitions) == (state.zones, state.zone_partitions)
    raise AssertionError("no end")


class Enough(Exception):
    pass


class Driver:
    """Performs the effects of one rebalancer on a log; ``dies_at``: the instance dies before that request."""

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


def test_no_request_is_repeated_and_an_idle_instance_waits_for_news() -> None:
    driver = Driver(done(BEGIN, AlterZone("z", replicas=1)))
    driver.run()
    assert driver.waits[-1] is Wait.NEWS
    assert len({one.proposal.request_id for one in driver.asked}) == len(driver.asked)
    assert not any(one.pending for one in driver.state.zone_partitions.values())
    assert driver.noted[-1].found == ()


@pytest.mark.parametrize("dies_at", range(1, 7))
def test_an_instance_that_dies_before_a_request_loses_and_repeats_none(dies_at: int) -> None:
    """Another instance takes over and sends the same requests: the log has the same end."""
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


def test_a_refusal_is_reported_and_followed_by_a_pause() -> None:
    driver = Driver(BEGIN, lambda effect: RejectedResult(effect.proposal.request_id, "too_large", "z", 9))
    driver.run()
    assert driver.noted[0].found[-1].code == "too_large"
    assert driver.waits[1] is Wait.PAUSE
    assert len(driver.asked) > 1, "the rebalancer tries again"


def test_steps_that_wait_for_a_dead_node_are_reported() -> None:
    state = applied(pending(), *down("".join(sorted(set("ABC") - set(shown(partition(pending()).stable))))))
    driver = Driver(state, lambda _: None)
    driver._acks = list  # type: ignore[method-assign]
    driver.run()
    assert [(one.subject, one.kind, one.code) for one in driver.noted[-1].found] == [
        ("z/0", "SwitchStable", "gate_not_met")
    ]


def test_tablets_blocked_by_a_recovery_move_after_it() -> None:
    """The end of a recovery changes nothing else in the state."""
    begun = done(to(with_data("ABC", "D", partitions=1, replicas=3), "ABD"), EnterRecovery("damaged", "ops"))

    class Recovering(Driver):
        def _acks(self) -> list[tuple[int, NodeAck]]:
            if len(self.waits) == 10:
                assert not self.asked, "a recovery is running"
                self.state = done(self.state, LeaveRecovery("mended", "ops"))
            return list(enumerate(acks_of(self.state, "ABCD").values(), start=100 * len(self.waits)))

    driver = Recovering(begun)
    driver.run()
    assert [type(one.proposal.command) for one in driver.asked] == [MigrateTablets]
