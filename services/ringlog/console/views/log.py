"""The log: entries with their authors, entries without effect, and the difference between two epochs."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, Final

from ringlog.console.moments import ViewInput
from ringlog.console.views.levels import BAD, IDLE, OK, WARN, short
from ringlog.kernel.model.outcome import OutcomeKind
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.plans import ChangedItem, differences
from ringlog.operator.history.log_lines import LogFilter, line_json
from ringlog.operator.views.words import with_names

Json = dict[str, Any]
LAST: Final = 50
SCAN_MAX: Final = 10_000
"""Epochs that one request searches backwards."""
ITEMS_MAX: Final = 500
"""Items of a difference that are named; the sections count all."""
VALUE_CHARS: Final = 200
ENTRY_CHARS_MAX: Final = 4_000
"""Longer entries are named without their fields: `ringlog log --json` has them."""
_REPEATED: Final = ("node_names", "table_ids", "token_owners")
"""Sections that repeat others."""
_LONG: Final = ("locks", "marks", "plan", "seed")
"""Fields that are named without their value."""
_LEVELS: Final = {OutcomeKind.APPLIED.value: OK, OutcomeKind.DUPLICATE.value: IDLE, OutcomeKind.STALE.value: IDLE}


def log(moment: ViewInput) -> Json:
    """Return entries, the newest first, and the difference between two epochs if both are given."""
    query, until = moment.query, moment.state.epoch
    last = query.get("last", LAST)
    until = min(until, query.get("to", until))
    wanted = LogFilter(
        since=max(query.get("from", 0), until - SCAN_MAX, 0),
        all_records=query.get("all", False),
        by=query.get("by") or None,
        kinds=frozenset(filter(None, query.get("kind", "").split(","))),
        refused=query.get("refused", False),
    )
    records, searched_from = moment.records(wanted, until, last)
    lines = [line_json(one) for one in records]
    for line in lines:
        if "entry" in line and len(text := json.dumps(line["entry"])) > ENTRY_CHARS_MAX:
            line["entry"] = {"command": line["entry"]["command"], "omitted": f"{len(text):,} characters"}
        line["level"] = _LEVELS.get(line["outcome"], BAD)
        if "detail" in line:
            line["detail"] = with_names(moment.state, line["detail"])
    lines.reverse()
    start, end = query.get("from"), query.get("to")
    compared = None
    if query.get("diff") and start is not None:
        compared = difference(moment.state_at(start), moment.state_at(end if end is not None else until))
    return {
        "lines": lines,
        "searched_from": searched_from,
        "searched_to": until,
        "older": searched_from - 1 if searched_from > max(query.get("from", 0), 1) else None,
        "difference": compared,
    }


def difference(before: ClusterState, after: ClusterState) -> Json:
    """Return the items that differ between two states, by section. The order of the states does not matter."""
    if before.epoch > after.epoch:
        before, after = after, before
    items = [one for one in differences(before, after) if one.section not in _REPEATED]
    return {
        "from": before.epoch,
        "to": after.epoch,
        "sections": dict(sorted(Counter(one.section for one in items).items())),
        "items": [_item(after, one) for one in items[:ITEMS_MAX]],
        "total": len(items),
    }


def _item(after: ClusterState, one: ChangedItem) -> Json:
    values = [
        {"field": name, "value": "…" if name in _LONG else with_names(after, short(value))[:VALUE_CHARS]}
        for name, value in one.values
    ]
    key = with_names(after, one.key)
    level = {"added": OK, "removed": BAD}.get(one.change, WARN)
    return {"section": one.section, "key": key, "change": one.change, "level": level, "values": values}
