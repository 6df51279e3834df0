"""Availability: the ranges of each keyspace with and without a quorum, and the nodes whose death takes a quorum away.

A replica counts as absent if its node is declared down, is silent, or has left. The functions count the read groups:
of ranges for keyspaces on the ring, of tablets for the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from ringlog.console.moments import ViewInput
from ringlog.console.views.levels import BAD, OK, WARN, worst
from ringlog.kernel.columns.lazy_tuple import IdentityCache
from ringlog.kernel.model.state import ClusterState, Placement, in_order
from ringlog.kernel.model.tablet_map import TabletMap
from ringlog.kernel.operations.gates import quorum
from ringlog.kernel.ownership.placements import placement_of_keyspace
from ringlog.kernel.tablets.groups import map_of
from ringlog.kernel.values import NodeId
from ringlog.operator.views.words import natural

Json = dict[str, Any]
CRITICAL_SHOWN: Final = 20
Groups = Mapping[tuple[NodeId, ...], int]
"""Members of a group to the number of ranges or tablets that have this group."""


def availability(moment: ViewInput) -> Json:
    """Return a row for each keyspace, and the nodes whose death would leave ranges without a quorum."""
    state = moment.state
    absent = absent_nodes(moment)
    rows, critical = [], Counter[NodeId]()
    for name, _ in in_order(state.keyspaces):
        row = _count(groups_of(state, name), absent, critical)
        rows.append({"keyspace": name} | row)
    nodes = state.nodes
    return {
        "level": worst(row["level"] for row in rows),
        "absent": sorted((nodes[node].name for node in absent), key=natural),
        "keyspaces": rows,
        "critical": [
            {"node": nodes[node].name if node in nodes else node, "ranges": count}
            for node, count in sorted(critical.items(), key=lambda one: (-one[1], one[0]))[:CRITICAL_SHOWN]
        ],
        "critical_total": len(critical),
    }


def absent_nodes(moment: ViewInput) -> frozenset[NodeId]:
    """Return the nodes that do not answer, as far as the log and the reports show."""
    nodes = moment.state.nodes
    silent = moment.live.last_reports.silent(moment.state, nodes)
    return frozenset(silent).union(node.id for node in nodes.values() if node.down and node.state != "left")


def groups_of(state: ClusterState, keyspace: str) -> Groups:
    """Return the groups of a keyspace's tablets and, if it is on the ring, of its ranges."""
    found: Counter[tuple[NodeId, ...]] = Counter()
    maps = {
        tablets.table: tablets
        for _, table in in_order(state.tables)
        if table.keyspace == keyspace and (tablets := map_of(state, table)) is not None
    }
    for tablets in maps.values():
        found.update(_of_tablets(tablets))
    if not maps and (placement := placement_of_keyspace(state, keyspace)) is not None:
        return _of_placement(placement)
    return found


_placements: IdentityCache[Placement, Groups] = IdentityCache(64)
_tablets: IdentityCache[TabletMap, Groups] = IdentityCache(256)


def _of_placement(placement: Placement) -> Groups:
    known = _placements.get(placement)
    if known is None:
        known = _placements.put(placement, Counter(tuple([one.node for one in g.read]) for g in placement.ranges))
    return known


def _of_tablets(tablets: TabletMap) -> Groups:
    known = _tablets.get(tablets)
    if known is None:
        known = _tablets.put(tablets, Counter(tuple(tablets.settled(number)[1]) for number in range(tablets.count)))
    return known


def _count(groups: Groups, absent: frozenset[NodeId], critical: Counter[NodeId]) -> Json:
    """Return how many ranges satisfy each consistency level. Adds to ``critical``."""
    found = dict.fromkeys(("ranges", "full", "degraded", "no_quorum", "no_replica", "one_death"), 0)
    for members, count in groups.items():
        alive = [node for node in members if node not in absent] if absent else members
        need = quorum(len(members))
        found["ranges"] += count
        found["full"] += count if len(alive) == len(members) else 0
        found["degraded"] += count if need <= len(alive) < len(members) else 0
        found["no_quorum"] += count if len(alive) < need else 0
        found["no_replica"] += count if not alive else 0
        if len(alive) == need:
            found["one_death"] += count
            for node in alive:
                critical[node] += count
    level = BAD if found["no_quorum"] else WARN if found["degraded"] else OK
    return found | {
        "level": level,
        "consistency": {
            "ONE": found["ranges"] - found["no_replica"],
            "QUORUM": found["ranges"] - found["no_quorum"],
            "ALL": found["full"],
        },
    }
