"""What the cache holds of a state: per part a table of field to JSON text, and the difference between two states.

A projection is a pure function of the state. Parts, and values in them, that are the same object in two states are not
looked at, so the difference of two neighbouring epochs costs what changed. JSON is canonical (sorted keys, no spaces);
bytes are hex; tokens and times are numbers; a range ``(start, end]`` wraps where ``start >= end``.

What grows with the number of ranges has a field for each of them, in parts of their own: ``placements``
(``replication/end``), ``streams`` of the generations (``generation/end``), ``locks`` of the operations
(``operation/replication/end``); the tablets of a table in chunks, ``tablet_chunks`` (``table/number``). So no field
grows with the cluster, and a stage writes the ranges that it changes.
``whole`` puts them together again.

``kernel.sections`` declares the parts, their fields and their split fields.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache, partial
from typing import Any

from ringlog.kernel import sections
from ringlog.kernel.columns.blocks import apart
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.model.state_section import WHOLE, SplitField, StateSection

Fields = dict[str, str]
"""Field name to JSON text."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """Which state is meant: a cluster and an epoch of its log; ``state_id`` tells two logs of one name apart."""

    cluster_id: str
    epoch: int
    state_id: str


@dataclass(frozen=True, slots=True)
class CacheDelta:
    """From the projection of ``base`` to the one of ``stamp``: (part, field, JSON) to put, (part, field) to remove."""

    base: Stamp
    stamp: Stamp
    put: tuple[tuple[str, str, str], ...]
    remove: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Full:
    """The whole projection of ``stamp``: (part, field, JSON). ``over``: a later epoch that it replaces, too, since the
    log has it not.
    """

    stamp: Stamp
    put: tuple[tuple[str, str, str], ...]
    over: Stamp | None = None


def stamp_of(state: ClusterState) -> Stamp:
    """The stamp of a state."""
    return Stamp(state.cluster_id, state.epoch, state.state_id)


def project(state: ClusterState) -> dict[str, Fields]:
    """Every part of the state that readers get: part name to its fields."""
    return {
        name: {
            field: part.show(value)
            for key, item in part.of.of(state).items()
            for field, value in part.fields(key, None, item)[1].items()
        }
        for name, part in _PARTS.items()
    }


def full(state: ClusterState, over: Stamp | None = None) -> Full:
    """The whole projection, to replace whatever a cache holds, but for a later epoch that is not ``over``."""
    rows = tuple(
        (part, key, value) for part, table in sorted(project(state).items()) for key, value in sorted(table.items())
    )
    return Full(stamp_of(state), rows, over)


def delta(before: ClusterState, after: ClusterState) -> CacheDelta:
    """The difference between two states of one cluster."""
    put: list[tuple[str, str, str]] = []
    remove: list[tuple[str, str]] = []
    for name, part in sorted(_PARTS.items()):
        if part.of.is_same(before, after):
            continue
        old_items, new_items = part.of.of(before), part.of.of(after)
        for key in sorted(old_items.keys() | new_items.keys()):
            if old_items.get(key) is not new_items.get(key):
                _compare(name, part, key, old_items.get(key), new_items.get(key), put, remove)
    return CacheDelta(stamp_of(before), stamp_of(after), tuple(put), tuple(remove))


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
    old, new = part.fields(key, before, after)
    for field, value in sorted(new.items()):
        # The same object has the same text; only the others are worth a comparison.
        if field not in old or (old[field] is not value and not part.is_same(old[field], value)):
            put.append((name, field, part.show(value)))
    remove += [(name, field) for field in sorted(old) if field not in new]


def whole(parts: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The decoded parts of one projection, with their ranges where they belong: ``placements`` by replication key, as
    lists by end; ``generations`` with their ``ranges``, ``operations`` with their ``locks``.

    Raises KeyError for ranges of what is not there.
    """
    found = {name: dict(table) for name, table in parts.items() if name not in _SPLIT_FIELDS}
    for name, (part, field) in _SPLIT_FIELDS.items():
        owners = found.setdefault(part, {})
        if field:
            owners.update({key: value | {field: []} for key, value in owners.items()})
        for key, element in _by_end(parts[name]):
            if field:
                owners[key.partition("/")[0]][field].append(element)
            else:
                owners.setdefault(key.rpartition("/")[0], []).append(element)
    return found


def _by_end(table: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Fields that end with a range's end or a tablet's number, those of one owner in their order."""
    return sorted(table.items(), key=lambda item: (item[0].rpartition("/")[0], int(item[0].rpartition("/")[2])))


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


_ENCODER = json.JSONEncoder(sort_keys=True, check_circular=False, separators=(",", ":"), default=_plain)


@dataclass(frozen=True, slots=True)
class _Part:
    """``of``: the part of the state; ``fields``: those of an item before and after (None: it is not there) with their
    values, but for what both share; ``show``: the JSON of a value; ``is_same``: two values have the same.
    """

    of: StateSection
    fields: Callable[[str, Any, Any], tuple[dict[str, Any], dict[str, Any]]]
    show: Callable[[Any], str]
    is_same: Callable[[Any, Any], bool]


def _whole_item(key: str, before: object, after: object) -> tuple[dict[str, Any], dict[str, Any]]:
    return {} if before is None else {key: before}, {} if after is None else {key: after}


def _elements_of(split: SplitField, key: str, before: object, after: object) -> tuple[dict[str, Any], dict[str, Any]]:
    was, now = (() if item is None else split.of(item) for item in (before, after))
    old, new = ({f"{key}/{split.key(element)}": element for element in some} for some in apart(was, now))
    return old, new


def _shown(section: StateSection) -> Callable[[Any], str]:
    """The JSON of an item: all of its fields but those that are hidden, or that have parts of their own."""
    if not is_dataclass(section.item):
        return to_json
    apart = {split.field for split in section.split_fields}
    names = [name for name in section.fields if name not in apart]
    return lambda item: to_json({name: getattr(item, name) for name in names})


def _parts_of(section: StateSection) -> Iterable[tuple[str, _Part]]:
    """The parts of a projection that one part of the state becomes."""
    if all(split.field for split in section.split_fields):
        show = _shown(section)
        yield section.name, _Part(section, _whole_item, show, partial(_have_one_text, show))
    for split in section.split_fields:
        yield (
            split.name,
            _Part(section, partial(_elements_of, split), partial(_element_json, split), partial(_same, split)),
        )


def _have_one_text(show: Callable[[Any], str], before: Any, after: Any) -> bool:
    return show(before) == show(after)


def _same(split: SplitField, before: Any, after: Any) -> bool:
    """True if two elements have the same text: all their fields are shown, so the values are compared."""
    return bool(split.show(before) == split.show(after))


def _element_json(split: SplitField, element: Any) -> str:
    return to_json(split.show(element))


_PARTS: dict[str, _Part] = {
    name: shown for part in sections.PARTS if WHOLE not in part.hidden for name, shown in _parts_of(part)
}

_SPLIT_FIELDS = {split.name: (part.name, split.field) for part in sections.PARTS for split in part.split_fields}
"""Part of a split field to the part of its items and to the field; empty: the elements are the item."""

PARTS: tuple[str, ...] = tuple(sorted(_PARTS))
"""The parts of a projection, in the order in which caches store them."""
