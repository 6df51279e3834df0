"""Digests of one state after the other, at the cost of what changed between them.

``Digester.digest`` gives what ``encoding.digest`` gives, byte for byte hashed the same. It holds the state that it
digested last and the bytes of that state's *rows*; what is the same object in the next state is not encoded again:

- a part that is the same object keeps its digest;
- of a part that is another object, the rows that are the same objects keep their bytes. A row is a value of a map, an
  element of a tuple of records (a range, a table, an applied entry), a tuple without records in it, or columns that
  stand for a tuple. The few records that hold many rows (``WALKED``) are no rows themselves: they are walked to theirs.

Identity is enough because states are immutable, and because the last state is held: as long as it is there no other
object can have the id of one of its rows. Rows that the newest state lacks are forgotten with it, so the memory is that
of one state and of its encoding.

A changed part must still be hashed as a whole, since its digest is that of all of its bytes: the digest of an epoch
costs a look at each row and a pass of SHA-256 over each changed part, and no encoding but that of new rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from immutables import Map

from ringlog.kernel.blocks import Blocks
from ringlog.kernel.encoding import (
    DIGESTED,
    combined_digest,
    encode,
    entries_of,
    framed_map,
    framed_record,
    is_empty,
    joined,
    sha256_of,
)
from ringlog.kernel.generations.packed import PackedRanges
from ringlog.kernel.memory import History
from ringlog.kernel.planned import IN_COLUMNS
from ringlog.kernel.state import (
    EMPTY_STATE,
    ClusterState,
    Deltas,
    Generation,
    Operation,
    Placement,
    Plan,
    PreparedGeneration,
)
from ringlog.kernel.tablets.map import TabletMap

WALKED: Final = frozenset({Placement, Operation, Plan, Deltas, Generation, PreparedGeneration, TabletMap})
_WHOLE: Final = frozenset({PackedRanges, *IN_COLUMNS})
"""What stands for a tuple and is one row."""


class Digester:
    """For one thread, and any states in any order; it is quick where one follows from the one before."""

    def __init__(self) -> None:
        self._state = EMPTY_STATE
        self._digests: dict[str, str] = {}
        self._encoders: dict[str, _Encoder] = {}

    def digest(self, state: ClusterState) -> str:
        """The digest of the whole state: hex SHA-256, equal to ``encoding.digest(state)``."""
        for name in DIGESTED:
            part = getattr(state, name)
            if part is getattr(self._state, name):
                continue
            if is_empty(name, part):
                self._digests.pop(name, None)
                self._encoders.pop(name, None)
            else:
                self._digests[name] = sha256_of(self._encoders.setdefault(name, _Encoder()).encode(part))
        self._state = state
        return combined_digest(self._digests)


class _Encoder:
    """Encodes a value that comes again with little changed.

    ``_value``: the last one, held so that the ids of its rows stay theirs. ``_rows``: their bytes, by id; ``_known``:
    those of the value before, while the next is encoded. ``_items``: of a map, by key: the item, its key's bytes and
    its own; ``_inner``: encoders of the items that are walked.
    """

    __slots__ = ("_inner", "_items", "_known", "_rows", "_value")

    def __init__(self) -> None:
        self._value: object = None
        self._rows: dict[int, bytes] = {}
        self._known: dict[int, bytes] = {}
        self._items: dict[Any, tuple[object, bytes, bytes]] = {}
        self._inner: dict[Any, _Encoder] = {}

    def encode(self, value: object) -> bytes:
        """``encoding.encode(value)``."""
        self._known, self._rows = self._rows, {}
        data = self._walk(value)
        self._known, self._value = {}, value
        return data

    def _walk(self, value: Any) -> bytes:
        kind = type(value)
        if kind is tuple or kind is Blocks:
            return self._tuple(value)
        if kind is Map:
            return self._map(value)
        if kind is History:
            return joined(b"L", (encode(value.oldest), self._tuple(entries_of(value))))
        if kind in _WHOLE:
            return self._row(value)
        return framed_record(value, self._walk) if kind in WALKED else encode(value)

    def _tuple(self, value: Sequence[Any]) -> bytes:
        kind = type(value[0]) if value else None
        if kind in WALKED or kind is tuple:
            return joined(b"L", list(map(self._walk, value)))
        if kind in (None, int, str, bytes):
            return self._row(value)
        ids = list(map(id, value))
        rows = list(map(self._known.get, ids))
        whole = [row if row is not None else encode(item) for row, item in zip(rows, value, strict=True)]
        self._rows.update(zip(ids, whole, strict=True))
        return joined(b"L", whole)

    def _row(self, value: object) -> bytes:
        data = self._known.get(id(value))
        self._rows[id(value)] = data = encode(value) if data is None else data
        return data

    def _map(self, value: Map[Any, Any]) -> bytes:
        known, self._items = self._items, {}
        inner, self._inner = self._inner, {}
        for key, item in value.items():
            row = known.get(key)
            if type(item) in WALKED:
                self._inner[key] = inner.get(key) or _Encoder()
                row = item, encode(key), self._inner[key].encode(item)
            elif row is None or row[0] is not item:
                row = item, encode(key), encode(item)
            self._items[key] = row
        data = framed_map(row[1:] for row in self._items.values())
        for key in self._inner:
            del self._items[key]
        return data
