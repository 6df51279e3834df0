"""Range movements: asked for by nodes and operators, moved on by the coordinator, called off by operators."""

from __future__ import annotations

from ringlog.kernel.commands.model import AdvanceOperation, CancelOperation, Join, Witness
from ringlog.kernel.operations.stages import STAGES, in_flight, next_stage
from ringlog.kernel.state import ClusterState, in_order
from ringlog.sim.chance import Chance
from ringlog.sim.checks.gates import Acknowledgements, Gates
from ringlog.sim.checks.operations import Stages
from ringlog.sim.checks.placement import Placements
from ringlog.sim.checks.quorums import Quorums
from ringlog.sim.checks.rows import Rows
from ringlog.sim.families.family import Family


def _join(state: ClusterState, chance: Chance) -> Join | None:
    """An operator's join, mostly of a node that is no process here: it waits for ever, until it is cancelled."""
    nodes = [node.id for _, node in in_order(state.nodes)]
    if not nodes:
        return None
    owned = [token for token, _ in in_order(state.token_owners)]
    fresh = (chance.below(2**62), -chance.below(2**62))
    return Join(
        chance.pick(nodes), (chance.pick(owned), 5) if owned and chance.happens(0.3) else fresh, chance.take(16)
    )


def _advance(state: ClusterState, chance: Chance) -> AdvanceOperation | None:
    """A mistaken coordinator: the next stage, or another one, with witnesses that it does not have."""
    operations = in_flight(state)
    if not operations:
        return None
    operation = chance.pick(operations)
    stage = next_stage(operation) or "finished"
    witnesses = tuple(
        Witness(node, operation.stage_epoch - 1, operation.stage_epoch) for node, _ in in_order(state.nodes)
    )
    return AdvanceOperation(operation.id, chance.pick([stage, stage, *STAGES]), witnesses, ())


def _cancel(state: ClusterState, chance: Chance) -> CancelOperation | None:
    operations = [operation for _, operation in in_order(state.operations)]
    flying = in_flight(state)
    if flying and chance.happens(0.9):
        return CancelOperation(chance.pick(flying).id, "changed my mind")
    return CancelOperation(chance.pick(operations).id if operations else "join-1", "too late")


FAMILY = Family(
    name="operations",
    commands={
        "Join": (2, _join),
        "AdvanceOperation": (3, _advance),
        "CancelOperation": (4, _cancel),
    },
    checks=(Placements, Stages, Acknowledgements, Gates, Quorums, Rows),
)
