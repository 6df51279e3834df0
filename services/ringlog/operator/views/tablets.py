"""Tablets and the balancer's decisions as JSON and text, with node names in place of ids."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np

from ringlog.kernel.balance.advice import Advice, RefusedMigration
from ringlog.kernel.balance.measures import by_size
from ringlog.kernel.balance.model import (
    BYTES,
    CPU,
    NOWHERE,
    READS,
    STOPS,
    WHY,
    WRITES,
    BalanceStop,
    MeasuredLoads,
    Migration,
    Place,
)
from ringlog.kernel.balance.reports import REPORT_CODES, Reports
from ringlog.kernel.balance.sizing import LEAST
from ringlog.kernel.model.outcome import Rejected
from ringlog.kernel.model.state import NO_MEMBER, ClusterState, in_order
from ringlog.kernel.model.tablet_map import TabletMap, TabletReplica
from ringlog.kernel.operations.node_states import node_statuses
from ringlog.kernel.registry import CODES
from ringlog.kernel.tablets.groups import map_of
from ringlog.kernel.tablets.mutual_exclusion import transitions
from ringlog.kernel.tablets.stages import session
from ringlog.kernel.values import NodeId
from ringlog.operator.views.views import NO_REPORTS, name_of, pauses, silent_nodes
from ringlog.operator.views.waiting import COORDINATOR, tablet_waiting
from ringlog.operator.views.words import natural, picked, silent_lines, with_names
from ringlog.protocol.balancer.load_book import LastReports, ignored
from ringlog.protocol.controller import decided_now
from ringlog.protocol.coordinator.core import resizes
from ringlog.protocol.coordinator.witnesses import session_tries
from ringlog.wire.records import NodeAck

Json = dict[str, Any]


def map_named(state: ClusterState, table: str) -> TabletMap | None:
    """Return the tablets that a table owns or shares; None if it has none."""
    found = state.tables.get(table)
    return None if found is None else map_of(state, found)


def tablets_view(state: ClusterState, tablets: TabletMap) -> Json:
    """Return every tablet of a table, and the resize in progress."""

    def places(replicas: tuple[TabletReplica, ...]) -> list[list[Any]]:
        return [[name_of(state, one.node), one.shard] for one in replicas]

    rows = []
    for tablet in tablets:
        moving = tablet.transition
        rows.append(
            {
                "last_token": tablet.end,
                "replicas": places(tablet.replicas),
                "next": None if moving is None else places(moving.next),
                "kind": None if moving is None else moving.kind,
                "stage": None if moving is None else moving.stage,
            }
        )
    resize = tablets.resize
    decided = None if resize is None else {"decision": resize.decision, "sequence": resize.sequence}
    return {"tablets": rows, "resize": decided}


def troubles_view(state: ClusterState, acks: Mapping[str, NodeAck], table: str = "") -> list[Json]:
    """Return tablets that revert, with the reason, and tablets whose stream attempts fail, with the attempts.

    ``table``: only tablets of this table; empty: of all tables.
    """
    tried: dict[str, list[Json]] = {}
    for node, one in session_tries(state, acks):
        row = {"node": name_of(state, node), "source": name_of(state, one.source), "count": one.count}
        tried.setdefault(one.operation, []).append(row | {"at": one.at, "reason": with_names(state, one.reason)})
    found = []
    for tablets, moving in transitions(state):
        tries = tried.get(session(tablets.table, moving.tablet, moving), [])
        if table in ("", tablets.table) and (moving.reason or tries):
            row = {"table": tablets.table, "tablet": moving.tablet, "stage": moving.stage}
            found.append(row | {"reason": with_names(state, moving.reason) or None, "tries": tries})
    return found


def resizes_view(
    state: ClusterState, acks: Mapping[str, NodeAck], table: str = "", advice: Advice | None = None
) -> list[Json]:
    """Return unfinished resizes of ``table`` (empty: of all) and the cause of each delay.

    ``advice``: adds the present reason of each decision (``demand_view``).
    """
    found = []
    for command in resizes(state, acks):
        resize = state.tablets[command.table].resize
        if table in ("", command.table) and resize is not None:
            decided = decided_now(state, command)
            waits = with_names(state, decided.detail) if isinstance(decided, Rejected) else COORDINATOR
            row = {"table": command.table, **picked(resize, "decision", "sequence"), "waits_for": waits}
            found.append(row if advice is None else row | demand_view(advice, command.table))
    return found


def resizing(rows: list[Json]) -> Iterator[str]:
    """Yield a line for each resize of ``resizes_view``."""
    for row in rows:
        reason = demand_text(row)
        waits = f"{row['decision']} {row['sequence']} of {row['table']} waits for {row['waits_for']}"
        yield f"{waits}; {reason}" if reason else waits


def troubles(rows: list[Json]) -> Iterator[str]:
    """Yield the lines for the tablets of ``troubles_view``."""
    for row in rows:
        where = f"{row['table']}/{row['tablet']} is in {row['stage']}"
        if row["reason"]:
            yield f"{where}: {row['reason']}"
        for one in row["tries"]:
            yield f"{where}: {one['node']} asked {one['source']} {one['count']} times without success: {one['reason']}"


def tables_view(state: ClusterState) -> list[Json]:
    """Return a row for each table in tablets."""
    found = []
    for name, table in in_order(state.tables):
        tablets = map_of(state, table)
        if tablets is not None:
            decision = tablets.resize.decision if tablets.resize is not None else None
            shared_with = tablets.table if tablets.table != name else None
            moving = len(tablets.transitions)
            row = {"table": name, "tablets": tablets.count, "moving": moving, "resize": decision, "shares": shared_with}
            found.append(row)
    return found


# ------------------------------------------------------------------------------------------------------- balance


def place_view(state: ClusterState, place: Place) -> list[Any] | None:
    """Return ``[name, shard]``; None for no place."""
    return None if place == NOWHERE else [name_of(state, place[0]), place[1]]


def migration_view(state: ClusterState, row: Migration) -> Json:
    """Return a migration of a plan. ``why``: a code of ``WHY``."""
    places = {"from": place_view(state, row.source), "to": place_view(state, row.target)}
    return picked(row, "table", "tablet") | places | picked(row, "kind", "why")


def plan_view(state: ClusterState, advice: Advice, most: int | None = None) -> Json:
    """Return the migrations that would start now (the first ``most`` of them), and the reason why no others would."""
    may = {(one.table, one.tablet) for one in advice.moves}
    rows = [row for row in advice.plan.migrations if (row.table, row.tablet) in may][:most]
    return {"migrations": [migration_view(state, row) for row in rows], "stop": advice.stop or None}


def why_view(state: ClusterState, advice: Advice, most: int | None = None) -> Json:
    """Return the plan, the reason for each unchanged part, and the drains that cannot succeed. ``most``: as there."""
    return plan_view(state, advice, most) | {
        "stops": [stop_view(state, stop) for stop in advice.plan.stops],
        "refused": [picked(one.migration, "table", "tablet") | _refusal(state, one) for one in advice.refused],
        "obstacles": [
            picked(row, "table", "tablet")
            | {"node": name_of(state, row.node)}
            | picked(row, "rack", "code")
            | {"detail": with_names(state, row.detail)}
            for row in advice.plan.obstacles
        ],
        "resizes": [
            picked(one, "table", "decision", "sequence") | demand_view(advice, one.table) for one in advice.resizes
        ],
    }


DEMANDS: Final[Mapping[str, str]] = {
    BYTES: "its bytes ask",
    READS: "its reads ask",
    WRITES: "its writes ask",
    CPU: "its processor time asks",
    LEAST: "its hints, or the minimum of tablets for each shard, ask",
}
"""The load that asks for the number of tablets of a table."""


def demand_view(advice: Advice, table: str) -> Json:
    """Return the load that asks for the most tablets of a table, and their number; both None if no reason is known."""
    found = advice.demands.get(table)
    return {"demand": None if found is None else found.kind, "wanted": None if found is None else found.tablets}


def demand_text(row: Json) -> str:
    """Return the reason of a decision with a ``demand_view``, or an empty string."""
    return "" if row.get("demand") is None else f"{DEMANDS[row['demand']]} for {row['wanted']:,} tablets"


def _refusal(state: ClusterState, one: RefusedMigration) -> Json:
    return picked(one, "code") | {"detail": with_names(state, one.detail)}


def stop_view(state: ClusterState, stop: BalanceStop) -> Json:
    """Return the reason why a part of the cluster is unchanged."""
    detail = with_names(state, stop.detail)
    return {"what": name_of(state, stop.what), "code": stop.code, "why": STOPS[stop.code], "detail": detail}


def stop_text(code: str | None) -> str:
    """Return the reason why no tablet moves."""
    why = STOPS.get(code or "") or CODES.get(code or "", "a reason that this release does not know").rstrip(".")
    return f"no tablet needs to move: {why[0].lower()}{why[1:]} ({code})"


def ignored_text(row: Json) -> str:
    """Return the reason why the last report of a node is ignored."""
    of = row["node"] or "a node that is not registered"
    return f"the last report of {of} is ignored: {REPORT_CODES[row['code']]} ({row['code']})"


def status_view(
    state: ClusterState, advice: Advice, reports: Reports, acks: Mapping[str, NodeAck], most: int | None = None
) -> Json:
    """Return loads of nodes and shards, migrations with their failures, ignored reports, and ``plan_view``."""
    moving = [
        {"table": tablets.table, "tablet": one.tablet, "kind": one.kind, "stage": one.stage}
        for tablets, one in transitions(state)
    ]
    return {
        "epoch": state.epoch,
        "nodes": loads_view(state, advice.inputs.measured),
        "moving": moving,
        "troubles": troubles_view(state, acks),
        "resizing": resizes_view(state, acks, advice=advice),
        "pauses": pauses(state),
        "ignored": [
            {"node": name_of(state, node) if node else None, "code": code} for node, code in ignored(reports, state)
        ],
        **plan_view(state, advice, most),
    }


def bytes_of(report: MeasuredLoads) -> int:
    """Return the bytes of a node's tablets."""
    return sum(sum(one.values()) for one in report.loads.get("bytes", {}).values())


