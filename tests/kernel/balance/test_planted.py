"""Bugs planted in the planner. Random clusters find each bug within a bound, and nothing without a bug."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from ringlog.kernel.balance import drain, rules, spread
from ringlog.kernel.balance.ledger import Ledger
from tests.kernel.balance.draws import draw_world
from tests.kernel.balance.naive import Naive
from tests.kernel.balance.test_properties import drive

SEEDS_MAX = 150

Planted = Callable[[pytest.MonkeyPatch], None]


def _set(target: Any, name: str, value: Any) -> Planted:
    return lambda patch: patch.setattr(target, name, value)


def _no_inversion_test(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(spread, "heavier_after", lambda giver, getter, size: True)


def _any_rack(patch: pytest.MonkeyPatch) -> None:
    right = rules.forbidden
    patch.setattr(spread, "forbidden", lambda *given: right(*given[:4], drain=True))


def _next_to_a_replica(patch: pytest.MonkeyPatch) -> None:
    right = rules.forbidden

    def wrong(*given: Any, **more: Any) -> str:
        code = right(*given, **more)
        return "" if code == "holds_replica" else code

    patch.setattr(spread, "forbidden", wrong)
    patch.setattr(drain, "forbidden", wrong)


def _siblings_part(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Ledger, "bundle", lambda self, unit, shard, must_go=False: None if unit in self.busy else (unit,))


PLANTED: dict[str, Planted] = {
    "a move may leave the source less loaded": _no_inversion_test,
    "a rack may take a second replica": _any_rack,
    "a host may get a tablet twice": _next_to_a_replica,
    "siblings that have met part": _siblings_part,
    "shards are read without a limit": _set(Ledger, "may_read", lambda *given: True),
    "shards are written without a limit": _set(Ledger, "may_write", lambda *given: True),
    "the cluster streams without a limit": _set(Ledger, "cluster_full", lambda *given: False),
    "a table's share is forgotten": _set(rules.TableLimits, "limit", lambda *given: 1 << 30),
    "obstacles of drains are not seen": _set(drain, "obstacles", lambda *given: iter(())),
}


def found_after(seeds: int) -> int | None:
    """Return the number of clusters until a rule is broken, or None."""
    for seed in range(seeds):
        world = draw_world(seed)
        try:
            drive(world, random.Random(seed))
            naive, plan = Naive(world), world.plan()
            assert {(row.node, row.table, row.tablet) for row in plan.obstacles} == naive.stranded()
            if {stop.code for stop in plan.stops}.isdisjoint({"drain_first", "skip_limit"}):
                assert list(naive.possible()) == []
        except (AssertionError, ValueError, KeyError):
            return seed + 1
    return None


@pytest.mark.parametrize("name", list(PLANTED))
def test_a_planted_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    PLANTED[name](monkeypatch)
    assert found_after(SEEDS_MAX) is not None


def test_no_failure_without_a_planted_bug() -> None:
    assert found_after(20) is None
