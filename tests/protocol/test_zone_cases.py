"""Case groups of Apache Ignite 3's rebalance, each from its precondition to its result.

``test_zone_case_index`` names the tests of all groups.
"""

from __future__ import annotations

import pytest

from ringlog.client.data.plans import Access, Level, RequestPlan, plan, request_of
from ringlog.kernel.commands.cluster.cluster import ChangeSettings, TakeOver
from ringlog.kernel.commands.placement.rebalances import CancelRebalance
from ringlog.kernel.commands.placement.zones import AlterZone, CreateZone, SetDataNodes
from ringlog.kernel.commands.schema.keyspaces import CreateKeyspace
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.model.zones import HIGH_AVAILABILITY
from ringlog.node.registers.registers import (
    Durable,
    RegisterReplica,
    admit_read,
    admit_write,
    adopt,
    answer_read,
    apply,
    restarted,
)
from ringlog.protocol.nodes.groups import Member
from ringlog.protocol.rebalancer.core import ROLE
from ringlog.protocol.rebalancer.zone_groups import HAS, session, unanswered_nodes
from ringlog.wire.data import NOT_MEMBER, RegisterCell, key_of
from tests.kernel.zones.states import NoRows, done, down, ids, partition, reset, shown, switch, tried, trigger
from tests.kernel.zones.zone_keyspaces import (
    REPLICATION,
    TABLE,
    create_table,
    node_reports,
    of_coordinator,
    of_rebalancer,
    on,
    run_to_idle,
    with_data,
    zone_only,
)

KEY, CELL = key_of(TABLE, b"seat-12A"), RegisterCell(7, b"taken")


def to(state: ClusterState, letters: str) -> ClusterState:
    """Move to other data nodes and wait until all of them have their data."""
    state = done(state, SetDataNodes("z", ids(letters), state.epoch))
    return run_to_idle(done(state, trigger(state)))[0]


def replicas(state: ClusterState, letters: str) -> dict[str, RegisterReplica]:
    """Return the nodes that serve under this state."""
    return {name: adopt(restarted(ids(name)[0], Durable()), state)[0] for name in letters}


def refused(replica: RegisterReplica) -> str:
    """Return the reasons of a node's refusals of a read and a write; empty if it accepts."""
    epoch = replica.state.epoch
    answers = admit_read(replica, 1, KEY, epoch)[1], admit_write(replica, 2, KEY, CELL, epoch)[1]
    codes = {"" if one is None else getattr(one, "refused", "behind") for one in answers}
    (code,) = codes
    return code


def asked_replicas(state: ClusterState, access: Access) -> str:
    """Return the letters of the nodes with answers that count for a client."""
    found = plan(state, request_of(KEY, access, Level.QUORUM, "dc1"))
    assert isinstance(found, RequestPlan), found
    return "".join(sorted(chr(int(one.node[:8], 16) + 64) for one in found.replicas))


def test_3_every_table_of_a_zone_gets_the_last_number_of_replicas() -> None:
    """The last number arrives during the steps of the earlier ones."""
    state = done(with_data("ABC", partitions=2, replicas=1), create_table("u", 2))
    for replicas_ in (2, 3, 2):
        state = done(state, AlterZone("z", replicas=replicas_))
        state = done(state, trigger(state))
        for command in (*of_coordinator(state), *of_rebalancer(state)):
            state = tried(state, command)[0]
    state, _ = run_to_idle(state)
    for number in range(2):
        one = partition(state, number)
        assert (one.pending, one.planned, len(shown(one.stable))) == ((), None, 2)
        assert {on(state, number, table) for table in ("ks.t", "ks.u")} == {shown(one.stable)}


