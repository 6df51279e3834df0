"""Random histories of a zone: requests are late, repeated or for another target, and each state is valid.

At the end all pending steps are applied. Each partition is then at the target of the last accepted trigger, unless a
cancel or reset followed.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from ringlog.kernel.commands.placement.rebalances import (
    FinishCancel,
    ResetPartitions,
    RestartReplicas,
    SwitchStable,
    TriggerRebalance,
)
from ringlog.kernel.commands.placement.zones import AlterZone, SetDataNodes
from ringlog.kernel.commands.topology.nodes import DeclareDown, DeclareUp
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.model.zones import HIGH_AVAILABILITY, STRONG, ZonePartition, ZoneStep
from ringlog.kernel.values import Command
from ringlog.kernel.zones import distribution
from ringlog.kernel.zones.queue import is_same
from ringlog.kernel.zones.rebalance import RESULTS
from tests.kernel.zones.states import cancel, done, ids, partition, reset, restart, switch, tried, with_zone

LETTERS = "ABCDE"


class Lives(RuleBasedStateMachine):
    """One partition. Each earlier request may be repeated."""

    state: ClusterState

    def __init__(self) -> None:
        super().__init__()
        self.made: list[Command] = []
        self.owed: ZoneStep | None = None

    @initialize(replicas=st.integers(1, 4), mode=st.sampled_from([STRONG, HIGH_AVAILABILITY]))
    def begin(self, replicas: int, mode: str) -> None:
        self.state = with_zone(LETTERS, replicas=replicas, mode=mode)

    @property
    def one(self) -> ZonePartition:
        return partition(self.state)

    def ask(self, command: Command) -> None:
        self.made.append(command)
        zone, before = self.state.zones["z"], self.one
        self.state, code = tried(self.state, command)
        after = self.one
        if code or after is before:
            return
        if isinstance(command, TriggerRebalance):
            assert after.change > before.change
            (self.owed,) = distribution.targets(self.state, zone, [distribution.kept(before)], [0])
        elif isinstance(command, (ResetPartitions, RestartReplicas)) or (
            after.cancel is not None and before.cancel is None
        ):
            self.owed = None
        elif isinstance(command, SwitchStable):
            assert after.reached is not None
            assert is_same(after.reached, before.pending[0]), "the recorded step was pending"
        elif isinstance(command, FinishCancel):
            assert before.cancel is not None
            kept = before.cancel.new if command.result == "already_new" else before.cancel.old
            assert is_same(after.stable, kept), "a cancel never reverts a finished step"
            assert after.revisions.pending == self.state.epoch, "the next step is a new step, even if it is equal"

    @rule(letters=st.sets(st.sampled_from(LETTERS)).map(lambda found: "".join(sorted(found))), back=st.integers(0, 9))
    def data_nodes(self, letters: str, back: int) -> None:
        self.ask(SetDataNodes("z", ids(letters), max(1, self.state.epoch - back)))

    @rule(replicas=st.integers(1, 5))
    def replicas(self, replicas: int) -> None:
        self.ask(AlterZone("z", replicas=replicas))

    @rule(back=st.sampled_from([0, 0, 0, 1, 5]))
    def trigger(self, back: int) -> None:
        self.ask(TriggerRebalance("z", max(1, self.state.epoch - back)))

    @rule()
    def switch(self) -> None:
        self.ask(switch(self.state))

    @rule()
    def cancel(self) -> None:
        self.ask(cancel(self.state))

    @rule(result=st.sampled_from(RESULTS))
    def answer(self, result: str) -> None:
        self.ask(FinishCancel("z", 0, self.one.revisions.pending, result))

    @rule(letter=st.sampled_from(LETTERS))
    def node_fails_or_returns(self, letter: str) -> None:
        (name,) = ids(letter)
        command = DeclareUp(name, "") if self.state.nodes[name].down else DeclareDown(name, "")
        self.state = done(self.state, command)

    @rule(
        mode=st.sampled_from(["manual", "automatic"]), logs=st.dictionaries(st.sampled_from(LETTERS), st.integers(0, 3))
    )
    def reset(self, mode: str, logs: dict[str, int]) -> None:
        self.ask(reset(self.state, logs, mode))

    @rule(letters=st.sets(st.sampled_from(LETTERS), max_size=2).map(lambda found: "".join(sorted(found))))
    def restart(self, letters: str) -> None:
        self.ask(restart(self.state, letters))

    @rule(data=st.data())
    def again(self, data: st.DataObject) -> None:
        if self.made:
            self.ask(data.draw(st.sampled_from(self.made)))

    def teardown(self) -> None:
        if not hasattr(self, "state"):
            return
        for _ in range(20):
            if self.one.cancel is not None:
                self.ask(FinishCancel("z", 0, self.one.revisions.pending, "rolled_back"))
            elif self.one.pending:
                self.ask(switch(self.state))
        assert not self.one.pending, "each started step ends"
        if self.owed is not None:
            assert is_same(self.one.stable, self.owed), "each accepted target is stable, or superseded"


TestLives = Lives.TestCase
TestLives.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
