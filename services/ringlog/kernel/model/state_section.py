"""The declaration of a section of the state: its published and cached fields, and their key.

A section that is a map of records is declared in the module of the record; ``state.RECORD_SECTIONS`` has them all.
Sections that need more (split fields, items from several sections) are declared in ``kernel.sections``. The class of a
change record, its ``.avsc``, the bound of ``kernel.cardinality_limits`` and the view in caches follow from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from immutables import Map

from ringlog.kernel.values import Value, field, is_value_class

WHOLE: Final = ""
"""Used instead of a field name: the section as a whole."""


class SplitField(Value):
    """A field that grows with the number of ranges or tablets; caches store it element by element.

    ``name``: the section of a cache with the elements. ``field``: the field of an item; empty if the item is the field
    itself. ``key``: the key of an element within the item. ``show``: the value of an element in caches.
    """

    name: str
    field: str
    key: Callable[[Any], str]
    show: Callable[[Any], Any] = lambda element: element

    def of(self, item: Any) -> Sequence[Any]:
        """Return the elements of an item, by their ends."""
        found: Sequence[Any] | Map[Any, Any] = getattr(item, self.field) if self.field else item
        return [element for _, element in sorted(found.items())] if isinstance(found, Map) else found


class StateSection(Value):
    """A section of the state, as change topics and caches show it.

    ``item``: the class of its items. ``topic``: the change topic that publishes it; empty: none. ``key``: a description
    of its keys there, after ``prefix``. ``hidden``, ``unpublished``: field to the reason why it is not shown. ``most``:
    the maximum number of items that are never removed, and their description. ``items``: the items of a state by key in
    the order of publication, if they are not a map of the state; they follow from the sections ``uses``.
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
        """Return the items of a state by key."""
        if self.items is not None:
            return self.items(state)
        return {str(key): item for key, item in sorted(getattr(state, self.name).items())}

    def is_same(self, before: Any, after: Any) -> bool:
        """Return True if no section that the items follow from was replaced."""
        if not self.uses:
            return getattr(before, self.name) is getattr(after, self.name)
        return all(getattr(before, name) is getattr(after, name) for name in self.uses)

    @property
    def fields(self) -> tuple[str, ...]:
        """Return the fields of an item that are not hidden; none if it is a plain value."""
        names = self.item.__struct_fields__ if is_value_class(self.item) else ()
        return tuple(name for name in names if name not in self.hidden)
