"""Tablets, balancing and zones: migrations, the next plan, its obstacles, and stuck partitions."""

from __future__ import annotations

from collections import deque
from operator import is_
from typing import Any, Final

from ringlog.console.moments import ViewInput
from ringlog.console.views.levels import BAD, IDLE, OK, WARN, paged
from ringlog.kernel.balance.advice import Advice, advise
from ringlog.kernel.balance.reports import Reports
from ringlog.kernel.model.settings import SETTINGS, setting
from ringlog.kernel.model.state import ClusterState, in_order
from ringlog.kernel.tablets.mutual_exclusion import transitions
from ringlog.operator.views import tablets as tablet_views
from ringlog.operator.views.views import name_of
from ringlog.operator.views.waiting import tablet_waiting
from ringlog.operator.views.zones import full_view, standing_view, zones_view
from ringlog.protocol.balancer.balancer import PARTS
from ringlog.protocol.balancer.load_book import measured
from ringlog.protocol.rebalancer.zone_groups import session_reports

Json = dict[str, Any]
ADVISED_MAX: Final = 20
"""Migrating tablets whose wait and remedies are computed."""
LIMITS: Final = tuple(name for name in sorted(SETTINGS) if name.startswith("tablet"))


def tablets(moment: ViewInput) -> Json:
    """Return loads of nodes and shards, migrations with their waits, the balancer's next plan, and its limits."""
    state, live = moment.state, moment.live
    advice = _advised(state, live.loads)
    status = tablet_views.status_view(state, advice, live.loads, live.acks, 0)
    moving = []
    for place, (found, one) in enumerate(transitions(state)):
        row = {
            "table": found.table,
            "tablet": one.tablet,
            "kind": one.kind,
            "stage": one.stage,
            "since": one.stage_epoch,
        }
        if place < ADVISED_MAX:
            waits = tablet_waiting(state, found, found.tablet(one.tablet), live.acks)
            row |= {
                "waits_for": waits.text,
                "ways_out": list(waits.ways_out),
                "to": [name_of(state, r.node) for r in one.next],
            }
        moving.append(row)
    why = tablet_views.why_view(state, advice, ADVISED_MAX)
    return {
        "tables": tablet_views.tables_view(state),
        "heat": status["nodes"],
        "moving": paged(moving, moment.query),
        "plan": why["migrations"],
        "plan_total": len(advice.moves),
        "stop": why["stop"],
        "stop_text": None if why["migrations"] else tablet_views.stop_text(why["stop"]) if why["stop"] else "balanced",
        "stops": why["stops"][:ADVISED_MAX],
        "obstacles": why["obstacles"][:ADVISED_MAX],
        "refused": why["refused"][:ADVISED_MAX],
        "resizes": [row | {"reason": tablet_views.demand_text(row)} for row in status["resizing"]],
        "sizes": [demand | {"reason": tablet_views.demand_text(demand)} for demand in why["resizes"]],
        "troubles": list(tablet_views.troubles(status["troubles"])),
        "ignored": [tablet_views.ignored_text(one) for one in status["ignored"]],
        "pauses": status["pauses"],
        "limits": {name: setting(state, name) for name in LIMITS},
    }


_advice: deque[tuple[tuple[object, ...], Advice]] = deque(maxlen=4)


def _advised(state: ClusterState, loads: Reports) -> Advice:
    """Return the balancer's advice. It is expensive for a large cluster, so states with the same inputs share one."""
    inputs = loads, *[getattr(state, part) for part in PARTS]
    for known, found in [*_advice]:
        if all(map(is_, known, inputs)):
            return found
    found = advise(state, measured(loads, state))
    _advice.appendleft((inputs, found))
    return found


def zones(moment: ViewInput) -> Json:
    """Return a row for each zone with the states of its partitions, and the partitions of the chosen zone."""
    state = moment.state
    reports = session_reports(state, moment.live.acks)
    standing = {row["zone"]: row for row in standing_view(state, reports)}
    rows = []
    for row in zones_view(state):
        states, stuck = standing[row["zone"]]["states"], standing[row["zone"]]["stuck"]
        bad = stuck or states.get("unavailable") or states.get("read_only")
        level = BAD if bad else WARN if states.get("degraded") or row["moving"] else OK
        rows.append(row | {"states": states, "stuck": stuck, "level": level})
    chosen = state.zones.get(moment.query.get("zone", ""))
    details = None
    if chosen is not None:
        details = full_view(state, chosen, reports, moment.live.last_reports)
        partitions = [row | {"level": _partition_level(row)} for row in details["partitions"]]
        details |= {"partitions": paged(partitions, moment.query)}
    return {"zones": rows, "zone": details}


def _partition_level(row: Json) -> str:
    if row["stuck"] or row["state"] in ("unavailable", "read_only"):
        return BAD
    return WARN if row["state"] == "degraded" or row["pending"] else OK


def schema(moment: ViewInput) -> Json:
    """Return keyspaces, tables and types with their versions, filtered by name."""
    from ringlog.operator.views.views import schema as schema_view

    found = schema_view(moment.state)
    wanted = moment.query.get("filter", "").lower()
    tables = [row for row in found["tables"] if wanted in f"{row['keyspace']}.{row['name']}".lower()]
    return found | {
        "tables": paged(tables, moment.query),
        "keyspaces": [row for row in found["keyspaces"] if wanted in row["name"].lower()],
    }


def settings(moment: ViewInput) -> Json:
    """Return each setting with its value, default and bounds, those that were changed first."""
    rows = [
        {"setting": name, "value": setting(moment.state, name), "default": rule.default, "minimum": rule.minimum}
        | {"maximum": rule.maximum, "unit": rule.unit, "meaning": rule.meaning}
        for name, rule in in_order(SETTINGS)
    ]
    for row in rows:
        row["level"] = OK if row["value"] == row["default"] else IDLE
    return {"settings": sorted(rows, key=lambda row: (row["level"] == OK, row["setting"]))}
