"""The rebalancer acts on each change of a zone: every idle partition is at its target or reports why not.

Requests of operators arrive between any two requests of the rebalancer.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from ringlog.kernel.commands.placement.rebalances import FinishCancel, ResetPartitions, TriggerRebalance, default_copies
from ringlog.kernel.commands.placement.tablets import AdvanceTablets
from ringlog.kernel.commands.placement.zones import AlterZone
from ringlog.kernel.commands.topology.nodes import DeclareDown, DeclareUp, UpdateNode
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.model.zones import HIGH_AVAILABILITY, NEVER, STRONG
from ringlog.kernel.tablets.mutual_exclusion import transitions
from ringlog.kernel.values import Command, replace
from ringlog.kernel.zones.change import partitions_of
from ringlog.kernel.zones.distribution import kept, targets
from ringlog.kernel.zones.queue import is_same
from ringlog.operator.views.zones import full_view
from ringlog.protocol.rebalancer.core import RebalancerView, idle_zones, propose, rejections
from ringlog.protocol.rebalancer.data_nodes import Timers, new_data_nodes, updated_timers
from ringlog.protocol.rebalancer.idle_zones import NO_IDLE_ZONES, IdleZones
from ringlog.protocol.rebalancer.zone_tablets import migrations
from ringlog.protocol.rebalancer.zone_waits import MISPLACED, waits_of
from tests.kernel.zones.states import cancel, done, down, ids, joined, partition, reset, restart, to, tried, with_zone
from tests.kernel.zones.zone_keyspaces import TABLE, node_reports, of_coordinator, with_data

LETTERS = "ABCDEF"
FOREVER = 10**17


def look(state: ClusterState, rest: IdleZones, timers: Timers) -> RebalancerView:
    """Run one pass of a rebalancer with reports of each live node."""
    known = RebalancerView(state, node_reports(state), new_data_nodes(timers, state, FOREVER), rest)
    return RebalancerView(state, known.reports, known.data_nodes, idle_zones(known))


def at_rest(state: ClusterState) -> ClusterState:
    """Return the state after the rebalancer's last request."""
    rest, timers = NO_IDLE_ZONES, Timers()
    for _ in range(200):
        timers = updated_timers(timers, state)
        known = look(state, rest, timers)
        rest = known.idle
        asked = propose(known)
        if not asked:
            return state
        for one in asked:
            state, _ = tried(state, one.command)
    raise AssertionError("no end")


def belongs(state: ClusterState, number: int = 0) -> bool:
    """Return whether a partition is idle and at its target, also if no node can have it."""
    one = partition(state, number)
    (target,) = targets(state, state.zones["z"], [kept(one)], [number])
    return not one.pending and (target is None or is_same(one.stable, target))


def triggered(state: ClusterState, **changes: object) -> ClusterState:
    state = done(state, AlterZone("z", **changes))  # type: ignore[arg-type]
    return done(state, TriggerRebalance("z", state.zones["z"].changed))


# ------------------------------------------------------------------------------------ changes before a restart or reset


def test_a_change_before_a_restart_is_acted_on_after_it() -> None:
    state = at_rest(with_zone(LETTERS, replicas=3))
    state = done(state, AlterZone("z", replicas=5))
    (first, *_) = [name for name in LETTERS if ids(name)[0] in partition(state).stable.nodes]  # type: ignore[union-attr]
    state = done(state, restart(state, first))
    assert tried(state, restart(state, first))[1] == "already_pending"
    state = at_rest(state)
    assert belongs(state)
    assert len(partition(state).stable.nodes) == 5  # type: ignore[union-attr]


def without_majority(state: ClusterState) -> ClusterState:
    nodes = partition(state).stable.nodes  # type: ignore[union-attr]
    return done(state, *(DeclareDown(node, "") for node in nodes[:2]))


def test_a_change_before_an_automatic_reset_is_acted_on_after_it() -> None:
    state = triggered(at_rest(with_zone(LETTERS, replicas=3, mode=HIGH_AVAILABILITY)), replicas=4)
    state = done(without_majority(state), AlterZone("z", replicas=6))
    state = at_rest(state)
    assert belongs(state)
    assert len(partition(state).stable.nodes) == 4, "all live nodes"  # type: ignore[union-attr]


