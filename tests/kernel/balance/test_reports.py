"""Load reports: an invalid report is ignored and counted, and the newest report in the window counts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringlog.kernel.balance.reports import (
    AMOUNT_MAX,
    CAPACITY_MAX,
    CLOCK_AHEAD_US,
    STRANGERS_MAX,
    WINDOW_US,
    LoadReport,
    ReportBasis,
    Reports,
    fold_report,
    ignored_within_window,
    recut,
    within_window,
)
from ringlog.kernel.values import replace

TABLE, OLD = "id-of-t", "id-of-old"
KNOWN = ReportBasis({"n1", "n2"}, {TABLE: ("ks.t", 4)}, {OLD}, {"n8"})
NOW = 1_000_000_000_000


def report(node: str = "n1", at: int = NOW, capacity: Any = 100, count: int = 4, **sizes: Any) -> LoadReport:
    tables = {"id-of-" + name: column for name, column in (sizes or {"t": {0: 5}}).items()}
    return LoadReport(node, at, capacity, {"bytes": tables}, dict.fromkeys(tables, count))


def codes(reports: Reports, now: int = NOW) -> list[tuple[str, str]]:
    return list(ignored_within_window(reports, now, KNOWN))


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (report(capacity=-1), "negative"),
        (report(capacity=0), "no_capacity"),
        (report(t={0: -5}), "negative"),
        (report(t={0: float("nan")}), "not_a_number"),
        (report(t={0: float("inf")}), "not_a_number"),
        (report(t={0: True}), "not_a_number"),
        (report(capacity="much"), "not_a_number"),
        (report(t={0: AMOUNT_MAX + 1}), "too_large"),
        (report(capacity=CAPACITY_MAX + 1), "too_large"),
        (report(t={4: 1}), "unknown_tablet"),
        (report(t={-1: 1}), "unknown_tablet"),
        (report(count=0), "unknown_tablet"),
        (report(count=1 << 40), "unknown_tablet"),
        (report(at=NOW + CLOCK_AHEAD_US + 1), "clock_ahead"),
    ],
)
def test_an_invalid_report_is_ignored_until_a_valid_one_arrives(sent: LoadReport, code: str) -> None:
    before = fold_report(fold_report(Reports(), report("n2"), NOW, KNOWN), report(capacity=7), NOW, KNOWN)
    after = fold_report(before, sent, NOW, KNOWN)
    assert after.newest == before.newest
    assert codes(after) == [("n1", code)]
    assert codes(fold_report(after, sent, NOW, KNOWN)) == [("n1", code)]
    assert codes(fold_report(after, report(at=NOW), NOW, KNOWN)) == []
    assert codes(after, NOW + WINDOW_US + 1) == []


def test_reports_of_unregistered_nodes_are_listed() -> None:
    found = fold_report(Reports(), report("n9"), NOW, KNOWN)
    assert (dict(found.newest), codes(found)) == ({}, [("", "unknown_node")])
    assert codes(found, NOW + WINDOW_US + 1) == []
    later = replace(KNOWN, nodes={"n1", "n2", "n9"})
    found = fold_report(found, report("n9"), NOW, later)
    assert (set(within_window(found, NOW, later)), list(ignored_within_window(found, NOW, later))) == ({"n9"}, [])
    for number in range(10 * STRANGERS_MAX):
        found = fold_report(found, report(f"x{number}"), NOW, KNOWN)
    assert len(found.ignored) <= STRANGERS_MAX + 4


def test_reports_of_a_departed_node_are_not_listed() -> None:
    assert fold_report(Reports(), report("n8"), NOW, KNOWN) == Reports()


def test_a_table_dropped_a_moment_ago_is_left_out() -> None:
    found = fold_report(Reports(), report(t={0: 5}, old={3: 1}), NOW, KNOWN)
    assert within_window(found, NOW, KNOWN)["n1"].loads == {"bytes": {"ks.t": {0: 5}}}
    assert not codes(found)


def test_a_report_waits_for_the_epoch_of_its_node() -> None:
    found = fold_report(Reports(), report(t={0: 5}, new={0: 1}), NOW, KNOWN)
    assert (within_window(found, NOW, KNOWN), codes(found)) == ({}, [("n1", "unknown_table")])
    later = replace(KNOWN, tables={**KNOWN.tables, "id-of-new": ("ks.new", 4)})
    assert within_window(found, NOW, later)["n1"].loads == {"bytes": {"ks.t": {0: 5}, "ks.new": {0: 1}}}
    assert not list(ignored_within_window(found, NOW, later))


def test_a_table_made_again_under_its_name_inherits_nothing() -> None:
    found = fold_report(Reports(), report(t={0: 5}), NOW, KNOWN)
    again = replace(KNOWN, tables={"another-id": ("ks.t", 4)}, dropped={TABLE, OLD})
    assert within_window(found, NOW, again)["n1"].loads == {"bytes": {}}


@pytest.mark.parametrize(
    ("before", "now", "amounts", "wanted"),
    [
        (4, 8, {1: 7}, {2: 4, 3: 3}),
        (4, 16, {0: 4}, {0: 1, 1: 1, 2: 1, 3: 1}),
        (8, 4, {0: 1, 1: 2, 2: 3}, {0: 3}),
        (5, 3, {2: 1, 3: 2, 4: 9}, {1: 3, 2: 9}),
        (5, 2, {0: 1, 1: 1, 2: 1, 3: 1, 4: 9}, {0: 4, 1: 9}),
        (4, 6, {0: 1}, {}),
        (4, 12, {0: 1}, {}),
        (8, 3, {0: 1, 1: 1}, {}),
    ],
)
def test_earlier_amounts_are_converted(before: int, now: int, amounts: dict[int, int], wanted: dict[int, int]) -> None:
    assert recut(amounts, before, now) == wanted


def test_a_report_before_a_split_counts_for_the_table_only() -> None:
    found = fold_report(Reports(), report(t={0: 6}, count=2), NOW, KNOWN)
    (measured,) = within_window(found, NOW, KNOWN).values()
    assert (measured.loads, measured.earlier) == ({"bytes": {}}, {"bytes": {"ks.t": {0: 3, 1: 3}}})


@given(st.integers(1, 64), st.integers(0, 4), st.data())
def test_a_conversion_keeps_the_sum(count: int, steps: int, data: st.DataObject) -> None:
    amounts = {number: data.draw(st.integers(0, 99)) for number in range(count)}
    merged = count
    for _ in range(steps):
        merged = -(-merged // 2)
    for now in (count << steps, merged):
        found = recut(amounts, count, now)
        assert (sorted(found), sum(found.values())) == (list(range(now)), sum(amounts.values()))


def test_the_newest_of_each_node_counts() -> None:
    found = fold_report(Reports(), report(capacity=1), NOW, KNOWN)
    found = fold_report(found, report(capacity=2), NOW + 1, KNOWN)
    found = fold_report(found, report(capacity=3), NOW - 1, KNOWN)
    assert within_window(found, NOW, KNOWN)["n1"].capacity == 2
    assert codes(found) == [("n1", "older")]


def test_a_forged_report_counts_until_the_next_own_report() -> None:
    """Reports have no MAC (decision 101). A forged time does not extend the effect of a forged report."""
    found = fold_report(Reports(), report(t={0: 9}), NOW, KNOWN)
    found = fold_report(found, report(at=NOW + CLOCK_AHEAD_US, capacity=CAPACITY_MAX, t={0: 0}), NOW, KNOWN)
    assert found.newest["n1"].report.capacity == CAPACITY_MAX
    found = fold_report(found, report(at=NOW + 1, t={0: 9}), NOW + 1, KNOWN)
    assert (found.newest["n1"].report.capacity, codes(found)) == (100, [])


def test_a_silent_node_is_not_measured() -> None:
    found = fold_report(Reports(), report("n1"), NOW, KNOWN)
    found = fold_report(found, report("n2"), NOW + 2, KNOWN)
    assert set(within_window(found, NOW + WINDOW_US, KNOWN)) == {"n1", "n2"}
    assert set(within_window(found, NOW + WINDOW_US + 1, KNOWN)) == {"n2"}


@given(
    st.lists(
        st.tuples(st.sampled_from(("n1", "n2", "n9")), st.integers(0, 5), st.one_of(st.integers(-1, 9), st.floats())),
        max_size=12,
    )
)
def test_the_last_valid_report_is_kept(rows: list[tuple[str, int, Any]]) -> None:
    found = Reports()
    for node, delay, amount in rows:
        found = fold_report(found, report(node, NOW, 1, t={0: amount}), NOW + delay, KNOWN)
        if node not in found.ignored:
            assert found.newest[node].report.loads["bytes"][TABLE][0] == amount
    assert all(one.loads["bytes"]["ks.t"][0] >= 0 for one in within_window(found, NOW, KNOWN).values())
