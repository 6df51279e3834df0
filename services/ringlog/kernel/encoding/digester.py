"""Digests of consecutive states, at the cost of their difference.

``Digester.digest`` returns the same as ``encoder.digest``. It holds the last digested state and the bytes of its
*rows*. An object that the next state shares is not encoded again:

- an unchanged section keeps its digest;
- in a changed section, an unchanged *block* keeps its bytes (``kernel.columns.blocks``, and those of the history);
- in a changed block, an unchanged row keeps its bytes.

A row is one of these: a value of a map; an element of a tuple of records (a range, a table, an applied entry); a tuple
without records; columns that replace a tuple. The few records that hold many rows (``WALKED``) are not rows: the
digester descends into them.

Identity is enough because states are immutable, and because the last state is held: while it exists, no other object
can have the id of one of its rows. Rows that the newest state lacks are dropped with the previous state. So the memory
is that of one state and its encoding.

A changed section must still be hashed as a whole, since its digest covers all of its bytes. So a digest costs a pass of
SHA-256 over each changed section, and an identity check of each of its blocks and of each row outside blocks. Only new
rows are encoded. The bytes are hashed chunk by chunk and never joined.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any, Final, NamedTuple, cast

from immutables import Map

from ringlog.kernel.columns.blocks import Blocks
from ringlog.kernel.encoding.encoder import DIGESTED, combined_digest, digest_of_chunks, encode, is_empty, layout_of
from ringlog.kernel.generations.packed import PackedRanges
from ringlog.kernel.model.applied_history import History
from ringlog.kernel.model.plan_columns import IN_COLUMNS
from ringlog.kernel.model.state import (
    EMPTY_STATE,
    ClusterState,
    Deltas,
    Generation,
    Operation,
    Placement,
    Plan,
    PreparedGeneration,
)
from ringlog.kernel.model.tablet_map import TabletMap

WALKED: Final = frozenset({Placement, Operation, Plan, Deltas, Generation, PreparedGeneration, TabletMap})
_WHOLE: Final = frozenset({PackedRanges, *IN_COLUMNS})
"""Classes that replace a tuple and are one row."""
assert WALKED.isdisjoint(_WHOLE), "a section is digested either by blocks or as one row"

Block = tuple[Any, ...]


class Digester:
    """A digester for one thread and for states in any order. It is fast if consecutive states share most objects."""

    def __init__(self) -> None:
        self._state = EMPTY_STATE
        self._digests: dict[str, str] = {}
        self._encoders: dict[str, _Encoder] = {}

    def digest(self, state: ClusterState) -> str:
        """Return the digest of the whole state: hex SHA-256, equal to ``encoder.digest(state)``."""
        for name in DIGESTED:
            part = getattr(state, name)
            if part is getattr(self._state, name):
                continue
            if is_empty(name, part):
                self._digests.pop(name, None)
                self._encoders.pop(name, None)
            else:
                encoded = self._encoders.setdefault(name, _Encoder()).encode(part)
                assert encoded.size == sum(map(len, encoded.chunks)), "the sizes in frames match the chunks"
                self._digests[name] = digest_of_chunks(encoded.chunks)
        self._state = state
        return combined_digest(self._digests)


class _Encoded(NamedTuple):
    """Bytes in chunks, and their total size."""

    size: int
    chunks: list[bytes]


class _Encoder:
    """An encoder of successive versions of one value.

    ``_value``: the last version, held so that the ids of its rows stay unique; ``_encoded``: its result. ``_rows``: the
    bytes of its rows and whole blocks, by id; ``_known``: those of the previous version during the next encoding.
    ``_blocks``, ``_were``: the blocks of both. ``_items``: for a map, by key: the item, the bytes of its key and its
    own. ``_inner``: encoders of ``WALKED`` items.
    """

    __slots__ = ("_blocks", "_encoded", "_inner", "_items", "_known", "_rows", "_value", "_were")

    def __init__(self) -> None:
        self._value: object = None
        self._encoded = _Encoded(0, [])
        self._rows: dict[int, bytes] = {}
        self._known: dict[int, bytes] = {}
        self._blocks: list[Block] = []
        self._were: list[Block] = []
        self._items: dict[Any, tuple[object, bytes, bytes]] = {}
        self._inner: dict[Any, _Encoder] = {}

    def encode(self, value: object) -> _Encoded:
        """Return the chunks of ``encoder.encode(value)``."""
        if value is not self._value:
            self._known, self._rows, self._were, self._blocks = self._rows, {}, self._blocks, []
            self._encoded = self._walk(value)
            self._known, self._were, self._value = {}, [], value
        return self._encoded

    def _walk(self, value: Any) -> _Encoded:
        kind = type(value)
        if kind is tuple:
            return self._tuple(value)
        if kind is Blocks:
            return _framed(b"L", list(map(_whole, self._in_blocks(value.blocks))))
        if kind is Map:
            return self._map(value)
        if kind is History:
            return _framed(b"L", [_whole(encode(value.oldest)), self._history(value)])
        if kind in WALKED:
            return self._record(value)
        return _whole(self._row(value) if kind in _WHOLE else encode(value))

    def _tuple(self, value: Sequence[Any]) -> _Encoded:
        kind = type(value[0]) if value else None
        if kind in WALKED or kind is tuple:
            return _framed(b"L", list(map(self._walk, value)))
        if kind in (None, int, str, bytes):
            return _whole(self._row(value))
        return _framed(b"L", [_whole(b"".join(self._each(value, self._known)))])

    def _each(self, rows: Sequence[Any], known: Mapping[int, bytes]) -> list[bytes]:
        """Return the bytes of rows outside blocks, or of a new block."""
        ids = list(map(id, rows))
        found = [known.get(one) or encode(row) for one, row in zip(ids, rows, strict=True)]
        self._rows.update(zip(ids, found, strict=True))
        return found

    def _row(self, value: object) -> bytes:
        data = self._known.get(id(value))
        self._rows[id(value)] = data = encode(value) if data is None else data
        return data

    def _in_blocks(self, blocks: Sequence[Block]) -> list[bytes]:
        """Return for each block its concatenated rows. A new block has most of its rows from a removed one."""
        known, ids = self._known, list(map(id, blocks))
        found = list(map(known.get, ids))
        if None in found:
            now = frozenset(ids)
            gone = [block for block in self._were if id(block) not in now]
            rows = {id(row): data for block in gone for row, data in zip(block, rows_of(known[id(block)]), strict=True)}
            for at, block in enumerate(blocks):
                if found[at] is None:
                    each = (rows.get(id(row)) or known.get(id(row)) or encode(row) for row in block)
                    found[at] = b"".join(each)
        whole = cast(list[bytes], found)
        self._rows.update(zip(ids, whole, strict=True))
        self._blocks += blocks
        return whole

    def _history(self, history: History) -> _Encoded:
        """Return the entries that count: the first block may begin before the first remembered epoch."""
        blocks = (*history.blocks, history.tail) if history.tail else ()
        found, first = self._in_blocks(blocks), history.first
        begun = 0
        while begun < len(blocks) and blocks[begun][-1].epoch < first:
            begun += 1
        found = found[begun:]
        if found:
            found[0] = b"".join(rows_of(found[0])[max(0, first - blocks[begun][0].epoch) :])
        return _framed(b"L", list(map(_whole, found)))

    def _record(self, value: Any) -> _Encoded:
        """Return the same bytes as ``framed_record``."""
        class_name, layout = layout_of(value.__class__)
        body = [_whole(class_name)]
        for name, encoded_name, default in layout:
            item = getattr(value, name)
            if type(item) is not type(default) or item != default:
                body += (_whole(encoded_name), self._walk(item))
        return _framed(b"R", body)

    def _map(self, value: Map[Any, Any]) -> _Encoded:
        known, self._items = self._items, {}
        inner, self._inner = self._inner, {}
        pairs: list[tuple[bytes, _Encoded]] = []
        for key, item in value.items():
            if type(item) in WALKED:
                self._inner[key] = inner.get(key) or _Encoder()
                pairs.append((encode(key), self._inner[key].encode(item)))
                continue
            row = known.get(key)
            if row is None or row[0] is not item:
                row = item, encode(key), encode(item)
            self._items[key] = row
            pairs.append((row[1], _whole(row[2])))
        pairs.sort(key=itemgetter(0))
        return _framed(b"M", [part for key, item in pairs for part in (_whole(key), item)])


def _whole(data: bytes) -> _Encoded:
    return _Encoded(len(data), [data])


def _framed(tag: bytes, parts: Sequence[_Encoded]) -> _Encoded:
    """Return a value with this tag and these parts."""
    size = sum([part.size for part in parts])
    mark = b"%b%d:" % (tag, size)
    return _Encoded(len(mark) + size, [mark, *[chunk for part in parts for chunk in part.chunks]])


def rows_of(data: bytes) -> list[bytes]:
    """Return the separate values of concatenated ones."""
    found, at = [], 0
    while at < len(data):
        colon = data.index(b":", at)
        end = colon + 1 + int(data[at + 1 : colon])
        found.append(data[at:end])
        at = end
    assert at == len(data), "the bytes end at the end of a value"
    return found
