"""Case groups 4, 7, 11 and 19 of Apache Ignite 3's rebalance, each from what is given to what follows.

The others are in ``test_rebalancer`` and ``tests.kernel.zones``.
"""

from __future__ import annotations

import pytest

from ringlog.client.plans import Access, Level, RequestPlan, plan, request_of
from ringlog.kernel.commands.cluster import ChangeSettings, TakeOver
from ringlog.kernel.commands.keyspaces import CreateKeyspace
from ringlog.kernel.commands.zones import AlterZone, CreateZone, SetDataNodes
from ringlog.kernel.state import ClusterState
from ringlog.kernel.zones.model import HIGH_AVAILABILITY
from ringlog.node.registers import Durable, RegisterReplica, admit_read, admit_write, adopt, apply, look_up, restarted
from ringlog.protocol.rebalancer_core import ROLE
from ringlog.wire.cells import RegisterCell, key_of
from ringlog.wire.data import NOT_MEMBER
from tests.kernel.zones.placed import (
    REPLICATION,
    TABLE,
    create_table,
    led,
    of_coordinator,
    of_rebalancer,
    on,
    with_data,
    zone_only,
)
from tests.kernel.zones.scenes import done, down, ids, partition, reset, shown, switch, tried, trigger

KEY, CELL = key_of(TABLE, b"seat-12A"), RegisterCell(7, b"taken")


def to(state: ClusterState, letters: str) -> ClusterState:
    """Other data nodes, all of which have their data in the end."""
    state = done(state, SetDataNodes("z", ids(letters), state.epoch))
    return led(done(state, trigger(state)))[0]


def replicas(state: ClusterState, letters: str) -> dict[str, RegisterReplica]:
    """Nodes that serve under this state."""
    return {name: adopt(restarted(ids(name)[0], Durable()), state)[0] for name in letters}


def refused(replica: RegisterReplica) -> str:
    """Why a node does not take a read, and a write; empty: it does."""
    epoch = replica.state.epoch
    answers = admit_read(replica, 1, KEY, epoch)[1], admit_write(replica, 2, KEY, CELL, epoch)[1]
    codes = {"" if one is None else getattr(one, "refused", "behind") for one in answers}
    (code,) = codes
    return code


def asked(state: ClusterState, access: Access) -> str:
    """The letters of those whose answers count for a program."""
    found = plan(state, request_of(KEY, access, Level.QUORUM, "dc1"))
    assert isinstance(found, RequestPlan), found
    return "".join(sorted(chr(int(one.node[:8], 16) + 64) for one in found.replicas))


def test_4_a_spare_takes_the_place_of_who_left_and_gives_it_back_and_only_members_answer() -> None:
    state = with_data("ABC", "D", partitions=1, replicas=3)
    for letters in ("ABD", "ABC"):
        state = to(state, letters)
        assert (shown(partition(state).stable), on(state)) == (letters, letters)
        assert {access: asked(state, access) for access in Access} == dict.fromkeys(Access, letters)
        codes = {name: refused(one) for name, one in replicas(state, "ABCD").items()}
        assert codes == {name: "" if name in letters else NOT_MEMBER for name in "ABCD"}


def test_4_who_is_no_member_any_more_has_no_rows() -> None:
    state = with_data("ABC", "D", partitions=1, replicas=3)
    leaves = adopt(restarted(ids("C")[0], Durable()), state)[0]
    leaves = apply(admit_write(leaves, 1, KEY, CELL, state.epoch)[0], 1)[0]
    (found,) = look_up(admit_read(leaves, 2, KEY, state.epoch)[0], 2)[1]
    assert found.cell == CELL
    gone = adopt(leaves, to(state, "ABD"))[0]
    assert (refused(gone), list(gone.durable.cells)) == (NOT_MEMBER, [])
    back = adopt(gone, to(gone.state, "ABC"))[0]
    (found,) = look_up(admit_read(back, 3, KEY, back.state.epoch)[0], 3)[1]
    assert found.cell is None, "what it gets comes by its stream"


@pytest.mark.parametrize("sleeps_at", range(0, 40, 8))
@pytest.mark.parametrize("who", ["leader", "member"])
def test_7_a_restart_in_the_midst_of_a_queue_loses_no_step(who: str, sleeps_at: int) -> None:
    """Roles change, so that there are three steps. The one that leads (a rebalancer) is replaced by another one, whose
    term is above; or a node that stays is silent for a while.
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
    """By hand three nodes have it again, and tables can be made that are written to; by itself the survivor goes on."""
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
    assert asked(state, Access.WRITE) == alive
    assert {refused(one) for one in replicas(state, alive).values()} == {""}


def test_19_bounds_of_what_waits_and_a_change_counts_at_once() -> None:
    """Times to wait belong to a zone here; who cannot be asked is looked at again at each change, so there is no delay
    to be set. How much moves is a setting.
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
