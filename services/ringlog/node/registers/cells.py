"""The cells of a replica as an immutable value, in the order of their registers; the last write wins.

A register and its cell are two byte strings in a tree (``ringlog.node.registers.btree``)::

    register   name of the keyspace   a zero byte   token (8 bytes, which sort like numbers)   name
    cell       timestamp (8 bytes)   1 if deleted, else 0 (1 byte)   value

Therefore byte strings sort like registers, and each token range of a keyspace is an interval of the tree. An operation
on a range costs at most the cells in that range. No copying step becomes slower as more cells are stored.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ringlog.kernel.values import Epoch, Token
from ringlog.node.registers import btree as tree
from ringlog.node.registers.btree import EMPTY, Node, Pair
from ringlog.node.registers.spans import LOWEST, Span, Spans
from ringlog.wire.data import Cells, Key, RegisterCell, newest

_HEAD = struct.Struct(">q?")
_SIGN = 1 << 63
_AFTER = 1 << 64
"""The smallest number above all encoded tokens."""


class CellMap:
    """An immutable map of registers to cells. Thread-safe."""

    __slots__ = ("root",)

    def __init__(self, root: Node = EMPTY) -> None:
        self.root = root

    def __len__(self) -> int:
        return self.root.count

    def __iter__(self) -> Iterator[Key]:
        return (key for key, _ in self.items())

    def __contains__(self, key: Key) -> bool:
        return tree.find(self.root, bytes_of(key)) is not None

    def __getitem__(self, key: Key) -> RegisterCell:
        found = self.get(key)
        if found is None:
            raise KeyError(key)
        return found

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CellMap):
            return NotImplemented
        return self.root is other.root or (len(self) == len(other) and list(self.items()) == list(other.items()))

    __hash__ = None  # type: ignore[assignment]  # hashing is not needed, and would visit every cell

    def __repr__(self) -> str:
        return f"<{len(self)} cells>"

    def keys(self) -> Iterator[Key]:
        """Return the registers in ascending order."""
        return iter(self)

    def values(self) -> Iterator[RegisterCell]:
        """Return the cells in the order of their registers."""
        return (cell for _, cell in self.items())

    def get(self, key: Key) -> RegisterCell | None:
        """Return the cell of a register, or None."""
        found = tree.find(self.root, bytes_of(key))
        return None if found is None else cell_of(found)

    def items(self) -> Iterator[tuple[Key, RegisterCell]]:
        """Return all registers and cells in ascending order."""
        return (
            (key_of(key), cell_of(cell))
            for leaf in tree.leaves(self.root)
            for key, cell in zip(leaf.keys, leaf.values, strict=True)
        )

    def within(self, spans: Iterable[Span], after: Key | None = None) -> Iterator[tuple[Key, RegisterCell]]:
        """Yield the cells of ascending spans in order, starting after the register ``after``."""
        begin = b"" if after is None else bytes_of(after) + b"\0"
        for span in spans:
            low, high = _bounds(span)
            if begin < high:
                for key, cell in tree.between(self.root, max(low, begin), high):
                    yield key_of(key), cell_of(cell)

    def has_any(self, span: Span) -> bool:
        """Return True if the span contains a register."""
        return next(tree.between(self.root, *_bounds(span)), None) is not None

    def keyspaces(self) -> tuple[str, ...]:
        """Return the keyspaces that have registers, in ascending order."""
        found: list[str] = []
        begin = b""
        while (leaf := next((one for one in tree.leaves(self.root, begin) if one.keys[-1] >= begin), None)) is not None:
            key = next(key for key in leaf.keys if key >= begin)
            name, _, _ = key.partition(b"\0")
            found.append(name.decode())
            # Skip the rest of the keyspace: its registers begin with the name and a zero byte.
            begin = name + b"\1"
        return tuple(found)

    def sizes(self, keyspace: str) -> Iterator[tuple[Token, int]]:
        """Yield token and size (bytes of name and cell) of each register of a keyspace, in order."""
        name = keyspace.encode()
        at = len(name) + 1
        for key, cell in tree.between(self.root, name + b"\0", name + b"\1"):
            yield int.from_bytes(key[at : at + 8], "big") - _SIGN, len(key) - at + len(cell)

    def with_newest(self, cells: Iterable[tuple[Key, RegisterCell]]) -> CellMap:
        """Return the map with each of these cells that wins over the present one."""
        return self.with_pairs((bytes_of(key), bytes_of_cell(cell)) for key, cell in cells)

    def with_pairs(self, pairs: Iterable[Pair]) -> CellMap:
        """Return the map with each of these encoded cells that wins over the present one."""
        root = self.root
        for key, cell in pairs:
            held = tree.find(root, key)
            if held is None or newest_of(held, cell) is not held:
                root = tree.put(root, key, cell)
        return self if root is self.root else CellMap(root)

    def with_many(self, cells: Mapping[bytes, bytes]) -> CellMap:
        """Do the same as ``with_pairs``, but rebuild the tree if the cells are a quarter of it or more."""
        if len(cells) * 4 < len(self):
            return self.with_pairs(cells.items())
        found = {key: cell for leaf in tree.leaves(self.root) for key, cell in zip(leaf.keys, leaf.values, strict=True)}
        for key, cell in cells.items():
            held = found.get(key)
            found[key] = cell if held is None else newest_of(held, cell)
        keys = sorted(found)
        return CellMap(tree.built([(keys, [found[key] for key in keys])]))

    def without(self, spans: Iterable[Span]) -> CellMap:
        """Return the map without the registers in the spans. Return the same object if it has none."""
        root = self.root
        for span in spans:
            root = tree.cut(root, *_bounds(span))
        return self if root is self.root else CellMap(root)

    def without_keys(self, keys: Iterable[Key]) -> CellMap:
        """Return the map without these registers. Return the same object if it has none."""
        root = self.root
        for key in keys:
            low = bytes_of(key)
            root = tree.cut(root, low, low + b"\0")
        return self if root is self.root else CellMap(root)


class CellSnapshot:
    """A snapshot of the cells in some spans.

    Args:
        made: The epoch that created each space, by name.
    """

    __slots__ = ("_cells", "_made", "_spans")

    def __init__(self, cells: CellMap, spans: Spans, made: Mapping[str, Epoch]) -> None:
        self._cells = cells
        self._spans = spans
        self._made = made

    def __contains__(self, key: Key) -> bool:
        return key in self._spans and key in self._cells

    def after(self, key: Key | None = None) -> Iterator[tuple[Key, RegisterCell]]:
        """Yield the cells in order, starting after ``key``. The cost is that of the cells that the caller consumes."""
        return self._cells.within(self._spans, key)

    def page(self, cells: Iterable[tuple[Key, RegisterCell]]) -> Cells:
        """Return a page of a stream that contains these cells of the excerpt."""
        cells = tuple(cells)
        spaces = sorted({key.keyspace for key, _ in cells})
        return Cells(cells, tuple((space, self._made[space]) for space in spaces))


def bytes_of(key: Key) -> bytes:
    """Encode a register for the tree."""
    assert "\0" not in key.keyspace, key
    return b"%b\0%b%b" % (key.keyspace.encode(), (key.token + _SIGN).to_bytes(8, "big"), key.name)


def key_of(data: bytes) -> Key:
    """Decode a register: the inverse of ``bytes_of``."""
    at = data.index(0) + 1
    return Key(data[: at - 1].decode(), int.from_bytes(data[at : at + 8], "big") - _SIGN, data[at + 8 :])


def bytes_of_cell(cell: RegisterCell) -> bytes:
    """Encode a cell for the tree."""
    return _HEAD.pack(cell.timestamp, cell.deleted) + cell.value


def cell_of(data: bytes) -> RegisterCell:
    """Decode a cell: the inverse of ``bytes_of_cell``."""
    timestamp, deleted = _HEAD.unpack_from(data)
    return RegisterCell(timestamp, data[_HEAD.size :], deleted)


def newest_of(one: bytes, other: bytes) -> bytes:
    """Return the winner of two encoded cells; the first one if they are equal."""
    if one == other:
        return one
    cell = cell_of(one)
    return one if newest(cell, cell_of(other)) is cell else other


def are_wellformed(keys: Sequence[bytes], cells: Sequence[bytes]) -> bool:
    """Return True if ``bytes_of`` and ``bytes_of_cell`` could have encoded these keys and cells."""
    ends = [key.find(0, 0, -8) for key in keys]
    if min(ends, default=0) < 0 or min(map(len, cells), default=_HEAD.size) < _HEAD.size:
        return False
    try:
        return all(name.decode() is not None for name in {key[:end] for key, end in zip(keys, ends, strict=True)})
    except UnicodeDecodeError:
        return False


def _bounds(span: Span) -> tuple[bytes, bytes]:
    """Return the encoded interval ``[low, high)`` of a span."""
    keyspace, first, last = span
    assert LOWEST <= first <= last, span
    name = keyspace.encode()
    after = last + _SIGN + 1
    low = b"%b\0%b" % (name, (first + _SIGN).to_bytes(8, "big"))
    return low, name + b"\1" if after == _AFTER else b"%b\0%b" % (name, after.to_bytes(8, "big"))
