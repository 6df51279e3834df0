"""A translation of the production data of a plan's steps to the histories of its ranges, as sets of bits.

A history follows a keyspace, whose placement changes with its replication. Keyspaces that share all their placements
have one history. Ranges are cut at every range end of any step, so each history belongs to one indivisible range. A
step that changes neither the groups nor R1 adds no view. To find the sets of nodes that meet a gate, the production
gate is asked about every subset of the involved nodes. Nodes outside the range count as having acknowledged. A range
without changes has no history, unless rows are streamed again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache

from ringlog.kernel.model.state import ClusterState, Plan
from ringlog.kernel.operations.gates import GATED_STAGES, Gate, GateNeed, gate, missing
from ringlog.kernel.operations.stages import WRITE_BOTH_READ_NEW, WRITE_BOTH_READ_OLD
from ringlog.kernel.ownership.kinds import SIMPLE, strategy_of
from ringlog.kernel.ownership.placements import group_at, nodes_of, placement_key
from ringlog.kernel.ring.ranges import in_range, ranges_between
from ringlog.kernel.values import NodeId, Token, Value, Witness, replace
from ringlog_testing.quorums.model import (
    MEMBERS_MAX,
    Mask,
    Passage,
    RangeHistory,
    RangeStream,
    RangeView,
    bits,
    minimal_where,
)
from ringlog_testing.quorums.walk import WalkStep

AT_ONCE = "at once"
"""The view after a request that was done without an operation."""

_BOTH = (WRITE_BOTH_READ_OLD, WRITE_BOTH_READ_NEW)


class TooManyMembers(Exception):
    """A range involves more nodes than can be checked exhaustively."""


class Placed(Value):
    """A history and its place: replication setting (or the change of it), range ``(start, end]``, node names by bit."""

    history: RangeHistory
    replication: str
    start: Token
    end: Token
    names: tuple[str, ...]


class Moment(Value):
    """A step with the data for histories: placements of one stage, and the ``gate`` for leaving it."""

    state: ClusterState
    stage: str
    gate: Gate | None


def histories(steps: Sequence[WalkStep]) -> Iterator[Placed]:
    """Yield the history of every range that the plan changes, by setting and end. Raise TooManyMembers."""
    moments = _moments(steps)
    begun = next((step.operation for step in steps if step.operation is not None), None)
    plan = begun.plan if begun is not None else Plan()
    in_ring = [name for name, one in steps[0].state.keyspaces.items() if strategy_of(one.replication).in_ring]
    for keys in sorted({_keys(moments, name) for name in in_ring}):
        ends = sorted({end for moment, key in zip(moments, keys, strict=True) for end in _ends(moment.state, key)})
        for start, end in ranges_between(ends):
            found = _history(moments, plan, keys, (start, end))
            if found is not None:
                yield found


def _keys(moments: Sequence[Moment], keyspace: str) -> tuple[str, ...]:
    """Return the key of the keyspace's placement at each moment."""
    return tuple(placement_key(moment.state.keyspaces[keyspace]) for moment in moments)


def _moments(steps: Sequence[WalkStep]) -> tuple[Moment, ...]:
    """Return one moment for each stage, in order. Within a stage placements do not change."""
    found: dict[str, Moment] = {}
    for step in steps:
        operation = step.operation
        stage = AT_ONCE if operation is None and step is not steps[0] else step.stage
        if stage not in found:
            guard = gate(step.state, operation) if operation is not None and stage in GATED_STAGES else None
            found[stage] = Moment(step.state, stage, guard)
        assert found[stage].state.placements is step.state.placements, f"placements change within {stage}"
    return tuple(found.values())


def _ends(state: ClusterState, key: str) -> tuple[Token, ...]:
    placement = state.placements.get(key)
    return placement.ends if placement is not None else ()


def _groups(state: ClusterState, key: str, token: Token) -> tuple[tuple[NodeId, ...], tuple[NodeId, ...]]:
    """Return (readers, writers) of a token. Both are empty without ranges."""
    if not _ends(state, key):
        return (), ()
    group = group_at(state.placements[key], token)
    return nodes_of(group.read), nodes_of(group.write)


