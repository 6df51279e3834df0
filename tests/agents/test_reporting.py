"""When an agent reports its status."""

from __future__ import annotations

from ringlog.agents.reporting import Reporting


def test_what_changes_is_reported_at_the_next_look_and_what_stays_each_second() -> None:
    reporting = Reporting()
    assert reporting.is_due(5, "starting", 0.1)
    assert reporting.is_due(5, "active", 0.1)
    assert [reporting.is_due(5, "active", 0.25) for _ in range(8)] == [False, False, False, True] * 2


def test_epochs_that_follow_one_another_are_reported_once_a_second_and_the_last_one_soon() -> None:
    reporting = Reporting()
    assert reporting.is_due(1, "active", 0.1)
    reported = [reporting.is_due(epoch, "active", 0.25) for epoch in range(2, 10)]
    assert reported == [False, False, False, True] * 2
    assert not reporting.is_due(10, "active", 0.25)
    assert reporting.is_due(10, "active", 0.25), "it is the last one for a moment"
    assert not reporting.is_due(10, "active", 0.25)
