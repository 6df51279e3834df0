"""Load reports: nonsense is ignored as a whole and counted; the newest within the window is what counts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringlog.kernel.balance.reports import (
    AMOUNT_MAX,
    CAPACITY_MAX,
    CLOCK_AHEAD_US,
    WINDOW_US,
    LoadReport,
    ReportBasis,
    Reports,
    fold_report,
    within_window,
)

KNOWN = ReportBasis({"n1", "n2"}, {"ks.t": 4}, {"ks.old"})
NOW = 1_000_000_000_000


def report(node: str = "n1", at: int = NOW, capacity: Any = 100, **sizes: Any) -> LoadReport:
    tables = {"ks." + name: column for name, column in (sizes or {"t": {0: 5}}).items()}
    return LoadReport(node, at, capacity, {"bytes": tables})


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (report(capacity=-1), "negative"),
        (report(t={0: -5}), "negative"),
        (report(t={0: float("nan")}), "not_a_number"),
        (report(t={0: float("inf")}), "not_a_number"),
        (report(t={0: True}), "not_a_number"),
        (report(capacity="much"), "not_a_number"),
        (report(t={0: AMOUNT_MAX + 1}), "too_large"),
        (report(capacity=CAPACITY_MAX + 1), "too_large"),
        (report("n9"), "unknown_node"),
        (report(never={0: 1}), "unknown_table"),
        (report(t={4: 1}), "unknown_tablet"),
        (report(t={-1: 1}), "unknown_tablet"),
        (report(at=NOW + CLOCK_AHEAD_US + 1), "clock_ahead"),
    ],
)
def test_nonsense_is_ignored_and_counted(sent: LoadReport, code: str) -> None:
    before = fold_report(Reports(), report("n2"), NOW, KNOWN)
    after = fold_report(before, sent, NOW, KNOWN)
    assert after.newest == before.newest
    assert dict(after.ignored) == {code: 1}
    assert dict(fold_report(after, sent, NOW, KNOWN).ignored) == {code: 2}


def test_a_table_dropped_a_moment_ago_is_left_out() -> None:
    found = fold_report(Reports(), report(t={0: 5}, old={7: 1}), NOW, KNOWN)
    assert within_window(found, NOW)["n1"].loads == {"bytes": {"ks.t": {0: 5}}}
    assert not found.ignored


def test_the_newest_of_each_node_counts() -> None:
    found = fold_report(Reports(), report(capacity=1), NOW, KNOWN)
    found = fold_report(found, report(capacity=2), NOW + 1, KNOWN)
    found = fold_report(found, report(capacity=3), NOW - 1, KNOWN)
    assert within_window(found, NOW)["n1"].capacity == 2
    assert dict(found.ignored) == {"older": 1}


def test_what_somebody_else_reports_of_a_node_stands_until_its_own_next_report() -> None:
    """Reports have no code (decision 101). No time that a forged one claims makes it stand for longer."""
    found = fold_report(Reports(), report(t={0: 9}), NOW, KNOWN)
    found = fold_report(found, report(at=NOW + CLOCK_AHEAD_US, capacity=CAPACITY_MAX, t={0: 0}), NOW, KNOWN)
    assert found.newest["n1"].measured.capacity == CAPACITY_MAX
    found = fold_report(found, report(at=NOW + 1, t={0: 9}), NOW + 1, KNOWN)
    assert (found.newest["n1"].measured.capacity, dict(found.ignored)) == (100, {})


def test_who_is_silent_is_not_measured() -> None:
    found = fold_report(Reports(), report("n1"), NOW, KNOWN)
    found = fold_report(found, report("n2"), NOW + 2, KNOWN)
    assert set(within_window(found, NOW + WINDOW_US)) == {"n1", "n2"}
    assert set(within_window(found, NOW + WINDOW_US + 1)) == {"n2"}


@given(
    st.lists(
        st.tuples(st.sampled_from(("n1", "n2", "n9")), st.integers(0, 5), st.one_of(st.integers(-1, 9), st.floats())),
        max_size=12,
    )
)
def test_any_sequence_is_folded_and_each_report_counted_once(rows: list[tuple[str, int, Any]]) -> None:
    found, kept = Reports(), 0
    for node, delay, amount in rows:
        before = found
        found = fold_report(found, report(node, NOW, 1, t={0: amount}), NOW + delay, KNOWN)
        kept += found.newest != before.newest or sum(found.ignored.values()) == sum(before.ignored.values())
    assert kept + sum(found.ignored.values()) == len(rows)
    assert all(one.loads["bytes"]["ks.t"][0] >= 0 for one in within_window(found, NOW).values())
