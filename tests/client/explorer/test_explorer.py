"""No event order breaks the rules of reads and writes; each disabled rule has a counterexample.

Searches of large scenarios are bounded, with random walks in addition; ``make explore`` searches further.
"""

from __future__ import annotations

import pytest

from ringlog.kernel.values import replace
from tests.client.explorer.model import Explorer
from tests.client.explorer.resets import RESETS
from tests.client.explorer.rules import IMPLIED, OFF, Off
from tests.client.explorer.scenarios import SCENARIOS, factor, join
from tests.client.explorer.tablets import TABLETS

STATES_MAX, WALKS = 12_000, 40
LARGE = {
    "join, 3 replicas",
    "join, 2 replicas, read before",
    "join, 3 replicas, read before",
    "leave, 3 replicas",
    "join, then leave, 2 replicas",
    "join and leave side by side, 2 replicas",
    "replace a dead node that lives, 3 replicas",
    "replace a dead node, 3 replicas",
    "remove a dead node that lives, 3 replicas",
    "join, one that lives is left out at the end, 2 replicas",
    "join, one that lives is left out at the end, 3 replicas",
    "leave, one that lives is left out, then the leaver, 3 replicas",
    "assassinate, rebuild, then read, 3 replicas",
    "assassinate one that lives, rebuild, then read, 3 replicas",
    "cancel, then the same, 2 replicas",
    "cancel, then another, 2 replicas",
    "cancel a replacement, then the same",
    "cancel a replacement, then another",
    "leave, come back, 2 replicas",
    "two of two places",
    "two of three places",
    "datacenter exchanged",
    *RESETS,
    *(name for name in TABLETS if "3 replicas" in name or "lives" in name or "third" in name),
    "tablet moves, 2 replicas",
    "tablet moves and comes back, 2 replicas",
    "tablet turns back, and the same node gets it, 2 replicas",
    "tablet turns back before it was read, 2 replicas",
    "tablet turns back after it was read, 2 replicas",
}
"""Scenarios of more than ``STATES_MAX`` states without restarts."""


@pytest.mark.parametrize("name", SCENARIOS)
def test_no_order_of_events_loses_the_write(name: str) -> None:
    explorer = Explorer(replace(SCENARIOS[name](), restarts=0))
    explored = explorer.explore(STATES_MAX)
    assert explored.story == ()
    assert explored.exhausted == (name not in LARGE)
    if not explored.exhausted:
        explored = explorer.walk(1, WALKS)
        assert explored.story == ()
        assert explored.reads > WALKS, "many states contain a complete write"


@pytest.mark.parametrize("name", ["join, 1 replica", "away and back, 1 replica", "cancel, then the same, 1 replica"])
def test_restarts(name: str) -> None:
    explored = Explorer(SCENARIOS[name]()).explore(STATES_MAX)
    assert explored.story == ()
    assert explored.exhausted


@pytest.mark.parametrize("off", OFF, ids=[f"{off.rule}: {off.mutant or off.open_stage or off.shows}" for off in OFF])
def test_each_disabled_rule_has_a_counterexample(off: Off) -> None:
    explored = off.search(off.shows, 400_000)
    assert explored.story, f"{explored.states} states, {explored.reads} reads"


@pytest.mark.parametrize("off", IMPLIED, ids=[off.rule for off in IMPLIED])
def test_implied_rules_may_be_disabled(off: Off) -> None:
    for name in ("join, 2 replicas", "from 3 replicas to 1", "two of two places", "replace a dead node, 3 replicas"):
        assert off.search(name, STATES_MAX).story == ()


def test_a_scenario_reaches_its_events() -> None:
    """The log grows to its end and the last read group is asked; otherwise the search proves nothing."""
    for scenario in (join(1), factor(3, 1)):
        explorer = Explorer(scenario)
        seen, todo = {explorer.first()}, [explorer.first()]
        while todo:
            for _, after in explorer.events(todo.pop()):
                if after is not None and after not in seen:
                    seen.add(after)
                    todo.append(after)
        assert max(now[0] for now in seen) == len(explorer.log)
        assert {now[1] for now in seen} == {1, 2}
