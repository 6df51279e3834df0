"""Values and operations as text for people: names in place of ids, times, and text that cannot steer a terminal."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final

from ringlog.kernel.model.modes import pause_text
from ringlog.kernel.model.state import ClusterState, in_order
from ringlog.kernel.ownership.placements import placement_key
from ringlog.kernel.values import SECOND_US, Micros
from ringlog.operator.intents.replication import format_replication
from ringlog.wire.records import RefusedProposal

_DIGITS = re.compile(r"([0-9]+)")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def picked(item: object, *names: str) -> dict[str, Any]:
    """Return these fields by name, with tuples as lists."""
    values = ((name, getattr(item, name)) for name in names)
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values}


@lru_cache(maxsize=8_192)
def natural(name: str) -> tuple[str | int, ...]:
    """Return a sort key that orders ``n2`` before ``n10``, as people do."""
    # The pattern splits at each number, so every second part is one.
    return tuple(int(part) if place % 2 else part for place, part in enumerate(_DIGITS.split(name)))


def when(micros: int) -> str:
    """Return microseconds since 1970 as date and time; as a number if the calendar has no such date."""
    found = _instant(micros)
    return f"{micros} µs" if found is None else found.strftime("%Y-%m-%d %H:%M:%S.%f UTC")


def is_today(micros: int) -> bool:
    """Return True for a time of the present day, in UTC."""
    found = _instant(micros)
    return found is not None and found.date() == datetime.now(UTC).date()


def time_of_day(micros: int) -> str:
    """Return microseconds since 1970 as time of day with milliseconds; as a number if the calendar has no such date."""
    found = _instant(micros)
    return f"{micros} µs" if found is None else found.strftime("%H:%M:%S.%f")[:-3]


def _instant(micros: int) -> datetime | None:
    try:
        return _EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        return None


def span(micros: int) -> str:
    """Return a duration in one unit: ``42 s``, ``16 min``, ``3 h``, ``4 days``."""
    seconds = max(micros, 0) // 1_000_000
    for limit, size, unit in ((120, 1, "s"), (7_200, 60, "min"), (172_800, 3_600, "h")):
        if seconds < limit:
            return f"{seconds // size} {unit}"
    return f"{seconds // 86_400} days"


def lifetime(amount: int | None, a_second: int = 1_000) -> str:
    """Return a retention in seconds. ``a_second``: units of ``amount`` per second; None or negative: unlimited."""
    return "without limit" if amount is None or amount < 0 else f"{amount / a_second:,.0f} s"


def printable(text: str) -> str:
    """Return the text with a replacement character for every character that could control the terminal."""
    return "".join(sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in text)


Json = dict[str, Any]
OPERATION_COLUMNS: Final = ("operation", "of", "stage", "since", "waits for")


def subject(view: Json) -> str:
    """Return the subject of an operation: a node, a keyspace or the requester."""
    if "requester" in view:
        return f"the cluster, for {view['requester']}"
    if view.get("keyspace"):
        return f"keyspace {view['keyspace']}, to {format_replication(view['replication'])}"
    return str(view["node"]) + (f" for {view['replaced']}" if view.get("replaced") else "")


def described(view: Json) -> list[str]:
    """Return an operation in words, a line each."""
    lines = [f"{view['id']} of {subject(view)}: {view['stage']}"]
    lines += [f"  {when(mark['at'])}  epoch {mark['epoch']}  {mark['stage']}" for mark in view["stages"]]
    if view.get("ignored"):
        lines.append(f"continues without {', '.join(view['ignored'])}")
    lines += [f"{one['node']} streamed {one['rows']} rows" for one in view["streamed"]]
    if view.get("relaxed"):
        lines.append(
            f"left without a quorum that acknowledged it (setting gate_prepared): {', '.join(view['relaxed'])}"
        )
    for one in view.get("failures", ()):
        node_names = f"{one['node']} " if one["node"] else ""
        often = f" after {one['tries']} tries" if one["tries"] else ""
        lines.append(f"{node_names}failed at epoch {one['epoch']}{often}: {one['reason']}")
    lines += [f"tried again from epoch {one['epoch']}: {one['reason']}" for one in view.get("retries", ())]
    if view["reason"]:
        lines.append(view["reason"])
    lines += [format_refused(RefusedProposal(**one)) for one in view.get("refused", ())]
    return [*lines, *(wait_lines(view) if "waits_for" in view else ())]


def is_in_flight(view: Json) -> bool:
    """Return True if an operation or request has not ended."""
    return "waits_for" in view


def operation_rows(views: Iterable[Json], now: Micros) -> Iterator[tuple[str, ...]]:
    """Yield table rows of operations: id, subject, stage, start of the stage, and wait."""
    for view in views:
        since = view["stages"][-1]
        ago = f"epoch {since['epoch']}, {span(now - since['at'])} ago"
        waits = "; ".join([str(view.get("waits_for", view["reason"])), *silent_lines(view.get("silent", ()))])
        yield view["id"], subject(view), view["stage"], ago, printable(waits)


def wait_lines(view: Json) -> list[str]:
    """Return the wait of an operation in flight, the start of its stage and the remedies, a line each."""
    since = when(view["stages"][-1]["at"])
    silent = silent_lines(view.get("silent", ()))
    return [f"waits for {view['waits_for']}", *silent, f"in this stage since {since}", *view["ways_out"]]


def silent_lines(rows: Iterable[Json]) -> list[str]:
    """Return a line for each node whose report is overdue."""
    return [f"{one['node']} is silent: last heard {format_last_heard(one)}" for one in rows]


def format_node_state(row: Json) -> tuple[str, str]:
    """Return (state, time of the last report) of a row of ``views.nodes``."""
    marks = [name for name in ("down", "silent") if row.get(name)]
    return ", ".join([row["state"], *marks]), "" if row["state"] == "left" else format_last_heard(row)


def format_last_heard(row: Json) -> str:
    """Return the age of a node's last report in words."""
    age = row["heard_age_s"]
    return "never" if age is None else f"{span(round(age * SECOND_US))} ago"


def format_pause(view: Json) -> str:
    """Return a pause in words: scope, first epoch and reason."""
    why = f": {view['reason']}" if view["reason"] else ""
    return f"{pause_text(view['scope'], view['of'])} since epoch {view['since']}{why}"


def format_refused(one: RefusedProposal) -> str:
    """Return an agent's rejected proposal in words."""
    return f"{one.command} of {one.subject} was rejected since {when(one.since)}: {one.code}: {one.detail}"


_ID: Final = re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")


def with_names(state: ClusterState, text: str) -> str:
    """Return the text with names in place of known ids of nodes and tables."""

    def name(found: re.Match[str]) -> str:
        node = state.nodes.get(found[0])
        return node.name if node is not None else state.table_ids.get(found[0], found[0]) or found[0]

    return _ID.sub(name, text)


def with_keyspaces(state: ClusterState, text: str) -> str:
    """Return the text, followed by the keyspaces with the replication that it mentions."""
    keys = {placement_key(one) for one in state.keyspaces.values()}
    # The text names a replication by its placement key. The lookarounds prevent that ``network:dc1=3`` matches the
    # beginning of ``network:dc1=3,dc2=2``.
    about = {key for key in keys if key and re.search(rf"(?<![\w=:,]){re.escape(key)}(?![\w=,])", text)}
    found = [name for name, one in in_order(state.keyspaces) if placement_key(one) in about]
    return f"{text} (keyspaces: {', '.join(found)})" if found else text
