"""Changes of tablets that have more or fewer replicas than their replication asks for, one replica at a time.

A keyspace in tablets has its new replication at once; this module plans the changes of replicas. The number of missing
and extra replicas falls with each change. Additions come first, so that no tablet has fewer replicas than both the old
and the new replication ask for. A new replica goes to a named rack that has none, else to the rack with the fewest
replicas of the tablet. Within the rack it goes to the node with the fewest tablets per shard. A replica is removed from
a datacenter or rack that is not named, else from the one with most replicas. Dead and leaving nodes come first. A
tablet in transition waits.

Admission decides whether a change may start now (``movements.tablet_admission``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ringlog.kernel.balance.model import FEWER, MORE, NOWHERE, REBUILD, Migration, Place
from ringlog.kernel.commands.control.pauses import pause_of
from ringlog.kernel.model.modes import BALANCING
from ringlog.kernel.model.state import ClusterState, Node, in_order
from ringlog.kernel.model.tablet_map import Tablet, TabletMap
from ringlog.kernel.tablets.allocation import held_by_shard
from ringlog.kernel.tablets.groups import is_dead
from ringlog.kernel.tablets.mutual_exclusion import replication_of, targets
from ringlog.kernel.values import DatacenterReplication, NodeId, Replication
from ringlog.kernel.zones.data import in_zone

ANYWHERE: Final = ""
"""The datacenter of a replication that names none."""


def balanced(state: ClusterState) -> Iterator[tuple[str, TabletMap]]:
    """Yield the tablets that the balancer moves, by table. The tablets of zones follow their partitions instead."""
    return ((name, tablets) for name, tablets in in_order(state.tablets) if not in_zone(state, name))


def copies(state: ClusterState) -> Iterator[Migration]:
    """Yield the next change of each tablet that does not fit its replication, by table and tablet."""
    unfit = [
        tablets
        for name, tablets in balanced(state)
        if not _fits(state, tablets, _wants(replication_of(state, name))) and pause_of(state, BALANCING, name) is None
    ]
    if not unfit:
        return
    changes = _Changes(state)
    for tablets in unfit:
        wants = _wants(replication_of(state, tablets.table))
        for tablet in tablets:
            if tablet.transition is None and (found := changes.of(tablets.table, tablet, wants)) is not None:
                yield found


class _Changes:
    """The next changes of tablets, with the loads after those planned so far.

    ``_held``: the tablets of each place, including migrating ones and those planned here. ``_counts``: the same per
    node. ``_loads``: tablets per shard of each target, in thousandths. Each change updates them, so that a tablet does
    not cost a scan of all shards.
    """

    def __init__(self, state: ClusterState) -> None:
        self._nodes = state.nodes
        self._targets = [node for _, node in sorted(targets(state).items())]
        self._numbers = {node.id: number for number, node in enumerate(self._targets)}
        self._held = held_by_shard(state.tablets.values())
        self._counts: Counter[NodeId] = Counter()
        for (node, _), count in self._held.items():
            self._counts[node] += count
        self._loads = np.array([self._load(node) for node in self._targets], np.int64)
        where = [(node.datacenter, node.rack) for node in self._targets]
        self._racks = {rack: number for number, rack in enumerate(dict.fromkeys(where))}
        self._rack_of = np.array([self._racks[rack] for rack in where], np.int64)
        assert len(self._targets) == len(self._numbers) == len(self._loads) == len(self._rack_of), (
            "columns of targets have the same length"
        )
        self._open: dict[tuple[str, tuple[str, ...]], NDArray[np.bool_]] = {}

    def of(self, table: str, tablet: Tablet, wants: tuple[DatacenterReplication, ...]) -> Migration | None:
        """Return the next change of a settled tablet. None if it needs none, or no node can take a replica."""
        assert tablet.transition is None, "a migrating tablet waits"
        there = [((one.node, one.shard), self._nodes[one.node]) for one in tablet.replicas]
        for want in wants:
            if (place := self._more(want, [node for _, node in there])) is not None:
                self._count(place, 1)
                return Migration(table, tablet.index, NOWHERE, place, REBUILD, MORE)
        if (place := self._fewer(wants, there)) is not None:
            self._count(place, -1)
            return Migration(table, tablet.index, place, NOWHERE, REBUILD, FEWER)
        return None

    def _more(self, want: DatacenterReplication, there: list[Node]) -> Place | None:
        local = [node for node in there if want.datacenter in (ANYWHERE, node.datacenter)]
        racks = Counter((node.datacenter, node.rack) for node in local)
        lacking = [rack for rack in want.racks if not racks[want.datacenter, rack]]
        if not (lacking if want.racks else len(local) < want.factor):
            return None
        may_get = self._may_get(want.datacenter, tuple(lacking)).copy()
        may_get[[self._numbers[one.id] for one in there if one.id in self._numbers]] = False
        found = np.flatnonzero(may_get)
        if not len(found):
            return None
        in_rack = np.zeros(len(self._racks), np.int64)
        for rack, count in racks.items():
            if rack in self._racks:
                in_rack[self._racks[rack]] = count
        # By the replicas in its rack, then by load, then by id.
        node = self._targets[int(found[np.lexsort((self._loads[found], in_rack[self._rack_of[found]]))[0]])]
        assert node.shards >= 1, "each target has shards"
        assert all(one.id != node.id for one in there), "a node has at most one replica of a tablet"
        return min(((node.id, shard) for shard in range(node.shards)), key=lambda place: (self._held[place], place))

    def _fewer(self, wants: tuple[DatacenterReplication, ...], there: list[tuple[Place, Node]]) -> Place | None:
        known = {want.datacenter for want in wants}
        extra = [one for one in there if not known.intersection((ANYWHERE, one[1].datacenter))]
        for want in wants:
            local = [one for one in there if want.datacenter in (ANYWHERE, one[1].datacenter)]
            racks = Counter(node.rack for _, node in local)
            if len(local) > want.factor:
                many = [one for one in local if one[1].rack not in want.racks or racks[one[1].rack] > 1]
                extra += many or local
        if not extra:
            return None
        racks_of_all = Counter((node.datacenter, node.rack) for _, node in there)

        def order(one: tuple[Place, Node]) -> tuple[bool, int, int, Place]:
            place, node = one
            goes = is_dead(node) or node.state == "leaving"
            return goes, racks_of_all[node.datacenter, node.rack], self._load(node), place

        return max(extra, key=order)[0]

    def _may_get(self, datacenter: str, racks: tuple[str, ...]) -> NDArray[np.bool_]:
        """Return the targets in a datacenter (or anywhere), and in these racks (or in any), as a mask."""
        known = self._open.get((datacenter, racks))
        if known is None:
            chosen = [
                datacenter in (ANYWHERE, node.datacenter) and (not racks or node.rack in racks)
                for node in self._targets
            ]
            known = self._open[datacenter, racks] = np.array(chosen, bool)
        return known

    def _count(self, place: Place, change: int) -> None:
        self._held[place] += change
        assert self._held[place] >= 0, "only shards with replicas lose replicas"
        self._counts[place[0]] += change
        if (number := self._numbers.get(place[0])) is not None:
            self._loads[number] = self._load(self._targets[number])

    def _load(self, node: Node) -> int:
        """Return the tablets per shard, in thousandths."""
        return self._counts[node.id] * 1_000 // node.shards


def _wants(replication: Replication) -> tuple[DatacenterReplication, ...]:
    return replication.datacenters or (DatacenterReplication(ANYWHERE, replication.factor),)


def _fits(state: ClusterState, tablets: TabletMap, wants: tuple[DatacenterReplication, ...]) -> bool:
    """Return whether the settled replicas of every tablet are as the replication asks."""
    rows, nodes = tablets.columns(), [state.nodes[node] for node in tablets.nodes]

    def are(chosen: list[bool], number: int) -> bool:
        counts = np.bincount(rows.tablet[np.array(chosen, bool)[rows.node]], minlength=tablets.count)
        return bool((counts == number).all())

    return are([True] * len(nodes), sum(want.factor for want in wants)) and all(
        are([want.datacenter in (ANYWHERE, node.datacenter) for node in nodes], want.factor)
        and all(
            are([(node.datacenter, node.rack) == (want.datacenter, rack) for node in nodes], 1) for rack in want.racks
        )
        for want in wants
    )
