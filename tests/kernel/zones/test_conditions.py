"""The pure functions that decide about one partition, compared with the tables of the reference."""

from __future__ import annotations

import pytest

from ringlog.kernel.model.zones import ZoneLink, ZonePartition, ZoneStep
from ringlog.kernel.values import replace
from ringlog.kernel.zones.queue import steps_between
from ringlog.kernel.zones.rebalance import (
    APPEND,
    CHAIN_MAX,
    IDLE,
    PENDING_UPDATED,
    PLANNED,
    PLANNED_REMOVED,
    PLANNED_UPDATED,
    REDUCE,
    reset_to,
    switched,
    triggered,
)
from tests.kernel.zones.states import ids, shown, step

A1, A2, A3 = (ZoneStep((name,)) for name in ("one", "two", "three"))


def of(
    stable: ZoneStep | None = None, *pending: ZoneStep, planned: ZoneStep | None = None, **more: object
) -> ZonePartition:
    return replace(ZonePartition("z", 0, stable, stable, pending, planned, change=1), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("read", "stable", "pending", "after", "planned", "status"),
    [
        (A2, None, (), (A1,), None, PENDING_UPDATED),
        (A1, None, (), (), None, PLANNED_REMOVED),
        (A2, None, (A3,), (A3,), A1, PLANNED_UPDATED),
        (A1, None, (A3,), (A3,), A1, PLANNED_UPDATED),
        (A2, A3, (), (A1,), None, PENDING_UPDATED),
        (A1, A3, (), (A1,), None, PENDING_UPDATED),
        (A2, A1, (), (), None, PLANNED_REMOVED),
        (A1, A1, (), (), None, PLANNED_REMOVED),
        (A2, A2, (), (A1,), None, PENDING_UPDATED),
    ],
)
def test_the_truth_table_of_a_trigger(
    read: ZoneStep,
    stable: ZoneStep | None,
    pending: tuple[ZoneStep, ...],
    after: tuple[ZoneStep, ...],
    planned: ZoneStep | None,
    status: str,
) -> None:
    found = triggered(of(stable, *pending), A1, 1_000, 7, read)
    assert found is not None
    assert (found.stable, found.pending, found.planned) == (stable, after, planned)
    assert (found.change, found.status) == (1_000, status)


def test_an_old_event_changes_nothing() -> None:
    for cause in (0, 1):
        assert triggered(of(A2), A1, cause, 7) is None


def test_a_pending_target_removes_the_plan() -> None:
    found = triggered(of(A2, A1, planned=A3), A1, 9, 7)
    assert found is not None
    assert (found.pending, found.planned, found.status) == ((A1,), None, PLANNED_REMOVED)
    assert (found.revisions.planned, found.revisions.pending) == (7, 0)


def test_the_vector_of_a_queue_with_both_kinds_of_role_changes() -> None:
    queue = steps_between(step("AB", "CD"), step("ACE", "BF"))
    assert [shown(one) for one in queue] == ["ABE/F", "ACE/F", "ACE/BF"]


@pytest.mark.parametrize(
    ("have", "target", "steps"),
    [
        (step("AB"), step("AC"), ["AC"]),
        (step("AB", "C"), step("ABC"), ["AB", "ABC"]),
        (step("ABC"), step("AB", "C"), ["AB", "AB/C"]),
        (step("A"), step("B", "A"), ["B", "B/A"]),
        (step("A", "B"), step("B"), ["B"]),
        (step("A", "B"), step("B", "A"), ["A", "B", "B/A"]),
        (step("AB", "C"), step("ABC", from_reset=True), ["ABC"]),
        (None, step("A", "B"), ["A/B"]),
    ],
)
def test_queues(have: ZoneStep | None, target: ZoneStep, steps: list[str]) -> None:
    assert [shown(one) for one in steps_between(have, target)] == steps


def test_a_removed_node_returns() -> None:
    full, less = step("ABC"), step("AB")
    before = of(full, less, reduce=ids("C"))
    found = switched(before, full, 9)
    assert (shown(found.stable), [shown(one) for one in found.pending]) == ("AB", ["ABC"])
    assert (found.reduce, found.append, found.status) == ((), ids("C"), APPEND)
    again = switched(found, full, 10)
    assert (shown(again.stable), again.pending, again.append, again.status) == ("ABC", (), (), IDLE)


def test_a_removal_precedes_the_planned_step() -> None:
    full = step("ABC")
    found = switched(of(step("ABD"), full, planned=step("DEF"), reduce=ids("C")), full, 9)
    assert ([shown(one) for one in found.pending], found.reduce, found.status) == (["AB"], ids("C"), REDUCE)
    assert found.planned is not None
    back = switched(found, full, 10)
    assert (back.status, [shown(one) for one in back.pending]) == (APPEND, ["ABC"])
    then = switched(back, full, 11)
    assert (then.status, [shown(one) for one in then.pending], then.planned) == (PLANNED, ["DEF"], None)


def test_chains_contain_the_nodes_before_a_reset() -> None:
    everybody = step("ABCDEFG")
    before = of(everybody, chain=(ZoneLink(everybody.nodes, 1),))
    links = ["ABCDEFG"]

    def check(found: ZonePartition) -> None:
        assert [shown(ZoneStep(link.nodes)) for link in found.chain] == links

    alone = switched(reset_to(before, ids("A")[0], step("ABC"), (), None, 5, 5), None, 6)
    links.append("A")
    check(alone)
    grown = switched(alone, None, 7)
    links[-1] = "ABC"
    check(grown)
    assert shown(grown.stable) == "ABC"
    lost = switched(reset_to(grown, ids("A")[0], step("A"), (), None, 8, 8), None, 9)
    links.append("A")
    check(lost)
    graceful = triggered(lost, step("AB"), 10, 10)
    assert graceful is not None
    links[:] = ["AB"]
    check(switched(graceful, None, 11))


def test_a_chain_is_bounded() -> None:
    found = of(step("AB"), chain=(ZoneLink(ids("AB"), 1),))
    for epoch in range(2, 3 * CHAIN_MAX, 2):
        found = switched(reset_to(found, ids("A")[0], step("A"), (), None, epoch, epoch), None, epoch + 1)
    assert len(found.chain) == CHAIN_MAX
