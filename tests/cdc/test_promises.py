"""What a writer promises: when it raises its horizon, how far it lowers it, what it closes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ringlog.kernel.state import Generation
from ringlog_cdc.promises import Standing, closed_before, next_closing, next_horizon

LEAD = 100
BUSY = Standing(horizon=1_000, floor=0, low_watermark=0, used=0, prepared=False, active=True, held=False)


@pytest.mark.parametrize(
    ("changes", "now", "wanted"),
    [
        ({}, 900, None),  # a whole lead is left
        ({}, 949, None),
        ({}, 951, 1_051),  # less than half of it
        ({"active": False}, 2_000, None),  # nothing to route: let it lie
        ({"active": False, "held": True}, 2_000, 2_100),
        ({"held": True}, 911, 1_011),  # somebody waits: raise it in smaller steps
        ({"held": True}, 909, None),
        ({"prepared": True, "used": 700}, 990, 701),
        ({"prepared": True, "used": 700, "held": True}, 2_000, 701),  # frozen: never raised
        ({"prepared": True, "used": 999}, 990, None),
        ({"prepared": True, "used": 700, "floor": 800}, 990, 800),
        ({"prepared": True, "used": 700, "low_watermark": 900}, 990, 900),
    ],
)
def test_horizon(changes: dict[str, object], now: int, wanted: int | None) -> None:
    assert next_horizon(replace(BUSY, **changes), now, LEAD) == wanted  # type: ignore[arg-type]


def generation(name: str, timestamp: int) -> Generation:
    return Generation(name, timestamp, (), "committed", 1, None, None, ())


def test_a_generation_ends_where_the_next_begins() -> None:
    three = [generation("a", 10), generation("b", 20), generation("c", 30)]
    assert next_closing(three[:1], 0) is None
    assert next_closing(three, 10) == three[1]
    assert next_closing(three, 20) == three[2]
    assert next_closing(three, 30) is None
    assert closed_before(three, 19) == ()
    assert closed_before(three, 20) == ("a",)
    assert closed_before(three, 30) == ("a", "b")
