"""The metadata service: its steps, barriers and target size, and members that leave the cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import product

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ringlog.kernel.commands.cluster.service import (
    AddServiceMember,
    AdvanceService,
    ReconfigureService,
    RemoveServiceMember,
)
from ringlog.kernel.commands.control.recovery import EnterRecovery
from ringlog.kernel.commands.topology.movements import Assassinate, Join, Leave, Remove, Replace
from ringlog.kernel.commands.topology.nodes import DeclareDown, DeclareUp
from ringlog.kernel.commands.topology.operations import AdvanceOperation, CancelOperation
from ringlog.kernel.encoding.encoder import encoded_parts
from ringlog.kernel.fold import fold
from ringlog.kernel.invariants.check import violations
from ringlog.kernel.model.outcome import OutcomeKind
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.operations.stages import PREPARED, in_flight
from ringlog.kernel.service import automatic_size, next_step, read_group, wanted_size
from ringlog.kernel.values import Command, Witness, replace
from ringlog.operator.rehearsal.rehearsal import acknowledgements
from ringlog.operator.views import views
from ringlog.protocol.coordinator.core import CoordinatorView, propose
from tests.kernel.entries import NODES, SEED, applied, entry, founded, node, uuid

STEPS_MAX = 200
ONE, TWO, THREE, FOUR, FIVE = NODES


def cluster(places: Sequence[tuple[str, str]]) -> ClusterState:
    """Return a state with normal nodes ``n1`` … in these (datacenter, rack) pairs, without running their joins."""
    state = founded()
    for number, (datacenter, rack) in enumerate(places, start=1):
        state = applied(state, node(number, datacenter=datacenter, rack=rack))
        joined = replace(state.nodes[uuid(number, space=2)], state="normal", tokens=(number,))
        nodes, owners = state.nodes.set(joined.id, joined), state.token_owners.set(number, joined.id)
        state = replace(state, nodes=nodes, token_owners=owners)
    return state


def of(nodes: int) -> ClusterState:
    return cluster([("dc1", f"r{number % 3}") for number in range(nodes)])


def code(state: ClusterState, command: Command) -> str:
    folded = fold(state, entry(state, command))
    assert (folded.outcome.kind is OutcomeKind.APPLIED) is (folded.state is not state)
    return folded.outcome.code


def all_witnesses(state: ClusterState, *but: str) -> tuple[Witness, ...]:
    return tuple(Witness(name, state.epoch, state.epoch) for name in sorted(state.service) if name not in but)


def step(state: ClusterState, *silent: str) -> Command:
    found = next_step(state)
    assert found is not None
    return AdvanceService(found.node, found.to, all_witnesses(state, *silent))


def settled(state: ClusterState) -> ClusterState:
    """Apply all steps and check the invariants of each state."""
    for _ in range(STEPS_MAX):
        if next_step(state) is None:
            return state
        before, state = state, applied(state, step(state))
        assert violations(state, before) == ()
    raise AssertionError("it never comes to rest")


def shown(state: ClusterState) -> tuple[list[str], list[str]]:
    view = views.service(state)
    return view["read"], view["write"]


def test_a_member_joins_and_leaves_in_two_steps() -> None:
    state = settled(applied(of(3), AddServiceMember(ONE)))
    state = applied(state, AddServiceMember(TWO))
    assert shown(state) == (["n1"], ["n1", "n2"])
    state = applied(state, step(state))
    assert shown(state) == (["n1", "n2"], ["n1", "n2"])
    assert next_step(state) is None
    state = applied(state, RemoveServiceMember(ONE))
    assert shown(state) == (["n2"], ["n1", "n2"])
    state = applied(state, step(state))
    assert shown(state) == (["n2"], ["n2"])
    assert views.service(state) == {"read": ["n2"], "write": ["n2"], "excluded": [], "size": 1, "automatic": False}


def test_a_rejection_uses_the_state_names_of_views() -> None:
    state = applied(of(2), node(3), Join(THREE, (30,), SEED))
    folded = fold(state, entry(state, AddServiceMember(THREE)))
    assert folded.outcome.detail == "node: n3 is bootstrapping, so it cannot be a member"


def test_the_last_member_cannot_leave() -> None:
    state = settled(applied(of(2), AddServiceMember(ONE)))
    assert code(state, RemoveServiceMember(ONE)) == "last_member"
    state = applied(state, AddServiceMember(TWO))
    assert code(state, RemoveServiceMember(TWO)) == "", "a joining member can be cancelled"
    assert code(state, RemoveServiceMember(ONE)) == "service_changing"


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (AddServiceMember(uuid(77)), "unknown_node"),
        (AddServiceMember(ONE), "member_exists"),
        (AddServiceMember(FOUR), "wrong_node_state"),
        (AddServiceMember(FIVE), "wrong_node_state"),
        (RemoveServiceMember(uuid(77)), "unknown_node"),
        (RemoveServiceMember(TWO), "no_member"),
        (ReconfigureService(), "bad_field"),
        (ReconfigureService(0), "bad_field"),
        (ReconfigureService(101), "bad_field"),
        (ReconfigureService(3, automatic=True), "bad_field"),
        (ReconfigureService(excluded=(uuid(77),)), "unknown_node"),
        (AdvanceService(ONE, "left"), "bad_field"),
        (AdvanceService(TWO, "joining"), "wrong_service_step"),
        (AdvanceService(ONE, "member", (Witness(uuid(77), 1, 1),)), "unknown_node"),
        (AdvanceService(ONE, "member", (Witness(ONE, 10**6, 1),)), "bad_field"),
    ],
)
def test_invalid_service_commands_are_rejected(command: Command, expected: str) -> None:
    state = settled(applied(of(4), AddServiceMember(ONE), DeclareDown(FOUR, "disk"), node(5)))
    assert code(state, command) == expected


def test_an_excluded_node_leaves_the_service() -> None:
    state = settled(applied(of(3), ReconfigureService(2)))
    assert shown(state)[0] == ["n1", "n2"]
    state = applied(state, ReconfigureService(excluded=(TWO,)))
    assert code(state, AddServiceMember(TWO)) == "member_exists"
    state = settled(state)
    assert shown(state)[0] == ["n1", "n3"]
    assert code(state, AddServiceMember(TWO)) == "wrong_node_state"
    assert views.service(state)["excluded"] == ["n2"]


def test_a_member_is_read_after_a_quorum_acknowledges() -> None:
    state = settled(applied(of(4), ReconfigureService(3)))
    state = applied(state, AddServiceMember(FOUR))
    assert code(state, step(state, FOUR)) == "gate_not_met"
    assert code(state, step(state, ONE, TWO)) == "gate_not_met"
    assert code(state, step(state, ONE)) == ""
    early = AdvanceService(FOUR, "member", tuple(replace(one, applied=one.applied - 1) for one in all_witnesses(state)))
    assert code(state, early) == "gate_not_met", "they acknowledged an earlier epoch"
    assert code(state, AdvanceService(FOUR, "member", all_witnesses(state)[:1] * 3)) == "gate_not_met", (
        "each node counts once"
    )


def test_a_member_leaves_after_a_quorum_acknowledges() -> None:
    """Otherwise entries acknowledged by it and one other member would be on only one of two."""
    state = settled(applied(of(3), ReconfigureService(3)))
    state = applied(state, RemoveServiceMember(THREE))
    assert code(state, step(state, ONE)) == "gate_not_met"
    state = applied(state, step(state, THREE))
    assert shown(state) == (["n1", "n2"], ["n1", "n2"])


def test_no_member_leaves_with_half_of_the_others_down() -> None:
    state = applied(settled(applied(of(3), ReconfigureService(3))), DeclareDown(TWO, "disk"))
    assert code(state, RemoveServiceMember(ONE)) == "no_live_majority"
    assert code(applied(state, EnterRecovery("n2 is lost", "ops")), RemoveServiceMember(ONE)) == ""
    assert shown(applied(state, RemoveServiceMember(TWO)))[0] == ["n1", "n3"]
    state = applied(state, ReconfigureService(excluded=(ONE,)))
    gone = []
    while (found := next_step(state)) is not None:
        gone += [found.node] if found.to == "gone" else []
        state = applied(state, step(state, TWO))
    assert gone == [TWO, ONE], "the dead member leaves first, so that the other can leave"
    assert shown(state) == (["n3"], ["n3"])


def test_a_first_member_that_dies_while_joining_is_removed() -> None:
    state = applied(of(2), AddServiceMember(ONE), DeclareDown(ONE, "disk"))
    state = applied(state, step(state, ONE))
    assert shown(applied(state, step(state, ONE)))[1] == []


def test_a_recovery_needs_the_node_but_no_quorum() -> None:
    state = settled(applied(of(3), ReconfigureService(1)))
    state = applied(state, AddServiceMember(TWO))
    assert code(state, step(state, ONE)) == "gate_not_met", "one of two is not a majority"
    state = applied(state, EnterRecovery("n1 is lost", "ops"))
    assert code(state, step(state, TWO)) == "gate_not_met"
    state = applied(state, step(state, ONE))
    assert shown(state)[0] == ["n1", "n2"]


@pytest.mark.parametrize(
    ("nodes", "size"), [(0, 0), (1, 1), (2, 1), (3, 3), (5, 3), (6, 5), (100, 5), (101, 10), (1_000, 10)]
)
def test_the_automatic_size(nodes: int, size: int) -> None:
    assert automatic_size(nodes) == size


def test_the_service_grows_and_shrinks_with_the_cluster() -> None:
    state = settled(applied(of(2), ReconfigureService(automatic=True)))
    assert shown(state) == (["n1"], ["n1"])
    grown = of(6)
    state = replace(state, nodes=grown.nodes, node_names=grown.node_names, token_owners=grown.token_owners)
    state = settled(state)
    assert len(shown(state)[0]) == 5
    assert views.service(state)["automatic"] is True
    for name in (FIVE, FOUR, THREE):
        left = replace(state.nodes[name], state="leaving")
        state = settled(replace(state, nodes=state.nodes.set(name, left)))
        assert name not in state.service
    assert len(shown(state)[0]) == 3


places = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c"]), st.sampled_from(["r1", "r2", "r3"])), min_size=1, max_size=9
)


@given(places, st.integers(1, 7), st.lists(st.integers(0, 8), max_size=4))
@example([("dc1", "r1")] * 3 + [("dc2", "r1")] * 3, 3, [0, 1, 2])
def test_members_are_spread_evenly(where: list[tuple[str, str]], size: int, by_hand: list[int]) -> None:
    """The result is stable, regardless of the earlier members."""
    state = cluster(where)
    for number in by_hand:
        folded = fold(state, entry(state, AddServiceMember(uuid(number + 1, space=2))))
        state = settled(folded.state)
    state = settled(applied(state, ReconfigureService(size)))
    members = [state.nodes[name] for name in read_group(state)]
    assert len(members) == min(size, len(where))
    held, there = Counter(one.datacenter for one in members), Counter(datacenter for datacenter, _ in where)
    for here, other in product(held, there):
        assert held[here] <= held[other] + 1 or held[other] == there[other], (here, other)
    racks, all_racks = Counter((one.datacenter, one.rack) for one in members), Counter(where)
    for full, free in product(racks, all_racks):
        if full[0] == free[0]:
            assert racks[full] <= racks[free] + 1 or racks[free] == all_racks[free], (full, free)


def leaving(state: ClusterState) -> str:
    """Return the code that blocks the operation in flight, or an empty text."""
    (operation,) = in_flight(state)
    return code(state, AdvanceOperation(operation.id, PREPARED))


def joined(numbers: int) -> ClusterState:
    """Return a cluster of joined nodes and one that is only registered."""
    state = founded()
    for number in range(1, numbers + 1):
        state = coordinated(applied(state, node(number, rack="r"), Join(NODES[number - 1], (number * 100,), SEED)))
    return applied(state, node(5, rack="r"))


def coordinated(state: ClusterState) -> ClusterState:
    """Apply the coordinator's proposals, with immediate acknowledgements of all nodes."""
    for _ in range(STEPS_MAX):
        known = CoordinatorView(state, acknowledgements(state, state.time), state.epoch, state.time)
        asked = propose(known)
        if not asked:
            return state
        state = applied(state, asked[0].command)
    raise AssertionError("the coordinator never rests")


