"""Full exploration of the small models of the switch and the end: no invariant fails, and each rule is needed.

``make explore`` runs the scenarios that take longer than a few seconds.
"""

import pytest

from tests.kernel.generations.ending_model import ALL as ENDING_RULES
from tests.kernel.generations.explore import OFF, SCENARIOS, Scenario
from tests.kernel.generations.switch_model import ALL as SWITCH_RULES
from tests.kernel.generations.switch_model import CHASED, WRONG, Explorer

SEEN_MIN = 250


@pytest.mark.parametrize(
    "scenario", [found for found in SCENARIOS if not found.large], ids=lambda scenario: scenario.name
)
def test_no_order_of_events_violates_an_invariant(scenario: Scenario) -> None:
    explorer = scenario.make(**scenario.what)
    assert explorer.explore() is None
    assert explorer.seen > SEEN_MIN, "the exploration visits too few situations"


@pytest.mark.parametrize(("scenario", "rule", "words"), OFF, ids=lambda value: value if isinstance(value, str) else "")
def test_each_rule_is_needed(scenario: Scenario, rule: str, words: str) -> None:
    """Without the rule, the explorer finds a history that violates an invariant."""
    assert scenario.make(without=rule, **scenario.what).explore() is not None, words


def test_each_rule_of_the_models_is_tested() -> None:
    assert {rule for _, rule, _ in OFF} == SWITCH_RULES | ENDING_RULES


def test_each_rule_violates_its_own_invariant() -> None:
    assert Explorer(without="frozen while prepared").explore() == CHASED
    assert Explorer(without="above every horizon").explore() == WRONG
    assert Explorer(without="knowledge and horizon of one state").explore() == WRONG
