"""What counted for earlier writes, in the context of a plan part, whose writes are judged by their append times.

A context has it once the log promises a settled time (``ringlog.kernel.generations.verdicts``); what is settled is not
in it: a part is made of writes below the writer's horizon, which is never above the settled time. Most writes are newer
than the last change, and are judged by the newest tables; the others are looked at one by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from ringlog.kernel.generations.verdicts import CountedLife, CountedVersion, SchemaHistory, history_of
from ringlog.kernel.state import ClusterState
from ringlog_cdc.shapes import fields_of_shape, shape_of_fields

KEY = "history"
SETTLED = 1
"""In place of the settled time: there is one."""


def history_context(state: ClusterState) -> dict[str, Any]:
    """What a context has of it: nothing, where nothing is promised."""
    if not state.settled.until:
        return {}
    found = history_of(state)
    lives = {name: [_life_out(life) for life in known] for name, known in found.lives.items()}
    leeways = [list(one) for one in found.leeways]
    return {KEY: {"forgotten": found.forgotten, "since": found.since, "leeways": leeways, "lives": lives}}


def history_in(context: Mapping[str, Any]) -> SchemaHistory | None:
    """The history of a stored context; None: its part was judged by the newest tables."""
    if KEY not in context:
        return None
    stored = context[KEY]
    lives = {name: tuple(map(_life_in, known)) for name, known in stored["lives"].items()}
    leeways = tuple((leeway, until) for leeway, until in stored["leeways"])
    return SchemaHistory(SETTLED, stored["forgotten"], lives, leeways, stored["since"])


def _life_out(life: CountedLife) -> list[Any]:
    return [life.until, [[*_plain(version), fields_of_shape(version.shape)] for version in life.versions]]


def _plain(version: CountedVersion) -> list[Any]:
    """The fields of a version but for its shape."""
    return [getattr(version, field.name) for field in fields(version)][:-1]


def _life_in(stored: Sequence[Any]) -> CountedLife:
    until, versions = stored
    return CountedLife(tuple(_version_in(*version) for version in versions), until)


def _version_in(
    since: int, end: int | None, table: str, version: str, epoch: int, shape: Sequence[Any]
) -> CountedVersion:
    return CountedVersion(since, end, table, version, epoch, shape_of_fields(shape))
