"""Health: is anything broken, since when, and the first action."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final

from ringlog.console.moments import ViewInput
from ringlog.console.views.levels import BAD, IDLE, LEVEL_OF, OK, WARN, node_level, with_commands, worst
from ringlog.kernel.history import ARCHIVED, confirmed_snapshots
from ringlog.operator.machines import machine_problems
from ringlog.operator.views.summary import status_view
from ringlog.operator.views.words import format_pause, picked, span

Json = dict[str, Any]
_PAGES: Final = (
    ("node ", "nodes", "ringlog node list"),
    ("zone ", "zones", "ringlog zone list"),
    ("CDC writer ", "cdc", "ringlog cdc status"),
    ("clock_", "clocks", "ringlog status"),
    ("feature ", "clocks", "ringlog cluster features"),
    ("a recovery ", "snapshots", "ringlog status"),
    ("the log", "health", "ringlog status"),
    ("no ", "health", "ringlog agents"),
    ("the ", "health", "ringlog agents status"),
)
"""The page and the command for a reason, by its first words. A command in the reason itself takes precedence."""


MACHINES_MAX: Final = 20
"""Problems of machines that the page lists. The page of nodes marks all of them."""


EXAMINED: Final = ("topics", "cache", "disk")
"""The checks of ``ringlog doctor`` whose findings no other reason covers."""


def health(moment: ViewInput) -> Json:
    """Return the verdict, the reasons with their commands, and a card for each part of the system."""
    state, live = moment.state, moment.live
    found = status_view(state, live.acks, live.last_reports, moment.agents, live.lags, live.appended, moment.now)
    reasons = found["summary"]["reasons"]
    if moment.is_past:
        reasons = _without_agents(reasons)
    rows = [_reason(text, found["pauses"]) for text in reasons]
    for one in machine_problems(state, live.machines, moment.now)[:MACHINES_MAX]:
        rows.append(
            picked(one, "text", "next")
            | {"level": BAD if one.broken else WARN, "page": "nodes", "query": {"node": one.node}}
        )
    for examined in live.findings if not moment.is_past else ():
        level = LEVEL_OF[examined.verdict]
        if examined.check in EXAMINED and level in (BAD, WARN):
            text, remedy = f"{examined.check}: {examined.text}", "; ".join(examined.fixes)
            rows.append({"text": text, "level": level, "page": "checks", "query": {}, "next": remedy})
    if live.problem:
        rows.insert(0, _reason(f"the log is not readable: {live.problem}"))
    cards = [*_cards(moment, found)]
    bad = any(row["level"] == BAD for row in rows) or worst(card["level"] for card in cards) == BAD
    level = BAD if bad else WARN if rows else OK
    return {
        "verdict": {OK: "OK", WARN: "WARN", BAD: "CRITICAL"}[level],
        "level": level,
        "reasons": rows,
        "cards": cards,
    }


def _without_agents(reasons: list[str]) -> list[str]:
    """Return the reasons that the log alone shows. Heartbeats of agents are not in the log."""
    return [text for text in reasons if not text.startswith(("no ", "the "))]


def _reason(text: str, pauses: Sequence[Json] = ()) -> Json:
    """Return a reason with its page, the parameters of that page, and what to do next."""
    page, advice = "operations", "ringlog operation list"
    for start, its_page, its_command in _PAGES:
        if text.startswith(start):
            page, advice = its_page, its_command
            break
    query = {}
    if found := re.match(r"node (\S+) is (declared|silent)", text):
        query, lost = {"node": found[1]}, "ringlog node down" if found[2] == "silent" else "ringlog node remove"
        advice = f"start {found[1]} again. If it is permanently lost: {lost} {found[1]}"
    elif page == "operations" and (found := re.match(r"[a-z]+-[0-9]+", text)):
        query, advice = {"operation": found[0]}, f"ringlog operation show {found[0]}"
    for pause in pauses:
        if format_pause(pause) == text:
            limit = f" --of {pause['of']}" if pause["of"] else ""
            page, advice = "clocks", f"ringlog resume {pause['scope']}{limit}"
    severe = ("is declared down", "is silent", "unavailable", "read_only", "stuck", "not working", "not readable")
    level = BAD if any(word in text for word in severe) or text.startswith("no ") else WARN
    has_command = any(is_command for _, is_command in with_commands(text))
    return {"text": text, "level": level, "page": page, "query": query, "next": "" if has_command else advice}


def _card(title: str, value: object, level: str, note: str, page: str) -> Json:
    return {"title": title, "value": str(value), "level": level, "note": note, "page": page}


def _cards(moment: ViewInput, found: Json) -> Iterator[Json]:
    state, live = moment.state, moment.live
    yield _card("Log", f"epoch {state.epoch}", BAD if live.problem else OK, live.problem or _last(moment), "log")
    if not moment.is_past:
        working = sum(agent.is_at_work for agent in moment.agents)
        idle = ", ".join(agent.role for agent in moment.agents if not agent.is_at_work)
        level = OK if moment.agents and not idle else BAD
        yield _card(
            "Agents",
            f"{working} of {len(moment.agents)}",
            level,
            f"not working: {idle}" if idle else "all active",
            "health",
        )
    levels = Counter(map(node_level, found["directory"]))
    members = sum(levels.values()) - levels[IDLE]
    note = f"{levels[BAD]} down or silent, {levels[WARN]} changing" if levels[BAD] + levels[WARN] else "all normal"
    yield _card("Nodes", members, BAD if levels[BAD] else WARN if levels[WARN] else OK, note, "nodes")
    flight = found["operations"]
    waiting = sum(bool(view.get("waits_for_nodes")) for view in flight)
    level = BAD if any(view.get("awaits_decision") for view in flight) else WARN if waiting else OK
    yield _card("Operations", f"{len(flight)} in flight", level, f"{waiting} wait for nodes", "operations")
    stuck = sum(len(zone["stuck"]) for zone in found["zones"])
    yield _card("Zones", len(found["zones"]), BAD if stuck else OK, f"{stuck} partitions are stuck", "zones")
    moving = sum(len(tablets.transitions) for tablets in state.tablets.values())
    tablets = sum(tablets.count for tablets in state.tablets.values())
    yield _card("Tablets", tablets, OK, f"{moving} are migrating", "tablets")
    writers = [writer for writer in state.writers.values() if writer.fenced is None]
    behind = found["writers_behind"]
    generation = state.generations[-1].id if state.generations else "no generation"
    letters = sum(not letter.is_resent for letter in live.letters)
    notes = (f"{len(behind)} behind", *([f"{letters:,} recent dead letters"] if letters else []), generation)
    count = f"{len(writers)} writer{'' if len(writers) == 1 else 's'}"
    yield _card("CDC", count, WARN if behind else OK, "; ".join(notes), "cdc")
    yield _recovery_card(moment)


def _last(moment: ViewInput) -> str:
    return f"last change {span(max(moment.now - moment.state.time, 0))} ago"


def _recovery_card(moment: ViewInput) -> Json:
    state = moment.state
    confirmed = confirmed_snapshots(state)
    archived = state.log_bounds.get(ARCHIVED)
    newest = max([*(one.epoch for one in confirmed), archived.epoch if archived is not None else 0])
    note = (
        f"{state.epoch - newest:,} epochs after the newest copy outside the log" if newest else "no confirmed snapshot"
    )
    return _card("Snapshots", f"epoch {newest}" if newest else "none", OK if newest else IDLE, note, "snapshots")
