"""Every log of the small model of verdicts: all readers agree, and each part of the rule is needed."""

import pytest

from tests.kernel.verdicts.explore import NAMES, OFF, SCENARIOS, SETTING, Scenario
from tests.kernel.verdicts.model import ALL, Explorer, State, Write

SEEN_MIN = 50


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_all_readers_agree(scenario: Scenario) -> None:
    explorer = scenario.explorer()
    assert explorer.explore() is None, explorer.found
    assert explorer.seen > SEEN_MIN, "the model has shrunk to nothing"


@pytest.mark.parametrize(
    ("scenario", "rule", "words", "promise"), OFF, ids=lambda value: value if isinstance(value, str) else ""
)
def test_each_part_is_needed(scenario: Scenario, rule: str, words: str, promise: str) -> None:
    """Without it the explorer finds a log in which a promise is broken, and it is that one."""
    assert scenario.explorer(rule).explore() == promise, words


def test_every_part_of_the_rule_is_left_out_once() -> None:
    assert {rule for _, rule, _, _ in OFF} == ALL


def test_the_model_is_about_more_than_refusals() -> None:
    """Writes of each kind land in both tables, by each version that there is."""
    rows: set[str] = set()

    class Watching(Explorer):
        def verdict(self, state: State, write: Write) -> str | None:
            found = super().verdict(state, write)
            if found is not None:
                rows.add(found)
            return found

    for scenario in (NAMES, SETTING):
        assert Watching(**scenario.what).explore() is None
    assert rows >= {f"row {life} {version}" for life in "xy" for version in (1, 2, 3)}
    assert rows >= {"unknown_table", "unknown_version", "unknown_column", "timestamp_in_future"}
