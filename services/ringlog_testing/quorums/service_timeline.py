"""A translation from the states of a plan to the histories of the metadata service, as sets of bits.

The log takes the place of a range: a write is an entry that the write group must store, and a recovery reads from the
read group. A history begins before the first step of one member and ends when no member is changing. A gate is the
condition of the production rules (``kernel.service.missing``), asked about every subset of the write group.

Nothing is streamed. A node acknowledges an epoch only after its copy of the log contains every entry up to it, so an
acknowledgement of a gate covers all earlier entries (``RangeHistory.cumulative_acks``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from immutables import Map

from ringlog.kernel.model.modes import ServiceMember
from ringlog.kernel.model.state import ClusterState, in_order
from ringlog.kernel.service import GATED, GONE, JOINING, MEMBER, ServiceStep, missing, read_group
from ringlog.kernel.values import NodeId, Witness, replace
from ringlog_testing.quorums.model import MEMBERS_MAX, Mask, Passage, RangeHistory, RangeView, minimal_where
from ringlog_testing.quorums.timeline import Placed, mask_of

BEFORE, AFTER = "before", "after"
LABEL = "the log"


@dataclass(slots=True)
class MemberChange:
    """The history so far of a change of one member."""

    bit: dict[NodeId, Mask]
    views: list[RangeView]
    gates: list[Passage] = field(default_factory=list)


def moving_member(state: ClusterState) -> ServiceMember | None:
    """Return the node that is joining or leaving the service, or None."""
    return next((one for _, one in in_order(state.service) if one.stage != MEMBER), None)


def is_too_large(state: ClusterState) -> bool:
    """Return True if the service, with one more member, is too large for an exhaustive check."""
    return len(state.service) >= MEMBERS_MAX


KnownGates = dict[tuple[Map[str, ServiceMember], ServiceStep], tuple[Mask, ...]]
"""The sets that the production rules accept, by members and step. The plans of a cluster share most of them."""


def histories(states: Sequence[ClusterState], known: KnownGates) -> Iterator[Placed]:
    """Yield the history of every ended change of a member, or nothing if the service is too large."""
    if not states or any(map(is_too_large, states)):
        return
    change = _under_way(states[0])
    for before, after in pairwise(states):
        if after.service is before.service:
            continue
        if change is None:
            change = MemberChange(_bits(after, {*before.service, *after.service}), [])
            _add_view(change, before, BEFORE)
        moving = moving_member(before)
        if moving is not None:
            _add_gate(change, before, ServiceStep(moving.node, _stage(after, moving.node)), known)
        now = moving_member(after)
        _add_view(change, after, AFTER if now is None else now.stage)
        if now is None:
            names = tuple(after.nodes[node].name for node in change.bit)
            datacenters = ("",) * len(names)  # a quorum counts members in any datacenter
            history = RangeHistory(
                datacenters, tuple(change.views), tuple(change.gates), local=False, cumulative_acks=True
            )
            yield Placed(history, LABEL, 0, 0, names)
            change = None


def _under_way(state: ClusterState) -> MemberChange | None:
    """Return the current change of a state, with the view before the change."""
    moving = moving_member(state)
    if moving is None:
        return None
    change = MemberChange(_bits(state, set(state.service)), [])
    group = mask_of(change.bit, [node for node in change.bit if node != moving.node or moving.stage != JOINING])
    change.views.append(RangeView(BEFORE, group, group, both=False))
    _add_view(change, state, moving.stage)
    return change


def _bits(state: ClusterState, nodes: set[NodeId]) -> dict[NodeId, Mask]:
    by_name = sorted(nodes, key=lambda node: state.nodes[node].name)
    return {node: 1 << number for number, node in enumerate(by_name)}


def _add_view(change: MemberChange, state: ClusterState, name: str) -> None:
    read, write = mask_of(change.bit, read_group(state)), mask_of(change.bit, list(state.service))
    view = RangeView(name, read, write, both=False)
    if not change.views or view != replace(change.views[-1], name=name):
        change.views.append(view)


def _add_gate(change: MemberChange, before: ClusterState, step: ServiceStep, known: KnownGates) -> None:
    """Add the gate that the production rules require before this step."""
    if step.to not in GATED:
        return
    left = before.service[step.node]

    def accepts(acknowledged: Mask) -> bool:
        nodes = [node for node, one in change.bit.items() if acknowledged & one]
        return not missing(before, step, [Witness(node, left.since, left.since) for node in nodes])[0]

    key = (before.service, step)
    if key not in known:
        known[key] = minimal_where(mask_of(change.bit, list(before.service)), accepts)
    change.gates.append(Passage(len(change.views) - 1, left.stage, known[key]))


def _stage(state: ClusterState, node: NodeId) -> str:
    return state.service[node].stage if node in state.service else GONE
