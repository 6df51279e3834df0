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
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringlog_cdc.columnar.words import HIGH_BITS, I64, KEEP, U8, U64, WORD, Flags, low_bits, words_of

PADDING = 16
NUMBER_BYTES_MAX = 10


@dataclass(frozen=True, slots=True)
class ByteSpan:
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
        self._at(data, start, end, start <= end)

    def _at(self, data: U8, at: I64, end: I64, sound: Flags) -> None:
        self.data = data
        self.at = at
        self.end = end
        self.sound = sound
        self.all_sound = bool(sound.all())

    def span_from(self, start: I64) -> ByteSpan:
        """What was read since ``start``."""
        return ByteSpan(start, self.at - start)

    def skip(self, lengths: I64 | int) -> ByteSpan:
        """This number of bytes."""
        start = self.at
        to = start + lengths
        self.expect(to <= self.end if isinstance(lengths, int) else (to <= self.end) & (to >= start))
        self.at = to if self.all_sound else np.where(self.sound, to, start)
        return ByteSpan(start, self.at - start)

    def byte(self) -> U8:
        """One byte of each; 0 where there is none."""
        found = self.data.take(self.at)
        if not self.all_sound:
            found = np.where(self.sound, found, 0).astype(np.uint8)
        self.skip(1)
        return found

    def number(self) -> I64:
        """A zigzag number of each; 0 where it is doubtful."""
        first = self.data.take(self.at)
        if not (first & 0x80).any():
            raw = first.astype(np.uint64)
            self.skip(1)
        elif (alike := self._alike()) is not None:
            raw = alike
        else:
            raw = self._long_number(first)
        value = (raw >> np.uint64(1)).view(np.int64) ^ -(raw & np.uint64(1)).view(np.int64)
        return value if self.all_sound else np.where(self.sound, value, 0)

    def _alike(self) -> U64 | None:
        """Numbers that are all of one length above 1 and below 10 bytes, as times are; None if they are not."""
        words = words_of(self.data)[self.at]
        ends = ~words & HIGH_BITS
        if not ends[0]:
            last = self.data.take(self.at + WORD)
            if ends.any() or (last >= 0x80).any() or not last.all():
                return None
            raw, length = low_bits(words) | last.astype(np.uint64) << np.uint64(7 * WORD), WORD + 1
        else:
            end = ends[0] & (~ends[0] + np.uint64(1))
            length = (int(end).bit_length() + 7) // 8
            kept = words & KEEP[length]
            if (ends & KEEP[length] != end).any() or not (kept >> np.uint64(8 * length - 8)).all():
                return None
            raw = low_bits(kept)
        self.skip(length)
        return raw

    def _long_number(self, first: U8) -> U64:
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
        return raw

    def sized(self) -> ByteSpan:
        """Text or bytes of each: the content, without the length before it."""
        return self.skip(self.number())

    def null_or(self) -> Flags:
        """The branch of a union with null first: true where a value follows."""
        branch = self.byte()
        self.expect(branch & 0xFD == 0)
        has_value: Flags = branch == 2
        return has_value

    def where(self, chosen: Flags) -> SubCursor:
        """To go on with some of the records."""
        if self.all_sound and chosen.all():
            return SubCursor(self, None)
        return SubCursor(self, np.flatnonzero(chosen & self.sound))

    def expect(self, condition: Flags) -> None:
        """Records where this does not hold are doubtful."""
        if self.all_sound and condition.all():
            return
        self.sound = self.sound & condition
        self.all_sound = not len(self.sound)


class SubCursor(Cursor):
    """A cursor over the records of another one with the numbers ``rows`` (None: over all of them); ``give_back`` takes
    their places home.
    """

    def __init__(self, whole: Cursor, rows: I64 | None) -> None:
        if rows is None:
            self._at(whole.data, whole.at, whole.end, whole.sound)
        else:
            self._at(whole.data, whole.at[rows], whole.end[rows], np.ones(len(rows), dtype=bool))
        self.rows = rows
        self._whole = whole

    def give_back(self) -> None:
        """The other cursor goes on where this one is."""
        # New arrays: code that kept the old ones, to measure spans from, still has them.
        if self.rows is None:
            self._whole._at(self.data, self.at, self.end, self.sound)
            return
        at, sound = self._whole.at.copy(), self._whole.sound.copy()
        at[self.rows] = self.at
        sound[self.rows] &= self.sound
        self._whole._at(self.data, at, self._whole.end, sound)

    def spread(self, values: NDArray[Any]) -> NDArray[Any]:
        """Values of these records as values of all, nothing elsewhere."""
        if self.rows is None:
            return values
        found = np.zeros(len(self._whole.at), dtype=values.dtype)
        found[self.rows] = values
        return found

    def spread_span(self, span: ByteSpan) -> ByteSpan:
        """The same for spans."""
        return ByteSpan(self.spread(span.start), self.spread(span.length))
