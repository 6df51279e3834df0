"""The declaration of a part of the state: which fields are published and cached, and under which key.

A part that is a map of records is declared where its field of ``ClusterState`` is, with ``part``; parts of which more
must be said (ranges of their own, items that are made of several parts) stand in ``kernel.sections``. The class of a
change record, its ``.avsc``, the bound of ``kernel.cardinality_limits`` and what caches show follow from the
declaration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, Final

from immutables import Map

WHOLE: Final = ""
"""In place of a field: the part as a whole."""


@dataclass(frozen=True, slots=True)
class SplitField:
    """A field that grows with the number of ranges or tablets; caches store it element by element.

    ``name``: the part of a cache with the elements; ``field``: the field of an item, empty if the item is the field
    itself; ``key``: the key of an element within the item; ``show``: the value that caches show of an element.
    """

    name: str
    field: str
    key: Callable[[Any], str]
    show: Callable[[Any], Any] = lambda element: element

    def of(self, item: Any) -> Sequence[Any]:
        """Return the elements of an item, by their ends."""
        found: Sequence[Any] | Map[Any, Any] = getattr(item, self.field) if self.field else item
        return [element for _, element in sorted(found.items())] if isinstance(found, Map) else found


@dataclass(frozen=True, slots=True)
class StateSection:
    """A part of the state, as change topics and caches show it.

    ``item``: the class of its items, each of which has a key. ``topic``: the change topic that tells of it, if one
    does; ``key``: what its keys there are, in words, behind ``prefix``. ``hidden``, ``unpublished``: field to the
    reason why it is not shown. ``most``: how many there may be of what is never taken out, and what they are.
    ``items``: the items of a state by key, in the order in which they are published, where they are no map of the
    state; they follow from the parts ``uses``.
    """

    name: str
    item: type[Any]
    topic: str = ""
    prefix: str = ""
    key: str = ""
    hidden: Mapping[str, str] = field(default_factory=dict)
    unpublished: Mapping[str, str] = field(default_factory=dict)
    most: tuple[int, str] | None = None
    items: Callable[[Any], Mapping[str, Any]] | None = None
    uses: tuple[str, ...] = ()
    split_fields: tuple[SplitField, ...] = ()

    def of(self, state: Any) -> Mapping[str, Any]:
        """The items of a state by key."""
        if self.items is not None:
            return self.items(state)
        return {str(key): item for key, item in sorted(getattr(state, self.name).items())}

    def is_same(self, before: Any, after: Any) -> bool:
        """True if nothing was replaced from which the items follow."""
        if not self.uses:
            return getattr(before, self.name) is getattr(after, self.name)
        return all(getattr(before, name) is getattr(after, name) for name in self.uses)

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields of an item that are not hidden; none if it is a plain value."""
        names = (one.name for one in fields(self.item)) if is_dataclass(self.item) else ()
        return tuple(name for name in names if name not in self.hidden)


_METADATA_KEY: Final = "part"


def part(item: type[Any], topic: str = "", **options: Any) -> dict[str, StateSection]:
    """Return the metadata of a field that is a map of ``item`` by key; ``options``: fields of ``StateSection``."""
    return {_METADATA_KEY: StateSection("", item, topic, **options)}


def sections_of(state: type[Any]) -> tuple[StateSection, ...]:
    """Return the parts that are declared with the fields of a state's class, in their order."""
    found = ((one.name, one.metadata.get(_METADATA_KEY)) for one in fields(state))
    return tuple(replace(section, name=name) for name, section in found if section is not None)
