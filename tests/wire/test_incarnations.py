"""Runs of a node in their order, and which of its acknowledgements counts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ringlog.wire.incarnations import Heard, believed, incarnation, order_of
from ringlog.wire.records import NodeAck

ACK = NodeAck("c", "n", "", 0, 0, (), 0, 0)


def heard(offset: int, name: str) -> Heard:
    return offset, replace(ACK, incarnation=name, applied=offset)


def test_a_later_start_is_the_greater_one() -> None:
    assert order_of(incarnation(10, "a")) > order_of(incarnation(9, "z"))
    assert order_of(incarnation(9, "b")) > order_of(incarnation(9, "a"))


@pytest.mark.parametrize(
    "earlier", ["", "12345678-0000-4000-8000-000000000001", "@", "x@y", "²@y", "-1@y", "9" * 40 + "@y"]
)
def test_what_has_no_number_comes_first(earlier: str) -> None:
    assert order_of(earlier) < order_of(incarnation(1, ""))


def test_of_one_incarnation_the_later_record_counts_in_any_order() -> None:
    one, two = heard(1, "3@a"), heard(2, "3@a")
    assert believed(None, one) == one
    assert believed(one, two) == believed(two, one) == two


def test_a_run_that_was_overtaken_says_nothing_any_more() -> None:
    new, old = heard(1, "4@a"), heard(9, "3@z")
    assert believed(new, old) == believed(old, new) == new


def test_a_record_that_is_sent_again_puts_nothing_back() -> None:
    newest, again = (2, replace(ACK, incarnation="3@a", applied=7)), (9, replace(ACK, incarnation="3@a", applied=6))
    assert believed(newest, again) == believed(again, newest) == newest
