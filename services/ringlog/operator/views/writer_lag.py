"""Views of the lag of CDC writers, as the metadata log and the broker show it without the jobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ringlog.kernel.model.state import CdcWriter, ClusterState, in_order
from ringlog.kernel.values import SECOND_US
from ringlog.log.kafka.lag import Lag
from ringlog.operator.views.words import span, when

LATE_S: Final = 60.0
"""``ringlog status`` names a writer if a mutation is older. A running writer reports its positions more often."""


def lag_view(found: Lag | str) -> dict[str, Any]:
    """Return the JSON fields of a lag: ``behind`` and ``behind_seconds``, null if unknown, and ``behind_unknown``."""
    if isinstance(found, str):
        return {"behind": None, "behind_seconds": None, "behind_unknown": found}
    why = "the broker did not return the oldest record in time" if found.seconds is None else None
    return {"behind": found.records, "behind_seconds": found.seconds, "behind_unknown": why}


def format_lag(found: Lag | str) -> str:
    """Return a lag in words."""
    if isinstance(found, str):
        return f"unknown: {found}"
    if not found.records:
        return "nothing"
    age = "of unknown age" if found.seconds is None else f"up to {span(int(found.seconds * SECOND_US))} old"
    return f"at most {found.records:,} mutation{'' if found.records == 1 else 's'}, {age}"


def format_lease(writer: CdcWriter, now_us: int) -> str:
    """Return the end of a write lease. A running job extends it long before its end."""
    ended = f", ended {span(now_us - writer.horizon)} ago" if writer.horizon < now_us and writer.fenced is None else ""
    return when(writer.horizon) + ended


def writers_behind(state: ClusterState, lags: Mapping[str, Lag | str]) -> list[str]:
    """Return a line for each CDC writer that is not fenced and has left a mutation waiting for over ``LATE_S``."""
    return [
        f"CDC writer {name} is behind: {format_lag(found)}. Is its job running?"
        for name, writer in in_order(state.writers)
        if writer.fenced is None and isinstance(found := lags.get(name, ""), Lag)
        if found.records and (found.seconds is None or found.seconds > LATE_S)
    ]
