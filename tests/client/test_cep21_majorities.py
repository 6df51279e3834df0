"""The example that CEP-21 gives for its consistency guarantees, with the epochs of the proposal.

A, B and C are the replicas of a range; X takes the range over from A. Epoch 100 splits the range, 101 makes X a write
replica, 102 makes X a read replica in place of A, and 103 removes A from the writes. Two coordinators at different
epochs each collect a majority, and the two majorities share no node. Two rules prevent a success: each epoch waits
until a majority of {A, B, C, X} has acknowledged the previous one, and each answer contains the acknowledged epoch of
its node.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import combinations

import pytest

from ringlog.client.data.plans import (
    Access,
    Answer,
    AwaitedAnswers,
    ClientRequest,
    Level,
    RequestPlan,
    Satisfied,
    count,
    plan,
)
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.operations.gates import acknowledged, gate
from ringlog.kernel.ownership.placements import group_at, nodes_of
from ringlog.kernel.values import Witness
from tests.kernel.operations.driver import at_every_stage, joining
from tests.kernel.ownership.rings import a_cluster

TOKEN = 150
"""The range that X takes over as first replica."""
RING = a_cluster({"A": [100], "B": [200], "C": [300], "X": []}, factors=[3])
STARTED, OPERATION = joining(RING, "X", [TOKEN])
STAGES = at_every_stage(STARTED, OPERATION)
AT = {
    100: STAGES["prepared"],
    101: STAGES["write_both_read_old"],
    102: STAGES["write_both_read_new"],
    103: STAGES["finished"],
}
"""Epochs of the proposal."""


def epoch(number: int) -> int:
    return AT[number].epoch


def planned(number: int, access: Access) -> RequestPlan:
    made = plan(AT[number], ClientRequest("ks3", TOKEN, access, Level.QUORUM, "dc1"))
    assert isinstance(made, RequestPlan), made
    return made


def groups(number: int) -> tuple[set[str], set[str]]:
    found = group_at(AT[number].placements["simple:3"], TOKEN)
    return set(nodes_of(found.read)), set(nodes_of(found.write))


def may_advance(state: ClusterState, nodes: Iterable[str]) -> bool:
    """Return whether the operation may advance for this range after these nodes have acknowledged."""
    found = gate(state, state.operations[OPERATION])
    seen = acknowledged(found, [Witness(node, state.epoch, state.epoch) for node in nodes])
    needs = [need for need in found.needs if need.end == TOKEN]
    assert {need.group for need in needs} == {"old read", "new read", "old write", "new write"}
    return seen.issuperset(found.must) and all(len(seen & set(need.members)) >= need.need for need in needs)


def acknowledging(number: int) -> Iterator[set[str]]:
    """Return all sets of replicas whose acknowledgements of that epoch permit the next one."""
    for size in range(5):
        yield from (set(some) for some in combinations("ABCX", size) if may_advance(AT[number], some))


def answers(nodes: Iterable[str], know: Iterable[str], late: int, newer: int) -> list[Answer]:
    """Return the answers of ``nodes``: a node that acknowledged the newer epoch answers with it, the others
    are late.
    """
    return [Answer(node, epoch(newer if node in know else late)) for node in nodes]


def test_the_steps_of_the_proposal() -> None:
    assert {number: groups(number) for number in AT} == {
        100: ({*"ABC"}, {*"ABC"}),
        101: ({*"ABC"}, {*"ABCX"}),
        102: ({*"BCX"}, {*"ABCX"}),
        103: ({*"BCX"}, {*"BCX"}),
    }


@pytest.mark.parametrize("number", [100, 101])
def test_three_of_the_four_must_have_acknowledged_and_the_new_one_is_among_them(number: int) -> None:
    assert list(acknowledging(number)) == [{*"ABX"}, {*"ACX"}, {*"BCX"}, {*"ABCX"}]


def test_before_the_last_step_a_majority_of_both_groups_is_enough() -> None:
    """The proposal needs three of the four. B and C alone also suffice: they are a majority of {A, B, C} and of {B, C,
    X}.
    """
    assert list(acknowledging(102)) == [{*"BC"}, {*"ABC"}, {*"ABX"}, {*"ACX"}, {*"BCX"}, {*"ABCX"}]


@pytest.mark.parametrize(("at", "late", "ahead"), [(101, Access.READ, Access.WRITE), (100, Access.WRITE, Access.READ)])
def test_a_late_and_an_early_coordinator_share_a_node(at: int, late: Access, ahead: Access) -> None:
    """A coordinator asks A and B at epoch ``at``, another one C and X two epochs later; one of them writes."""
    first = planned(at + 2, ahead)
    assert isinstance(count(first, answers("CX", (), at + 2, at + 2), AT[at + 2]), Satisfied)
    behind = planned(at, late)
    assert isinstance(count(behind, answers("AB", (), at, at), AT[at]), Satisfied), "no node has acknowledged"
    for know in acknowledging(at + 1):
        for asked in combinations("ABC", 2):
            told = count(behind, answers(asked, know, at, at + 1), AT[at])
            assert isinstance(told, AwaitedAnswers), (know, asked)
            assert told.epoch == epoch(at + 1), "the coordinator must learn of that epoch before it answers its client"
            later = count(behind, answers(asked, know, at, at + 1), AT[at + 2])
            assert not isinstance(later, Satisfied) or {*"CX"} & {*later.counted}, "the majorities share a node"
