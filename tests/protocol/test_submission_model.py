"""Deciding without a read barrier breaks no promise where the chain protects; each sentence of that is needed."""

from __future__ import annotations

import pytest

from tests.protocol.submission_model import Model, Rule


@pytest.mark.parametrize(("together", "part"), [(True, 2), (False, 2), (True, 1)])
@pytest.mark.parametrize("rule", [Rule(), Rule(always=True)], ids=["where the chain protects: none", "always one"])
def test_no_order_of_events_breaks_a_promise(rule: Rule, together: bool, part: int) -> None:
    seen, story = Model(rule, together, part).explore()
    assert story == ()
    assert seen > 100


@pytest.mark.parametrize("part", [1, 2])
def test_what_comes_in_while_a_batch_is_under_way_may_join_it(part: int) -> None:
    seen, story = Model(Rule(), together=True, part=part, late=True).explore()
    assert story == ()
    assert seen > 1_000
    _, story = Model(Rule(trusts=True), together=True, part=part, late=True).explore()
    assert "on a state of before" in story[-1], "an entry that was sent before the request came in shows nothing"


@pytest.mark.parametrize(
    ("rule", "together", "broken"),
    [
        (Rule(never=True), False, "on a state of before"),
        (Rule(stays=True), False, "on a state of before"),
        (Rule(early=True), True, "not applied"),
    ],
    ids=["a rejection without a barrier", "what was decided before the barrier stands", "answers before the fates"],
)
@pytest.mark.parametrize("part", [1, 2])
def test_each_sentence_that_is_left_out_has_a_counterexample(
    rule: Rule, together: bool, broken: str, part: int
) -> None:
    _, story = Model(rule, together, part).explore()
    assert broken in story[-1]


def test_a_rejection_behind_an_applied_entry_of_its_batch_needs_no_barrier() -> None:
    """It is not that nobody ever decides without one: the chain alone keeps the promise for these."""
    for part in (1, 2):
        seen, story = Model(Rule(never=True), together=True, part=part).explore()
        assert story == ()
        assert seen > 100
