"""A cursor over many canonical Avro records at once, each at its own position.

Each step reads one value from every record and advances. A record becomes *doubtful* if a value is missing, leaves the
record's bytes, or is not canonical. Not canonical are a number in more bytes than needed, and an array in several
blocks or with its byte size.

Invariants:

* A step is right for every record that is not doubtful. A doubtful record keeps its position, and later steps return
  meaningless values for it.
* No step reads outside the buffer, even if the records are corrupt.

Positions count from the start of one ``uint8`` buffer with ``PADDING`` bytes after the last record. Callers decode
doubtful records one by one with ``ringlog.wire.records``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringlog.kernel.values import Value
from ringlog_cdc.columnar.words import HIGH_BITS, I64, KEEP, U8, U64, WORD, Flags, low_bits, words_of

PADDING = 16
"""Bytes after the last record: a word starting at any position up to the end of a record, and one byte more."""
NUMBER_BYTES_MAX = 10
"""Longest Avro number: 64 bits in groups of 7."""


class ByteSpan(Value):
    """A span of the buffer for each of n records: ``data[start:start + length]``."""

    start: I64
    length: I64


def padded(data: U8) -> U8:
    """Return a copy of the bytes, followed by ``PADDING`` zero bytes."""
    buffer = np.zeros(len(data) + PADDING, dtype=np.uint8)
    buffer[: len(data)] = data
    return buffer


class Cursor:
    """Read positions in n records. ``sound`` is False for doubtful records.

    Attributes:
        data: The padded buffer.
        at: Next position of each record.
        end: End of each record.
        all_sound: True if no record is doubtful. Steps then skip all masking, which is the usual case.
    """

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
        """Return the span from ``start`` to the current position."""
        return ByteSpan(start, self.at - start)

    def skip(self, lengths: I64 | int) -> ByteSpan:
        """Skip this number of bytes in each record. Return their span."""
        start = self.at
        to = start + lengths
        # Lengths from the records may be negative or overflow, so they are also checked against the start.
        self.expect(to <= self.end if isinstance(lengths, int) else (to <= self.end) & (to >= start))
        self.at = to if self.all_sound else np.where(self.sound, to, start)
        return ByteSpan(start, self.at - start)

    def byte(self) -> U8:
        """Read one byte. Returns 0 for doubtful records."""
        found = self.data.take(self.at)
        if not self.all_sound:
            found = np.where(self.sound, found, 0).astype(np.uint8)
        self.skip(1)
        return found

    def number(self) -> I64:
        """Read one zigzag number. Returns 0 for doubtful records."""
        first = self.data.take(self.at)
        # Three paths, fastest first: all numbers have one byte; all have the same length; lengths differ.
        if not (first & 0x80).any():
            raw = first.astype(np.uint64)
            self.skip(1)
        elif (alike := self._alike()) is not None:
            raw = alike
        else:
            raw = self._long_number(first)
        # Undo zigzag: the lowest bit is the sign.
        value = (raw >> np.uint64(1)).view(np.int64) ^ -(raw & np.uint64(1)).view(np.int64)
        return value if self.all_sound else np.where(self.sound, value, 0)

    def _alike(self) -> U64 | None:
        """Read numbers that all have the same length of 2 to 9 bytes, such as timestamps.

        Return None if they do not.
        """
        words = words_of(self.data)[self.at]
        # The highest bit of a number's byte is clear in its last byte only.
        ends = ~words & HIGH_BITS
        if not ends[0]:
            # No end within 8 bytes: a number of 9 bytes, if the ninth one ends it and is not 0 (not canonical).
            last = self.data.take(self.at + WORD)
            if ends.any() or (last >= 0x80).any() or not last.all():
                return None
            raw, length = low_bits(words) | last.astype(np.uint64) << np.uint64(7 * WORD), WORD + 1
        else:
            # Lowest set bit: the end of the first record's number. All others must end at the same byte.
            end = ends[0] & (~ends[0] + np.uint64(1))
            length = (int(end).bit_length() + 7) // 8
            kept = words & KEEP[length]
            if (ends & KEEP[length] != end).any() or not (kept >> np.uint64(8 * length - 8)).all():
                return None
            raw = low_bits(kept)
        self.skip(length)
        return raw

    def _long_number(self, first: U8) -> U64:
        """Read numbers of any length: one round for each byte, with the records whose number continues."""
        raw = (first & 0x7F).astype(np.uint64)
        length = np.ones(len(raw), dtype=np.int64)
        last = first
        left = np.flatnonzero(first & 0x80)
        for place in range(1, NUMBER_BYTES_MAX):
            if not len(left):
                break
            # Clamped to the record's end. ``skip`` then marks a number that reaches past it.
            byte = self.data[np.minimum(self.at[left] + place, self.end[left])]
            raw[left] |= (byte & np.uint8(0x7F)).astype(np.uint64) << np.uint64(7 * place)
            length[left] = place + 1
            if place == 1:
                last = last.copy()
            last[left] = byte
            left = left[byte & 0x80 != 0]
        # Canonical: the last byte of a longer number is not 0, and a tenth byte holds the 64th bit alone.
        wrong = (length > 1) & (last == 0) | (length == NUMBER_BYTES_MAX) & (last != 1)
        wrong[left] = True
        self.expect(~wrong)
        self.skip(length)
        return raw

    def sized(self) -> ByteSpan:
        """Read a text or bytes. Return the span of the content, without its length."""
        return self.skip(self.number())

    def null_or(self) -> Flags:
        """Read the branch of a union with null first. Return True for records whose value follows."""
        branch = self.byte()
        # Branch 0 is encoded as 0, branch 1 as 2.
        self.expect(branch & 0xFD == 0)
        has_value: Flags = branch == 2
        return has_value

    def where(self, chosen: Flags) -> SubCursor:
        """Return a cursor over the chosen sound records. Finish it with ``give_back``."""
        if self.all_sound and chosen.all():
            return SubCursor(self, None)
        return SubCursor(self, np.flatnonzero(chosen & self.sound))

    def expect(self, condition: Flags) -> None:
        """Mark records as doubtful unless the condition holds, shape (n,)."""
        if self.all_sound and condition.all():
            return
        self.sound = self.sound & condition
        # False from now on, except for a cursor without records.
        self.all_sound = not len(self.sound)


class SubCursor(Cursor):
    """A cursor over some records of another cursor. ``give_back`` returns their positions to it.

    Args:
        whole: The other cursor.
        rows: Numbers of the records. None: all of them.
    """

    def __init__(self, whole: Cursor, rows: I64 | None) -> None:
        if rows is None:
            self._at(whole.data, whole.at, whole.end, whole.sound)
        else:
            self._at(whole.data, whole.at[rows], whole.end[rows], np.ones(len(rows), dtype=bool))
        self.rows = rows
        self._whole = whole

    def give_back(self) -> None:
        """Advance the other cursor's records to the positions of this one."""
        # New arrays, not updates in place: callers keep the old ones to measure spans from.
        if self.rows is None:
            self._whole._at(self.data, self.at, self.end, self.sound)
            return
        at, sound = self._whole.at.copy(), self._whole.sound.copy()
        at[self.rows] = self.at
        sound[self.rows] &= self.sound
        self._whole._at(self.data, at, self._whole.end, sound)

    def spread(self, values: NDArray[Any]) -> NDArray[Any]:
        """Extend values of these records to all records, with 0 elsewhere."""
        if self.rows is None:
            return values
        found = np.zeros(len(self._whole.at), dtype=values.dtype)
        found[self.rows] = values
        return found

    def spread_span(self, span: ByteSpan) -> ByteSpan:
        """Extend spans of these records to all records, with empty spans elsewhere."""
        return ByteSpan(self.spread(span.start), self.spread(span.length))
