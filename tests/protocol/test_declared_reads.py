"""Code that recomputes only after changes of some state sections names every section that it reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache

import pytest

from ringlog.kernel.balance.advice import advise
from ringlog.kernel.balance.reports import Reports
from ringlog.kernel.commands.control.recovery import EnterRecovery
from ringlog.kernel.commands.topology.movements import Leave
from ringlog.kernel.generations.admission import RULED_BY, rules_of
from ringlog.kernel.invariants.check import INVARIANTS
from ringlog.kernel.invariants.shape import Invariant
from ringlog.kernel.model.state import EMPTY_STATE, ClusterState
from ringlog.node.registers.registers import PLACED_BY, RegisterReplica, lost_under
from ringlog.node.rows.replica import RowReplica
from ringlog.protocol.balancer import balancer
from ringlog.protocol.balancer.balancer import complaints, proposals
from ringlog.protocol.rebalancer import data_nodes, rebalancer
from ringlog.protocol.rebalancer.core import RebalancerView, idle_zones, propose, rejections
from ringlog.protocol.rebalancer.data_nodes import Timers, new_data_nodes, updated_timers
from tests.kernel.balance.test_advice import PILED
from tests.kernel.entries import NODES, applied
from tests.kernel.section_reads import parts_read, unnoted_copies
from tests.kernel.test_invariants import PLANTED, lives
from tests.kernel.zones.states import done, down, ids, to
from tests.kernel.zones.zone_keyspaces import node_reports, with_data, zone_only

BESIDE = {
    "order": {"nodes", "operations"},  # The location of a new node matters once it is in a group.
    "canonical": {"keyspaces", "nodes", "operations"},  # ``placed`` and ``views`` read what these sections change.
    "zone_values": {"nodes"},  # No entry of ``names`` is ever removed.
    "zone_steps": {"nodes"},
    "service_goal": {"nodes"},
}
"""Sections that an invariant reads without a need to check it again."""

OTHERWISE = {"terms", "service"}
"""Sections that a plan reads without a need to plan again. An agent stops with its term; a leaving node gets no new
seat in the metadata service.
"""


@cache
def zoned() -> tuple[ClusterState, ...]:
    """Return zones without and with data: stable, moving, with a node down, in a recovery, with a leaving node."""
    found = []
    for make in (zone_only, with_data):
        rest = make("ABC", "D", partitions=1, replicas=2)
        way = to(rest, "BCD")
        found += [rest, way, done(way, *down("D")), done(way, EnterRecovery("damaged", "ops"))]
        found.append(done(rest, Leave(ids("A")[0])))
    return tuple(found)


def draining() -> ClusterState:
    """Return a state with tablets on a leaving node."""
    return applied(lives()["moving"], Leave(NODES[0]))


def read(states: Iterable[ClusterState], look: Callable[[ClusterState], object]) -> set[str]:
    return set().union(*(parts_read(state, look) for state in states))


@pytest.mark.parametrize("one", INVARIANTS, ids=lambda one: one.name)
def test_an_invariant_is_rechecked_for_every_section_that_it_reads(one: Invariant) -> None:
    where, plant = PLANTED[one.name]

    def look(state: ClusterState) -> None:
        for known in (EMPTY_STATE, lives()["quiet"]):
            list(one.check(state, known))

    assert read([*lives().values(), plant(lives()[where])], look) - one.parts == BESIDE.get(one.name, set())


def test_the_balancer_replans_for_every_section_that_it_reads() -> None:
    def look(state: ClusterState) -> None:
        advice = advise(state, {})
        proposals(state, advice)
        list(complaints(state, advice, Reports()))

    assert read([*lives().values(), PILED, *zoned(), draining()], look) - OTHERWISE == set(balancer.PARTS)


def test_the_rebalancer_rechecks_every_section_that_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    unnoted_copies(monkeypatch)

    def look(state: ClusterState) -> None:
        timers = updated_timers(Timers(), state)
        known = RebalancerView(state, node_reports(state), new_data_nodes(timers, state, 10**18))
        idle_zones(known)
        propose(known)
        list(rejections(known))

    states = [*lives().values(), *zoned()]
    with_tables = [one for one in states if any(keyspace.replication.zone for keyspace in one.keyspaces.values())]
    assert read(with_tables, look) - OTHERWISE == set(rebalancer._DATA_PARTS)
    without = [one for one in zoned() if one not in with_tables]
    of_the_balancer = {"operations", "tables", "tablets"}
    assert read(without, look) - OTHERWISE - of_the_balancer == set(rebalancer._PARTS)


def test_timers_are_recomputed_for_every_section_that_they_read() -> None:
    assert read(zoned(), lambda state: updated_timers(Timers(), state)) == set(data_nodes._PARTS)


def test_write_rules_are_rebuilt_for_every_section_that_they_read() -> None:
    cluster = {"cluster_id"}  # Not a state section; constant for each state.
    assert read(lives().values(), rules_of) == set(RULED_BY) - cluster


def test_ownership_is_recomputed_for_every_section_that_it_reads() -> None:
    def look(state: ClusterState) -> None:
        RowReplica("n1")._owned_under(state)
        lost_under(RegisterReplica("n1"), state)

    assert read([*lives().values(), *zoned()], look) == set(PLACED_BY)


def test_the_check_detects_an_undeclared_section() -> None:
    assert read([lives()["quiet"]], lambda state: (state.nodes, state.epoch, state.changed)) == {"nodes"}
