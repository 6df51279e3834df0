"""Tables in the context of a plan part: their shapes, and the rules of earlier writes by their append times.

A context has them once the log promises a validation watermark (``ringlog.kernel.generations.verdicts``), but not the
watermark itself: a part has writes below the writer's horizon, which is never above the watermark. Most writes are
newer than the last change, and are judged by the newest tables; the others are examined one by one. A context stores
the shape of a table as the list of its fields, in their order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import structs

from ringlog.kernel.generations.statements import TableShape
from ringlog.kernel.generations.verdicts import CountedLifetime, CountedVersion, SchemaHistory, history_of
from ringlog.kernel.model.state import ClusterState

KEY = "history"
"""Field of a context."""
SETTLED = 1
"""Placeholder for the validation watermark: any value above 0."""


def fields_of_shape(shape: TableShape) -> list[Any]:
    """Return the shape of a table as fields of a context."""
    return list(structs.astuple(shape))


def shape_of_fields(stored: Sequence[Any]) -> TableShape:
    """Return the shape of a table from fields of a context."""
    return TableShape(*map(_tuples, stored))


def _tuples(value: Any) -> Any:
    """Convert lists to tuples, recursively."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def history_context(state: ClusterState) -> dict[str, Any]:
    """Return the history for a context. Empty if the log promises no validation watermark."""
    if not state.settled.until:
        return {}
    found = history_of(state)
    lifetimes = {name: [_lifetime_out(lifetime) for lifetime in known] for name, known in found.lifetimes.items()}
    leeways = [list(one) for one in found.leeways]
    return {KEY: {"forgotten": found.forgotten, "since": found.since, "leeways": leeways, "lives": lifetimes}}


def history_in(context: Mapping[str, Any]) -> SchemaHistory | None:
    """Return the history in a stored context. None: the newest tables apply to every write of the part."""
    if KEY not in context:
        return None
    stored = context[KEY]
    lifetimes = {name: tuple(map(_lifetime_in, known)) for name, known in stored["lives"].items()}
    leeways = tuple((leeway, until) for leeway, until in stored["leeways"])
    return SchemaHistory(SETTLED, stored["forgotten"], lifetimes, leeways, stored["since"])


def _lifetime_out(lifetime: CountedLifetime) -> list[Any]:
    return [lifetime.until, [[*_plain(version), fields_of_shape(version.shape)] for version in lifetime.versions]]


def _plain(version: CountedVersion) -> list[Any]:
    """Return the fields of a version except its shape, which is the last one."""
    return [getattr(version, name) for name in version.__struct_fields__][:-1]


def _lifetime_in(stored: Sequence[Any]) -> CountedLifetime:
    until, versions = stored
    return CountedLifetime(tuple(_version_in(*version) for version in versions), until)


def _version_in(
    since: int, end: int | None, table: str, version: str, epoch: int, shape: Sequence[Any]
) -> CountedVersion:
    return CountedVersion(since, end, table, version, epoch, shape_of_fields(shape))
