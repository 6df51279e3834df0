"""The settings of replication that a keyspace could be altered to.

Every number of replicas under SimpleStrategy; under NetworkTopologyStrategy, for each datacenter, none, every number,
and every list of racks; and EntireStrategy. Settings of more than ``REPLICAS_MAX`` replicas are left out: what they
could show, smaller ones show.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, product

from ringlog.kernel.commands.keyspaces import AlterKeyspace
from ringlog.kernel.ownership.strategies import replication_key
from ringlog.kernel.state import ClusterState, in_order
from ringlog.kernel.values import DatacenterReplication, Replication
from ringlog.sim.quorums.case import Case, CaseOptions, members

REPLICAS_MAX = 6


def alterations(state: ClusterState, options: CaseOptions) -> Iterator[Case]:
    """Each keyspace gets each other setting."""
    for name, keyspace in in_order(state.keyspaces):
        for setting in settings(state):
            if setting != keyspace.replication:
                title = f"{name} from {replication_key(keyspace.replication)} to {replication_key(setting)}"
                yield Case(title, (), AlterKeyspace(name, setting))


def settings(state: ClusterState) -> Iterator[Replication]:
    """Every setting that the nodes can hold, of at most ``REPLICAS_MAX`` replicas."""
    count = len(members(state))
    for factor in range(1, min(count, REPLICAS_MAX) + 1):
        yield Replication("simple", factor)
    names = sorted({node.datacenter for node in members(state)})
    for locals_ in product(*(_in(state, name) for name in names)):
        chosen = tuple(local for local in locals_ if local is not None)
        factor = sum(local.factor for local in chosen)
        if 1 <= factor <= REPLICAS_MAX:
            yield Replication("network", factor, chosen)
    if count <= REPLICAS_MAX:
        yield Replication("entire", 0)


def _in(state: ClusterState, name: str) -> list[DatacenterReplication | None]:
    """None, every number of replicas, and every list of racks of a datacenter."""
    here = [node for node in members(state) if node.datacenter == name]
    racks = sorted({node.rack for node in here})
    numbers = [DatacenterReplication(name, factor) for factor in range(1, min(len(here), REPLICAS_MAX) + 1)]
    lists = [
        DatacenterReplication(name, size, chosen)
        for size in range(1, min(len(racks), REPLICAS_MAX) + 1)
        for chosen in combinations(racks, size)
    ]
    return [None, *numbers, *lists]
