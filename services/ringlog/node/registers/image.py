"""What a node's disk holds, as a value: the fold of the journal's records in order.

A record forgets first and keeps then; cells are kept where they win. The fold of a whole image's records on nothing is
that image.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from immutables import Map

from ringlog.kernel.values import Epoch, NodeId, OperationId
from ringlog.node.registers import btree as tree
from ringlog.node.registers.cells import CellMap, newest_of
from ringlog.node.registers.packed import NOTHING, Unpacked, packed, unpacked
from ringlog.wire.data import JournalRecord, Key, StreamMark

RECORD_CELLS = 1_000
RECORD_BYTES = 1024 * 1024
"""A record of an image is closed when it has this number of cells, or this size."""

StreamName = tuple[OperationId, NodeId, str]
"""Operation, source, replication."""


@dataclass(frozen=True, slots=True)
class Image:
    """``epoch``: the newest adopted one, which made the state ``state_id``; ``start``: number of the node's last start;
    ``marks``: how far streams are; ``node``: the node that the registers belong to, empty: not recorded.
    """

    epoch: Epoch = 0
    start: int = 0
    cells: CellMap = field(default_factory=CellMap)
    marks: Map[StreamName, Key] = field(default_factory=Map)
    state_id: str = ""
    node: NodeId = ""


class Folding:
    """The fold of many records. Cells wait in a table until something is forgotten, or all are there."""

    def __init__(self, image: Image) -> None:
        self._image = image
        self._fresh: dict[bytes, bytes] = {}

    def add(self, found: Unpacked) -> None:
        """One more record."""
        record, keys, cells = found
        if record.dropped or record.gone:
            self._settle()
            image = self._image
            kept = image.cells.without(record.gone).without_keys(record.dropped)
            self._image = replace(image, cells=kept)
        fresh = self._fresh
        for key, cell in zip(keys, cells, strict=True):
            held = fresh.get(key)
            fresh[key] = cell if held is None else newest_of(held, cell)
        self._image = _with_fields(self._image, record)

    def image(self) -> Image:
        """What it is by now."""
        self._settle()
        return self._image

    def _settle(self) -> None:
        image, self._fresh, fresh = self._image, {}, self._fresh
        self._image = replace(image, cells=image.cells.with_many(fresh))


def fold(image: Image, record: JournalRecord) -> Image:
    """The image after one more record."""
    folding = Folding(image)
    folding.add(unpacked(packed(record)))
    return folding.image()


def _with_fields(image: Image, record: JournalRecord) -> Image:
    """The image after what a record tells beside cells and what is forgotten."""
    marks = image.marks
    for name in sorted(marks):
        if name[0] in record.ended:
            marks = marks.delete(name)
    for mark in record.marks:
        marks = marks.set((mark.operation, mark.source, mark.replication), mark.after)
    adopted = record if record.epoch > image.epoch else image
    start, node = max(image.start, record.start), record.node or image.node
    return Image(adopted.epoch, start, image.cells, marks, adopted.state_id, node)


def records_of(image: Image) -> Iterator[Unpacked]:
    """The records of a whole image; the last one has the number of cells as its ``total``."""
    marks = tuple(StreamMark(*name, after) for name, after in sorted(image.marks.items()))
    head = JournalRecord(epoch=image.epoch, start=image.start, marks=marks, state_id=image.state_id, node=image.node)
    yield head, (), ()
    keys: list[bytes] = []
    cells: list[bytes] = []
    size = 0
    for leaf in tree.leaves(image.cells.root):
        for key, cell in zip(leaf.keys, leaf.values, strict=True):
            keys.append(key)
            cells.append(cell)
            size += len(key) + len(cell)
            if size >= RECORD_BYTES or len(keys) >= RECORD_CELLS:
                yield NOTHING, keys, cells
                keys, cells, size = [], [], 0
    if keys:
        yield NOTHING, keys, cells
    yield JournalRecord(total=len(image.cells)), (), ()