def _history(moments: Sequence[Moment], plan: Plan, keys: tuple[str, ...], where: tuple[Token, Token]) -> Placed | None:
    start, end = where
    groups = [_groups(moment.state, key, end) for moment, key in zip(moments, keys, strict=True)]
    streamed = tuple(dict.fromkeys(pair for key in dict.fromkeys(keys) for pair in _sources(plan, key, end)))
    if len(set(map(_unordered, groups))) == 1 and not streamed:
        return None
    served = (node for read, write in groups for node in (*write, *read))
    nodes = tuple(dict.fromkeys((*served, *(node for source in streamed for node in source))))
    if len(nodes) > MEMBERS_MAX:
        raise TooManyMembers(
            f"({start}, {end}] of {keys[0]} involves {len(nodes)} nodes, but at most {MEMBERS_MAX} are supported"
        )
    bit = {node: 1 << number for number, node in enumerate(nodes)}
    views: list[RangeView] = []
    gates: list[Passage] = []
    for moment, key, (read, write) in zip(moments, keys, groups, strict=True):
        view = RangeView(moment.stage, mask_of(bit, read), mask_of(bit, write), moment.stage in _BOTH)
        if not views or view != replace(views[-1], name=view.name):
            views.append(view)
        if moment.gate is not None:
            accepted = informed(_of_range(moment.gate, key, end), bit)
            gates.append(Passage(len(views) - 1, moment.stage, accepted))
    directory = moments[-1].state.nodes
    history = RangeHistory(
        tuple(directory[node].datacenter for node in nodes),
        tuple(views),
        tuple(gates),
        tuple(_streams(streamed, bit, views)),
        local=not any(key.startswith(f"{SIMPLE.name}:") for key in (keys[0], keys[-1])),
    )
    label = next((key for key in keys if key != keys[0]), keys[0])
    return Placed(history, label, start, end, tuple(directory[node].name for node in nodes))


def _unordered(groups: tuple[tuple[NodeId, ...], tuple[NodeId, ...]]) -> tuple[frozenset[NodeId], frozenset[NodeId]]:
    return frozenset(groups[0]), frozenset(groups[1])


def mask_of(bit: Mapping[NodeId, Mask], nodes: Sequence[NodeId]) -> Mask:
    """Return the bits of these nodes."""
    return sum(bit[node] for node in set(nodes))


def _sources(plan: Plan, key: str, end: Token) -> tuple[tuple[NodeId, NodeId], ...]:
    """Return (target, source) of every stream of the plan into this range. A wrong plan may name any node."""
    here = (one for one in plan.sources if one.replication == key and in_range(end, one.start, one.end))
    return tuple((one.target, one.source) for one in here)


def _streams(
    sources: Sequence[tuple[NodeId, NodeId]], bit: Mapping[NodeId, Mask], views: Sequence[RangeView]
) -> Iterator[RangeStream]:
    """Yield one stream for each target, with merged sources. ``afresh`` is set if no group changes."""
    merged: dict[NodeId, Mask] = {}
    for target, source in sources:
        merged[target] = merged.get(target, 0) | bit[source]
    for target, mask in sorted(merged.items()):
        yield RangeStream(bit[target], mask, views[0].read, afresh=len(views) == 1)


# ----------------------------------------------------------------------------------------------------- gates


def _of_range(whole: Gate, key: str, end: Token) -> Gate:
    """Return the part of a gate that concerns one range. Each range must be safe by its own needs."""
    needs = (need for need in whole.needs if need.replication == key and in_range(end, need.start, need.end))
    return replace(whole, needs=tuple(needs))


def informed(guard: Gate, bit: Mapping[NodeId, Mask]) -> tuple[Mask, ...]:
    """Return the minimal sets of acknowledging nodes that meet the production gate."""
    must = tuple(sorted(bit[node] for node in guard.must if node in bit))
    asked = {(mask_of(bit, need.members), need.need) for need in guard.needs}
    return _contented(must, tuple(sorted(asked)))


@cache
def _contented(must: tuple[Mask, ...], asked: tuple[tuple[Mask, int], ...]) -> tuple[Mask, ...]:
    """Ask the production gate about every subset, with bits as nodes. The cache answers repeated questions."""
    all_nodes = 0
    for group in (*must, *(group for group, _ in asked)):
        all_nodes |= group

    def named(group: Mask) -> tuple[str, ...]:
        return tuple(str(1 << number) for number in bits(group))

    needs = tuple(GateNeed("", 0, 0, "", "", named(group), need) for group, need in asked)
    guard = Gate("", "", 1, tuple(map(str, must)), needs)
    return minimal_where(
        all_nodes, lambda acknowledged: not missing(guard, [Witness(node, 1, 1) for node in named(acknowledged)])
    )
