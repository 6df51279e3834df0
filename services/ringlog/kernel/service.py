"""The metadata service: which nodes are its members, and which single step leads to the members that are wanted.

Members keep the log for the others: peers catch up from them, and what is left of them is what a recovery begins with.
There are two groups. The log goes to the *write group*; the *read group* is whom peers ask, and is within the other::

    stage     read  write   entered                         before it is left
    joining   no    yes     to become a member              a quorum of the write group, and the node itself, know it
    member    yes   yes     when it has the log             -
    leaving   no    yes     when others are to go on        a quorum of those that stay knows it; then it is in none

One node at a time is on its way in or out: two following groups differ by one node, and any two quorums of them meet.
A step needs a quorum of the write group that it leads to. An acknowledgement covers all earlier entries, so each entry
on a quorum of the group before is on a quorum of that group. The acknowledgement of a node that leaves would not show
this.
Additions come before removals: who leaves the cluster hands over first, and its operation waits in ``requested`` for
that (``holds_place``). The last member of the read group never leaves it.

``next_step`` is a pure function of the state; the coordinator asks for what it gives, and the fold accepts nothing
else. How many members there are to be follows from the goal: a number, or from the number of nodes that own tokens
(``automatic_size``). Which ones: each addition goes to the datacenter, then the rack, with the fewest members; each
removal takes from the fullest. Unless operators named the members, one is exchanged where that spreads them better:
``_unevenness`` falls with each exchange, so they end.

Source: CEP-21, "CMS Reconfiguration Protocol"; Cassandra's placement of its metadata keyspace.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from immutables import Map

from ringlog.kernel.model.modes import Recovery, ServiceMember
from ringlog.kernel.model.state import STAYS, ClusterState, Node, in_order
from ringlog.kernel.values import Epoch, NodeId, Witness

JOINING: Final = "joining"
MEMBER: Final = "member"
LEAVING: Final = "leaving"
GONE: Final = "gone"
"""No stage: the node is in no group any more."""
EXCLUDED_MAX: Final = 1_000
"""Nodes that are to be no members: more would not fit beside their names in one answer."""

STAGES: Final = (JOINING, MEMBER, LEAVING)
GATED: Final = (MEMBER, GONE)
"""Entered only when a quorum has acknowledged the stage before."""
SIZES: Final = ((2, 1), (5, 3), (100, 5))
"""(nodes at most, members); ``SIZE_ABOVE`` members for more nodes."""
SIZE_ABOVE: Final = 10
SIZE_MAX: Final = 100
"""More members than this nobody can want: each keeps the whole log."""


@dataclass(frozen=True, slots=True)
class ServiceStep:
    """``node`` enters the stage ``to``; ``GONE``: it leaves the last group."""

    node: NodeId
    to: str


def read_group(state: ClusterState) -> tuple[NodeId, ...]:
    """Ids of the members that peers ask, sorted."""
    return tuple(name for name, one in in_order(state.service) if one.stage == MEMBER)


def automatic_size(nodes: int) -> int:
    """How many members a cluster of that number of nodes has."""
    return next((size for most, size in SIZES if nodes <= most), SIZE_ABOVE) if nodes else 0


def wanted_size(state: ClusterState) -> int:
    """How many members there are to be."""
    goal = state.service_goal
    assert not (goal.automatic and goal.size), "a number, or automatic"
    return automatic_size(sum(_stays(node) for node in state.nodes.values())) if goal.automatic else goal.size


def unfit(state: ClusterState, node: Node) -> str | None:
    """Why a node is to be no member, in words; None if it can be one."""
    if not _stays(node):
        return f"is {node.state}"
    if node.down:
        return "was declared down"
    return "is excluded" if node.id in state.service_goal.excluded else None


def holds_place(state: ClusterState, node: NodeId) -> bool:
    """True while a node is in a group: it may not leave the cluster yet."""
    return node in state.service


def in_recovery(state: ClusterState) -> Recovery | None:
    """The recovery that goes on; None if none does."""
    return next((one for one in state.recoveries.values() if one.left is None), None) if state.recoveries else None


# ------------------------------------------------------------------------------------------------------- next step


def next_step(state: ClusterState) -> ServiceStep | None:
    """What brings the service nearer to what is wanted; None if it is as wanted, or nothing can be done."""
    goal = state.service_goal
    if not state.service and not goal.automatic and not goal.size:
        return None
    moving = next((one for _, one in in_order(state.service) if one.stage != MEMBER), None)
    if moving is None:
        return _begun(state)
    assert sum(one.stage != MEMBER for one in state.service.values()) == 1, "one node at a time is on its way"
    if moving.stage == LEAVING:
        return ServiceStep(moving.node, GONE)
    return ServiceStep(moving.node, LEAVING if unfit(state, state.nodes[moving.node]) else MEMBER)


def _begun(state: ClusterState) -> ServiceStep | None:
    """The next node to join or to leave, where none is on its way."""
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
    """Who goes: nodes that leave the cluster or are excluded; those that are down once others have their place; then
    the one in the fullest rack, while there are more than are wanted. A node that is down goes earlier if the others
    could not go before it.
    """
    outside = [node for node in members if not _stays(node) or node.id in state.service_goal.excluded]
    down = [node for node in members if node.down]
    if outside:
        return next((node for node in (*outside, *down) if not blocking_departure(state, node.id)), outside[0])
    if len(members) <= max(wanted, 1):
        return None
    return down[0] if down else _fullest(fit)


def _exchange(members: Sequence[Node], others: Iterable[Node]) -> Node | None:
    """Who makes the members more evenly spread if it joins and one of them leaves; None if nobody does."""
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
    """Sums of squares of the numbers in datacenters and in racks: the least where nodes are spread evenly."""
    in_datacenters, in_racks = _counts(nodes)
    return sum(n * n for n in in_datacenters.values()), sum(n * n for n in in_racks.values())


def _emptiest(others: Sequence[Node], members: Sequence[Node]) -> Node:
    return min(others, key=lambda node: (*_neighbours(members, node), node.name))


def _fullest(members: Sequence[Node]) -> Node:
    """Of the fullest rack of the fullest datacenter, the last by name."""
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
    """True for a node that owns tokens, and is not asked to give them up."""
    return node.state in STAYS


# ------------------------------------------------------------------------------------------------------------ gate


def missing(state: ClusterState, step: ServiceStep, witnesses: Iterable[Witness]) -> tuple[int, tuple[NodeId, ...]]:
    """(how many more, of whom) must have acknowledged the stage that the step leaves, sorted by id.

    A node that leaves is not asked. In a recovery a quorum is not asked for: only who becomes a member must have the
    log.
    """
    if step.to not in GATED:
        return 0, ()
    since = state.service[step.node].since
    known = {one.node for one in witnesses if one.applied >= since}
    group = _others(state, step.node) if step.to == GONE else tuple(sorted(state.service))
    silent = tuple(name for name in group if name not in known)
    quorum = len(group) // 2 + 1 if group and in_recovery(state) is None else 0
    lacking = quorum - (len(group) - len(silent))
    if lacking > 0:
        return lacking, silent
    return (1, (step.node,)) if step.to == MEMBER and step.node in silent else (0, ())


def blocking_departure(state: ClusterState, node: NodeId) -> tuple[NodeId, ...]:
    """Return the other nodes of the write group that are down, if without ``node`` these are half of it or more.

    If that node left, no quorum of the rest could acknowledge it.
    """
    others = _others(state, node)
    down = tuple(name for name in others if state.nodes[name].down)
    return down if 2 * len(down) >= len(others) and in_recovery(state) is None else ()


def _others(state: ClusterState, node: NodeId) -> tuple[NodeId, ...]:
    return tuple(name for name in sorted(state.service) if name != node)


def explained(state: ClusterState, step: ServiceStep, witnesses: Iterable[Witness]) -> str:
    """Whom a step waits for, in words; empty: nobody."""
    lacking, silent = missing(state, step, witnesses)
    if not lacking:
        return ""
    names = ", ".join(state.nodes[name].name + (" (down)" if state.nodes[name].down else "") for name in silent)
    since = state.service[step.node].since
    whom = f"{lacking} of {names}" if len(silent) > lacking else names
    return f"{whom} must acknowledge epoch {since}"


def entered(state: ClusterState, step: ServiceStep, epoch: Epoch) -> Map[str, ServiceMember]:
    """The members after a step with the entry of ``epoch``."""
    if step.to == GONE:
        assert state.service[step.node].stage == LEAVING, "nobody leaves the write group in one step"
        return state.service.delete(step.node)
    assert step.to != MEMBER or state.service[step.node].stage == JOINING, "nobody becomes a member in one step"
    return state.service.set(step.node, ServiceMember(step.node, step.to, epoch))
