"""A reader of canonical Avro that goes through many records at once, each at its own place.

``Cursor`` holds one position a record. A step reads one value of every record and moves on; what is not there, is not
canonical (a number in more bytes than it needs, an array in several blocks or with its size) or leaves the record's
bytes makes the record *doubtful*: its position stays, later steps give nothing of meaning for it, and somebody else
has to look at it. So a step is right for every record that is not doubtful, and never reads outside the buffer.

Positions count from the begin of one ``uint8`` buffer that has ``PADDING`` bytes behind the last record. A span is a
pair of arrays, where a value begins and how many bytes it has.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]
U8 = NDArray[np.uint8]
Flags = NDArray[np.bool_]

PADDING = 16
NUMBER_BYTES_MAX = 10


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes of every record: ``data[start:start + length]``."""

    start: I64
    length: I64


def padded(data: U8) -> U8:
    """A copy with ``PADDING`` zero bytes behind it."""
    buffer = np.zeros(len(data) + PADDING, dtype=np.uint8)
    buffer[: len(data)] = data
    return buffer


class Cursor:
    """Where each of n records is read on; ``sound`` is false for the doubtful ones."""

    def __init__(self, data: U8, start: I64, end: I64) -> None:
        assert not len(end) or int(end.max()) + PADDING <= len(data), "the buffer is padded"
        self.data = data
        self.at = start.copy()
        self.end = end
        self.sound: Flags = start <= end

    def span_from(self, start: I64) -> Span:
        """What was read since ``start``."""
        return Span(start, self.at - start)

    def skip(self, lengths: I64 | int) -> Span:
        """So many bytes."""
        start = self.at
        to = start + lengths
        self.expect((to <= self.end) & (to >= start))
        self.at = np.where(self.sound, to, start)
        return Span(start, self.at - start)

    def byte(self) -> U8:
        """One byte of each; 0 where there is none."""
        found: U8 = np.where(self.sound, self.data[self.at], 0).astype(np.uint8)
        self.skip(1)
        return found

    def number(self) -> I64:
        """A zigzag number of each; 0 where it is doubtful."""
        first = self.data[self.at]
        if not (first & 0x80).any():
            value = first.astype(np.int64)
            self.skip(1)
        else:
            value = self._long_number(first)
        value = (value.view(np.uint64) >> np.uint64(1)).view(np.int64) ^ -(value & 1)
        return np.where(self.sound, value, 0)

    def _long_number(self, first: U8) -> I64:
        raw = (first & 0x7F).astype(np.uint64)
        length = np.ones(len(raw), dtype=np.int64)
        last = first
        left = np.flatnonzero(first & 0x80)
        for place in range(1, NUMBER_BYTES_MAX):
            if not len(left):
                break
            byte = self.data[np.minimum(self.at[left] + place, self.end[left])]
            raw[left] |= (byte & np.uint8(0x7F)).astype(np.uint64) << np.uint64(7 * place)
            length[left] = place + 1
            if place == 1:
                last = last.copy()
            last[left] = byte
            left = left[byte & 0x80 != 0]
        # The last byte of a longer number is not 0, and a tenth one is 1: 64 bits.
        wrong = (length > 1) & (last == 0) | (length == NUMBER_BYTES_MAX) & (last != 1)
        wrong[left] = True
        self.expect(~wrong)
        self.skip(length)
        return raw.view(np.int64)

    def sized(self) -> Span:
        """Text or bytes of each: the content, without the length before it."""
        return self.skip(self.number())

    def null_or(self) -> Flags:
        """The branch of a union with null first: true where a value follows."""
        branch = self.byte()
        self.expect(branch <= 2)
        self.expect(branch != 1)
        has_value: Flags = branch == 2
        return has_value

    def where(self, chosen: Flags) -> Part:
        """To go on with some of the records."""
        return Part(self, np.flatnonzero(chosen & self.sound))

    def expect(self, condition: Flags) -> None:
        """Records where this does not hold are doubtful."""
        self.sound = self.sound & condition


class Part(Cursor):
    """A cursor over some records of another one; ``give_back`` takes their places home."""

    def __init__(self, whole: Cursor, rows: I64) -> None:
        super().__init__(whole.data, whole.at[rows], whole.end[rows])
        self.rows = rows
        self._whole = whole

    def give_back(self) -> None:
        """The other cursor goes on where this one is."""
        # New arrays: whoever kept the old ones, to measure spans from, still has them.
        self._whole.at = self._whole.at.copy()
        self._whole.at[self.rows] = self.at
        self._whole.sound = self._whole.sound.copy()
        self._whole.sound[self.rows] &= self.sound
