"""Gates of tablets: acknowledgements and reports that a tablet needs to leave a stage.

A gate asks one group (``Stage.asks``): enough of it must have acknowledged the stage to meet every quorum of the group.
Then no request of an earlier stage can succeed unnoticed. Of n replicas these are n - quorum(n) + 1: of two replicas
one is enough, and of three two.

- The group counts as one. If the replication names datacenters, each datacenter whose replicas change also counts. In
  other datacenters, requests at LOCAL_QUORUM have the same replicas before and after.
- The pending replica must acknowledge each stage until it has streamed, because it is about to take writes.
- A living leaving replica must acknowledge ``use_new``: afterwards it gets no writes.
- The reports of the stage's work must be there, each of the session that is open.

A gate does not ask a node that has left permanently. It also does not ask a dead node that an operation in flight
ignores (a removal, or the replacement of a dead node), if the living readers know every row. The acknowledgement of any
other dead node counts, and the living are enough unless the dead could be a quorum.

A salvage has lost a majority of prev, so ``salvage`` waits only for its survivor. The sources of the survivor's report
have adopted the stage. A node that was not a source was declared down, and the loss of its writes was admitted. Before
writes to prev end (``salvaged``), all living nodes of prev know that only the survivor is read. If no loss was
admitted, a majority of prev must also know it, because a node that was declared down and still runs answers requests.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

from ringlog.kernel.model.state import ClusterState, Node
from ringlog.kernel.model.tablet_map import Tablet, TabletMap, Transition
from ringlog.kernel.operations.gates import Gate, GateNeed, missing, needs_of, parts_of, quorum
from ringlog.kernel.operations.stages import in_flight
from ringlog.kernel.tablets.groups import is_dead, streams_of
from ringlog.kernel.tablets.mutual_exclusion import is_anywhere, knows_every_row
from ringlog.kernel.tablets.stages import (
    ALLOW,
    KINDS,
    REBUILD_REPAIR,
    SALVAGED,
    STAGES,
    STREAMING,
    TURNED_BACK,
    USE_NEW,
    WRITE_BOTH_READ_OLD,
    Giver,
    Side,
    StageWork,
    is_salvage,
    kind_of,
    leaving,
    members,
    nodes_of,
    pending,
)
from ringlog.kernel.values import Epoch, NodeId, Token, replace

_PENDING_MUST: Final = (ALLOW, WRITE_BOTH_READ_OLD, REBUILD_REPAIR, STREAMING)
_GROUPS: Final = {Side.PREV: "old", Side.NEXT: "new"}

assert set(_PENDING_MUST) == {
    stage
    for kind in KINDS.values()
    for stage in kind.stages
    if kind.exchanges and kind.giver is not Giver.SURVIVORS and STAGES[stage].reads is Side.PREV
}, "the pending replica acknowledges every stage until it is read"


def gate(state: ClusterState, tablets: TabletMap, tablet: Tablet) -> Gate:
    """Return the gate of the present stage of a tablet in transition."""
    transition = tablet.transition
    assert transition is not None, "only a migrating tablet waits"
    if is_salvage(transition):
        return _gate_of_salvage(tablets, tablet, transition, state.nodes)
    where = (f"{tablets.table}/{tablet.index}", tablet.start, tablet.end)
    asked = STAGES[transition.stage].asks
    needs = () if asked is None else tuple(_needs(state, tablets.table, tablet, asked, where))
    return Gate(where[0], transition.stage, transition.stage_epoch, _must(tablet, state.nodes), needs)


def _needs(
    state: ClusterState, table: str, tablet: Tablet, asked: Side, where: tuple[str, Token, Token]
) -> Iterator[GateNeed]:
    """Yield the needs of the asked group. A move within a node has none, because the group stays the same."""
    other = Side.NEXT if asked is Side.PREV else Side.PREV
    group, instead = nodes_of(members(tablet, asked)), nodes_of(members(tablet, other))
    if set(group) == set(instead):
        return
    parts = [("", list(group))]
    if not is_anywhere(state, table):
        there = dict(parts_of(state.nodes, instead, as_one=False))
        local = parts_of(state.nodes, group, as_one=False)
        parts += [part for part in local if set(part[1]) != set(there.get(part[0], ()))]
    passed_over = _passed_over(state, table, tablet)
    for datacenter, nodes in parts:
        left = tuple([node for node in nodes if node not in passed_over])
        yield GateNeed(*where, _GROUPS[asked], datacenter, left, min(blocking_size(len(nodes)), len(left)))


def blocking_size(count: int) -> int:
    """Return the least number of ``count`` members that shares a member with each quorum."""
    return count - quorum(count) + 1


def _passed_over(state: ClusterState, table: str, tablet: Tablet) -> frozenset[NodeId]:
    """Return the replicas that are not asked: they have left, or an operation ignores them and they are not needed."""
    nodes, transition = state.nodes, tablet.transition
    assert transition is not None, "only a migrating tablet has a gate"
    ignored = {node for operation in in_flight(state) for node in operation.ignored}
    readers = nodes_of(members(tablet, STAGES[transition.stage].reads))
    if ignored and not knows_every_row(state, table, readers):
        ignored = set()
    named = {*nodes_of(tablet.replicas), *nodes_of(transition.next)}
    return frozenset([node for node in named if nodes[node].state == "left" or node in ignored])


def _gate_of_salvage(tablets: TabletMap, tablet: Tablet, transition: Transition, nodes: Mapping[NodeId, Node]) -> Gate:
    where = (f"{tablets.table}/{tablet.index}", tablet.start, tablet.end)
    old, needs = nodes_of(tablet.replicas), list[GateNeed]()
    if transition.stage == SALVAGED:
        needs = [GateNeed(*where, "old", nodes[node].datacenter, (node,), 1) for node in _living(old, nodes)]
        if not kind_of(transition).admits_loss:
            gone = tuple([node for node in old if nodes[node].state == "left"])
            needs += needs_of(nodes, where, "old", old, frozenset(gone), gone, as_one=True)
    return Gate(where[0], transition.stage, transition.stage_epoch, nodes_of(transition.next), tuple(needs))


def unmet_gate(state: ClusterState, tablets: TabletMap, tablet: Tablet, acked: Mapping[NodeId, Epoch]) -> Gate:
    """Return the unmet part of the gate. ``acked``: the epoch that each node has applied and drained.

    The fast path needs no gate: nearly always all nodes have acknowledged.
    """
    transition = tablet.transition
    assert transition is not None, "only a migrating tablet waits"
    epoch = transition.stage_epoch
    if all(acked.get(one.node, 0) >= epoch for one in (*tablet.replicas, *transition.next)):
        return Gate(tablets.table, transition.stage, epoch, (), ())
    full = gate(state, tablets, tablet)
    seen = {node for node, at in acked.items() if at >= epoch}
    needs = tuple(need for need in full.needs if len(seen.intersection(need.members)) < need.need)
    return replace(full, must=tuple(node for node in full.must if node not in seen), needs=needs)


def blocked_by(state: ClusterState, tablets: TabletMap, tablet: Tablet) -> tuple[NodeId, ...]:
    """Return the dead nodes that keep some stage of a transition from ending; empty if the living are enough."""
    transition = tablet.transition
    assert transition is not None, "only a migrating tablet has stages"
    everybody = {*nodes_of(tablet.replicas), *nodes_of(transition.next)}
    if not any(is_dead(state.nodes[node]) for node in everybody):
        return ()
    for stage in kind_of(transition).stages:
        for need in gate(state, tablets, in_stage(tablet, stage)).needs:
            dead = tuple([node for node in need.members if is_dead(state.nodes[node])])
            if len(need.members) - len(dead) < need.need:
                return dead
    return ()


def turns_back_without(state: ClusterState, tablets: TabletMap, tablet: Tablet, silent: Collection[NodeId]) -> bool:
    """Return whether a tablet that is reverted now settles without the ``silent`` and the dead nodes."""
    assert tablet.transition is not None, "only a migrating tablet reverts"
    back = STAGES[tablet.transition.stage].back
    stages = TURNED_BACK[TURNED_BACK.index(back) :] if back in TURNED_BACK else filter(None, (back,))
    ways = [in_stage(tablet, stage) for stage in stages]
    asked = [need for way in ways for need in gate(state, tablets, way).needs]
    left = [[node for node in need.members if not is_dead(state.nodes[node]) and node not in silent] for need in asked]
    busy = {node for way in ways for node in reporters(way, state.nodes, is_anywhere(state, tablets.table))}
    enough = all(len(these) >= need.need for these, need in zip(left, asked, strict=True))
    return bool(back) and enough and busy.isdisjoint(silent)


def in_stage(tablet: Tablet, stage: str) -> Tablet:
    """Return a tablet in transition as it is in another stage."""
    assert tablet.transition is not None, "only a migrating tablet has a stage"
    return replace(tablet, transition=replace(tablet.transition, stage=stage))


def is_open(unmet: Gate) -> bool:
    """Return whether nothing in the result of ``unmet_gate`` keeps the tablet in its stage."""
    return not unmet.must and not unmet.needs


def waited_for(unmet: Gate) -> tuple[NodeId, ...]:
    """Return the nodes that the gate waits for, sorted. Some of them may not be needed."""
    return missing(unmet, ())


def reporters(tablet: Tablet, nodes: Mapping[NodeId, Node], anywhere: bool) -> tuple[NodeId, ...]:
    """Return the nodes whose report ends the present stage, sorted. Empty if the stage has no work or no living node to
    do it.
    """
    transition = tablet.transition
    assert transition is not None, "only a migrating tablet has work"
    match STAGES[transition.stage].work:
        case StageWork.STREAM:
            return tuple(sorted({target for _, target in streams_of(tablet, nodes, anywhere)}))
        case StageWork.REPAIR:
            return tuple(sorted(_living(nodes_of(tablet.replicas), nodes)))
        case StageWork.CLEAN_LEAVING:
            return _living(nodes_of(tuple(filter(None, (leaving(tablet),)))), nodes)
        case StageWork.CLEAN_PENDING:
            return _living(nodes_of(tuple(filter(None, (pending(tablet),)))), nodes)
        case StageWork.NONE:
            return ()


def must_report(tablet: Tablet, nodes: Mapping[NodeId, Node], anywhere: bool) -> tuple[NodeId, ...]:
    """Return the reporters that the stage needs to end.

    A node that stays in a shrinking group and has left permanently never reports, so it is not needed (decision 134).
    """
    old = nodes_of(tablet.replicas)
    return tuple(
        [node for node in reporters(tablet, nodes, anywhere) if node not in old or nodes[node].state != "left"]
    )


def _living(these: Iterable[NodeId], nodes: Mapping[NodeId, Node]) -> tuple[NodeId, ...]:
    return tuple([node for node in these if not is_dead(nodes[node])])


def _must(tablet: Tablet, nodes: Mapping[NodeId, Node]) -> tuple[NodeId, ...]:
    assert tablet.transition is not None
    stage = tablet.transition.stage
    comes, goes = pending(tablet), leaving(tablet)
    if stage in _PENDING_MUST and comes is not None:
        return (comes.node,)
    if stage == USE_NEW and goes is not None and not is_dead(nodes[goes.node]):
        return (goes.node,)
    return ()
