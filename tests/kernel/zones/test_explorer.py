"""Every order of events keeps the promises; without a rule some order breaks one."""

from __future__ import annotations

import pytest

from tests.kernel.zones.explore import RULES, Explorer


def test_with_all_rules_no_order_breaks_a_promise() -> None:
    explorer = Explorer()
    assert explorer.explore() is None
    assert explorer.seen > 300


@pytest.mark.parametrize("rule", RULES)
def test_without_a_rule_an_order_breaks_a_promise(rule: str) -> None:
    found = Explorer(rule, changes=3, cancels=2).explore()
    assert found is not None
    assert found[-1].startswith("broken: ")
