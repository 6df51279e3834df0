"""What the cache holds of a state: per part a table of field to JSON text, and the difference between two states.

A projection is a pure function of the state. Parts that are the same object in two states are not looked at, so the
difference of two neighbouring epochs costs what changed. JSON is canonical (sorted keys, no spaces); bytes are hex;
tokens and times are numbers; a range ``(start, end]`` wraps where ``start >= end``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from ringlog.kernel.state import ClusterState, Generation, Operation, Placement, in_order

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
    return {name: show(getattr(state, name)) for name, show in _PARTS.items()}


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
    for name, show in sorted(_PARTS.items()):
        old_part, new_part = getattr(before, name), getattr(after, name)
        if old_part is new_part:
            continue
        old, new = show(old_part), show(new_part)
        put += [(name, key, value) for key, value in sorted(new.items()) if old.get(key) != value]
        remove += [(name, key) for key in sorted(old) if key not in new]
    return Delta(stamp_of(before), stamp_of(after), tuple(put), tuple(remove))


def to_json(value: object) -> str:
    """Canonical JSON of a kernel value."""
    return json.dumps(_plain(value), sort_keys=True, separators=(",", ":"))


def _plain(value: object) -> Any:
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value


def _by_key(part: Mapping[Any, object]) -> Fields:
    return {str(key): to_json(value) for key, value in in_order(part)}


def _placements(part: Mapping[str, Placement]) -> Fields:
    return {key: to_json(placement.ranges) for key, placement in in_order(part)}


def _operations(part: Mapping[str, Operation]) -> Fields:
    """Operations without their plans, which only the log's readers need."""
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
    return {
        key: json.dumps(
            {name: _plain(getattr(operation, name)) for name in shown}, sort_keys=True, separators=(",", ":")
        )
        for key, operation in in_order(part)
    }


def _generations(part: tuple[Generation, ...]) -> Fields:
    return {generation.id: to_json(generation) for generation in part}


_PARTS: dict[str, Callable[[Any], Fields]] = {
    "settings": _by_key,
    "terms": _by_key,
    "nodes": _by_key,
    "keyspaces": _by_key,
    "tables": _by_key,
    "placements": _placements,
    "operations": _operations,
    "generations": _generations,
    "writers": _by_key,
}

PARTS: tuple[str, ...] = tuple(sorted(_PARTS))
"""The parts of a projection, in the order in which caches store them."""
