"""Nodes and the token ring: state, lag and share of each node, and a dry run of its removal."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any, Final

from ringlog.console.moments import ViewInput
from ringlog.console.views.levels import BAD, LEVELS, WARN, node_level, paged, worst
from ringlog.kernel.model.state import ClusterState, Node
from ringlog.operator.machines import Machine, machine_problems
from ringlog.operator.node_details import RING, node_details, owned_shares
from ringlog.operator.views import views
from ringlog.operator.views.tablets import bytes_of
from ringlog.operator.views.words import natural
from ringlog.protocol.balancer.load_book import measured

Json = dict[str, Any]
ARCS_MAX: Final = 360
"""Arcs of the drawn ring. A ring with more tokens is drawn in this many equal sectors."""


def nodes(moment: ViewInput) -> Json:
    """Return the nodes, those that need attention first, the racks, the ring, and the chosen node."""
    state = moment.state
    shares, loads = owned_shares(state), measured(moment.live.loads, state)
    rows: list[Json] = []
    problems: dict[str, list[str]] = defaultdict(list)
    for one in machine_problems(state, moment.live.machines, moment.now):
        problems[one.node].append(BAD if one.broken else WARN)
    for row in views.nodes(state, moment.live.last_reports):
        ack, machine = moment.live.acks.get(row["id"]), moment.live.machines.get(row["id"]) or Machine()
        ends = machine.certificate_end
        rows.append(
            {name: value for name, value in row.items() if name != "tokens"}
            | {
                "tokens": len(row["tokens"]),
                "level": worst((node_level(row), *problems[row["name"]])),
                "owns": round(shares.get(row["id"], 0.0), 4),
                "acked": None if ack is None else ack.applied,
                "behind": None if ack is None else max(0, state.epoch - ack.applied),
                "rows": None if ack is None else ack.rows,
                "mutations_behind": moment.live.mutations_behind.get(row["id"]),
                "bytes": None if (load := loads.get(row["id"])) is None else bytes_of(load),
                "capacity": None if load is None else load.capacity,
                "disk_free": machine.disk_free,
                "certificate_left_us": None if ends is None else ends - moment.now,
            }
        )
    levels = {row["id"]: row["level"] for row in rows}
    wanted = moment.query.get("filter", "").lower()
    fields = ("name", "address", "datacenter", "rack", "state", "release")
    shown = [row for row in rows if not wanted or any(wanted in row[field].lower() for field in fields)]
    shown.sort(key=lambda row: (LEVELS.index(row["level"]), natural(row["name"])))
    chosen = state.nodes.get(state.node_names.get(moment.query.get("node", ""), ""))
    return {
        "levels": dict(Counter(levels.values())),
        "owners": len(shares),
        "racks": _racks(state, levels),
        "ring": ring(state, levels),
        "nodes": paged(shown, moment.query),
        "node": None if chosen is None else node_details(state, chosen, next(r for r in rows if r["id"] == chosen.id)),
    }


def ring(state: ClusterState, levels: dict[str, str]) -> list[Json]:
    """Return the arcs of the ring, each from the share ``start`` to ``end`` of it, with owners and worst level."""
    tokens = sorted(state.token_owners)
    if len(tokens) <= ARCS_MAX:
        return [
            {
                "start": (tokens[index - 1] % RING) / RING,
                "end": (token % RING) / RING,
                "nodes": [state.nodes[state.token_owners[token]].name],
                "rack": _place(state.nodes[state.token_owners[token]]),
                "level": levels[state.token_owners[token]],
            }
            for index, token in enumerate(tokens)
        ]
    sectors: list[set[str]] = [set() for _ in range(ARCS_MAX)]
    for token in tokens:
        sectors[(token % RING) * ARCS_MAX // RING].add(state.token_owners[token])
    return [
        {
            "start": number / ARCS_MAX,
            "end": (number + 1) / ARCS_MAX,
            "nodes": sorted((state.nodes[owner].name for owner in owners), key=natural),
            "rack": "",
            "level": worst(levels[owner] for owner in owners),
        }
        for number, owners in enumerate(sectors)
        if owners
    ]


def _place(node: Node) -> str:
    return f"{node.datacenter}/{node.rack}"


def _racks(state: ClusterState, levels: dict[str, str]) -> list[Json]:
    found: dict[tuple[str, str], list[Json]] = defaultdict(list)
    for node in sorted(state.nodes.values(), key=lambda one: natural(one.name)):
        if node.state != "left":
            found[node.datacenter, node.rack].append({"node": node.name, "level": levels[node.id]})
    return [
        {"datacenter": datacenter, "rack": rack, "nodes": members}
        for (datacenter, rack), members in sorted(found.items())
    ]