def test_an_automatic_reset_keeps_the_plan_behind_its_queue() -> None:
    state = triggered(at_rest(with_zone(LETTERS, replicas=3, mode=HIGH_AVAILABILITY)), replicas=4)
    state = without_majority(triggered(state, replicas=6))
    state = done(state, reset(state, dict.fromkeys(LETTERS, 1), "automatic"))
    one = partition(state)
    assert (len(one.pending), len(one.planned.nodes)) == (2, 6)  # type: ignore[union-attr]
    state = at_rest(state)
    assert belongs(state)
    assert len(partition(state).stable.nodes) == 4, "all live nodes"  # type: ignore[union-attr]


def test_a_restart_that_is_cancelled_stays_cancelled() -> None:
    """The partition was at its target, so it acted on each change before the restart."""
    state = at_rest(with_zone(LETTERS, replicas=3, mode=HIGH_AVAILABILITY))
    outside = next(name for name in LETTERS if ids(name)[0] not in partition(state).stable.nodes)  # type: ignore[union-attr]
    state = at_rest(done(state, *down(outside)))
    (first, *_) = [name for name in LETTERS if ids(name)[0] in partition(state).stable.nodes]  # type: ignore[union-attr]
    state = done(state, restart(state, first))
    state = at_rest(done(state, cancel(state)))
    state = at_rest(state)
    assert belongs(state), "the cancel restored all of its nodes"


# ---------------------------------------------------------------------------------------------------- several instances


def test_a_cancel_holds_for_every_instance() -> None:
    state = triggered(at_rest(with_zone("ABCDE", replicas=3, mode=HIGH_AVAILABILITY, scale_up=NEVER)), replicas=5)
    state = done(state, cancel(state))
    state = done(state, FinishCancel("z", 0, partition(state).revisions.pending, "rolled_back"))
    first = look(state, NO_IDLE_ZONES, updated_timers(Timers(), state))
    assert propose(first) == ()
    state = joined(state, "F")
    for rest in (first.idle, NO_IDLE_ZONES):
        assert propose(look(state, rest, updated_timers(Timers(), state))) == ()
    (row,) = full_view(state, state.zones["z"], node_reports(state))["partitions"]
    assert row["stuck"]
    assert row["waits"].startswith("stuck: its zone places it on A, B, C, D, E, but a cancellation or a reset left it")
    assert row["waits"].endswith("; ringlog zone rebalance z 0")
    assert belongs(at_rest(done(state, TriggerRebalance("z", state.epoch))))
    changed = done(state, *down("A"))
    assert propose(look(changed, first.idle, updated_timers(Timers(), changed))), "a data node has changed"


def test_capacity_and_mode_are_changes_of_a_zone() -> None:
    state = at_rest(with_zone(LETTERS, replicas=2, mode=HIGH_AVAILABILITY))
    state = done(state, *down("A"))
    for command in (*(UpdateNode(node, capacity=1_000) for node in ids("EF")), AlterZone("z", mode=STRONG)):
        state = done(state, command)
        assert state.zones["z"].changed == state.epoch
        state = at_rest(state)
        assert belongs(state) or partition(state).pending


# ----------------------------------------------------------------------------------------------------- random histories


