"""Random histories of a partition with several rebalancers, one of them active: failover, cancels, and lost, late or
repeated messages (``zone_world`` has the invariants).
"""

from __future__ import annotations

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from ringlog.kernel.commands.placement.rebalances import CancelRebalance, TriggerRebalance
from ringlog.kernel.commands.placement.zones import AlterZone, SetDataNodes
from ringlog_sim.mutants.plant import bugs_of, planted
from tests.kernel.zones.states import ids, partition
from tests.protocol.zone_world import LETTERS, NODES, ZoneWorld

SOME = st.sets(st.sampled_from(LETTERS), min_size=1).map(lambda found: "".join(sorted(found)))
NODE = st.sampled_from(NODES)
NODE_SETS = st.integers(1, 31).map(lambda mask: [node for place, node in enumerate(NODES) if mask & 1 << place])
ANY = st.integers(0, 10**6)


class Failover(RuleBasedStateMachine):
    """The possible events."""

    world: ZoneWorld

    @initialize(letters=SOME, replicas=st.integers(1, 4))
    def begin(self, letters: str, replicas: int) -> None:
        self.world = ZoneWorld(letters, replicas)

    # Operators.

    @rule(letters=SOME, replicas=st.integers(1, 4))
    def the_zone_changes(self, letters: str, replicas: int) -> None:
        self.world.submit(AlterZone("z", replicas=min(replicas, len(self.world.state.zones["z"].nodes))))
        self.world.submit(SetDataNodes("z", ids(letters), self.world.state.epoch))
        self.world.submit(TriggerRebalance("z", self.world.state.zones["z"].changed))

    @rule(back=st.sampled_from([0, 0, 0, 1, 2, 5]), is_late=st.booleans())
    def an_operator_cancels(self, back: int, is_late: bool) -> None:
        """Cancel a step that the operator saw some epochs ago."""
        seen = self.world.log[max(self.world.first, self.world.state.epoch - back)]
        command = CancelRebalance("z", 0, partition(seen).revisions.pending)
        self.world.requests.append(command)
        if not is_late:
            self.world.submit(command)

    # Nodes.

    @rule(nodes=NODE_SETS, how_far=ANY, says=st.sampled_from(["nothing", "what is kept", "all", "all"]))
    def nodes_fold(self, nodes: list[str], how_far: int, says: str) -> None:
        """Nodes fold some or all entries and acknowledge the entries on their disks, before or after that."""
        for node in nodes:
            self.world.fold(node, self._epoch(self.world.knows[node], how_far))
            if says != "nothing":
                self.world.acknowledge(node, says == "all")

    @rule(node=NODE)
    def a_node_crashes(self, node: str) -> None:
        self.world.crash(node)

    # Instances.

    @rule(which=ANY, how_far=ANY, heard=st.integers(0, 6))
    def an_instance_acts(self, which: int, how_far: int, heard: int) -> None:
        """An instance folds some or all entries and receives some or all acknowledgements."""
        instance = self.world.instances[which % len(self.world.instances)]
        for place, ack in enumerate(self.world.acks):
            if (place + how_far) % 7 <= heard:
                instance.book.take(place, ack)
        self.world.act(instance, self._epoch(instance.knows, how_far))

    @precondition(lambda self: len(self.world.instances) < 4)
    @rule()
    def another_one_takes_over(self) -> None:
        self.world.take_over()

    # Messages.

    @precondition(lambda self: self.world.requests)
    @rule(which=ANY, is_kept=st.booleans())
    def a_request_comes(self, which: int, is_kept: bool) -> None:
        """Deliver a recent request, possibly again, or a very old one."""
        place = len(self.world.requests) - 1 - (which % min(4, len(self.world.requests)) if which % 5 else 0)
        place = which % len(self.world.requests) if which % 11 == 0 else place
        self.world.submit(self.world.requests[place] if is_kept else self.world.requests.pop(place))

    @rule()
    def all_goes_well(self) -> None:
        """Deliver everything; the last instance acts."""
        for node in NODES:
            self.world.fold(node, self.world.state.epoch)
            self.world.acknowledge(node)
        self.an_instance_acts(len(self.world.instances) - 1, self.world.state.epoch, 6)
        if self.world.requests:
            self.world.submit(self.world.requests[-1])

    def _epoch(self, known: int, how_far: int) -> int:
        """Return an epoch that the reader has not reached; in half of the cases the last one."""
        last = self.world.state.epoch
        return last if how_far % 2 else known + how_far // 2 % (last - known + 1)

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.settle()


TestFailover = Failover.TestCase
TestFailover.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)


BUGS = ("zone_orphan_planned", "zone_cancel_of_anything", "zone_trigger_not_marked")
"""Bugs of the simulator that this test finds within moments."""


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name: str) -> None:
    (bug,) = (one for one in bugs_of("zones") if one.name == name)
    tries = settings(max_examples=300, stateful_step_count=50, deadline=None, database=None, derandomize=True)
    quick = settings(tries, phases=[Phase.generate], print_blob=False)
    with planted(bug), pytest.raises(AssertionError):
        run_state_machine_as_test(Failover, settings=quick)
