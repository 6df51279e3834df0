"""Range movements: requested by nodes and operators, advanced by the coordinator, cancelled by operators."""

from __future__ import annotations

from ringlog.kernel.commands.topology.movements import Assassinate, Join, Leave, Move, Rebuild, Remove, Replace
from ringlog.kernel.commands.topology.operations import AdvanceOperation, CancelOperation, FailOperation, RetryOperation
from ringlog.kernel.model.state import ClusterState, in_order
from ringlog.kernel.operations.gates import counts_from, gaining_nodes, stopped_by
from ringlog.kernel.operations.kinds import next_stage
from ringlog.kernel.operations.stages import STAGES, in_flight
from ringlog.kernel.values import Witness
from ringlog_sim.checks.base import Family
from ringlog_sim.checks.data.rows import RowsCheck
from ringlog_sim.checks.ring.gates import Acknowledgements, Gates
from ringlog_sim.checks.ring.movements import Placements
from ringlog_sim.checks.ring.operations import Stages
from ringlog_sim.checks.ring.quorums import Quorums
from ringlog_sim.devices.world import Chance


def _join(state: ClusterState, chance: Chance) -> Join | None:
    """Return an operator's join, mostly of a node without a process. It waits until it is cancelled."""
    nodes = [node.id for _, node in in_order(state.nodes)]
    if not nodes:
        return None
    owned = [token for token, _ in in_order(state.token_owners)]
    fresh = (chance.below(2**62), -chance.below(2**62))
    return Join(
        chance.pick(nodes), (chance.pick(owned), 5) if owned and chance.happens(0.3) else fresh, chance.take(16)
    )


def _leave(state: ClusterState, chance: Chance) -> Leave | None:
    nodes = _normal(state) or [node.id for _, node in in_order(state.nodes)]
    return Leave(chance.pick(nodes)) if nodes else None


def _move(state: ClusterState, chance: Chance) -> Move | None:
    """Return a move to one or two other tokens, or to a mix of own and other tokens."""
    nodes = _normal(state)
    if not nodes:
        return None
    name = chance.pick(nodes)
    kept = state.nodes[name].tokens[: chance.below(2)]
    fresh = tuple(chance.below(2**64) - 2**63 for _ in range(chance.between(1, 2)))
    return Move(name, (*kept, *fresh), chance.take(16))


def _replace(state: ClusterState, chance: Chance) -> Replace | None:
    """Return a replacement by a known node without tokens. If that node does not run, an operator cancels it later."""
    idle = [node.id for _, node in in_order(state.nodes) if node.state == "none"]
    nodes = _normal(state)
    if not idle or not nodes:
        return None
    return Replace(chance.pick(idle), chance.pick(nodes), _ignored(state, chance))


def _remove(state: ClusterState, chance: Chance) -> Remove | None:
    down = [node.id for _, node in in_order(state.nodes) if node.down and node.state == "normal"]
    nodes = down or _normal(state)
    return Remove(chance.pick(nodes), _ignored(state, chance)) if nodes else None


def _assassinate(state: ClusterState, chance: Chance) -> Assassinate | None:
    """Return an assassination, rarely of a node that is down. After it, rows may be missing and row checks
    are skipped.
    """
    down = [node.id for _, node in in_order(state.nodes) if node.down and node.state == "normal"]
    nodes = down if down and chance.happens(0.2) else [node.id for _, node in in_order(state.nodes) if not node.down]
    return Assassinate(chance.pick(nodes)) if nodes else None


def _rebuild(state: ClusterState, chance: Chance) -> Rebuild | None:
    nodes = _normal(state)
    return Rebuild(chance.pick(nodes), chance.pick(["", "", "dc1", "dc9"])) if nodes else None


def _normal(state: ClusterState) -> list[str]:
    return [node.id for _, node in in_order(state.nodes) if node.state == "normal"]


def _ignored(state: ClusterState, chance: Chance) -> tuple[str, ...]:
    """Return ignored nodes: none, or the nodes that are down and sometimes others."""
    if chance.happens(0.7):
        return ()
    return tuple(node.id for _, node in in_order(state.nodes) if node.down or chance.happens(0.1))


def _advance(state: ClusterState, chance: Chance) -> AdvanceOperation | None:
    """Return a wrong coordinator's step: the next or another stage, with invented witnesses."""
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


def _fail(state: ClusterState, chance: Chance) -> FailOperation | None:
    """Return a failure, sometimes by a node with enough attempts, real or invented."""
    flying = in_flight(state)
    if not flying:
        return None
    operation = chance.pick(flying)
    gaining = gaining_nodes(operation)
    if gaining and chance.happens(0.5):
        tries, since = chance.pick([1, 200, 200, 200]), chance.pick([counts_from(operation), operation.stage_epoch - 1])
        return FailOperation(operation.id, "no route", chance.pick(gaining), tries, since)
    return FailOperation(operation.id, "disk broken")


def retry(state: ClusterState, chance: Chance) -> RetryOperation | None:
    """Return a retry, of a stopped operation if there is one.

    Sometimes it leaves out the nodes that are down, and admits the resulting loss.
    """
    flying = in_flight(state)
    stopped = [operation for operation in flying if stopped_by(operation)] or flying
    if not stopped:
        return None
    down = tuple(node.id for _, node in in_order(state.nodes) if node.down)
    ignored = down if chance.happens(0.5) else ()
    return RetryOperation(chance.pick(stopped).id, "mended", ignored, admits_loss=chance.happens(0.3))


# 0: the operator decides after each failure, see ``ringlog_sim.operator``.
FAMILY = Family(
    name="operations",
    commands={
        "Join": (2, _join),
        "Leave": (2, _leave),
        "Move": (2, _move),
        "Replace": (1, _replace),
        "Remove": (2, _remove),
        "Assassinate": (1, _assassinate),
        "Rebuild": (1, _rebuild),
        "AdvanceOperation": (3, _advance),
        "CancelOperation": (3, _cancel),
        "FailOperation": (1, _fail),
        "RetryOperation": (0, retry),
    },
    checks=(Placements, Stages, Acknowledgements, Gates, Quorums, RowsCheck),
)
