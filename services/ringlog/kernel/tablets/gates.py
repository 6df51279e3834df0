"""Gates of tablets: who must have acknowledged a stage, and who must have reported, before a tablet leaves it.

Each stage waits for a quorum of each group, prev and next, as the stages of operations do (``operations.gates``, R5
and R6): in each datacenter, or, if the table's replication knows none (``anywhere``), of the group as one. It waits for

- the pending replica until it has streamed: it is about to take writes;
- the leaving replica in ``use_new``: afterwards no write reaches it any more;
- the reports of the stage's work, each of the session that is open.

A leaving or pending replica that is dead is no witness, as long as its part of the group has others; one that has
left for good is none at all (decision 75). A dead pending one that must acknowledge keeps the tablet where it is, until
it is turned back. A salvage has lost a majority of prev. It waits for its survivor; the sources of what he reports
have adopted the stage, and who has not been read is declared down, and his writes are what somebody admitted to lose.
Before prev is written no more (``salvaged``), all of it who are alive know that only the survivor is read. Unless
somebody has admitted a loss a majority of it knows: who is declared down, and lives, still answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from ringlog.kernel.operations.gates import Gate, GateNeed, missing, needs_of
from ringlog.kernel.state import Node
from ringlog.kernel.tablets.groups import is_dead, streams_of
from ringlog.kernel.tablets.map import Tablet, TabletMap, Transition
from ringlog.kernel.tablets.stages import (
    ALLOW,
    REBUILD_REPAIR,
    SALVAGED,
    STAGES,
    STREAMING,
    USE_NEW,
    WRITE_BOTH_READ_OLD,
    StageWork,
    is_salvage,
    kind_of,
    leaving,
    nodes_of,
    pending,
)
from ringlog.kernel.values import Epoch, NodeId

_PENDING_MUST = (ALLOW, WRITE_BOTH_READ_OLD, REBUILD_REPAIR, STREAMING)


def gate(tablets: TabletMap, tablet: Tablet, nodes: Mapping[NodeId, Node], anywhere: bool) -> Gate:
    """The gate of the stage in which a tablet in transition is."""
    transition = tablet.transition
    assert transition is not None, "a settled tablet waits for nothing"
    if is_salvage(transition):
        return _gate_of_salvage(tablets, tablet, transition, nodes)
    silent = frozenset(
        replica.node
        for replica in (leaving(tablet), pending(tablet))
        if replica is not None and is_dead(nodes[replica.node])
    )
    everybody = sorted({*nodes_of(tablet.replicas), *nodes_of(transition.next)})
    gone = tuple([node for node in everybody if nodes[node].state == "left"])
    where = (f"{tablets.table}/{tablet.index}", tablet.start, tablet.end)
    needs: list[GateNeed] = []
    for name, group in (("old", tablet.replicas), ("new", transition.next)):
        needs += needs_of(nodes, where, name, nodes_of(group), silent.union(gone), gone, anywhere)
    return Gate(where[0], transition.stage, transition.stage_epoch, _must(tablet, nodes), tuple(needs))


def _gate_of_salvage(tablets: TabletMap, tablet: Tablet, transition: Transition, nodes: Mapping[NodeId, Node]) -> Gate:
    where = (f"{tablets.table}/{tablet.index}", tablet.start, tablet.end)
    old, needs = nodes_of(tablet.replicas), list[GateNeed]()
    if transition.stage == SALVAGED:
        needs = [GateNeed(*where, "old", nodes[node].datacenter, (node,), 1) for node in _living(old, nodes)]
        if not kind_of(transition).admits_loss:
            gone = tuple([node for node in old if nodes[node].state == "left"])
            needs += needs_of(nodes, where, "old", old, frozenset(gone), gone, as_one=True)
    return Gate(where[0], transition.stage, transition.stage_epoch, nodes_of(transition.next), tuple(needs))


def awaited(
    tablets: TabletMap, tablet: Tablet, nodes: Mapping[NodeId, Node], acked: Mapping[NodeId, Epoch], anywhere: bool
) -> Gate:
    """The gate, with only what is not met: ``acked`` is the epoch that each node has applied and drained.

    Nearly always everybody has acknowledged, and then nothing is looked at.
    """
    transition = tablet.transition
    assert transition is not None, "a settled tablet waits for nothing"
    epoch = transition.stage_epoch
    if all(acked.get(one.node, 0) >= epoch for one in (*tablet.replicas, *transition.next)):
        return Gate(tablets.table, transition.stage, epoch, (), ())
    full = gate(tablets, tablet, nodes, anywhere)
    seen = {node for node, at in acked.items() if at >= epoch}
    needs = tuple(need for need in full.needs if len(seen.intersection(need.members)) < need.need)
    return replace(full, must=tuple(node for node in full.must if node not in seen), needs=needs)


def is_open(unmet: Gate) -> bool:
    """True if a gate that ``awaited`` gave holds nobody back."""
    return not unmet.must and not unmet.needs


def waited_for(unmet: Gate) -> tuple[NodeId, ...]:
    """The nodes that are waited for, sorted; not all of them may be needed."""
    return missing(unmet, ())


def reporters(tablet: Tablet, nodes: Mapping[NodeId, Node], anywhere: bool) -> tuple[NodeId, ...]:
    """The nodes whose report ends the present stage, sorted; none where it has no work, or nobody is left to do it."""
    transition = tablet.transition
    assert transition is not None, "a settled tablet has no work"
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
    """Those of the reporters without whom the stage does not end: who stays in a group that gets smaller, and has left
    for good, never says that it knows more (decision 75).
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
