"""A partition never has two primaries: full exploration of small worlds, random larger worlds, and the need of each
rule.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.kernel.zones.explore import RULES as EXPLORED_RULES
from tests.kernel.zones.explore import Explorer
from tests.kernel.zones.primaries import RULES, Primaries, World, beginning

GOALS = ("a", "b", "c")


@pytest.mark.parametrize("goals", [GOALS, ("abc", "cd"), ("abc", "a", "bc")])
def test_no_order_of_events_has_two_primaries(goals: tuple[str, ...]) -> None:
    explorer = Primaries(crashes=len(goals) < 3 or goals == GOALS)
    assert explorer.explore(beginning(len(set("".join(goals))), goals)) is None
    assert explorer.seen > 1_000


@pytest.mark.parametrize("rule", RULES)
def test_two_primaries_exist_without_a_rule(rule: str) -> None:
    assert Primaries(rule).explore(beginning(3, GOALS)) is not None


class Groups(RuleBasedStateMachine):
    """Five nodes with groups of any size. At the end all nodes have all entries, and the last target is reached."""

    world: World

    def __init__(self) -> None:
        super().__init__()
        self.rules = Primaries()

    @initialize(goals=st.lists(st.text("abcde", min_size=1, max_size=5), min_size=2, max_size=5))
    def begin(self, goals: list[str]) -> None:
        sets = ["".join(sorted(set(goal))) for goal in goals]
        changes = [sets[0], *(new for old, new in pairwise(sets) if old != new)]
        self.last = tuple(changes[-1])
        self.world = beginning(5, tuple(changes), cancels=2)

    @precondition(lambda self: hasattr(self, "world"))
    @rule(data=st.data())
    def anything(self, data: st.DataObject) -> None:
        events = dict(self.rules.events(self.world))
        if events:
            self.world = events[data.draw(st.sampled_from(sorted(events)))]

    @invariant()
    def one_primary(self) -> None:
        if hasattr(self, "world"):
            assert len(self.rules.confirmed(self.world)) <= 1

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        while True:
            events = [after for event, after in self.rules.events(self.world) if "crash" not in event]
            events = [after for after in events if after.cancels == self.world.cancels]
            if not events:
                break
            self.world = events[0]
            self.one_primary()
        one = self.world.log[-1]
        assert (one.pending, one.planned, one.cancel, self.world.goals) == ((), None, None, ())
        assert one.stable is not None
        ended_by_cancel = any(old.cancel is not None for old in self.world.log)
        assert ended_by_cancel or one.stable.peers == self.last, "the requested target is stable"


TestGroups = Groups.TestCase
TestGroups.settings = settings(max_examples=30, stateful_step_count=40, deadline=None)


# Each order of events satisfies the invariants. Without a rule, some order violates one.


def test_no_order_of_events_violates_a_zone_invariant() -> None:
    explorer = Explorer()
    assert explorer.explore() is None
    assert explorer.seen > 300


@pytest.mark.parametrize("rule", EXPLORED_RULES)
def test_a_zone_invariant_fails_without_a_rule(rule: str) -> None:
    found = Explorer(rule, changes=3, cancels=2).explore()
    assert found is not None
    assert found[-1].startswith("broken: ")