@pytest.mark.parametrize("how", ["leaves", "removed", "replaced"])
def test_a_leaving_node_is_replaced_in_the_service_first(how: str) -> None:
    state = coordinated(applied(joined(4), ReconfigureService(3)))
    assert shown(state)[0] == ["n1", "n2", "n3"]
    if how == "leaves":
        state = applied(state, Leave(ONE))
    elif how == "removed":
        state = applied(state, DeclareDown(ONE, "disk"), Remove(ONE))
    else:
        state = applied(state, Replace(FIVE, ONE))
    assert leaving(state) == "awaits_service"
    seen = set()
    while in_flight(state) and ONE in state.service:
        state = applied(state, step(state, *([ONE] if how == "removed" else [])))
        seen.add(len(read_group(state)))
    assert seen == {3, 4}, "the new member came before the old one left"
    assert leaving(state) == ""
    state = coordinated(state)
    assert shown(state)[0] == ["n2", "n3", "n4"]
    assert state.nodes[ONE].state == "left"
    assert violations(state) == ()


def test_the_last_possible_member_stays() -> None:
    state = coordinated(applied(joined(2), ReconfigureService(1, excluded=(TWO,))))
    state = coordinated(applied(state, Leave(ONE)))
    assert leaving(state) == "awaits_service"
    state = coordinated(applied(state, ReconfigureService(excluded=())))
    assert shown(state) == (["n2"], ["n2"])
    assert state.nodes[ONE].state == "left"


