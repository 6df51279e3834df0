"""The slow stretch: never at a stand, and a fifth of the rows is left for after the switch."""

from __future__ import annotations

import pytest

from ringlog.demo.producer import FAST_SHARE, TICK_S, slow_pace


@pytest.mark.parametrize("total", [2_000, 20_000, 336_776])
def test_it_goes_on_for_long_and_leaves_a_fifth(total: int) -> None:
    sent, due, pause, longest = int(total * FAST_SHARE), 0.0, 0, 0
    for _ in range(int(150 / TICK_S)):
        due += slow_pace(sent, total)
        step = int(due)
        sent, due = sent + step, due - step
        pause = 0 if step else pause + 1
        longest = max(longest, pause)
    assert longest * TICK_S <= 10
    assert sent <= int(total * 0.8)
    assert slow_pace(sent, total) > 0, "after two and a half minutes it still sends"


def test_nothing_of_the_last_fifth_goes_out_before_the_switch() -> None:
    assert slow_pace(1_600, 2_000) == 0
    assert slow_pace(1_599, 2_000) > 0


def test_it_begins_fast_and_slows_down() -> None:
    paces = [slow_pace(sent, 100_000) for sent in range(40_000, 80_000, 500)]
    assert paces == sorted(paces, reverse=True)
    assert paces[0] / TICK_S > 3_000
