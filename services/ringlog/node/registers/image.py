"""The content of a node's register folder as a value: the fold of the journal's records in order.

A record first removes cells and then adds cells. An added cell is kept if it wins over the present one.

Invariant: folding the records of an image into an empty one gives the same image.
"""

from __future__ import annotations

from collections.abc import Iterator

from immutables import Map

from ringlog.kernel.values import Epoch, NodeId, OperationId, Value, field, replace
from ringlog.node.registers import btree as tree
from ringlog.node.registers.cells import CellMap, newest_of
from ringlog.node.registers.packed import NOTHING, Unpacked, decode_record, encode_record
from ringlog.wire.data import JournalRecord, Key, StreamMark

RECORD_CELLS = 1_000
RECORD_BYTES = 1024 * 1024
"""A record of an image ends at the first of these limits: number of cells, or bytes."""

StreamName = tuple[OperationId, NodeId, str]
"""Operation, source, replication."""


class Image(Value):
    """The content of the register folder.

    Attributes:
        epoch: The newest adopted epoch, which created the state ``state_id``.
        start: The number of the node's last start.
        marks: The last key of each open stream that is on disk.
        node: The owner of the registers; empty if it is not recorded.
    """

    epoch: Epoch = 0
    start: int = 0
    cells: CellMap = field(default_factory=CellMap)
    marks: Map[StreamName, Key] = field(default_factory=Map)
    state_id: str = ""
    node: NodeId = ""


class ImageBuilder:
    """The fold of many records. Added cells are collected and merged into the tree together, which is faster."""

    def __init__(self, image: Image) -> None:
        self._image = image
        self._fresh: dict[bytes, bytes] = {}

    def add(self, found: Unpacked) -> None:
        """Fold one more record."""
        record, keys, cells = found
        # Removals apply to earlier cells only, so those must be in the tree first.
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
        """Return the image of all records so far."""
        self._settle()
        return self._image

    def _settle(self) -> None:
        image, self._fresh, fresh = self._image, {}, self._fresh
        self._image = replace(image, cells=image.cells.with_many(fresh))


def fold(image: Image, record: JournalRecord) -> Image:
    """Return the image after one more record."""
    folding = ImageBuilder(image)
    folding.add(decode_record(encode_record(record)))
    return folding.image()


def _with_fields(image: Image, record: JournalRecord) -> Image:
    """Return the image with the record's fields other than cells and removals."""
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
    """Yield the records of a whole image. The last one contains the number of cells as its ``total``."""
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
