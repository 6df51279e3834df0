"""The projection of a state for caches: a table of field to JSON text per part, and the difference of two states.

A projection is a pure function of the state. Parts and values that are the same object in two states are skipped, so
the difference of two consecutive epochs costs as much as the change.

JSON is canonical (sorted keys, no spaces). Bytes are hex; tokens and times are numbers. A range ``(start, end]`` wraps
if ``start >= end``.

Invariant: no field grows with the cluster, and an operation's stage only writes the ranges that it changes. So
everything that grows with the number of ranges has one field per range, in separate parts: ``placements``
(``replication/end``), ``streams`` of the generations (``generation/end``), and ``locks`` of the operations
(``operation/replication/end``). The tablets of a table are stored in chunks, ``tablet_chunks`` (``table/number``).
``join_parts`` reassembles them.

``kernel.sections`` declares the parts, their fields and their split fields.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from ringlog.kernel import sections
from ringlog.kernel.columns.blocks import unshared_items
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.model.state_section import WHOLE, SplitField, StateSection
from ringlog.kernel.values import Value, is_value_class

Fields = dict[str, str]
"""Field name to JSON text."""


class Stamp(Value):
    """The identity of a state: a cluster and an epoch of its log. ``state_id`` distinguishes two logs with the same
    name.
    """

    cluster_id: str
    epoch: int
    state_id: str


class CacheDelta(Value):
    """The difference from the projection of ``base`` to that of ``stamp``.

    ``put`` contains (part, field, JSON), ``remove`` (part, field).
    """

    base: Stamp
    stamp: Stamp
    put: tuple[tuple[str, str, str], ...]
    remove: tuple[tuple[str, str], ...]


class FullProjection(Value):
    """The complete projection of ``stamp`` as (part, field, JSON).

    ``replaces`` is a later stored epoch that it may replace, because the log lacks that epoch.
    """

    stamp: Stamp
    put: tuple[tuple[str, str, str], ...]
    replaces: Stamp | None = None


def stamp_of(state: ClusterState) -> Stamp:
    """Return the stamp of a state."""
    return Stamp(state.cluster_id, state.epoch, state.state_id)


def project(state: ClusterState) -> dict[str, Fields]:
    """Return the projection of a state: part name to fields."""
    return {
        name: {
            field: part.show(value)
            for key, item in part.of.of(state).items()
            for field, value in part.fields(key, None, item)[1].items()
        }
        for name, part in _PARTS.items()
    }


def full_projection(state: ClusterState, replaces: Stamp | None = None) -> FullProjection:
    """Return the complete projection, which replaces any stored one except a later epoch that is not ``replaces``."""
    rows = tuple(
        (part, key, value) for part, table in sorted(project(state).items()) for key, value in sorted(table.items())
    )
    return FullProjection(stamp_of(state), rows, replaces)


def delta(before: ClusterState, after: ClusterState) -> CacheDelta:
    """Return the difference between two states of one cluster."""
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
        # The same object has the same text, so compare only different objects.
        if field not in old or (old[field] is not value and not part.is_same(old[field], value)):
            put.append((name, field, part.show(value)))
    remove += [(name, field) for field in sorted(old) if field not in new]


def join_parts(parts: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Reassemble the decoded parts of a projection.

    ``placements`` become lists by replication key, ordered by range end. ``generations`` get their ``ranges`` and
    ``operations`` their ``locks``. Raises KeyError if the owner of a range is missing.
    """
    found = {name: dict(table) for name, table in parts.items() if name not in _SPLIT_FIELDS}
    for name, (part, field) in _SPLIT_FIELDS.items():
        owners = found.setdefault(part, {})
        if field:
            owners.update({key: value | {field: []} for key, value in owners.items()})
        for key, element in _sorted_by_number(parts[name]):
            if field:
                owners[key.partition("/")[0]][field].append(element)
            else:
                owners.setdefault(key.rpartition("/")[0], []).append(element)
    return found


def _sorted_by_number(table: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Sort fields by owner, then by the number in their name: a range's end or a chunk's number."""
    return sorted(table.items(), key=lambda item: (item[0].rpartition("/")[0], int(item[0].rpartition("/")[2])))


def to_json(value: object) -> str:
    """Return the canonical JSON of a kernel value."""
    return _ENCODER.encode(value)


def _plain(value: Any) -> Any:
    """Convert a value that JSON does not support. The encoder itself converts tuples to arrays."""
    if isinstance(value, bytes):
        return value.hex()
    return {name: getattr(value, name) for name in value.__struct_fields__}


_ENCODER = json.JSONEncoder(sort_keys=True, check_circular=False, separators=(",", ":"), default=_plain)


class _Part(Value):
    """A part of the projection and its functions.

    Attributes:
        of: The section of the state.
        fields: Returns the fields of an item before and after a change (None: missing), without shared ones.
        show: Returns the JSON of a value.
        is_same: Compares the JSON of two values.
    """

    of: StateSection
    fields: Callable[[str, Any, Any], tuple[dict[str, Any], dict[str, Any]]]
    show: Callable[[Any], str]
    is_same: Callable[[Any, Any], bool]


def _whole_item(key: str, before: object, after: object) -> tuple[dict[str, Any], dict[str, Any]]:
    return {} if before is None else {key: before}, {} if after is None else {key: after}


def _elements_of(split: SplitField, key: str, before: object, after: object) -> tuple[dict[str, Any], dict[str, Any]]:
    was, now = (() if item is None else split.of(item) for item in (before, after))
    old, new = ({f"{key}/{split.key(element)}": element for element in some} for some in unshared_items(was, now))
    return old, new


def _shown(section: StateSection) -> Callable[[Any], str]:
    """Return a function for the JSON of an item without hidden fields and without fields in separate parts."""
    if not is_value_class(section.item):
        return to_json
    apart = {split.field for split in section.split_fields}
    names = [name for name in section.fields if name not in apart]
    return lambda item: to_json({name: getattr(item, name) for name in names})


def _parts_of(section: StateSection) -> Iterable[tuple[str, _Part]]:
    """Yield the parts of the projection for one section of the state."""
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
    """Return True if two elements have the same text. All of their fields are shown, so this compares values."""
    return bool(split.show(before) == split.show(after))


def _element_json(split: SplitField, element: Any) -> str:
    return to_json(split.show(element))


_PARTS: dict[str, _Part] = {
    name: shown for part in sections.PARTS if WHOLE not in part.hidden for name, shown in _parts_of(part)
}

_SPLIT_FIELDS = {split.name: (part.name, split.field) for part in sections.PARTS for split in part.split_fields}
"""Part of a split field to the part of its owner and the field's name. An empty name: the elements are the item."""

PARTS: tuple[str, ...] = tuple(sorted(_PARTS))
"""The parts of a projection, in the storage order of caches."""
