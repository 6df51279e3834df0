"""Small idle clusters with given nodes, racks and replication settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from immutables import Map

from ringlog.kernel.model.state import ClusterState, Node
from ringlog.kernel.model.tables import Keyspace
from ringlog.kernel.ownership.placements import canonical, new_placement, nodes_of, replications_in_use
from ringlog.kernel.ownership.strategies import replication_key
from ringlog.kernel.values import DatacenterReplication, Replication

EPOCH = 10


def network(**datacenters: int | tuple[str, ...]) -> Replication:
    """Return a NetworkTopologyStrategy with a factor or a list of racks for each datacenter."""
    local = tuple(
        DatacenterReplication(name, wanted if isinstance(wanted, int) else len(wanted), ())
        if isinstance(wanted, int)
        else DatacenterReplication(name, len(wanted), wanted)
        for name, wanted in sorted(datacenters.items())
    )
    return Replication("network", sum(one.factor for one in local), local)


ENTIRE = Replication("entire", 0)


def simple(factor: int) -> Replication:
    """Return a SimpleStrategy."""
    return Replication("simple", factor)


def placed(
    nodes: Mapping[str, tuple[str, Iterable[int]]], *settings: Replication, down: Iterable[str] = ()
) -> ClusterState:
    """Return a cluster at epoch 10, from node to ("datacenter/rack", tokens), with keyspaces ``ks0``, ``ks1``, …."""
    directory = {}
    for name, (place, given) in nodes.items():
        datacenter, rack = place.split("/")
        tokens = tuple(sorted(given))
        state = "normal" if tokens else "none"
        address = f"{name}.test:7000"
        directory[name] = Node(name, name, address, datacenter, rack, 2, 12, "1", (), 1, state, tokens, 1, name in down)
    owners = Map({token: name for name, node in directory.items() for token in node.tokens})
    return ClusterState(
        cluster_id="c",
        epoch=EPOCH,
        nodes=Map(directory),
        token_owners=owners,
        keyspaces=Map({f"ks{number}": Keyspace(f"ks{number}", one, "v") for number, one in enumerate(settings)}),
        placements=Map({replication_key(one): new_placement(one, owners, directory, 5) for one in settings}),
    )


def canonical_everywhere(state: ClusterState) -> bool:
    """Return True if each live layout is the canonical layout."""
    return all(
        [(g.start, g.end, nodes_of(g.write)) for g in state.placements[key].ranges]
        == [(g.start, g.end, nodes_of(g.write)) for g in canonical(setting, state.token_owners, state.nodes, 0)]
        for key, setting in replications_in_use(state)
    )
