"""Replica plans: the nodes that must answer, with and without a join, and the later validity of answers."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path

import pytest
from bench.availability import rows
from immutables import Map

from ringlog.client.data.plans import (
    Access,
    Answer,
    AwaitedAnswers,
    ClientRequest,
    Failed,
    Level,
    Replan,
    RequestPlan,
    Satisfied,
    count,
    meets_needs,
    plan,
    repair,
)
from ringlog.kernel.commands.schema.keyspaces import AlterKeyspace
from ringlog.kernel.commands.topology.operations import CancelOperation
from ringlog.kernel.model.state import EMPTY_STATE, Change, ClusterState, Deltas, Placement, Replica
from ringlog.kernel.model.state import Plan as Movement
from ringlog.kernel.operations.stages import FINISHED, WRITE_BOTH_READ_NEW, WRITE_BOTH_READ_OLD
from ringlog.kernel.ownership.placements import group_at, nodes_of
from ringlog.kernel.values import Replication, replace
from tests.kernel.entries import applied
from tests.kernel.operations.driver import admitted, driven, report_of
from tests.node.world import begin_join, cluster, name_of, step

PAGE = Path(__file__).parents[2] / "docs/concepts/consistency.md"
TOKEN = 100
STEP = 1_000


def ring(nodes: int, factor: int) -> ClusterState:
    """Return nodes 1, 2, … with one token each; token ``TOKEN`` belongs to node 1 and those after it."""
    return cluster(*((STEP * number,) for number in range(1, nodes + 1)), factor=factor)


def joining(state: ClusterState, stage: str, number: int = 9) -> ClusterState:
    """Return the state of a join of node ``number`` with ``TOKEN`` that has just entered ``stage``."""
    state, operation = begin_join(state, number, (TOKEN,))
    while state.operations[operation].stage != stage:
        found = state.operations[operation]
        state = step(state, operation, (report_of(found),) if found.stage == WRITE_BOTH_READ_OLD else ())
    return state


def client_request(
    level: Level = Level.QUORUM, access: Access = Access.WRITE, datacenter: str = "dc1"
) -> ClientRequest:
    return ClientRequest("shop", TOKEN, access, level, datacenter)


def planned(state: ClusterState, request: ClientRequest) -> RequestPlan:
    made = plan(state, request)
    assert isinstance(made, RequestPlan), made
    return made


def answers(epoch: int, *numbers: int) -> list[Answer]:
    return [Answer(name_of(number), epoch) for number in numbers]


# -------------------------------------------------------------------------------------------------- planning


def test_a_plan_without_movements_needs_one_group() -> None:
    state = ring(4, 3)
    write, read = planned(state, client_request()), planned(state, client_request(access=Access.READ))
    assert write.asked == read.asked == tuple(map(name_of, (1, 2, 3)))
    assert [(need.members, need.count) for need in (*write.needs, *read.needs)] == [(write.asked, 2)] * 2
    assert write.epoch == state.epoch
    assert write.changed == group_at(state.placements["simple:3"], TOKEN).changed


@pytest.mark.parametrize("stage", [WRITE_BOTH_READ_OLD, WRITE_BOTH_READ_NEW])
def test_a_join_asks_both_groups_for_writes_and_one_for_reads(stage: str) -> None:
    state = joining(ring(4, 3), stage)
    write, read = planned(state, client_request()), planned(state, client_request(access=Access.READ))
    assert {need.members for need in write.needs} == {tuple(map(name_of, (1, 2, 3))), tuple(map(name_of, (9, 1, 2)))}
    (need,) = read.needs
    assert (name_of(9) in need.members) == (stage == WRITE_BOTH_READ_NEW) == (name_of(3) not in need.members)
    assert read.asked == need.members
    assert set(write.asked) == set(map(name_of, (1, 2, 3, 9)))


@pytest.mark.parametrize("factor", [1, 2, 3, 4, 5])
def test_a_swap_counts_as_one_vote_when_both_have_answered(factor: int) -> None:
    made = planned(joining(ring(factor + 1, factor), WRITE_BOTH_READ_OLD), client_request())
    old, new = (set(need.members) for need in made.needs)
    slots = [{node} for node in old & new] + [old ^ new]
    assert len(slots) == factor
    for size in range(len(made.asked) + 1):
        for some in map(set, combinations(made.asked, size)):
            assert meets_needs(made.needs, some) == (sum(slot <= some for slot in slots) >= factor // 2 + 1)


def test_a_majority_of_all_writers_is_not_enough_when_two_are_swapped() -> None:
    state = joining(ring(4, 3), WRITE_BOTH_READ_OLD)
    (operation,) = (found for found in state.operations.values() if found.stage == WRITE_BOTH_READ_OLD)
    key, (live, *_) = "simple:3", (group_at(state.placements["simple:3"], TOKEN),)

    def change(number: int) -> tuple[Change, ...]:
        return (Change(key, live.start, live.end, name_of(number)),)

    # An operation with two tokens at once: 4 and 9 join, 2 and 3 leave.
    movement = Movement(
        start=Deltas(write_added=change(9) + change(4)), finish=Deltas(write_removed=change(2) + change(3))
    )
    write = tuple(Replica(name_of(number), 1) for number in (9, 1, 2, 3, 4))
    ranges = tuple(replace(group, write=write) if group == live else group for group in state.placements[key].ranges)
    state = replace(
        state,
        placements=state.placements.set(key, replace(state.placements[key], ranges=ranges)),
        operations=state.operations.set(operation.id, replace(operation, plan=movement)),
    )
    made = planned(state, client_request())
    assert [set(need.members) for need in made.needs] == [set(map(name_of, (1, 2, 3))), set(map(name_of, (9, 1, 4)))]
    assert not meets_needs(made.needs, set(map(name_of, (2, 3, 9))))
    assert meets_needs(made.needs, set(map(name_of, (1, 2, 9))))


def test_several_operations_at_once_need_every_combination() -> None:
    state = joining(ring(4, 3), WRITE_BOTH_READ_OLD)
    (operation,) = (found for found in state.operations.values() if found.stage == WRITE_BOTH_READ_OLD)
    other = replace(
        operation,
        id="other",
        plan=Movement(start=Deltas(write_added=(Change("simple:3", 0, 200, name_of(4)),)), finish=Deltas()),
    )
    group = group_at(state.placements["simple:3"], TOKEN)
    ranges = tuple(
        replace(one, write=(*one.write, Replica(name_of(4), state.epoch))) if one == group else one
        for one in state.placements["simple:3"].ranges
    )
    placement = replace(state.placements["simple:3"], ranges=ranges)
    state = replace(
        state, placements=state.placements.set("simple:3", placement), operations=state.operations.set("other", other)
    )
    found = {frozenset(need.members) for need in planned(state, client_request()).needs}
    numbers = [{1, 2, 3}, {1, 2, 9}, {1, 2, 3, 4}, {1, 2, 9, 4}]
    assert found == {frozenset(map(name_of, some)) for some in numbers}


@pytest.mark.parametrize(
    ("level", "counts"),
    [
        (Level.ONE, [1, 1]),
        (Level.TWO, [2, 2]),
        (Level.THREE, [3, 3]),
        (Level.QUORUM, [2, 2]),
        (Level.LOCAL_QUORUM, [2, 2]),
        (Level.EACH_QUORUM, [2, 2]),
        (Level.ALL, [3, 3]),
    ],
)
def test_every_level_asks_the_same_of_both_groups(level: Level, counts: list[int]) -> None:
    made = planned(joining(ring(4, 3), WRITE_BOTH_READ_OLD), client_request(level))
    assert [need.count for need in made.needs] == counts


def test_levels_by_datacenter() -> None:
    state = ring(4, 4)
    far = {name_of(3), name_of(4)}
    nodes = {
        name: replace(node, datacenter="dc2") if name in far else node for name, node in sorted(state.nodes.items())
    }
    state = replace(state, nodes=Map(nodes))
    local = planned(state, client_request(Level.LOCAL_QUORUM, Access.READ, "dc2"))
    assert set(local.asked) == far
    assert [(need.datacenter, need.count) for need in local.needs] == [("dc2", 2)]
    each = planned(state, client_request(Level.EACH_QUORUM))
    assert [(need.datacenter, need.count) for need in each.needs] == [("dc1", 2), ("dc2", 2)]
    write = planned(state, client_request(Level.LOCAL_QUORUM, Access.WRITE, "dc2"))
    assert len(write.asked) == 4
    assert [need.members for need in write.needs] == [local.asked]
    nowhere = plan(state, client_request(Level.LOCAL_QUORUM, Access.READ, "dc3"))
    assert isinstance(nowhere, Failed)
    assert nowhere.code == "no_local_replicas"


def test_impossible_plans_are_rejected() -> None:
    state = ring(2, 2)
    states = {
        "unknown_keyspace": EMPTY_STATE,
        "no_replicas": replace(state, placements=Map({"simple:2": Placement("simple:2", (), ())})),
        "too_few_replicas": state,
    }
    for code, state in states.items():
        made = plan(state, client_request(Level.THREE))
        assert isinstance(made, Failed)
        assert made.code == code


# -------------------------------------------------------------------------------------------------- counting


def test_a_quorum_of_answers_satisfies() -> None:
    state = ring(4, 3)
    made = planned(state, client_request())
    assert count(made, [], state) == AwaitedAnswers(tuple(sorted(made.asked)), state.epoch)
    assert count(made, answers(state.epoch, 1), state) == AwaitedAnswers((name_of(2), name_of(3)), state.epoch)
    assert count(made, answers(state.epoch, 1, 3), state) == Satisfied(state.epoch, (name_of(1), name_of(3)))


def test_enough_answers_for_a_plan_may_be_too_few_for_a_newer_state() -> None:
    before = ring(4, 3)
    after = joining(before, WRITE_BOTH_READ_OLD)
    made = planned(before, client_request())
    early = answers(before.epoch, 1, 3)
    assert isinstance(count(made, early, before), Satisfied)
    assert count(made, early, after) == AwaitedAnswers((name_of(2),), after.epoch)
    assert isinstance(count(made, [*early, Answer(name_of(2), before.epoch)], after), Satisfied)
    assert count(made, [*early, Answer(name_of(2), before.epoch, "not_ready")], after) == Replan(tuple(early))


def test_an_answer_from_the_future_waits_for_its_epoch() -> None:
    before = ring(4, 3)
    after = joining(before, WRITE_BOTH_READ_OLD)
    made = planned(before, client_request())
    told = [*answers(before.epoch, 1), *answers(after.epoch, 3)]
    assert count(made, told, before) == AwaitedAnswers((name_of(2),), after.epoch)
    assert count(made, told, after) == AwaitedAnswers((name_of(2),), after.epoch)
    assert count(made, [*told, *answers(after.epoch, 9)], after) == Satisfied(
        after.epoch, tuple(sorted(map(name_of, (1, 3, 9))))
    )


def test_a_node_that_left_does_not_count() -> None:
    before = joining(ring(4, 3), WRITE_BOTH_READ_NEW)
    after = before
    (operation,) = (found.id for found in before.operations.values() if found.stage == WRITE_BOTH_READ_NEW)
    after = step(after, operation)
    assert after.operations[operation].stage == FINISHED
    made = planned(before, client_request())
    told = answers(before.epoch, 1, 3)
    assert count(made, told, after) == AwaitedAnswers(tuple(sorted((name_of(2), name_of(9)))), after.epoch)


def test_an_answer_from_before_a_node_left_and_came_back_does_not_count() -> None:
    first = joining(ring(4, 3), WRITE_BOTH_READ_OLD)
    (operation,) = (found.id for found in first.operations.values() if found.stage == WRITE_BOTH_READ_OLD)
    again = joining(applied(first, CancelOperation(operation, "not now")), WRITE_BOTH_READ_OLD)
    made = planned(first, client_request())
    told = answers(first.epoch, 1, 3, 9)
    assert isinstance(count(made, told, first), Satisfied)
    assert nodes_of(group_at(again.placements["simple:3"], TOKEN).write) == made.asked
    assert count(made, told, again) == AwaitedAnswers((name_of(2),), again.epoch)
    assert isinstance(count(made, [*told, Answer(name_of(9), again.epoch)], again), Satisfied)


def test_answers_from_before_a_group_change_do_not_count() -> None:
    """Node 1 remains alone and received the rows of the others only afterwards."""
    state, operation = admitted(ring(3, 3), AlterKeyspace("shop", Replication("simple", 1)))
    before = driven(state, operation, WRITE_BOTH_READ_OLD)
    after = driven(before, operation, WRITE_BOTH_READ_NEW)
    made = planned(before, client_request(access=Access.READ))
    early = answers(before.epoch, 1)
    assert isinstance(count(made, early, before), AwaitedAnswers)
    assert count(made, [*early, *answers(before.epoch, 2, 3)], after) == Replan(())
    assert isinstance(count(made, answers(after.epoch, 1), after), Satisfied)


def test_a_dropped_keyspace_fails_pending_requests() -> None:
    state = ring(4, 3)
    made = planned(state, client_request())
    outcome = count(made, answers(state.epoch, 1), replace(state, epoch=state.epoch + 1, keyspaces=Map()))
    assert isinstance(outcome, Failed)
    assert outcome.code == "unknown_keyspace"


# ----------------------------------------------------------------------------------------------------- repair


def test_a_read_is_repaired_until_a_write_quorum_has_it() -> None:
    state = ring(4, 3)
    read = planned(state, client_request(access=Access.READ))
    assert repair(read, answers(state.epoch, 1, 2), state) is None
    missing = repair(read, answers(state.epoch, 1), state)
    assert isinstance(missing, RequestPlan)
    assert missing.request == client_request()
    one = planned(state, client_request(Level.ONE, Access.READ))
    assert repair(one, answers(state.epoch, 1), state) is None


def test_during_a_join_two_readers_that_agree_may_not_be_enough() -> None:
    state = joining(ring(4, 3), WRITE_BOTH_READ_OLD)
    read = planned(state, client_request(access=Access.READ))
    assert repair(read, answers(state.epoch, 1, 2), state) is None
    assert isinstance(repair(read, answers(state.epoch, 1, 3), state), RequestPlan)


# ------------------------------------------------------------------------------------------------------- page


def test_the_page_shows_the_availability_of_the_plans() -> None:
    """The table is the output of ``python bench/availability.py``."""
    text = PAGE.read_text().partition("## Availability during a movement")[2].partition("## ")[0]
    made = rows()
    columns = [[int(number) for number in re.findall(r"(\d+) of", line)] for line in made]
    different = [line for line, (ours, theirs) in zip(made, columns, strict=True) if ours != theirs]
    assert [line for line in text.splitlines() if re.match(r"\| [^|]+ \| \d", line)] == different
    assert all(ours >= theirs for ours, theirs in columns), (
        "the availability is at least that of a quorum plus all pending replicas"
    )
    assert different