def loads_view(state: ClusterState, measured: Mapping[NodeId, MeasuredLoads]) -> list[Json]:
    """Return the replicas of each node by shard, and its bytes if it reports them."""
    ordered = sorted(state.nodes.values(), key=lambda node: natural(node.name))
    place_of = {node.id: place for place, node in enumerate(ordered)}
    maps = [(tablets.nodes, tablets.columns()) for tablets in state.tablets.values()]
    width = 1 + max((int(columns.shard.max(initial=0)) for _, columns in maps), default=0)
    counts = np.zeros(len(ordered) * width, np.int64)
    for nodes, columns in maps:
        places = np.array([place_of[node] for node in nodes], np.int64)[columns.node]
        counts += np.bincount(places * width + columns.shard, minlength=len(counts))
    found = []
    statuses = node_statuses(state)
    for node, held in zip(ordered, counts.reshape(len(ordered), width).tolist(), strict=True):
        used = next((width - place for place, count in enumerate(reversed(held)) if count), 0)
        if node.state in NO_MEMBER and not used:
            continue
        shards = [*held, *[0] * (node.shards - width)][: max(node.shards, used)]
        report = measured.get(node.id)
        found.append(
            {
                "node": node.name,
                "state": statuses[node.id].state,
                "tablets": sum(shards),
                "shards": shards,
                "bytes": None if report is None else bytes_of(report),
                "capacity": None if report is None else report.capacity,
            }
        )
    return found


