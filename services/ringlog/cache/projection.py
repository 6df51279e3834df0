"""What the cache holds of a state: per part a table of field to JSON text, and the difference between two states.

A projection is a pure function of the state. Parts, and values in them, that are the same object in two states are not
looked at, so the difference of two neighbouring epochs costs what changed. JSON is canonical (sorted keys, no spaces);
bytes are hex; tokens and times are numbers; a range ``(start, end]`` wraps where ``start >= end``.

What grows with the number of ranges has a field for each of them, in parts of their own: ``placements``
(``replication/end``), ``streams`` of the generations (``generation/end``), ``locks`` of the operations
(``operation/replication/end``). So no field grows with the cluster, and a stage writes the ranges that it changes.
``whole`` puts them together again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
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
        name: {
            field: part.show(value)
            for key, item in part.items(getattr(state, part.of)).items()
            for field, value in part.fields(key, item)
        }
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
        old_part, new_part = getattr(before, part.of), getattr(after, part.of)
        if old_part is new_part:
            continue
        old_items, new_items = part.items(old_part), part.items(new_part)
        for key in sorted(old_items.keys() | new_items.keys()):
            if old_items.get(key) is not new_items.get(key):
                _compare(name, part, key, old_items.get(key), new_items.get(key), put, remove)
    return Delta(stamp_of(before), stamp_of(after), tuple(put), tuple(remove))


def _compare(
    name: str,
    part: _Part,
    key: str,
    before: Any | None,
    after: Any | None,
    put: list[tuple[str, str, str]],
    remove: list[tuple[str, str]],
) -> None:
    """Add the difference of one item to ``put`` and ``remove``."""
    old = {} if before is None else dict(part.fields(key, before))
    new = {} if after is None else dict(part.fields(key, after))
    for field, value in sorted(new.items()):
        # The same object has the same text; only the others are worth writing down to compare.
        if field in old and old[field] is value:
            continue
        text = part.show(value)
        if field not in old or part.show(old[field]) != text:
            put.append((name, field, text))
    remove += [(name, field) for field in sorted(old) if field not in new]


def whole(parts: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The decoded parts of one projection, with their ranges where they belong: ``placements`` by replication key, as
    lists by end; ``generations`` with their ``ranges``, ``operations`` with their ``locks``.

    Raises KeyError for ranges of what is not there.
    """
    found = {part: dict(table) for part, table in parts.items() if part not in ("placements", "streams", "locks")}
    found["placements"] = {}
    for field, group in _by_end(parts["placements"]):
        found["placements"].setdefault(field.rpartition("/")[0], []).append(group)
    found["generations"] = {key: value | {"ranges": []} for key, value in found["generations"].items()}
    for field, described in _by_end(parts["streams"]):
        found["generations"][field.rpartition("/")[0]]["ranges"].append(described)
    found["operations"] = {key: value | {"locks": []} for key, value in found["operations"].items()}
    for field, lock in _by_end(parts["locks"]):
        found["operations"][field.partition("/")[0]]["locks"].append(lock)
    return found


def _by_end(table: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Fields that end with a range's end, those of one owner by ascending end."""
    return sorted(table.items(), key=lambda item: (item[0].rpartition("/")[0], item[1]["end"]))


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
    """``of``: the part of the state; ``items``: its items by key; ``fields``: those of one item and their values;
    ``show``: the JSON of a value.
    """

    of: str
    items: Callable[[Any], dict[str, Any]]
    fields: Callable[[str, Any], Iterable[tuple[str, Any]]]
    show: Callable[[Any], str]


def _by_key(part: Mapping[Any, object]) -> dict[str, Any]:
    return {str(key): value for key, value in part.items()}


def _by_id(part: tuple[Generation, ...]) -> dict[str, Any]:
    return {generation.id: generation for generation in part}


def _alone(key: str, item: object) -> Iterable[tuple[str, Any]]:
    return ((key, item),)


def _groups(key: str, placement: Placement) -> Iterable[tuple[str, Any]]:
    return ((f"{key}/{group.end}", group) for group in placement.ranges)


def _streams(key: str, generation: Generation) -> Iterable[tuple[str, Any]]:
    return ((f"{key}/{described.end}", described) for described in generation.ranges)


def _locks(key: str, operation: Operation) -> Iterable[tuple[str, Any]]:
    return ((f"{key}/{lock.replication}/{lock.end}", lock) for lock in operation.locks)


def _without_ranges(generation: Generation) -> str:
    return to_json({name: getattr(generation, name) for name in _names(Generation) if name != "ranges"})


def _operation(operation: Operation) -> str:
    """An operation without its plan, which only the log's readers need, and without its locks."""
    shown = ("id", "kind", "node", "tokens", "stage", "stage_epoch", "generation", "marks", "reports", "reason")
    return to_json({name: getattr(operation, name) for name in shown})


def _plainly(name: str) -> _Part:
    return _Part(name, _by_key, _alone, to_json)


_PARTS: dict[str, _Part] = {
    "settings": _plainly("settings"),
    "terms": _plainly("terms"),
    "nodes": _plainly("nodes"),
    "keyspaces": _plainly("keyspaces"),
    "tables": _plainly("tables"),
    "placements": _Part("placements", _by_key, _groups, to_json),
    "operations": _Part("operations", _by_key, _alone, _operation),
    "locks": _Part("operations", _by_key, _locks, to_json),
    "generations": _Part("generations", _by_id, _alone, _without_ranges),
    "streams": _Part("generations", _by_id, _streams, to_json),
    "writers": _plainly("writers"),
}

PARTS: tuple[str, ...] = tuple(sorted(_PARTS))
"""The parts of a projection, in the order in which caches store them."""
