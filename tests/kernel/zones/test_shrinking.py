"""A group gets smaller only if enough of those who stay can be given what it must know: what is begun can go on."""

from __future__ import annotations

from ringlog.kernel.commands.nodes import DeclareUp
from ringlog.kernel.commands.zones import AlterZone
from ringlog.kernel.state import ClusterState
from ringlog.protocol.zone_waits import ROWS, waits_of
from tests.kernel.zones.placed import led, migration, on, said, with_data
from tests.kernel.zones.scenes import done, down, ids, partition, shown, tried, trigger


def smaller() -> ClusterState:
    """Of five replicas, three of which vote, one is to go."""
    state = with_data("ABCDE", partitions=1, replicas=5, quorum=2)
    state = done(state, AlterZone("z", replicas=4))
    return done(state, trigger(state))


def test_with_two_of_those_who_stay_dead_nothing_is_begun_and_what_waits_says_for_whom() -> None:
    """Of the four who stay three must merge, and two are there. It was begun and turned back, again and again."""
    state = smaller()
    (goes,) = set("ABCDE").difference(shown(partition(state).pending[-1]).replace("/", ""))
    dead = [one for one in "ABCDE" if one != goes][:2]
    state = done(state, *down("".join(dead)))
    assert tried(state, migration(state, goes, "", kind="rebuild"))[1] == "too_few_replicas"
    state, asked = led(state)
    assert "MigrateTablets" not in asked
    assert on(state) == "ABCDE"
    (wait,) = [one for one in waits_of(state, partition(state), said(state)) if one.code == ROWS]
    assert (wait.nodes, wait.is_stuck) == (ids("".join(dead)), True)
    state, _ = led(done(state, DeclareUp(ids(dead[0])[0], "")))
    assert on(state) == "".join(sorted(set("ABCDE") - {goes})), "three of four can merge"


def test_one_that_is_dead_goes_first_and_one_that_stays_may_be_dead() -> None:
    state = smaller()
    (goes,) = set("ABCDE").difference(shown(partition(state).pending[-1]).replace("/", ""))
    stays = next(one for one in "ABCDE" if one != goes)
    for dead in (goes, stays):
        after, _ = led(done(state, *down(dead)))
        assert goes not in on(after)
