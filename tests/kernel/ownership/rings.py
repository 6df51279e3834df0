"""Clusters as values, for tests that need nodes, tokens and keyspaces but no log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hypothesis import strategies as st
from immutables import Map

from ringlog.kernel.model.state import ClusterState, Node, Placement
from ringlog.kernel.model.tables import Keyspace
from ringlog.kernel.ownership.placements import new_placement, nodes_of
from ringlog.kernel.values import Replication

EPOCH = 10


def a_node(name: str, tokens: Iterable[int] = (), datacenter: str = "dc1") -> Node:
    """Return a node with its name as id. It is normal with tokens, and ``none`` without."""
    tokens = tuple(sorted(tokens))
    state = "normal" if tokens else "none"
    address = f"{name}.test:7000"
    return Node(name, name, address, datacenter, "r1", 2, 12, "0.1.0", (), 1, state, tokens, 1)


def simple(factor: int) -> Replication:
    """Return a SimpleStrategy."""
    return Replication("simple", factor)


def a_cluster(
    tokens: Mapping[str, Iterable[int]], factors: Iterable[int] = (2,), datacenters: Mapping[str, str] | None = None
) -> ClusterState:
    """Return an idle cluster at epoch 10 with these nodes and tokens, and a keyspace ``ks<factor>`` for each factor."""
    nodes = {name: a_node(name, own, (datacenters or {}).get(name, "dc1")) for name, own in tokens.items()}
    owners = Map({token: name for name, own in tokens.items() for token in own})
    keyspaces = {f"ks{factor}": Keyspace(f"ks{factor}", simple(factor), "v") for factor in factors}
    placements = {f"simple:{factor}": new_placement(simple(factor), owners, nodes, 5) for factor in factors}
    return ClusterState(
        cluster_id="c",
        epoch=EPOCH,
        nodes=Map(nodes),
        token_owners=owners,
        keyspaces=Map(keyspaces),
        placements=Map(placements),
    )


def shown(placement: Placement, group: str) -> dict[tuple[int, int], tuple[str, ...]]:
    """Return range to the nodes of its ``read`` or ``write`` group."""
    return {(found.start, found.end): nodes_of(getattr(found, group)) for found in placement.ranges}


@st.composite
def token_maps(draw: st.DrawFn, nodes_max: int = 6, tokens_max: int = 3, span: int = 40) -> dict[str, list[int]]:
    """Draw 1 to ``nodes_max`` nodes of 1 to ``tokens_max`` tokens each, on a small ring."""
    count = draw(st.integers(1, nodes_max))
    sizes = [draw(st.integers(1, tokens_max)) for _ in range(count)]
    drawn = draw(st.lists(st.integers(-span, span), min_size=sum(sizes), max_size=sum(sizes), unique=True))
    tokens = iter(drawn)
    return {f"n{index}": [next(tokens) for _ in range(size)] for index, size in enumerate(sizes)}
