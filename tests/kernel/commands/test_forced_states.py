"""Commands on forced states that satisfy all invariants but result from no command. No later command may stop the
fold.
"""

from __future__ import annotations

from typing import Any

import pytest
from immutables import Map

from ringlog.kernel.balance.advice import advise
from ringlog.kernel.changes import diff
from ringlog.kernel.commands.cdc.generations import RequestCdcGeneration
from ringlog.kernel.commands.control.recovery import EnterRecovery, ForcedPart, ForceState, LeaveRecovery
from ringlog.kernel.commands.schema.keyspaces import CreateKeyspace
from ringlog.kernel.commands.topology.movements import Join
from ringlog.kernel.commands.topology.operations import CancelOperation
from ringlog.kernel.encoding.encoder import encode
from ringlog.kernel.fold import fold
from ringlog.kernel.generations.requests import CHECK_AND_REPAIR, NOTHING_TO_DO
from ringlog.kernel.invariants.check import violations
from ringlog.kernel.model.state import ClusterState, GlobalRequest
from ringlog.kernel.model.tablet_streams import DescribedTable
from ringlog.kernel.operations.stages import PREPARED, in_flight
from ringlog.kernel.values import TOKEN_MAX, DatacenterReplication, Replication, TabletOptions, replace
from ringlog.operator.rehearsal.rehearsal import acknowledgements
from ringlog.protocol.coordinator.core import CoordinatorView, propose
from ringlog.wire.changes import encode_change
from tests.kernel.commands.test_service import coordinated, joined
from tests.kernel.entries import NODES, SEED, applied, entry
from tests.kernel.generations.test_tablet_streams import LOGGED, initial_state
from tests.kernel.tablets import clusters

ENTER = EnterRecovery("repair", "ann")
LEAVE = LeaveRecovery("repaired", "ann")
JOIN = Join(NODES[4], (7,), SEED)


def forced(state: ClusterState, **parts: Any) -> ClusterState:
    """Return the state after a recovery that replaces these sections."""
    command = ForceState("repair", "ann", tuple(ForcedPart(name, encode(part)) for name, part in parts.items()))
    return applied(state, ENTER, command, LEAVE)


def test_a_request_may_have_the_name_of_a_later_epoch() -> None:
    state = joined(2)
    name = f"repair-{state.epoch + 4}"
    made = GlobalRequest(name, CHECK_AND_REPAIR, "ann", 1, 1, None, NOTHING_TO_DO, ended=1, ended_at=1)
    state = applied(forced(state, requests=Map({name: made})), RequestCdcGeneration(SEED, "bob"))
    assert state.requests[name].requester == "bob"
    assert violations(state) == ()


def test_a_forced_operation_cannot_have_a_later_id() -> None:
    state = applied(joined(2), ENTER)
    name, ended = f"join-{state.epoch + 4}", next(iter(state.operations.values()))
    part = ForcedPart("operations", encode(state.operations.set(name, replace(ended, id=name))))
    outcome = fold(state, entry(state, ForceState("repair", "ann", (part,)))).outcome
    assert (outcome.code, name in outcome.detail) == ("state_unsound", True)


def test_a_lock_may_have_any_epoch() -> None:
    state = applied(joined(3), CreateKeyspace("ks", Replication("simple", 1)), JOIN)
    while in_flight(state)[0].stage != PREPARED:
        view = CoordinatorView(state, acknowledgements(state, state.time), state.epoch, state.time)
        state = applied(state, propose(view)[0].command)
    (operation,) = in_flight(state)
    locks = tuple(replace(lock, changed=10**6) for lock in operation.locks)
    state = forced(state, operations=state.operations.set(operation.id, replace(operation, locks=locks)))
    state = applied(state, CancelOperation(operation.id, "why not"))
    assert violations(state) == ()
    assert coordinated(applied(state, JOIN)).nodes[NODES[4]].state == "normal"


def test_a_generation_may_describe_a_table_before_it_exists() -> None:
    state = initial_state()
    described = DescribedTable(LOGGED.id, (TOKEN_MAX,))
    (generation,) = state.generations
    state = applied(forced(state, generations=(replace(generation, tables=(described,)),)), LOGGED)
    assert state.generations[0].tables == (described,)
    assert violations(state) == ()


@pytest.mark.parametrize(("strategy", "factor"), [("simple", 1), ("entire", 0)])
def test_a_keyspace_may_name_datacenters_that_its_strategy_ignores(strategy: str, factor: int) -> None:
    state = applied(joined(3), CreateKeyspace("ks", Replication(strategy, factor)))
    named = Replication(strategy, factor, (DatacenterReplication("dc1", 1),))
    keyspaces = state.keyspaces.set("ks", replace(state.keyspaces["ks"], replication=named))
    state = coordinated(applied(forced(state, keyspaces=keyspaces), JOIN))
    assert state.nodes[NODES[4]].state == "normal"
    assert violations(state) == ()


@pytest.mark.parametrize(
    "wrong", [{"capacity": 0}, {"capacity": -(2**60)}, {"shards": 0}, {"shards": 10**9}, {"ignore_msb": 64}]
)
def test_a_forced_node_is_valid(wrong: dict[str, int]) -> None:
    state = applied(joined(2), ENTER)
    node = next(iter(state.nodes.values()))
    part = ForcedPart("nodes", encode(state.nodes.set(node.id, replace(node, **wrong))))
    assert fold(state, entry(state, ForceState("repair", "ann", (part,)))).outcome.code == "state_unsound"


def test_a_forced_number_fits_into_change_records() -> None:
    """Otherwise the publisher could not encode the record and would stop at that epoch."""
    state = applied(joined(2), ENTER)
    node = next(iter(state.nodes.values()))
    for capacity, code in ((2**63 - 1, ""), (2**63, "state_undecodable"), (10**30, "state_undecodable")):
        part = ForcedPart("nodes", encode(state.nodes.set(node.id, replace(node, capacity=capacity))))
        folded = fold(state, entry(state, ForceState("repair", "ann", (part,))))
        assert folded.outcome.code == code
        for record in diff(state, folded.state):
            assert record.value is None or encode_change(record.value)


def test_a_table_may_have_any_hints() -> None:
    state = clusters.with_table(clusters.three_racks(), clusters.factor(2), 4)
    hinted = replace(state.tables[clusters.TABLE], tablets=TabletOptions(4, min_count=-5, max_count=-5))
    advise(forced(state, tables=state.tables.set(clusters.TABLE, hinted)), {})


def test_a_keyspace_in_tablets_may_have_no_factor() -> None:
    state = clusters.with_table(clusters.three_racks(), clusters.factor(2), 4)
    none = replace(state.keyspaces["ks"], replication=clusters.factor(0))
    state = applied(forced(state, keyspaces=state.keyspaces.set("ks", none)), clusters.create_table("u", number=2))
    assert state.tablets["ks.u"].count >= 1
