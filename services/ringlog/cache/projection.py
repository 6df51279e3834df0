"""What the cache holds of a state: per part a table of field to JSON text, and the difference between two states.

A projection is a pure function of the state. Parts, and values in them, that are the same object in two states are not
looked at, so the difference of two neighbouring epochs costs what changed. JSON is canonical (sorted keys, no spaces);
bytes are hex; tokens and times are numbers; a range ``(start, end]`` wraps where ``start >= end``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

from ringlog.kernel.state import ClusterState, Generation, Operation, Placement

Fields = dict[str, str]
"""Field name to JSON text."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """Which state is meant: a cluster and an epoch of its log; ``state_id`` tells two logs of one name apart."""

    cluster_id: str
    epoch: int
    state_id: str


@dataclass(frozen=True, slots=True)
class Delta:
    """From the projection of ``base`` to the one of ``stamp``: (part, field, JSON) to put, (part, field) to remove."""

    base: Stamp
    stamp: Stamp
    put: tuple[tuple[str, str, str], ...]
    remove: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Full:
    """The whole projection of ``stamp``: (part, field, JSON)."""

    stamp: Stamp
    put: tuple[tuple[str, str, str], ...]


def stamp_of(state: ClusterState) -> Stamp:
    """The stamp of a state."""
    return Stamp(state.cluster_id, state.epoch, state.state_id)


def project(state: ClusterState) -> dict[str, Fields]:
    """Every part of the state that readers get: part name to its fields."""
    return {
        name: {key: part.show(value) for key, value in part.values(getattr(state, name)).items()}
        for name, part in _PARTS.items()
    }


def full(state: ClusterState) -> Full:
    """The whole projection, to replace whatever a cache holds."""
    rows = tuple(
        (part, key, value) for part, table in sorted(project(state).items()) for key, value in sorted(table.items())
    )
    return Full(stamp_of(state), rows)


def delta(before: ClusterState, after: ClusterState) -> Delta:
    """The difference between two states of one cluster."""
    put: list[tuple[str, str, str]] = []
    remove: list[tuple[str, str]] = []
    for name, part in sorted(_PARTS.items()):
        old_part, new_part = getattr(before, name), getattr(after, name)
        if old_part is new_part:
            continue
        old, new = part.values(old_part), part.values(new_part)
        for key, value in sorted(new.items()):
            # The same object has the same text; only the others are worth writing down to compare.
            if key in old and old[key] is value:
                continue
            text = part.show(value)
            if key not in old or part.show(old[key]) != text:
                put.append((name, key, text))
        remove += [(name, key) for key in sorted(old) if key not in new]
    return Delta(stamp_of(before), stamp_of(after), tuple(put), tuple(remove))


def to_json(value: object) -> str:
    """Canonical JSON of a kernel value."""
    return _ENCODER.encode(value)


@cache
def _names(cls: type[Any]) -> tuple[str, ...]:
    return tuple(field.name for field in fields(cls))


def _plain(value: Any) -> Any:
    """What stands for a value that JSON does not know; tuples become arrays by themselves."""
    if isinstance(value, bytes):
        return value.hex()
    return {name: getattr(value, name) for name in _names(value.__class__)}


_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), default=_plain)


@dataclass(frozen=True, slots=True)
class _Part:
    """``values``: the values of a part by field name; ``show``: the JSON of one."""

    values: Callable[[Any], dict[str, Any]]
    show: Callable[[Any], str]


def _by_key(part: Mapping[Any, object]) -> dict[str, Any]:
    return {str(key): value for key, value in part.items()}


def _by_id(part: tuple[Generation, ...]) -> dict[str, Any]:
    return {generation.id: generation for generation in part}


def _placement(placement: Placement) -> str:
    return to_json(placement.ranges)


def _operation(operation: Operation) -> str:
    """An operation without its plan, which only the log's readers need."""
    shown = (
        "id",
        "kind",
        "node",
        "tokens",
        "stage",
        "stage_epoch",
        "locks",
        "generation",
        "marks",
        "reports",
        "reason",
    )
    return to_json({name: getattr(operation, name) for name in shown})


_PARTS: dict[str, _Part] = {
    "settings": _Part(_by_key, to_json),
    "terms": _Part(_by_key, to_json),
    "nodes": _Part(_by_key, to_json),
    "keyspaces": _Part(_by_key, to_json),
    "tables": _Part(_by_key, to_json),
    "placements": _Part(_by_key, _placement),
    "operations": _Part(_by_key, _operation),
    "generations": _Part(_by_id, to_json),
    "writers": _Part(_by_key, to_json),
}

PARTS: tuple[str, ...] = tuple(sorted(_PARTS))
"""The parts of a projection, in the order in which caches store them."""
