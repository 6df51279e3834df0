"""A group shrinks only if enough remaining replicas can get the required rows, so a started step can finish.

If the majority of the previous group is lost meanwhile, the partition needs a reset.
"""

from __future__ import annotations

import pytest

from ringlog.kernel.commands.placement.tablets import MigrateTablets
from ringlog.kernel.commands.placement.zones import AlterZone
from ringlog.kernel.commands.topology.nodes import DeclareUp
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.model.zones import MODES, STRONG
from ringlog.protocol.rebalancer.zone_waits import ROWS, VOTERS, waits_of
from tests.kernel.zones.states import cancel, done, down, ids, partition, reset, shown, tried, trigger
from tests.kernel.zones.zone_keyspaces import (
    migration,
    node_reports,
    of_coordinator,
    of_rebalancer,
    on,
    run_to_idle,
    with_data,
    zone_only,
)


def smaller() -> ClusterState:
    """Return a state with five replicas, three of them voters. One replica is about to leave."""
    state = with_data("ABCDE", partitions=1, replicas=5, quorum=2)
    state = done(state, AlterZone("z", replicas=4))
    return done(state, trigger(state))


def test_too_few_live_replicas_block_a_smaller_group() -> None:
    """Three of the four remaining replicas must merge, and two are alive. The step would start and revert
    repeatedly.
    """
    state = smaller()
    (goes,) = set("ABCDE").difference(shown(partition(state).pending[-1]).replace("/", ""))
    dead = [one for one in "ABCDE" if one != goes][:2]
    state = done(state, *down("".join(dead)))
    assert tried(state, migration(state, goes, "", kind="rebuild"))[1] == "too_few_replicas"
    state, asked = run_to_idle(state)
    assert "MigrateTablets" not in asked
    assert on(state) == "ABCDE"
    (wait,) = [one for one in waits_of(state, partition(state), node_reports(state)) if one.code == ROWS]
    assert (wait.nodes, wait.is_stuck) == (ids("".join(dead)), True)
    state, _ = run_to_idle(done(state, DeclareUp(ids(dead[0])[0], "")))
    assert on(state) == "".join(sorted(set("ABCDE") - {goes})), "three of four can merge"


def test_a_dead_replica_leaves_first() -> None:
    state = smaller()
    (goes,) = set("ABCDE").difference(shown(partition(state).pending[-1]).replace("/", ""))
    stays = next(one for one in "ABCDE" if one != goes)
    for dead in (goes, stays):
        after, _ = run_to_idle(done(state, *down(dead)))
        assert goes not in on(after)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("has_tables", [False, True])
def test_a_smaller_quorum_after_a_lost_majority_does_not_count(mode: str, has_tables: bool) -> None:
    """Five voters shrink to three, and two live nodes have the data.

    No step or revert would ever count, so the partition has lost its majority and needs a reset.
    """
    made = with_data if has_tables else zone_only
    state = done(made("ABCDE", partitions=1, replicas=5, mode=mode), AlterZone("z", replicas=3))
    state = done(state, trigger(state))
    stays = shown(partition(state).pending[-1])
    while commands := [
        *of_coordinator(state),
        *(one for one in of_rebalancer(state) if isinstance(one, MigrateTablets)),
    ]:
        state = done(state, commands[0])
    assert not has_tables or on(state) == stays
    lost = "".join(sorted(set("ABCDE").difference(stays[:2])))
    state = done(state, *down(lost))
    assert VOTERS in [one.code for one in waits_of(state, partition(state), node_reports(state))]
    if mode == STRONG:
        state = done(state, cancel(state))
        assert run_to_idle(state)[1] == []
        state = done(state, reset(state, dict.fromkeys(stays[:2], 1)))
    state, asked = run_to_idle(state)
    assert ("ResetPartitions" in asked) == (mode != STRONG)
    assert set(shown(partition(state).stable)) >= set(stays[:2])
    assert partition(state).pending == ()
