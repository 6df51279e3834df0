"""What the reset of a partition does to its data: they are *salvaged*, out of what is left.

A tablet of a partition that has lost its majority can neither be read nor written. The reset gives it one survivor, the
one with which the partition begins anew. From then on he is written, too. Before he is read he takes what all others
have who are alive (the stages of ``salvage``, ``tablets.stages``): what is read afterwards is one copy of all that is
left. Then he goes on alone, and the others begin with what he has.

=====================  =============================================================  ================================
a tablet is            who has all of its rows                                        the salvage begins from
=====================  =============================================================  ================================
settled, or repaired   its replicas                                                   these
on its way             who may be read in its stage; where both groups are written    these
                       and the new one has all, both
being salvaged         as before the salvage, and the survivor from when he may be    these
                       read; he alone when only he is written
=====================  =============================================================  ================================

**What is lost** is nothing where a majority of those who have a tablet is alive: that has what any majority has
written. Else it is what nobody alive has: of registers writes that reached only the others; of rows nothing that the
survivor's position in the mutations topic has yet to pass, since he reads that himself. Where nobody alive has a
tablet, all of it is lost. A quorum of those who were declared down, and are not, may do writes for who has not heard of
the reset: these are lost, too. Whether somebody has admitted that goes with the salvage, as its kind: where nobody has,
the survivor waits until a majority is alive, however many die after the reset.

Invariant: nobody who is alive when the survivor alone is read, and has a tablet, is left out of its salvage. Who comes
back before that step opens a new session: what was reported without him ends nothing any more. Where nobody has
admitted a loss a majority was merged, which has what he could have.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from immutables import Map

from ringlog.kernel.model.outcome import Rejected
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.model.tablet_map import (
    Tablet,
    TabletMap,
    TabletReplica,
    Transition,
    with_settled,
    with_transitions,
)
from ringlog.kernel.model.zones import ZonePartition
from ringlog.kernel.tablets.groups import has_majority
from ringlog.kernel.tablets.mutual_exclusion import may_begin, transitions
from ringlog.kernel.tablets.stages import (
    END_SALVAGE,
    FALLBACK,
    LOSSY_SALVAGE,
    SALVAGE,
    SALVAGED,
    SALVAGING,
    WRITE_BOTH_READ_NEW,
    Side,
    kind_of,
    members,
    nodes_of,
    readers,
)
from ringlog.kernel.tablets.steps import begun
from ringlog.kernel.values import Epoch, NodeId
from ringlog.kernel.zones.data import maps_in
from ringlog.kernel.zones.distribution import is_alive


def having(tablet: Tablet) -> tuple[TabletReplica, ...]:
    """The replicas that have all rows of a tablet."""
    transition = tablet.transition
    if transition is not None and transition.stage in (WRITE_BOTH_READ_NEW, FALLBACK, SALVAGED):
        return members(tablet, Side.BOTH)
    return readers(tablet)


def is_served(state: ClusterState, partition: ZonePartition) -> bool:
    """True if of each tablet of a partition a majority of those who may be read is alive."""
    return all(has_majority(nodes_of(readers(tablet)), state.nodes) for _, tablet in _tablets(state, partition))


def unsaved(state: ClusterState, partition: ZonePartition) -> tuple[str, ...]:
    """The tables whose tablet nobody has who is alive, by name: a reset loses all rows of these in the partition."""
    return tuple([maps.table for maps, tablet in _tablets(state, partition) if not _living(state, tablet)])


def held_by(state: ClusterState, partition: ZonePartition) -> dict[NodeId, int]:
    """How many tablets of a partition each node has that is alive."""
    held: dict[NodeId, int] = {}
    for _, tablet in _tablets(state, partition):
        for node in _living(state, tablet):
            held[node] = held.get(node, 0) + 1
    return held


def sole_reader(state: ClusterState, partition: ZonePartition) -> NodeId:
    """The survivor of a reset who alone is read already; empty if there is none. The next reset is his, too, if he is
    alive: a majority of those who are written need not meet him.
    """
    for _, tablet in _tablets(state, partition):
        if tablet.transition is not None and tablet.transition.stage in (SALVAGED, END_SALVAGE):
            return nodes_of(tablet.transition.next)[0]
    return ""


def may_lose(state: ClusterState, partition: ZonePartition) -> str:
    """What a reset of a partition may lose, in words; empty: nothing."""
    gone = unsaved(state, partition)
    parts = [f"all of {name} in the partition, which nobody alive has" for name in gone]
    lacking = set[NodeId]()
    for maps, tablet in _tablets(state, partition):
        group = nodes_of(having(tablet))
        if maps.table not in gone and not has_majority(group, state.nodes):
            lacking.update(node for node in group if not is_alive(state, node))
    if lacking:
        names = ", ".join(sorted(state.nodes[node].name for node in lacking))
        parts.append(f"registers of which only {names} have the last write")
    alone = sole_reader(state, partition)
    if alone and not is_alive(state, alone):
        parts.append(f"the order of reads that {state.nodes[alone].name} still answers, which alone was read")
    return "; ".join(parts)


def refused_salvage(state: ClusterState, partition: ZonePartition) -> Rejected | None:
    """Why the tablets of a partition may not be salvaged now; None if they may, or if it has none."""
    return may_begin(state) if any(True for _ in _tablets(state, partition)) else None


def salvaged(
    state: ClusterState, partition: ZonePartition, survivor: NodeId, admits_loss: bool, epoch: Epoch
) -> dict[str, TabletMap]:
    """The maps in which the tablets of a partition begin to be salvaged to ``survivor``, by table."""
    assert is_alive(state, survivor), "who goes on is alive"
    kind = (LOSSY_SALVAGE if admits_loss else SALVAGE).name
    found = {}
    for maps, tablet in _tablets(state, partition):
        group, index = having(tablet), tablet.index
        assert group, "a tablet has replicas"
        after = maps
        if tablet.transition is not None:
            after = with_settled(with_transitions(maps, {index: None}), {index: (group, epoch)})
        shards = state.nodes[survivor].shards
        place = next((one for one in group if one.node == survivor), TabletReplica(survivor, index % shards, 0))
        step = begun(kind, after.tablet(index), (place,), epoch)
        found[maps.table] = with_transitions(after, {index: step})
    return found


def with_returned(state: ClusterState, node: NodeId, epoch: Epoch) -> Map[str, TabletMap]:
    """The maps of tablets when a node is alive again: where the survivor of a salvage whose loss is admitted is not
    read yet, he begins his session anew, with that node among those who give.
    """
    steps: dict[str, dict[int, Transition]] = {}
    for tablets, one in transitions(state):
        group = nodes_of(tablets.tablet(one.tablet).replicas)
        if one.stage == SALVAGING and kind_of(one).admits_loss and node in group:
            steps.setdefault(tablets.table, {})[one.tablet] = replace(one, stage_epoch=epoch)
    after = state.tablets
    for table, changes in steps.items():
        after = after.set(table, with_transitions(after[table], changes))
    return after


def _tablets(state: ClusterState, partition: ZonePartition) -> Iterator[tuple[TabletMap, Tablet]]:
    """The tablets of a partition, by table."""
    return ((maps, maps.tablet(partition.number)) for maps in maps_in(state, partition.zone))


def _living(state: ClusterState, tablet: Tablet) -> list[NodeId]:
    return [node for node in nodes_of(having(tablet)) if is_alive(state, node)]