class Changes(RuleBasedStateMachine):
    """One zone of two partitions. ``excused``: partitions that were cancelled or reset manually since its
    last change.
    """

    state: ClusterState

    def __init__(self) -> None:
        super().__init__()
        self.excused: set[int] = set()
        self.rest, self.timers = NO_IDLE_ZONES, Timers()

    @initialize(replicas=st.integers(1, 4), mode=st.sampled_from([STRONG, HIGH_AVAILABILITY]))
    def begin(self, replicas: int, mode: str) -> None:
        self.state = with_zone(LETTERS, partitions=2, replicas=replicas, mode=mode, scale_down=NEVER)

    def ask(self, command: Command) -> None:
        before = self.state.zones["z"]
        were = list(partitions_of(self.state, before))
        self.state, _ = tried(self.state, command)
        zone = self.state.zones["z"]
        if (zone.changed, zone.liveness) != (before.changed, before.liveness):
            self.excused.clear()
        for was, now in zip(were, partitions_of(self.state, zone), strict=True):
            if now is was:
                continue
            by_hand = isinstance(command, ResetPartitions) and command.mode == "manual"
            if by_hand or isinstance(command, FinishCancel):
                self.excused.add(now.number)
            elif isinstance(command, TriggerRebalance):
                self.excused.discard(now.number)

    def leads(self, known: RebalancerView) -> bool:
        asked = propose(known)
        for one in asked:
            self.ask(one.command)
        return bool(asked)

    @rule(words=st.integers(0, 2**6 - 1), times=st.integers(1, 4))
    def rebalancer(self, words: int, times: int) -> None:
        """Run a rebalancer with reports of some nodes."""
        for _ in range(times):
            self.timers = updated_timers(self.timers, self.state)
            known = look(self.state, self.rest, self.timers)
            heard = {node for place, node in enumerate(ids(LETTERS)) if words >> place & 1}
            some = {key: {n: one for n, one in found.items() if n in heard} for key, found in known.reports.items()}
            self.rest = known.idle
            self.leads(RebalancerView(self.state, some, known.data_nodes, known.idle))

    @rule(replicas=st.integers(1, 5))
    def replicas(self, replicas: int) -> None:
        self.ask(AlterZone("z", replicas=replicas))

    @rule(mode=st.sampled_from([STRONG, HIGH_AVAILABILITY]), scale_down=st.sampled_from([0, NEVER]))
    def mode(self, mode: str, scale_down: int) -> None:
        self.ask(AlterZone("z", mode=mode, scale_down=scale_down))

    @rule(letter=st.sampled_from(LETTERS), weight=st.integers(1, 3))
    def capacity(self, letter: str, weight: int) -> None:
        self.ask(UpdateNode(ids(letter)[0], capacity=weight))

    @rule(number=st.integers(0, 1), result=st.sampled_from(["rolled_back", "already_new"]))
    def cancels(self, number: int, result: str) -> None:
        self.ask(cancel(self.state, partition(self.state, number).revisions.pending))

    @rule(letter=st.sampled_from(LETTERS))
    def node_fails_or_returns(self, letter: str) -> None:
        (node,) = ids(letter)
        self.ask(DeclareUp(node, "") if self.state.nodes[node].down else DeclareDown(node, ""))

    @rule(number=st.integers(0, 1), mode=st.sampled_from(["manual", "automatic"]))
    def resets(self, number: int, mode: str) -> None:
        copies = default_copies(self.state, [partition(self.state, number)])
        self.ask(ResetPartitions("z", (number,), mode, self.state.epoch, copies))

    @rule(letters=st.sets(st.sampled_from(LETTERS), min_size=1, max_size=2))
    def restarts(self, letters: set[str]) -> None:
        self.ask(restart(self.state, "".join(sorted(letters))))

    def teardown(self) -> None:
        if not hasattr(self, "state"):
            return
        for _ in range(200):
            self.timers = updated_timers(self.timers, self.state)
            known = look(self.state, self.rest, self.timers)
            self.rest = known.idle
            if not self.leads(known):
                break
        else:
            raise AssertionError("no end")
        fresh = look(self.state, NO_IDLE_ZONES, self.timers)
        assert propose(fresh) == (), "another instance sends a request that this one does not"
        told = {one.subject for one in rejections(known)}
        assert {one.subject for one in rejections(fresh)} == told
        for one in partitions_of(self.state, self.state.zones["z"]):
            if belongs(self.state, one.number):
                continue
            assert f"z/{one.number}" in told, "the partition reports a reason"
            found = {wait.code for wait in waits_of(self.state, one, known.reports)}
            assert found != {MISPLACED} or one.number in self.excused, "the rebalancer did not act on a change"


TestChanges = Changes.TestCase
TestChanges.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


# Order of the tablet moves of a zone.


def advanced_to(state: ClusterState, stage: str) -> ClusterState:
    """Return the state when each moving tablet is in that stage."""
    while any(one.stage != stage for _, one in transitions(state)):
        (command,) = of_coordinator(state)
        assert isinstance(command, AdvanceTablets)
        behind = [one for one in command.tablets if state.tablets[TABLE].transitions[one.tablet].stage != stage]
        state = done(state, replace(command, tablets=tuple(behind)))
    return state


def test_the_shards_of_a_node_take_turns_before_rows_arrive() -> None:
    """Four tablets move to B; each starts when the previous one has streamed."""
    state = to(with_data("A", "B", partitions=4), "B")
    for _ in range(4):
        moves = migrations(state)
        assert moves is not None
        state = advanced_to(done(state, replace(moves, migrations=moves.migrations[:1])), "write_both_read_new")
    shards = [one.next[-1].shard for one in state.tablets[TABLE].transitions.values()]
    assert sorted(shards) == [0, 0, 1, 1]
