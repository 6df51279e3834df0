"""Advice for constant data ends. The tests apply the advice to the state until there is none."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from ringlog.kernel.balance.advice import advise, would_be_undone
from ringlog.kernel.balance.model import BYTES, GIB, MeasuredLoads
from ringlog.kernel.commands.cluster.cluster import ChangeSettings
from ringlog.kernel.commands.placement.resizes import DecideResize, FinishResize, members, resize_session
from ringlog.kernel.commands.placement.tablets import MigrateTablets
from ringlog.kernel.commands.schema.keyspaces import CreateKeyspace
from ringlog.kernel.commands.topology.nodes import UpdateNode
from ringlog.kernel.model.settings import setting
from ringlog.kernel.model.state import ClusterState, advance
from ringlog.kernel.model.tablet_map import TabletMap, with_settled, with_transitions
from ringlog.kernel.tablets.resize import MERGE, SPLIT, separated_pair
from ringlog.kernel.values import NodeId, StreamReport, TabletOptions, Witness, replace
from ringlog.protocol.balancer.load_reports import own_tablets
from tests.kernel.entries import applied
from tests.kernel.tablets import clusters

DECISIONS_MAX = 20
"""Maximum decisions of one table. Counts are halved or doubled and stay between 1 and 65,536."""

MOST = "tablets_per_table_max"

Sizes = dict[str, int]
"""Table to the bytes of one replica of all its tablets."""


def drawn(seed: int) -> tuple[ClusterState, Sizes]:
    """Return random nodes, tables of different sizes, and settings with a goal that reduces the tablets."""
    rng = random.Random(seed)
    nodes = [clusters.register(number, f"r{number % 3}", shards=rng.choice((1, 2))) for number in range(1, 7)]
    state = clusters.cluster(*nodes[: rng.randint(3, 6)])
    factor, tables = rng.randint(1, 3), rng.randint(2, 8)
    counts = [rng.choice((1, 2, 3, 4, 6, 8, 16)) for _ in range(tables)]
    crowd = sum(counts) * factor / sum(one.shards for one in state.nodes.values())
    given = {
        "balance_tablets_per_shard_goal": max(1, int(crowd * rng.uniform(0.2, 1.2))),
        "balance_tablets_per_shard_min": rng.choice((1, 1, 3)),
        "balance_resizes_max": rng.choice((1, 2, 10)),
        "tablets_per_table_max": rng.choice((16, 64)),
        "tablet_streams_max": rng.choice((2, 1_000)),
    }
    state = applied(state, ChangeSettings(tuple(sorted(given.items()))))
    state = applied(state, CreateKeyspace("ks", clusters.factor(factor)))
    sizes: Sizes = {}
    for number, count in enumerate(counts):
        state = applied(state, clusters.create_table(f"t{number}", TabletOptions(count=count), number + 1))
        mean = rng.choice((0.0, 0.1, 1.1, 1.5, 1.9, rng.uniform(0.2, 4)))
        sizes[f"ks.t{number}"] = int(mean * 5 * GIB * count)
    return state, sizes


def loads(state: ClusterState, sizes: Sizes) -> dict[NodeId, MeasuredLoads]:
    """Return load reports of all nodes for their own tablets."""
    found: dict[NodeId, dict[str, dict[int, int]]] = {node: {} for node in state.nodes}
    for name, tablets in state.tablets.items():
        for tablet in tablets:
            for replica in tablet.replicas:
                found[replica.node].setdefault(name, {})[tablet.index] = sizes[name] // tablets.count
    return {node: MeasuredLoads(1 << 40, {BYTES: tables}) for node, tables in found.items()}


def arrived(state: ClusterState) -> ClusterState:
    """Return the state after the end of all transitions."""
    for name, tablets in list(state.tablets.items()):
        next_ = {number: one.next for number, one in tablets.transitions.items()}
        if next_:
            since = {number: tuple(replace(one, since=max(1, one.since)) for one in to) for number, to in next_.items()}
            settled = {number: (replicas, state.epoch + 1) for number, replicas in since.items()}
            still = with_transitions(tablets, dict.fromkeys(next_))
            state = advance(state, state.epoch + 1, tablets=state.tablets.set(name, with_settled(still, settled)))
    return state


def finished(state: ClusterState, tablets: TabletMap) -> ClusterState:
    """Return the state after the table's resize, if it can finish."""
    resize = tablets.resize
    if resize is None or tablets.transitions or (resize.decision != SPLIT and separated_pair(tablets) is not None):
        return state
    who = members(tablets)
    session = resize_session(tablets.table, resize.sequence)
    ready = tuple(StreamReport(node, session, 0, "0" * 64) for node in who) if resize.decision == SPLIT else ()
    witnesses = tuple(Witness(node, state.epoch, state.epoch) for node in who)
    return applied(state, FinishResize(tablets.table, resize.sequence, witnesses, ready))