def test_a_cancelled_leave_keeps_the_current_members() -> None:
    state = applied(coordinated(applied(joined(3), ReconfigureService(1))), Leave(ONE))
    state = applied(state, step(state))
    (operation,) = in_flight(state)
    state = coordinated(applied(state, CancelOperation(operation.id, "no")))
    assert len(read_group(state)) == 1
    assert violations(state) == ()


def test_an_assassinated_node_leaves_the_service() -> None:
    state = coordinated(applied(joined(3), ReconfigureService(2)))
    gone = applied(state, DeclareDown(ONE, "burnt"), Assassinate(ONE))
    assert shown(gone) == (["n2"], ["n2"])
    gone = applied(gone, DeclareDown(TWO, "burnt"))
    assert code(gone, Assassinate(TWO)) == "last_member"
    lost = applied(gone, EnterRecovery("all members burnt", "ops"))
    lost = applied(lost, step(lost))
    lost = applied(lost, step(lost, TWO))
    assert shown(lost)[0] == ["n2", "n3"]
    assert shown(applied(lost, Assassinate(TWO)))[0] == ["n3"]


def test_a_dead_member_is_replaced_first() -> None:
    state = coordinated(applied(joined(4), ReconfigureService(3)))
    down = applied(state, DeclareDown(THREE, "disk"))
    assert shown(coordinated(down))[0] == ["n1", "n2", "n4"]
    small = coordinated(applied(joined(3), ReconfigureService(3)))
    kept = coordinated(applied(small, DeclareDown(THREE, "disk")))
    assert shown(kept)[0] == ["n1", "n2", "n3"], "no node could replace it"
    assert shown(coordinated(applied(kept, DeclareUp(THREE, ""))))[0] == ["n1", "n2", "n3"]


def test_a_state_without_a_service_keeps_its_digest() -> None:
    state = of(3)
    assert next_step(state) is None
    assert wanted_size(state) == 0
    assert not {"service", "service_goal", "recoveries"} & encoded_parts(state).keys()
