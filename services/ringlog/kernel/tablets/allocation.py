"""First allocation: the nodes that may have tablets, and the shards for the tablets of a new table.

For each tablet, in each datacenter that its replication names (or over all of them, if it names none):

- A list of racks: one replica in each.
- A number: racks take turns from tablet to tablet, those with the fewest replicas of this tablet first.
- In a rack: the node with the fewest replicas for each of its shards (over all tables) that has none of the tablet yet.
- In a node: its shards take turns.

Allocation is a pure function of the directory and of the replicas that nodes hold. Ties go to the smaller id, rotated
by the tablet's number. Only nodes that are normal, alive and not about to leave get tablets.

Source: ScyllaDB, ``network_topology_strategy::allocate_tablets_for_new_table``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from ringlog.kernel.model.state import STAYS, ClusterState, Node
from ringlog.kernel.model.tablet_map import TabletMap, TabletReplica, new_map, uniform_ends
from ringlog.kernel.ownership.strategies import Census, census_of, impossible
from ringlog.kernel.tablets.stages import ends_as, nodes_of
from ringlog.kernel.values import Epoch, NodeId, Replication

_SCALE = 2**20
"""Loads per shard are compared as integers, in units of 1 / ``_SCALE`` of a replica."""


def eligible(state: ClusterState) -> dict[NodeId, Node]:
    """Return the nodes that may receive tablets, by id."""
    return {
        name: node
        for name, node in sorted(state.nodes.items())
        if node.state in STAYS and not node.down and node.shards >= 1
    }


def census(nodes: Mapping[NodeId, Node]) -> Census:
    """Return the number of nodes in each rack."""
    return census_of(nodes, nodes)


def unplaceable(state: ClusterState, replication: Replication) -> str:
    """Return why the replicas of a tablet cannot be placed; empty if they can."""
    return impossible(replication, census(eligible(state)))


def replica_counts(maps: Iterable[TabletMap]) -> dict[NodeId, int]:
    """Return the number of replicas of each node, over all maps, once all transitions have finished.

    It reads node totals and the tablets in transition only.
    """
    found = Counter[NodeId]()
    for tablets in maps:
        for node, count in zip(tablets.nodes, tablets.held, strict=True):
            found[node] += count
        for before, after in _exchanged(tablets):
            found.subtract(nodes_of(before))
            found.update(nodes_of(after))
    return found


def held_by_shard(maps: Iterable[TabletMap]) -> Counter[tuple[NodeId, int]]:
    """Return the number of replicas of each shard, over all maps, once all transitions have finished.

    It reads all replicas.
    """
    found = Counter[tuple[NodeId, int]]()
    for tablets in maps:
        rows = tablets.columns()
        for place, shard in zip(rows.node.tolist(), rows.shard.tolist(), strict=True):
            found[tablets.nodes[place], shard] += 1
        for before, after in _exchanged(tablets):
            found.subtract([(one.node, one.shard) for one in before])
            found.update([(one.node, one.shard) for one in after])
    assert min(found.values(), default=0) >= 0, "a transition replaces existing replicas"
    return found


def _exchanged(tablets: TabletMap) -> Iterator[tuple[tuple[TabletReplica, ...], tuple[TabletReplica, ...]]]:
    """Yield the present and the future replicas of each tablet in transition."""
    for number, transition in tablets.transitions.items():
        settled = tablets.replicas(number)
        yield settled, ends_as(transition, settled)


def allocated(table: str, count: int, replication: Replication, state: ClusterState, epoch: Epoch) -> TabletMap:
    """Return the map of a new table. The replication can be placed (``unplaceable``)."""
    nodes = eligible(state)
    there = replica_counts(state.tablets.values())
    scopes = _scopes(replication, nodes, there)
    groups = []
    for index in range(count):
        group: list[TabletReplica] = []
        for scope in scopes:
            group += [TabletReplica(node, shard, epoch) for node, shard in scope.take(index)]
        groups.append(group)
    return new_map(table, uniform_ends(count), groups, epoch)


# -------------------------------------------------------------------------------------------------------- taking


@dataclass(slots=True)
class _Rack:
    """The nodes of a rack by load.

    ``turn``: the number of replicas that each node has received; its shards take them in turn.
    """

    nodes: Mapping[NodeId, Node]
    turn: dict[NodeId, int]
    heap: list[tuple[int, NodeId]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.heap = [(self._load(node), node) for node in self.nodes]
        heapify(self.heap)

    def _load(self, node: NodeId) -> int:
        return self.turn.get(node, 0) * _SCALE // self.nodes[node].shards

    def take(self) -> tuple[NodeId, int]:
        """Return the next node and its shard, and remove the node until it is put back."""
        _, node = heappop(self.heap)
        turn = self.turn.get(node, 0)
        self.turn[node] = turn + 1
        return node, turn % self.nodes[node].shards

    def put_back(self, node: NodeId) -> None:
        """Put a node back, so that it may be chosen again."""
        heappush(self.heap, (self._load(node), node))


@dataclass(slots=True)
class _Scope:
    """The racks for some replicas of each tablet: ``factor`` replicas over these racks."""

    racks: list[_Rack]
    factor: int

    def take(self, index: int) -> list[tuple[NodeId, int]]:
        """Return the replicas of tablet ``index``."""
        taken: list[tuple[_Rack, NodeId, int]] = []
        rounds = 0
        while len(taken) < self.factor:
            open_racks = [rack for rack in self.racks if rack.heap]
            assert open_racks, "the replication is possible"
            here = min(self.factor - len(taken), len(open_racks))
            first = (index * self.factor + rounds) % len(open_racks)
            for place in range(here):
                rack = open_racks[(first + place) % len(open_racks)]
                taken.append((rack, *rack.take()))
            rounds += 1
        for rack, node, _ in taken:
            rack.put_back(node)
        return [(node, shard) for _, node, shard in taken]


def _scopes(replication: Replication, nodes: Mapping[NodeId, Node], there: dict[NodeId, int]) -> list[_Scope]:
    if not replication.datacenters:
        places = sorted({(node.datacenter, node.rack) for node in nodes.values()})
        return [_Scope([_rack(nodes, place, there) for place in places], replication.factor)]
    scopes = []
    for local in replication.datacenters:
        racks = local.racks or sorted({n.rack for n in nodes.values() if n.datacenter == local.datacenter})
        scopes.append(_Scope([_rack(nodes, (local.datacenter, rack), there) for rack in racks], local.factor))
    return scopes


def _rack(nodes: Mapping[NodeId, Node], place: tuple[str, str], there: dict[NodeId, int]) -> _Rack:
    return _Rack({name: node for name, node in nodes.items() if (node.datacenter, node.rack) == place}, there)
