"""The plan of a join, by the ids and tokens that its command names."""

from __future__ import annotations

from ringlog.kernel.operations.plan import plan_movement
from ringlog.kernel.operations.stages import JOIN, REQUESTED
from ringlog.kernel.state import ClusterState, Operation, Plan
from ringlog.kernel.values import NodeId, Token


def plan_join(state: ClusterState, node: NodeId, tokens: tuple[Token, ...]) -> Plan:
    """The plan by which registered ``node`` gets unowned ``tokens``, on the token map of ``state``."""
    wanted = Operation("", JOIN, node, tokens, b"", REQUESTED, 0, Plan(), (), None, (), (), "")
    return plan_movement(state, wanted)
