"""What a node's disk holds, as a value: the fold of the journal's records in order.

A record forgets first and keeps then; cells are kept where they win. The fold of a whole image's
records on nothing is that image.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

from immutables import Map

from ringlog.kernel.values import Epoch, NodeId, OperationId
from ringlog.wire.cells import Cell, Key, newest
from ringlog.wire.data import JournalRecord, StreamMark

CELLS_PER_RECORD = 1_000

StreamName = tuple[OperationId, NodeId, str]
"""Operation, source, replication."""


@dataclass(frozen=True, slots=True)
class Image:
    """``epoch``: the newest adopted one; ``start``: number of the node's last start; ``marks``: how far streams are."""

    epoch: Epoch = 0
    start: int = 0
    cells: Map[Key, Cell] = field(default_factory=Map)
    marks: Map[StreamName, Key] = field(default_factory=Map)


def fold(image: Image, record: JournalRecord) -> Image:
    """The image after one more record."""
    cells, marks = image.cells, image.marks
    for key in record.dropped:
        if key in cells:
            cells = cells.delete(key)
    for key, cell in record.cells:
        cells = cells.set(key, newest(cells.get(key), cell))
    for name in sorted(marks):
        if name[0] in record.ended:
            marks = marks.delete(name)
    for mark in record.marks:
        marks = marks.set((mark.operation, mark.source, mark.replication), mark.after)
    return Image(max(image.epoch, record.epoch), max(image.start, record.start), cells, marks)


def records_of(image: Image) -> Iterator[JournalRecord]:
    """The records of a whole image; the last one has the number of cells as its ``total``."""
    marks = tuple(StreamMark(*name, after) for name, after in sorted(image.marks.items()))
    yield JournalRecord(epoch=image.epoch, start=image.start, marks=marks)
    cells = iter(image.cells.items())
    while some := tuple(islice(cells, CELLS_PER_RECORD)):
        yield JournalRecord(cells=some)
    yield JournalRecord(total=len(image.cells))