# ------------------------------------------------------------------------------------------------------- explain


def explanation(
    state: ClusterState,
    advice: Advice,
    tablets: TabletMap,
    number: int,
    acks: Mapping[str, NodeAck],
    load_reports: LastReports = NO_REPORTS,
) -> Json:
    """Return why a tablet moves and the condition it waits for, or why it stays."""
    name = f"{tablets.table}/{number}"
    tablet = tablets.tablet(number)
    found: Json = {"table": tablets.table, "tablet": number, "replicas": [], "moves": None, "stays": []}
    found["replicas"] = [[name_of(state, one.node), one.shard] for one in tablet.replicas]
    coming = () if tablet.transition is None else tablet.transition.next
    found["silent"] = silent_nodes(state, load_reports, (one.node for one in (*tablet.replicas, *coming)))
    if tablet.transition is not None:
        moving, waits = tablet.transition, tablet_waiting(state, tablets, tablet, acks)
        found["moves"] = {
            "kind": moving.kind,
            "stage": moving.stage,
            "since": moving.stage_epoch,
            "why": with_names(state, moving.reason) or "it is migrating",
            "waits_for": waits.text,
            "ways_out": list(waits.ways_out),
        }
        return found
    row = next((one for one in advice.plan.migrations if (one.table, one.tablet) == (tablets.table, number)), None)
    refused = next(
        (one for one in advice.refused if (one.migration.table, one.migration.tablet) == (tablets.table, number)), None
    )
    if row is not None and refused is None:
        found["moves"] = migration_view(state, row) | {"because": WHY[row.why]}
        return found
    if refused is not None:
        found["stays"].append(
            {"what": name, "code": refused.code, "why": with_names(state, refused.detail), "detail": ""}
        )
    nodes = {one.node for one in tablet.replicas}
    places = {state.nodes[node].datacenter for node in nodes}
    for stop in advice.plan.stops:
        if stop.what in (name, "cluster") or stop.what in nodes or stop.what in places:
            found["stays"].append(stop_view(state, stop))
    if not found["stays"]:
        counts = "their bytes" if by_size(advice.inputs) else "their number"
        why = f"by {counts}, no move of it would balance its nodes and shards better"
        found["stays"].append({"what": name, "code": "balanced", "why": why, "detail": ""})
    return found


def explained(view: Json) -> Iterator[str]:
    """Yield an explanation as text, a line each."""
    where = ", ".join(f"{node}/{shard}" for node, shard in view["replicas"])
    yield f"{view['table']}/{view['tablet']} is on {where}"
    yield from silent_lines(view["silent"])
    if (moves := view["moves"]) is not None:
        if "stage" in moves:
            yield f"it is in {moves['stage']} of a {moves['kind']} since epoch {moves['since']}: {moves['why']}"
            yield f"waits for {moves['waits_for']}"
            yield from (f"  {way}" for way in moves["ways_out"])
        else:
            at = ["nobody" if place is None else f"{place[0]}/{place[1]}" for place in (moves["from"], moves["to"])]
            yield f"it would move from {at[0]} to {at[1]} ({moves['kind']}): {moves['because']}"
    for stop in view["stays"]:
        where = f"{stop['code']}, {stop['what']}"
        yield f"it stays: {stop['why']} ({where})" + (f"; {stop['detail']}" if stop["detail"] else "")
