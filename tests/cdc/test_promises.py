"""The write lease: when a writer extends it, how far it lowers it, and which generations it seals."""

from __future__ import annotations

import pytest

from ringlog.kernel.model.state import CdcWriter, Generation
from ringlog.kernel.values import replace
from ringlog_cdc.plan.leases import (
    Claim,
    WriterStanding,
    binding,
    closed_before,
    closes_before_nothing,
    covers,
    next_claim,
    next_closing,
    next_horizon,
)

LEAD = 100
BUSY = WriterStanding(horizon=1_000, floor=0, low_watermark=0, used=0, prepared=False, active=True, held=False)


@pytest.mark.parametrize(
    ("changes", "now", "wanted"),
    [
        ({}, 900, None),  # a whole lead remains
        ({}, 949, None),
        ({}, 951, 1_051),  # less than half of the lead remains
        ({"active": False}, 2_000, None),  # no rows to route: keep the lease
        ({"active": False, "held": True}, 2_000, 2_100),
        ({"held": True}, 911, 1_011),  # a generation waits: extend in smaller steps
        ({"held": True}, 909, None),
        ({"prepared": True, "used": 700}, 990, 701),
        ({"prepared": True, "used": 700, "held": True}, 2_000, 701),  # frozen: never extended
        ({"prepared": True, "used": 999}, 990, None),
        ({"prepared": True, "used": 700, "floor": 800}, 990, 800),
        ({"prepared": True, "used": 700, "low_watermark": 900}, 990, 900),
    ],
)
def test_write_lease(changes: dict[str, object], now: int, wanted: int | None) -> None:
    assert next_horizon(replace(BUSY, **changes), now, LEAD) == wanted  # type: ignore[arg-type]


def generation(name: str, timestamp: int) -> Generation:
    return Generation(name, timestamp, (), "committed", 1, None, None, ())


def test_a_generation_ends_at_the_next_begin() -> None:
    three = [generation("a", 10), generation("b", 20), generation("c", 30)]
    assert next_closing(three[:1], 0) is None
    assert next_closing(three, 10) == three[1]
    assert next_closing(three, 20) == three[2]
    assert next_closing(three, 30) is None
    assert closed_before(three, 19) == ()
    assert closed_before(three, 20) == ("a",)
    assert closed_before(three, 30) == ("a", "b")


@pytest.mark.parametrize(
    ("durable", "later", "is_past", "wanted"),
    [
        ({0: 5}, {0: 5}, False, True),  # a later record is sufficient
        ({0: 4}, {0: 5}, True, False),  # a record before the limit is not durable
        ({0: 8}, {0: None}, False, False),  # no later record, and the clock may be behind
        ({0: 8}, {0: None}, True, True),
        ({0: 7}, {0: None}, True, False),
        ({}, {0: 0}, False, True),  # all records are at the limit or after it
    ],
)
def test_durable_positions(durable: dict[int, int], later: dict[int, int | None], is_past: bool, wanted: bool) -> None:
    assert covers(durable, later, {0: 8}, is_past) is wanted


def test_one_uncovered_partition_suffices() -> None:
    assert not covers({0: 8, 1: 2}, {0: None, 1: 3}, {0: 8, 1: 4}, True)


@pytest.mark.parametrize(
    ("horizon", "claimed", "is_durable", "wanted"),
    [
        (200, 100, True, Claim.NOTHING),  # the close is claimed
        (200, 150, False, Claim.NOTHING),
        (140, 150, True, Claim.RAISE_HORIZON),
        (150, 150, True, Claim.SUBMIT),
    ],
)
def test_a_low_watermark_is_below_the_lease(horizon: int, claimed: int, is_durable: bool, wanted: Claim) -> None:
    mine = CdcWriter("w", "i", 1, horizon, 0, 100, (), ())
    assert next_claim(mine, claimed, is_durable) is wanted


def test_a_lowered_lease_applies_before_it_is_folded() -> None:
    assert (binding(7, None), binding(7, 5), binding(5, 7)) == (7, 5, 5)


def test_a_close_up_to_a_withdrawn_generation_is_detected() -> None:
    """The closed generation is active; routing after the close would write its writes as dead letters."""
    found = [generation("a", 100), generation("b", 200)]
    assert not closes_before_nothing(found, 0, 0)
    assert not closes_before_nothing(found, 200, 100), "stored, not claimed yet"
    assert not closes_before_nothing(found[:1], 200, 200), "claimed: the log has it"
    assert closes_before_nothing(found[:1], 200, 100)