def carried_out(state: ClusterState, sizes: Sizes, rounds: int = 2_000) -> tuple[ClusterState, Counter[str]]:
    """Apply the advice until there is none. Return the state and the number of decisions for each table."""
    decided: Counter[str] = Counter()
    for _ in range(rounds):
        before = state
        for command in advise(state, loads(state, sizes)).commands:
            state = applied(state, command)
            if isinstance(command, DecideResize):
                decided[command.table] += 1
        state = arrived(state)
        for tablets in list(state.tablets.values()):
            state = finished(state, tablets)
        if state is before:
            return state, decided
    raise AssertionError(f"no rest: {decided}")


@pytest.mark.parametrize("seed", range(40))
def test_advice_for_constant_data_ends(seed: int) -> None:
    state, sizes = drawn(seed)
    rested, decided = carried_out(state, sizes)
    assert all(count <= DECISIONS_MAX for count in decided.values()), decided
    assert {name: tablets.resize for name, tablets in rested.tablets.items() if tablets.resize} == {}


@pytest.mark.parametrize("decision", [SPLIT, MERGE])
@pytest.mark.parametrize("seed", range(12))
def test_an_accepted_manual_decision_holds(seed: int, decision: str) -> None:
    """The balancer neither revokes the decision nor reverses it. ``would_be_undone`` predicts the decisions that it
    reverses.
    """
    state, sizes = drawn(seed)
    state, _ = carried_out(state, sizes)
    for table, tablets in sorted(state.tablets.items()):
        few, most = {SPLIT: (1, setting(state, MOST) // 2), MERGE: (2, tablets.count)}[decision]
        if not few <= tablets.count <= most:
            continue
        how = would_be_undone(state, loads(state, sizes), table, decision)
        by_hand = applied(state, DecideResize(table, decision, tablets.sequence + 1))
        after, _ = carried_out(by_hand, sizes)
        wanted = 2 * tablets.count if decision == SPLIT else -(-tablets.count // 2)
        assert (after.tablets[table].count == wanted) == (how == ""), (table, how)


@pytest.mark.parametrize("seed", range(40))
def test_siblings_do_not_move_for_a_revoked_merge(seed: int) -> None:
    """An operator's merge has siblings on different shards, and the table needs its tablets."""
    state, sizes = drawn(seed)
    state, _ = carried_out(state, sizes)
    for table, tablets in sorted(state.tablets.items()):
        if tablets.count < 2:
            continue
        by_hand = applied(state, DecideResize(table, MERGE, tablets.sequence + 1))
        advice = advise(by_hand, loads(by_hand, sizes))
        revoked = {one.table for one in advice.resizes if one.decision != MERGE}
        assert not [move for move in advice.moves if move.table in revoked]


@pytest.mark.parametrize("weight", [4, 6, 10, 1_000])
def test_a_node_of_large_weight_leaves_the_others_even(weight: int) -> None:
    """A host holds at most one replica of a tablet, which limits its share."""
    state = clusters.cluster(*[clusters.register(number, "r1", shards=2) for number in range(1, 7)])
    state = applied(
        state, CreateKeyspace("ks", clusters.factor(3)), clusters.create_table(tablets=TabletOptions(count=32))
    )
    state = applied(state, UpdateNode(clusters.node_id(6), capacity=weight))
    while moves := advise(state, {}).moves:
        state = arrived(applied(state, MigrateTablets(moves)))
    held = {node: sum(map(len, own_tablets(state, node).values())) for node in state.nodes}
    assert held.pop(clusters.node_id(6)) == 32
    assert max(held.values()) - min(held.values()) <= 1, held
