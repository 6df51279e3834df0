"""Every history of the small models of the switch and of the end: nothing goes wrong, and each rule is needed.

What takes longer than a few seconds is left to ``make explore``.
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
def test_nothing_goes_wrong_in_any_order(scenario: Scenario) -> None:
    explorer = scenario.make(**scenario.what)
    assert explorer.explore() is None
    assert explorer.seen > SEEN_MIN, "the model has shrunk to nothing"


@pytest.mark.parametrize(("scenario", "rule", "words"), OFF, ids=lambda value: value if isinstance(value, str) else "")
def test_each_rule_is_needed(scenario: Scenario, rule: str, words: str) -> None:
    """Without it the explorer finds a history in which a promise is broken."""
    assert scenario.make(without=rule, **scenario.what).explore() is not None, words


def test_every_rule_of_the_models_is_looked_at() -> None:
    assert {rule for _, rule, _ in OFF} == SWITCH_RULES | ENDING_RULES


def test_it_is_the_promise_about_each_that_is_broken() -> None:
    assert Explorer(without="frozen while prepared").explore() == CHASED
    assert Explorer(without="above every horizon").explore() == WRONG
    assert Explorer(without="knowledge and horizon of one state").explore() == WRONG
