"""Levels of conditions, rows in pages, commands in sentences, and values as bounded text: what several views use."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from reprlib import Repr
from typing import Any, Final

from ringlog.kernel.values import Micros, Value
from ringlog.operator import doctor
from ringlog.operator.machines import EXPIRES_SOON_US

Json = dict[str, Any]
OK, WARN, BAD, IDLE = "ok", "warn", "bad", "idle"
LEVELS: Final = (BAD, WARN, OK, IDLE)
"""The levels, the worst first."""
LEVEL_OF: Final = {doctor.OK: OK, doctor.SKIPPED: IDLE, doctor.WARN: WARN, doctor.FAIL: BAD}
"""Verdict of ``ringlog doctor`` to its level."""

LIMIT, LIMIT_MAX = 100, 1_000
"""Rows of a page."""


def worst(levels: Iterable[str]) -> str:
    """Return the worst level; ``ok`` without any."""
    return min(levels, key=LEVELS.index, default=OK)


def certificate_level(end: Micros | None, now: Micros) -> str:
    """Return the level of a certificate by its end; None: there is none."""
    if end is None or end - now >= EXPIRES_SOON_US:
        return OK
    return WARN if end > now else BAD


def paged(rows: Sequence[Any], query: Mapping[str, Any]) -> Json:
    """Return one page of rows, with its number, the number of pages and the number of all rows."""
    limit, page = query.get("limit", LIMIT), query.get("page", 1)
    pages = max(1, -(-len(rows) // limit))
    page = min(page, pages)
    return {"rows": rows[(page - 1) * limit : page * limit], "page": page, "pages": pages, "total": len(rows)}


_COMMAND: Final = re.compile(r"""\bringlog (?:'[^']*'|[^';,()`])+""")


def with_commands(text: str) -> Iterator[tuple[str, bool]]:
    """Split a sentence into pieces. The flag is True for a command to type."""
    at = 0
    for found in _COMMAND.finditer(text):
        command = found[0].rstrip(" .:")
        yield text[at : found.start()].removesuffix("`"), False
        yield command, True
        at = found.start() + len(command)
        at += text.startswith("`", at)
    yield text[at:], False


def node_level(row: Mapping[str, Any]) -> str:
    """Return the level of a row of ``views.nodes``."""
    if row["state"] in ("left", "none"):
        return IDLE
    if row.get("down") or row.get("silent"):
        return BAD
    return OK if row["state"] == "normal" else WARN


_brief: Final = Repr()
vars(_brief).update(maxlevel=3, maxstring=80, maxother=80)


def short(value: Any) -> str:
    """Return a value as bounded text."""
    if isinstance(value, Value):
        return ", ".join(f"{name}={_brief.repr(getattr(value, name))}" for name in value.__struct_fields__)
    return _brief.repr(value)
