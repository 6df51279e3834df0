"""What a checkpoint must know of a fence: which of its parts may be half written."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ringlog_cdc.chain import PlanChain
from ringlog_cdc.known import is_cut_off
from ringlog_cdc.plan import GENESIS, OffsetRange, PlanEntry, route_entry


def part(before: PlanEntry, start: int, closed: list[str]) -> PlanEntry:
    ranges = [OffsetRange(0, start, start + 5)]
    return route_entry(
        before,
        batch=start,
        part=0,
        last=True,
        ranges=ranges,
        epoch=3,
        context="c",
        horizon=9,
        used=8,
        incarnation="i",
        closed=closed,
    )


@pytest.mark.parametrize(
    ("done", "closed", "found"),
    [((0, 1), "ab", False), ((0,), "a", False), ((0,), "ab", True), ((), "a", True), ((), "", False)],
)
def test_a_part_that_is_not_done_is_cut_off_when_a_generation_was_closed_since(
    done: tuple[int, ...], closed: str, found: bool
) -> None:
    first = part(GENESIS, 0, [])
    second = part(first, 5, ["a"])
    chain = PlanChain({0: first, 1: second}, done)
    generations = [SimpleNamespace(id=name, closed=1 if name in closed else None) for name in "abc"]
    state: Any = SimpleNamespace(generations=generations)
    assert [entry.sequence for entry in chain.undone()] == [number for number in (0, 1) if number not in done]
    assert is_cut_off(chain.undone(), state) is found
