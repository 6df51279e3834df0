"""Nodes and the token ring: state, lag and share of each node, and a dry run of its removal."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any, Final

from ringlog.console.moments import Machine, ViewInput
from ringlog.console.views.levels import LEVELS, OK, WARN, certificate_level, node_level, paged, worst
from ringlog.kernel.model.state import NO_MEMBER, ClusterState, Node
from ringlog.kernel.values import Value
from ringlog.operator.doctor import DISK_FREE_MIN
from ringlog.operator.node_details import RING, node_details, owned_shares
from ringlog.operator.views import views
from ringlog.operator.views.tablets import bytes_of
from ringlog.operator.views.words import span
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
    for one in machine_problems(moment):
        problems[one.node].append(one.level)
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
    shown.sort(key=lambda row: (LEVELS.index(row["level"]), row["name"]))
    chosen = state.nodes.get(state.node_names.get(moment.query.get("node", ""), ""))
    return {
        "levels": dict(Counter(levels.values())),
        "owners": len(shares),
        "racks": _racks(state, levels),
        "ring": ring(state, levels),
        "nodes": paged(shown, moment.query),
        "node": None if chosen is None else node_details(state, chosen, next(r for r in rows if r["id"] == chosen.id)),
    }


class MachineProblem(Value):
    """A problem of the machine of ``node`` (a name): its level, a sentence, and what to do next."""

    node: str
    level: str
    text: str
    next: str


def machine_problems(moment: ViewInput) -> list[MachineProblem]:
    """Return the problems of machines, the worst first, then by node. Nodes that have left are omitted."""
    found = []
    for node, machine in moment.live.machines.items():
        known = moment.state.nodes.get(node)
        if known is None or known.state in NO_MEMBER:
            continue
        end, free = machine.certificate_end, machine.disk_free
        if end is not None and (level := certificate_level(end, moment.now)) != OK:
            text = f"ends in {span(end - moment.now)}" if end > moment.now else "has expired"
            remedy = f"renew it: ringlog cluster certificates FOLDER --node {known.name}"
            found.append(MachineProblem(known.name, level, f"the certificate of node {known.name} {text}", remedy))
        if free is not None and free < DISK_FREE_MIN:
            text = f"the disk of node {known.name} has {free / (1 << 30):.1f} GiB left"
            found.append(MachineProblem(known.name, WARN, text, "delete other files from its disk, or enlarge it"))
    return sorted(found, key=lambda one: (LEVELS.index(one.level), one.node))


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
            "nodes": sorted(state.nodes[owner].name for owner in owners),
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
    for node in sorted(state.nodes.values(), key=lambda one: one.name):
        if node.state != "left":
            found[node.datacenter, node.rack].append({"node": node.name, "level": levels[node.id]})
    return [
        {"datacenter": datacenter, "rack": rack, "nodes": members}
        for (datacenter, rack), members in sorted(found.items())
    ]
