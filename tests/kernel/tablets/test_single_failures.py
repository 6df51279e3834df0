"""One node dies in each stage of each transition, with each pending node operation, in minimal clusters.

If the live nodes have all rows of the tablet, each accepted operation finishes or can be cancelled, and the dead node
can be removed. The test covers all combinations.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ringlog.kernel.balance.advice import advise
from ringlog.kernel.commands.placement.tablets import (
    MigrateTablets,
    RevertTablets,
    Shard,
    TabletMigration,
    TabletRevert,
)
from ringlog.kernel.commands.schema.keyspaces import AlterKeyspace
from ringlog.kernel.commands.topology.movements import Assassinate, Join, Leave, Remove, Replace
from ringlog.kernel.commands.topology.nodes import DeclareDown
from ringlog.kernel.commands.topology.operations import CancelOperation
from ringlog.kernel.invariants.check import violations
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.model.tablet_map import Tablet
from ringlog.kernel.operations.stages import POINT_OF_NO_RETURN, has_reached, in_flight
from ringlog.kernel.tablets.stages import KINDS, STAGES, nodes_of
from ringlog.kernel.values import Command, DatacenterReplication, Replication, replace
from ringlog.operator.rehearsal.rehearsal import acknowledgements
from ringlog.protocol.coordinator.core import CoordinatorView, propose
from tests.kernel.entries import applied
from tests.kernel.tablets.clusters import (
    TABLE,
    cluster,
    factor,
    node_id,
    outcome,
    places,
    refused,
    register,
    settled,
    started,
    tablet,
    with_table,
)


def network(**factors: int) -> Replication:
    local = tuple(DatacenterReplication(name, count, ()) for name, count in factors.items())
    return Replication("tablets", sum(factors.values()), local)


CLUSTERS = {
    "1 replica": factor(1),
    "2 replicas": factor(2),
    "3 replicas": factor(3),
    "1 and 1": network(dc1=1, dc2=1),
    "2 and 1": network(dc1=2, dc2=1),
    "2 and 2": network(dc1=2, dc2=2),
}
KINDS_OF = ("migration", "intranode_migration", "rebuild", "rebuild_v2", "repair", "more", "fewer")
SPARE = 3
"""Nodes of a datacenter without the tablet: one for a copy, one for a rebuild, and one more."""


def grown(replication: Replication, change: int) -> Replication:
    if not replication.datacenters:
        return factor(replication.factor + change)
    first, *others = replication.datacenters
    return network(**{one.datacenter: one.factor for one in (replace(first, factor=first.factor + change), *others)})


def made(replication: Replication) -> ClusterState:
    """Return the cluster with one tablet."""
    counts = {one.datacenter: one.factor for one in replication.datacenters} or {"dc1": replication.factor}
    names = [name for name, count in counts.items() for _ in range(count + SPARE)]
    return with_table(cluster(*[register(i + 1, "r1", dc) for i, dc in enumerate(names)]), replication, 1)


def moving(replication: Replication, kind: str) -> tuple[ClusterState, TabletMigration] | None:
    """Return a cluster and the transition of that kind, or None if there is none."""
    state = made(replication)
    if kind == "fewer":
        state = made(grown(replication, 1))
        state = applied(state, AlterKeyspace("ks", replication))
    elif kind == "more":
        state = applied(state, AlterKeyspace("ks", grown(replication, 1)))
    here = next(place for place in places(tablet(state)) if state.nodes[place[0]].datacenter == "dc1")
    free = min(n.id for n in state.nodes.values() if n.datacenter == "dc1" and n.id not in dict(places(tablet(state))))
    source, target = Shard(*here), Shard(free, 0)
    if kind == "intranode_migration":
        return state, TabletMigration(TABLE, 0, kind, source, Shard(source.node, 1 - source.shard))
    if kind.startswith("rebuild"):
        state = applied(state, DeclareDown(source.node, "burnt"))
        step = TabletMigration(TABLE, 0, kind, source, target)
        return (state, step) if refused(state, MigrateTablets((step,))) == "applied" else None
    if kind == "repair":
        return state, TabletMigration(TABLE, 0, kind)
    if kind in ("more", "fewer"):
        only = {"more": (None, target), "fewer": (source, None)}[kind]
        return state, TabletMigration(TABLE, 0, "rebuild", *only)
    return state, TabletMigration(TABLE, 0, kind, source, target)


def stages(state: ClusterState, step: TabletMigration) -> Iterator[tuple[str, ClusterState]]:
    """Yield the tablet in each stage, and in each stage of its revert if permitted."""
    for stage in KINDS[step.kind].stages:
        there = started(state, step, stage)
        yield stage, there
        back = RevertTablets((TabletRevert(TABLE, 0, "by hand"),))
        if refused(there, back) != "applied":
            continue
        there = applied(there, back)
        while (found := tablet(there).transition) is not None and (ahead := stepped(there)) is not there:
            yield f"{stage}, then {found.stage}", there
            there = ahead


def knows(state: ClusterState, nodes: tuple[str, ...]) -> bool:
    """Return True if each quorum of the group, or of each named datacenter, has a live node."""
    named = state.keyspaces["ks"].replication.datacenters
    parts: dict[str, list[bool]] = {}
    for node in nodes:
        parts.setdefault(state.nodes[node].datacenter if named else "", []).append(state.nodes[node].down)
    return all(2 * sum(dead) <= len(dead) for dead in parts.values())


def knows_all(state: ClusterState, found: Tablet) -> bool:
    """Return True if the live nodes have all rows, given the writers of the stage."""
    now, old = found.transition, nodes_of(found.replicas)
    if now is None or STAGES[now.stage].reads.value == "prev":
        return knows(state, old)
    both = STAGES[now.stage].writes.value == "both"
    return knows(state, nodes_of(now.next)) or (both and knows(state, old))


def living(state: ClusterState) -> CoordinatorView:
    acks = {node: ack for node, ack in acknowledgements(state, 0).items() if not state.nodes[node].down}
    return CoordinatorView(state, acks, state.epoch, max(state.time, 1_700_000_000_000_000))


def stepped(state: ClusterState) -> ClusterState:
    """Apply the coordinator's proposals of one round."""
    for proposal in propose(living(state)):
        command = proposal.command
        state = outcome_state(state, command)
    return state


