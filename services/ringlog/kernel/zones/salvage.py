"""The *salvage* of a partition's data after a reset: one survivor merges the rows that are left.

A tablet that has lost its majority can be neither read nor written. The reset makes one node the survivor of the
partition and of its tablets. From then on the survivor takes writes. Before it serves reads, it merges the rows of all
other living replicas (the stages of ``salvage``, ``tablets.stages``), so later reads see one copy of all rows left.
Then it continues alone, and other nodes start from its rows.

The salvage starts from the replicas that have all rows:

=====================  =============================================================================================
a tablet is            replicas with all rows
=====================  =============================================================================================
settled, or repaired   its replicas
migrating              the replicas that may be read in its stage; both groups if both are written and the new one
                       has all rows
being salvaged         those before the salvage; also the survivor once it is read; only the survivor once nothing
                       else is written
=====================  =============================================================================================

**Losses.** If a majority of the replicas is alive, nothing is lost, because it has each write of any majority.
Otherwise the writes that no living node has are lost. In registers these are the writes that reached only other nodes.
Rows after the survivor's position in the mutations topic are not lost, since the survivor reads them from the topic. If
no living node has a tablet, all of it is lost. Nodes that were declared down but still run may form a quorum, and
accept writes from clients that do not know of the reset. These writes are lost, too. The kind of the salvage says
whether the loss was admitted. If it was not, the survivor waits until a majority is alive, however many nodes die after
the reset.

Invariant: once only the survivor is read, its salvage has merged each living node that has the tablet. A node that
returns before that step opens a new session, so that earlier reports, without its rows, no longer end the stage. If no
loss was admitted, a majority was merged, and it has all that the returning node could have.
"""

from __future__ import annotations

from collections.abc import Iterator

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
from ringlog.kernel.values import Epoch, NodeId, replace
from ringlog.kernel.zones.data import maps_in
from ringlog.kernel.zones.distribution import is_alive


def full_replicas(tablet: Tablet) -> tuple[TabletReplica, ...]:
    """Return the replicas that have all rows of a tablet."""
    transition = tablet.transition
    if transition is not None and transition.stage in (WRITE_BOTH_READ_NEW, FALLBACK, SALVAGED):
        return members(tablet, Side.BOTH)
    return readers(tablet)


def is_served(state: ClusterState, partition: ZonePartition) -> bool:
    """Return whether, for each tablet of a partition, a majority of the readable replicas is alive."""
    return all(has_majority(nodes_of(readers(tablet)), state.nodes) for _, tablet in _tablets(state, partition))


def lost_tables(state: ClusterState, partition: ZonePartition) -> tuple[str, ...]:
    """Return the tables whose tablet no living node has, by name. A reset loses all of their rows in the partition."""
    return tuple([maps.table for maps, tablet in _tablets(state, partition) if not _living(state, tablet)])


def held_by(state: ClusterState, partition: ZonePartition) -> dict[NodeId, int]:
    """Return how many tablets of a partition each living node has."""
    held: dict[NodeId, int] = {}
    for _, tablet in _tablets(state, partition):
        for node in _living(state, tablet):
            held[node] = held.get(node, 0) + 1
    return held


def sole_reader(state: ClusterState, partition: ZonePartition) -> NodeId:
    """Return the survivor of an earlier reset that alone is read already; empty if there is none.

    If it is alive, it is also the survivor of the next reset: a majority of the written replicas need not include it.
    """
    for _, tablet in _tablets(state, partition):
        if tablet.transition is not None and tablet.transition.stage in (SALVAGED, END_SALVAGE):
            return nodes_of(tablet.transition.next)[0]
    return ""


def may_lose(state: ClusterState, partition: ZonePartition) -> str:
    """Return the data that a reset of a partition may lose, in words; empty if none."""
    gone = lost_tables(state, partition)
    parts = [f"all of {name} in the partition, which no live node has" for name in gone]
    lacking = set[NodeId]()
    for maps, tablet in _tablets(state, partition):
        group = nodes_of(full_replicas(tablet))
        if maps.table not in gone and not has_majority(group, state.nodes):
            lacking.update(node for node in group if not is_alive(state, node))
    if lacking:
        names = ", ".join(sorted(state.nodes[node].name for node in lacking))
        parts.append(f"registers whose last write only {names} have")
    alone = sole_reader(state, partition)
    if alone and not is_alive(state, alone):
        parts.append(f"the order of reads that {state.nodes[alone].name}, the only read replica, still answers")
    return "; ".join(parts)


def refused_salvage(state: ClusterState, partition: ZonePartition) -> Rejected | None:
    """Return why the salvage of a partition's tablets may not start now; None if it may, or if the partition has no
    tablets.
    """
    return may_begin(state) if any(True for _ in _tablets(state, partition)) else None


def salvaged(
    state: ClusterState, partition: ZonePartition, survivor: NodeId, admits_loss: bool, epoch: Epoch
) -> dict[str, TabletMap]:
    """Return the maps, by table, after the salvage of a partition's tablets to ``survivor`` has started."""
    assert is_alive(state, survivor), "the remaining replicas are alive"
    kind = (LOSSY_SALVAGE if admits_loss else SALVAGE).name
    found = {}
    for maps, tablet in _tablets(state, partition):
        group, index = full_replicas(tablet), tablet.index
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
    """Return the maps of tablets after a node is alive again. In a salvage whose loss was admitted, the survivor starts
    a new session that includes the node, unless the survivor is read already.
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
    """Yield the tablets of a partition, by table."""
    return ((maps, maps.tablet(partition.number)) for maps in maps_in(state, partition.zone))


def _living(state: ClusterState, tablet: Tablet) -> list[NodeId]:
    return [node for node in nodes_of(full_replicas(tablet)) if is_alive(state, node)]