@pytest.mark.parametrize("letters", ["ABC", "ABCD"])
@pytest.mark.parametrize("asked_after", range(9))
def test_5_a_removed_and_readded_node_keeps_its_rows(letters: str, asked_after: int) -> None:
    """Without one voter, four nodes change roles, and change again before that is done. The replica neither stops nor
    starts, unless its tablet has moved or is about to move.
    """
    state = with_data(letters, partitions=1, replicas=len(letters))
    since = {one.node: one.since for one in state.tablets[TABLE].replicas(0)}
    goes = shown(partition(state).stable)[0]
    state = done(state, SetDataNodes("z", ids(letters.replace(goes, "")), state.epoch))
    state = done(state, trigger(state))
    steps = len(partition(state).pending)
    assert steps == (1 if letters == "ABC" else 2)
    for _ in range(asked_after):
        for command in (*of_coordinator(state), *of_rebalancer(state)):
            state, code = tried(state, command)
            if not code:
                break
    had = state.tablets[TABLE].tablet(0).transition is None and on(state) == letters
    state = to(state, letters)
    assert on(state) == letters
    assert set(partition(state).stable.nodes) == set(ids(letters))  # type: ignore[union-attr]
    after = {one.node: one.since for one in state.tablets[TABLE].replicas(0)}
    assert (after == since) is had


def test_9_a_node_that_missed_a_step_reports_nothing_and_gets_its_replica_later() -> None:
    """Before its isolation the node acknowledged the state before the trigger; afterwards it restarts."""
    before = run_to_idle(zone_only("ABC", "D", partitions=1, replicas=3))[0]
    state = done(before, SetDataNodes("z", ids("ABD"), before.epoch))
    state = done(state, trigger(state))
    cut_off = Member(ids("D")[0], NoRows())
    assert cut_off.reports(before, before.epoch) == ()
    assert cut_off.reports(state, before.epoch) == (), "the step is not on its disk"
    others = node_reports(state, silent=ids("D"))
    assert unanswered_nodes(partition(state), others) == ids("D")
    back = Member(ids("D")[0], NoRows()).reports(state, state.epoch)
    assert [one.operation for one in back] == [session(partition(state), HAS)]


def test_9_a_manually_undone_move_happens_on_a_new_request() -> None:
    """Only a cancel removes a pending step."""
    state = run_to_idle(zone_only("ABC", "D", partitions=1, replicas=3))[0]
    state = done(state, SetDataNodes("z", ids("ABD"), state.epoch))
    state = done(state, trigger(state))
    state, asked_for = run_to_idle(done(state, CancelRebalance("z", 0, partition(state).revisions.pending)))
    assert (shown(partition(state).stable), asked_for) == ("ABC", ["FinishCancel"])
    assert shown(partition(run_to_idle(done(state, trigger(state)))[0]).stable) == "ABD"


def test_14_a_separate_quorum_decides_which_data_is_lost() -> None:
    """Seven replicas with a quorum of two have three voters. Four replicas are lost, and the zone does not
    reset while two voters live.
    """
    state = run_to_idle(zone_only("ABCDEFG", partitions=1, replicas=7, quorum=2, mode=HIGH_AVAILABILITY))[0]
    voters, learners = shown(partition(state).stable).split("/")
    assert (len(voters), len(learners)) == (3, 4)
    spared = done(state, *down(voters[:1] + learners[:3]))
    assert tried(spared, reset(spared, {voters[1]: 1}))[1] == "partition_healthy"
    assert "ResetPartitions" not in run_to_idle(spared)[1]
    lost = done(state, *down(voters[:2] + learners[:2]))
    assert "ResetPartitions" in run_to_idle(lost)[1]


def test_4_a_spare_replaces_a_lost_node_and_only_members_answer() -> None:
    state = with_data("ABC", "D", partitions=1, replicas=3)
    for letters in ("ABD", "ABC"):
        state = to(state, letters)
        assert (shown(partition(state).stable), on(state)) == (letters, letters)
        assert {access: asked_replicas(state, access) for access in Access} == dict.fromkeys(Access, letters)
        codes = {name: refused(one) for name, one in replicas(state, "ABCD").items()}
        assert codes == {name: "" if name in letters else NOT_MEMBER for name in "ABCD"}