def outcome_state(state: ClusterState, command: Command) -> ClusterState:
    return applied(state, command) if outcome(state, command).kind.value == "applied" else state


def led(state: ClusterState) -> ClusterState:
    """Advance the state as far as coordinator and balancer do."""
    for _ in range(200):
        after = stepped(state)
        if after is state and not tablet(state).transition and (moves := advise(state, {}).moves):
            after = applied(state, MigrateTablets(moves))
        if after is state:
            return state
        state = after
    raise AssertionError("it never rests")


def asked_for(state: ClusterState, victim: str) -> Iterator[Command]:
    """Yield possible node operations."""
    yield Remove(victim)
    yield Replace(node_id(20), victim)
    yield Join(node_id(21), (77,), bytes(16))
    others = [n for n in nodes_of(tablet(state).replicas) if not state.nodes[n].down and n != victim]
    yield from map(Leave, others[:1])


@pytest.mark.parametrize("kind", KINDS_OF)
@pytest.mark.parametrize("name", CLUSTERS)
def test_accepted_operations_end_without_the_dead_node(name: str, kind: str) -> None:
    start = moving(CLUSTERS[name], kind)
    if start is None:
        return
    for where, state in stages(*start):
        found = tablet(state)
        assert found.transition is not None
        named = {one.node for one in (*found.replicas, *found.transition.next)}
        for victim in sorted(node for node in named if not state.nodes[node].down):
            dead = applied(state, DeclareDown(victim, "burnt"))
            place = dead.nodes[victim].datacenter
            dead = applied(dead, register(20, "r1", place), register(21, "r1", place))
            for command in asked_for(dead, victim):
                if outcome(dead, command).kind.value == "applied":
                    ends(f"{where}, {dead.nodes[victim].name} dies, {command}", dead, victim, command)


