"""The metadata service: its member nodes, and the next step towards the wanted members.

Members keep the log for other nodes: peers catch up from them, and a recovery begins with the remaining ones. There are
two groups. The log goes to the *write group*. Peers ask the *read group*, which is a subset of the write group::

    stage     read  write   entered                         before it is left
    joining   no    yes     to become a member              a quorum of the write group and the node acknowledge it
    member    yes   yes     when it has the log             -
    leaving   no    yes     when other members remain       a quorum of the remaining nodes acknowledges it

One node at a time joins or leaves: consecutive groups differ by one node, so any two of their quorums intersect. A step
needs a quorum of the write group that it leads to. An acknowledgement covers all earlier entries, so each entry on a
quorum of the previous group is also on a quorum of the new one. The acknowledgement of a leaving node would not show
this.

Additions come before removals. A node that leaves the cluster is replaced as a member first, and its operation waits in
``requested`` meanwhile (``holds_place``). The last member of the read group never leaves it.

``next_step`` is a pure function of the state. The coordinator requests its result, and the fold accepts nothing else.
The wanted number of members comes from the goal: a number, or the size for the number of nodes that own tokens
(``automatic_size``). Each addition goes to the datacenter, then the rack, with the fewest members; each removal takes
from the fullest. Unless operators named the members, a member is exchanged if that spreads them better: ``_unevenness``
decreases with each exchange, so the exchanges end.

Source: CEP-21, "CMS Reconfiguration Protocol"; Cassandra's placement of its metadata keyspace.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from immutables import Map

from ringlog.kernel.model.modes import Recovery, ServiceMember
from ringlog.kernel.model.state import STAYS, ClusterState, Node, in_order
from ringlog.kernel.values import Epoch, NodeId, Value, Witness

JOINING: Final = "joining"
MEMBER: Final = "member"
LEAVING: Final = "leaving"
GONE: Final = "gone"
"""Not a stage: the node is no longer in a group."""
EXCLUDED_MAX: Final = 1_000
"""The maximum number of excluded nodes: more would not fit into one answer with their names."""

STAGES: Final = (JOINING, MEMBER, LEAVING)
GATED: Final = (MEMBER, GONE)
"""Stages that a node enters only after a quorum has acknowledged the previous stage."""
SIZES: Final = ((2, 1), (5, 3), (100, 5))
"""(maximum number of nodes, members); ``SIZE_ABOVE`` members for more nodes."""
SIZE_ABOVE: Final = 10
SIZE_MAX: Final = 100
"""The maximum number of members: each keeps the whole log."""

assert {*GATED} < {*STAGES, GONE}, "each name is a stage, or the end of the last one"
assert [*SIZES] == sorted(SIZES), "sizes are sorted"
assert SIZES[-1][1] < SIZE_ABOVE <= SIZE_MAX, "larger clusters have more members"


class ServiceStep(Value):
    """``node`` enters the stage ``to``. ``GONE``: it leaves the last group."""

    node: NodeId
    to: str


def read_group(state: ClusterState) -> tuple[NodeId, ...]:
    """Return the ids of the members that peers ask, sorted."""
    return tuple(name for name, one in in_order(state.service) if one.stage == MEMBER)


def automatic_size(nodes: int) -> int:
    """Return the number of members for a number of nodes."""
    members = next((size for most, size in SIZES if nodes <= most), SIZE_ABOVE) if nodes else 0
    assert members <= nodes, "there are at most as many members as nodes"
    return members


def wanted_size(state: ClusterState) -> int:
    """Return the wanted number of members."""
    goal = state.service_goal
    assert not (goal.automatic and goal.size), "the goal is either a size or automatic"
    return automatic_size(sum(_stays(node) for node in state.nodes.values())) if goal.automatic else goal.size


def unfit(state: ClusterState, node: Node) -> str | None:
    """Return why a node must not be a member, in words, or None if it can be one."""
    if not _stays(node):
        return f"is {node.state}"
    if node.down:
        return "was declared down"
    return "is excluded" if node.id in state.service_goal.excluded else None


def holds_place(state: ClusterState, node: NodeId) -> bool:
    """Return True while a node is in a group. Until then it must not leave the cluster."""
    return node in state.service


def in_recovery(state: ClusterState) -> Recovery | None:
    """Return the active recovery, or None."""
    return next((one for one in state.recoveries.values() if one.left is None), None) if state.recoveries else None


# ------------------------------------------------------------------------------------------------------- next step


def next_step(state: ClusterState) -> ServiceStep | None:
    """Return the next step towards the wanted members, or None if the members are as wanted or no step is possible."""
    goal = state.service_goal
    if not state.service and not goal.automatic and not goal.size:
        return None
    moving = next((one for _, one in in_order(state.service) if one.stage != MEMBER), None)
    if moving is None:
        return _begun(state)
    assert sum(one.stage != MEMBER for one in state.service.values()) == 1, "exactly one node is joining or leaving"
    if moving.stage == LEAVING:
        return ServiceStep(moving.node, GONE)
    return ServiceStep(moving.node, LEAVING if unfit(state, state.nodes[moving.node]) else MEMBER)


def _begun(state: ClusterState) -> ServiceStep | None:
    """Return the first step of the next node to join or leave, when no node is joining or leaving."""
    wanted = wanted_size(state)
    members = [state.nodes[name] for name in read_group(state)]
    fit = [node for node in members if unfit(state, node) is None]
    others = [node for name, node in in_order(state.nodes) if name not in state.service and unfit(state, node) is None]
    if others and len(fit) < wanted:
        return ServiceStep(_emptiest(others, fit).id, JOINING)
    if fit and (leaving := _to_leave(state, members, fit, wanted)) is not None:
        return ServiceStep(leaving.id, LEAVING)
    better = None if state.service_goal.by_hand else _exchange(members, others)
    return ServiceStep(better.id, JOINING) if better is not None else None


def _to_leave(state: ClusterState, members: Sequence[Node], fit: Sequence[Node], wanted: int) -> Node | None:
    """Return the member that leaves, or None.

    Nodes that leave the cluster or are excluded go first. Nodes that are down go once other members replace them. Then
    the node in the fullest rack goes, while there are more members than wanted. A node that is down goes earlier if the
    others could not go before it.
    """
    outside = [node for node in members if not _stays(node) or node.id in state.service_goal.excluded]
    down = [node for node in members if node.down]
    if outside:
        return next((node for node in (*outside, *down) if not blocking_departure(state, node.id)), outside[0])
    if len(members) <= max(wanted, 1):
        return None
    return down[0] if down else _fullest(fit)


def _exchange(members: Sequence[Node], others: Iterable[Node]) -> Node | None:
    """Return the node that spreads the members more evenly if it joins and one leaves; None if no exchange does."""
    firsts: dict[tuple[str, str], Node] = {}
    for node in others:
        known = firsts.setdefault(_place(node), node)
        if node.name < known.name:
            firsts[_place(node)] = node
    found = []
    for _, node in sorted(firsts.items()):
        together = [*members, node]
        leaving = _fullest(together)
        found.append((_unevenness([one for one in together if one is not leaving]), node.name, node))
    best = min(found, default=None, key=lambda one: one[:2])
    return best[2] if best is not None and best[0] < _unevenness(members) else None


def _unevenness(nodes: Sequence[Node]) -> tuple[int, int]:
    """Return the sums of squares of members per datacenter and per rack: minimal if nodes are spread evenly."""
    in_datacenters, in_racks = _counts(nodes)
    return sum(n * n for n in in_datacenters.values()), sum(n * n for n in in_racks.values())


def _emptiest(others: Sequence[Node], members: Sequence[Node]) -> Node:
    return min(others, key=lambda node: (*_neighbours(members, node), node.name))


def _fullest(members: Sequence[Node]) -> Node:
    """Return the last node by name in the fullest rack of the fullest datacenter."""
    in_datacenters, in_racks = _counts(members)
    return max(members, key=lambda node: (in_datacenters[node.datacenter], in_racks[_place(node)], node.name))


def _neighbours(members: Sequence[Node], node: Node) -> tuple[int, int]:
    return (
        sum(one.datacenter == node.datacenter for one in members),
        sum(_place(one) == _place(node) for one in members),
    )


def _counts(nodes: Sequence[Node]) -> tuple[Counter[str], Counter[tuple[str, str]]]:
    return Counter(node.datacenter for node in nodes), Counter(map(_place, nodes))


def _place(node: Node) -> tuple[str, str]:
    return node.datacenter, node.rack


def _stays(node: Node) -> bool:
    """Return True for a node that owns tokens and was not asked to give them up."""
    return node.state in STAYS


# ------------------------------------------------------------------------------------------------------------ gate


def missing(state: ClusterState, step: ServiceStep, witnesses: Iterable[Witness]) -> tuple[int, tuple[NodeId, ...]]:
    """Return (number, nodes): the acknowledgements still needed for the stage that the step leaves, and the nodes, by
    id.

    The leaving node is not asked. A recovery needs no quorum: only a new member must have the log.
    """
    if step.to not in GATED:
        return 0, ()
    since = state.service[step.node].since
    known = {one.node for one in witnesses if one.applied >= since}
    group = _others(state, step.node) if step.to == GONE else tuple(sorted(state.service))
    silent = tuple(name for name in group if name not in known)
    quorum = len(group) // 2 + 1 if group and in_recovery(state) is None else 0
    lacking = quorum - (len(group) - len(silent))
    assert lacking <= len(silent), "enough nodes are left to acknowledge it"
    if lacking > 0:
        return lacking, silent
    return (1, (step.node,)) if step.to == MEMBER and step.node in silent else (0, ())


def blocking_departure(state: ClusterState, node: NodeId) -> tuple[NodeId, ...]:
    """Return the other nodes of the write group that are down, if they are at least half of the group without ``node``.

    If ``node`` left, no quorum of the remaining nodes could acknowledge it.
    """
    others = _others(state, node)
    down = tuple(name for name in others if state.nodes[name].down)
    return down if 2 * len(down) >= len(others) and in_recovery(state) is None else ()


def _others(state: ClusterState, node: NodeId) -> tuple[NodeId, ...]:
    return tuple(name for name in sorted(state.service) if name != node)


def explained(state: ClusterState, step: ServiceStep, witnesses: Iterable[Witness]) -> str:
    """Describe the nodes that a step waits for, in words; empty: none."""
    lacking, silent = missing(state, step, witnesses)
    if not lacking:
        return ""
    names = ", ".join(state.nodes[name].name + (" (down)" if state.nodes[name].down else "") for name in silent)
    since = state.service[step.node].since
    awaited = f"{lacking} of {names}" if len(silent) > lacking else names
    return f"{awaited} must acknowledge epoch {since}"


def entered(state: ClusterState, step: ServiceStep, epoch: Epoch) -> Map[str, ServiceMember]:
    """Return the members after a step with the entry of ``epoch``."""
    if step.to == GONE:
        assert state.service[step.node].stage == LEAVING, "a member does not leave the write group in one step"
        return state.service.delete(step.node)
    assert step.to != MEMBER or state.service[step.node].stage == JOINING, "a node does not become a member in one step"
    assert step.to != JOINING or step.node not in state.service, "only a node outside of the groups joins"
    assert step.to != LEAVING or step.node in state.service, "only a node of a group leaves"
    after = state.service.set(step.node, ServiceMember(step.node, step.to, epoch))
    assert sum(one.stage != MEMBER for one in after.values()) <= 1, "consecutive groups differ by one node"
    return after