def test_4_a_former_member_has_no_rows() -> None:
    state = with_data("ABC", "D", partitions=1, replicas=3)
    leaves = adopt(restarted(ids("C")[0], Durable()), state)[0]
    leaves = apply(admit_write(leaves, 1, KEY, CELL, state.epoch)[0], 1)[0]
    (found,) = answer_read(admit_read(leaves, 2, KEY, state.epoch)[0], 2)[1]
    assert found.cell == CELL
    gone = adopt(leaves, to(state, "ABD"))[0]
    assert (refused(gone), list(gone.durable.cells)) == (NOT_MEMBER, [])
    back = adopt(gone, to(gone.state, "ABC"))[0]
    (found,) = answer_read(admit_read(back, 3, KEY, back.state.epoch)[0], 3)[1]
    assert found.cell is None, "its rows arrive by its stream"


@pytest.mark.parametrize("sleeps_at", range(0, 40, 8))
@pytest.mark.parametrize("who", ["leader", "member"])
def test_7_a_restart_in_a_queue_loses_no_step(who: str, sleeps_at: int) -> None:
    """Roles change, so there are three steps. Another rebalancer with a higher term replaces the active one, or a
    remaining node is silent for a while.
    """
    state = with_data("ABCDE", partitions=1, replicas=4)
    state = done(state, SetDataNodes("z", ids("ABCE"), state.epoch), AlterZone("z", replicas=3))
    state = done(state, trigger(state))
    first, last = partition(state).stable, partition(state).pending[-1]
    assert first is not None
    stays = min(set(first.nodes) & set(last.nodes))
    assert len(partition(state).pending) > 1
    for count in range(400):
        if count == sleeps_at and who == "leader":
            state = done(state, TakeOver(ROLE, "another", 1))
        silent = (stays,) if who == "member" and sleeps_at <= count < sleeps_at + 10 else ()
        found = [*of_coordinator(state, silent), *of_rebalancer(state, silent)]
        command = next((one for one in found if not tried(state, one)[1]), None)
        if command is not None:
            state = done(state, command)
        elif not silent and count > sleeps_at:
            break
    one = partition(state)
    assert (one.stable, one.pending, set(ids(on(state)))) == (last, (), set(last.nodes))


@pytest.mark.parametrize("mode", ["strong", HIGH_AVAILABILITY])
def test_11_two_of_three_replicas_on_five_nodes_are_lost(mode: str) -> None:
    """A manual reset restores three nodes, and tables can be created and written; after an automatic one the survivor
    continues.
    """
    state = zone_only("ABCDE", partitions=1, replicas=3, mode=mode)
    survivor, *lost = sorted(shown(partition(state).stable))
    state = done(state, *down("".join(lost)))
    state = done(state, reset(state, {survivor: 4}, "manual" if mode == "strong" else "automatic"))
    while partition(state).pending:
        state = done(state, switch(state))
    one = partition(state)
    assert one.stable is not None
    assert (one.stable.forced, one.stable.from_reset, one.pending) == (False, False, ())
    if mode == HIGH_AVAILABILITY:
        assert shown(one.stable) == survivor
        return
    alive = "".join(sorted(set("ABCDE") - set(lost)))
    assert shown(one.stable) == alive
    state = done(state, CreateKeyspace("ks", REPLICATION), create_table())
    assert asked_replicas(state, Access.WRITE) == alive
    assert {refused(one) for one in replicas(state, alive).values()} == {""}


def test_19_waits_are_bounded_and_a_change_counts_at_once() -> None:
    """Waits belong to a zone here. Every change checks unreachable nodes again, so a delay setting is unnecessary. The
    number of moves is a setting.
    """
    state = zone_only("ABC", replicas=1, partitions=9)
    for wrong in (-1, 2**31):
        for wait in ("scale_up", "scale_down"):
            assert tried(state, AlterZone("z", **{wait: wrong}))[1] == "bad_field"  # type: ignore[arg-type]
            assert tried(state, CreateZone("y", ids("A"), **{wait: wrong}))[1] == "bad_field"  # type: ignore[arg-type]
    for wrong in (-1, 0):
        assert tried(state, ChangeSettings((("zone_moves_max", wrong),)))[1] != ""
    state = done(state, ChangeSettings((("zone_moves_max", 2),)), AlterZone("z", replicas=3))
    state = done(state, trigger(state))
    assert state.zones["z"].moving == 2
    state = done(state, ChangeSettings((("zone_moves_max", 5),)), trigger(state))
    assert state.zones["z"].moving == 5
