"""The lists of a plan as columns: a join changes thousands of small values in a few ranges that settings share.

A change, a source or a lock has a replication setting, a range and one more item. The fold asks for the ranges of a
list under a setting, and for the items of each range. Settings with a common section of the ring have equal columns for
it. So a list keeps a ``RangeColumn`` for each setting, and settings may share one. ``ChangeList``, ``SourceList`` and
``LockList`` replace a tuple. Single values are made only for a coordinator or a display.

A list of a stored state is a tuple; ``columns_of`` builds its columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, groupby
from operator import attrgetter, itemgetter
from typing import Any, ClassVar, Final, Generic, TypeVar, cast

from ringlog.kernel.columns.lazy_tuple import IdentityCache, LazyTuple
from ringlog.kernel.model.state import Change, LockedRange, Source
from ringlog.kernel.ring.ranges import Range
from ringlog.kernel.values import Epoch, NodeId, Token

T = TypeVar("T")
S = TypeVar("S")

by_end: Final = itemgetter(1)
_setting_of = attrgetter("replication")


class RangeColumn(Generic[S]):
    """Ranges by end, each once, with at least one item for each range. The lists are read-only."""

    __slots__ = ("items", "ranges")

    def __init__(self, ranges: list[Range], items: Sequence[tuple[S, ...]]) -> None:
        assert len(ranges) == len(items) > 0, "columns of a plan are not empty and have the same length"
        self.ranges = ranges
        self.items = items

    def ends(self) -> Iterator[Token]:
        """Yield the ends of its ranges."""
        return map(by_end, self.ranges)

    def each(self) -> Iterator[tuple[Range, tuple[S, ...]]]:
        """Yield each range with its items."""
        return zip(self.ranges, self.items, strict=True)

    def all_items(self) -> Iterator[S]:
        """Yield the items of all ranges."""
        return chain.from_iterable(self.items)


def column_of(ranges: list[Range], items: Sequence[tuple[S, ...]]) -> RangeColumn[S] | None:
    """Return the column of the ranges that have items, by end; None if there are none."""
    if not all(items):
        ranges = [range_ for range_, said in zip(ranges, items, strict=True) if said]
        items = [said for said in items if said]
    return RangeColumn(ranges, items) if ranges else None


class _InColumns(LazyTuple[T], Generic[T, S]):
    """A lazy list. ``columns``: by key of the setting, in the order of the values; at least one."""

    __slots__ = ("columns",)
    _one: ClassVar[Callable[..., Any]]

    def __init__(self, columns: Mapping[str, RangeColumn[S]]) -> None:
        assert columns, "a list without values is the empty tuple"
        self.columns = columns
        self._made = None

    def _make(self) -> tuple[T, ...]:
        one = type(self)._one
        return tuple(
            one(key, start, end, item)
            for key, column in self.columns.items()
            for (start, end), items in column.each()
            for item in items
        )

    def __len__(self) -> int:
        return sum(sum(map(len, column.items)) for column in self.columns.values())


class ChangeList(_InColumns[Change, NodeId]):
    """For each range the nodes that enter or leave."""

    __slots__ = ()
    _one = Change


def _source(key: str, start: Token, end: Token, pair: tuple[NodeId, NodeId]) -> Source:
    return Source(key, start, end, *pair)


class SourceList(_InColumns[Source, tuple[NodeId, NodeId]]):
    """For each range the sources, each with its target."""

    __slots__ = ()

    _one = staticmethod(_source)


class LockList(_InColumns[LockedRange, Epoch]):
    """For each range the epoch that last changed it."""

    __slots__ = ()
    _one = LockedRange


IN_COLUMNS: Final = (ChangeList, SourceList, LockList)


def in_columns(kind: type[_InColumns[T, S]], columns: Mapping[str, RangeColumn[S]]) -> tuple[T, ...]:
    """Return the list, typed as the tuple that it replaces. Without columns, return the empty tuple."""
    return cast(tuple[T, ...], kind(columns)) if columns else ()


# ------------------------------------------------------------------------------------------------- of a tuple

_gathered: Final = IdentityCache[tuple[Any, ...], Mapping[str, RangeColumn[Any]]](8)
"""Columns of the lists of plans in flight: each list is read in several stages."""

_item_of: Final[dict[type, Callable[[Any], Any]]] = {
    Change: attrgetter("node"),
    Source: attrgetter("source", "target"),
    LockedRange: attrgetter("changed"),
}
_range_of = attrgetter("start", "end")


def columns_of(values: tuple[Any, ...]) -> Mapping[str, RangeColumn[Any]]:
    """Return the key of each setting with the column of its ranges, for any such list."""
    if type(values) is not tuple:  # faster than isinstance of an abstract sequence
        return cast(_InColumns[Any, Any], values).columns
    if not values:
        return {}
    known = _gathered.get(values)
    if known is not None:
        return known
    lists: dict[str, list[Any]] = {}
    for key, some in groupby(values, _setting_of):
        lists.setdefault(key, []).extend(some)
    item_of = _item_of[type(values[0])]
    return _gathered.put(values, {key: _column(own, item_of) for key, own in lists.items()})


def nodes_in(changes: tuple[Change, ...]) -> set[NodeId]:
    """Return all nodes that the changes name."""
    found: set[NodeId] = set()
    for column in columns_of(changes).values():
        found.update(*column.items)
    return found


def targets_in(sources: tuple[Source, ...]) -> set[NodeId]:
    """Return all nodes that receive rows from a source."""
    return {target for column in columns_of(sources).values() for source, target in column.all_items() if source}


def _column(values: Sequence[Any], item_of: Callable[[Any], Any]) -> RangeColumn[Any]:
    gathered: dict[Range, list[Any]] = {}
    for value in values:
        gathered.setdefault(_range_of(value), []).append(item_of(value))
    ranges = sorted(gathered, key=by_end)
    assert sum(map(len, gathered.values())) == len(values), "no value is lost"
    return RangeColumn(ranges, [tuple(gathered[range_]) for range_ in ranges])