def ends(story: str, state: ClusterState, victim: str, command: Command) -> None:
    """Assert that the requested operation ends or is cancelled, and that the dead node leaves."""
    is_known, before = knows_all(state, tablet(state)), sorted(n.id for n in state.nodes.values() if n.down)
    rest = led(applied(state, command))
    stuck = in_flight(rest)
    if is_known and before == [victim] and isinstance(command, Remove | Replace):
        assert not stuck, f"{story}: {stuck[0].kind} waits, {tablet(rest)}"
    for operation in stuck:
        cancel = CancelOperation(operation.id, "no more")
        assert refused(rest, cancel) == "applied", f"{story}: {operation.id}: {outcome(rest, cancel)}"
        rest = applied(rest, cancel)
    if is_known:
        rest = led(rest)
        if rest.nodes[victim].state == "normal":
            rest = led(applied(rest, Remove(victim, tuple(node for node in before if node != victim))))
        assert rest.nodes[victim].state == "left", f"{story}: {rest.nodes[victim]}"
        assert tablet(rest).transition is None, f"{story}: {tablet(rest)}"
        assert not in_flight(rest), story
    assert not violations(rest), story


@pytest.mark.parametrize("name", CLUSTERS)
def test_a_replacement_is_cancelled_if_its_node_dies(name: str) -> None:
    """The replacement already has the dead node's tablet, or is about to get it."""
    state = made(CLUSTERS[name])
    (old, shard), *_ = places(tablet(state))
    fresh = register(20, "r1", state.nodes[old].datacenter)
    state = applied(state, fresh, Replace(fresh.id, old))
    (operation,) = in_flight(state)
    step = TabletMigration(TABLE, 0, "migration", Shard(old, shard), Shard(fresh.id, 0))
    for stage in (*KINDS["migration"].stages, ""):
        there = started(state, step, stage) if stage else settled(started(state, step))
        dead = led(applied(there, DeclareDown(fresh.id, "burnt")))
        cancel = CancelOperation(operation.id, "its node is gone")
        if not knows_all(applied(there, DeclareDown(fresh.id, "burnt")), tablet(there)):
            assert refused(dead, cancel) == "too_few_replicas"
            cancel = Assassinate(fresh.id)
        rest = led(applied(dead, cancel))
        assert (tablet(rest).transition, in_flight(rest), violations(rest)) == (None, (), ())
        assert fresh.id not in nodes_of(tablet(rest).replicas)
        assert rest.nodes[old].state == "normal"


@pytest.mark.parametrize("name", CLUSTERS)
def test_a_replacement_that_cannot_be_cancelled_ends_first(name: str) -> None:
    """The new node has the tablet and dies in each later stage of the operation."""
    state = made(CLUSTERS[name])
    (old, shard), *_ = places(tablet(state))
    fresh = register(20, "r1", state.nodes[old].datacenter)
    state = applied(state, fresh, Replace(fresh.id, old))
    state = settled(started(state, TabletMigration(TABLE, 0, "migration", Shard(old, shard), Shard(fresh.id, 0))))
    stages = []
    while moving := in_flight(state):
        stages.append(moving[0].stage)
        dead = applied(state, DeclareDown(fresh.id, "burnt"))
        if has_reached(moving[0], POINT_OF_NO_RETURN):
            assert refused(dead, Assassinate(fresh.id)) == "wrong_node_state"
            dead = led(dead)
        after = led(applied(dead, Assassinate(fresh.id)))
        assert after.nodes[fresh.id].state == "left"
        assert (in_flight(after), tablet(after).transition, violations(after)) == ((), None, ())
        state = stepped(state)
    assert POINT_OF_NO_RETURN in stages
