"""What a checkpoint that takes the place of a lost one must know, and leaves out: the decisions of ``recovery``.

A writer's name goes on with an empty checkpoint only after its right to write was taken away: what it wrote until then
is all that there is, and may be looked up. Names of rows and letters are places of the source, never of the topic.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ringlog.kernel.state import CdcWriter, ClusterState
from ringlog_cdc.plan import OffsetRange, PlanEntry

Noted = tuple[int, int, int, int, bool, bool]
"""Of a row: source partition, offset, timestamp, number, is it the last, False. Of a letter: partition, offset, 0, 0,
False, True."""


@dataclass(frozen=True, slots=True)
class Known:
    """What is there of the mutations of a plan part: rows by (partition, offset, timestamp, number), and letters.

    ``whole``: parts of writes, named without the number, whose last row is there.
    """

    rows: frozenset[tuple[int, int, int, int]]
    whole: frozenset[tuple[int, int, int]]
    letters: frozenset[tuple[int, int]]

    @property
    def decided(self) -> frozenset[tuple[int, int]]:
        """Mutations of which a row is there."""
        return frozenset((partition, offset) for partition, offset, _, _ in self.rows)

    def has_row(self, name: tuple[int, int, int, int]) -> bool:
        """True for a row that must not go out."""
        return name in self.rows or name[:3] in self.whole or name[:2] in self.letters

    def has_letter(self, place: tuple[int, int], decided: frozenset[tuple[int, int]]) -> bool:
        """True for the letter of a mutation that must not go out. ``decided``: as above, worked out once."""
        return place in self.letters or place in decided


def known_of(noted: Iterable[Noted]) -> Known:
    """What these identities say."""
    rows: set[tuple[int, int, int, int]] = set()
    whole: set[tuple[int, int, int]] = set()
    letters: set[tuple[int, int]] = set()
    for partition, offset, timestamp, number, last, letter in noted:
        if letter:
            letters.add((partition, offset))
        else:
            rows.add((partition, offset, timestamp, number))
        if last:
            whole.add((partition, offset, timestamp))
    return Known(frozenset(rows), frozenset(whole), frozenset(letters))


def is_lost(before: CdcWriter | None) -> bool:
    """True if an empty checkpoint means that one was lost. ``before``: the writer of its name. A fenced name begins
    anew, also with an empty checkpoint: nobody writes under its old plans any more.
    """
    return before is not None and before.fenced is None


def may_have_written(state: ClusterState, head: PlanEntry) -> bool:
    """True for a checkpoint without plans, where a writer's right to write was taken away: it may have written.

    Asked before this checkpoint's writer registers, which ends its fence.
    """
    return head.sequence < 0 and any(writer.fenced is not None for writer in state.writers.values())


def concerns(bounds: Mapping[int, int], ranges: Sequence[OffsetRange]) -> bool:
    """True unless these ranges lie behind all that was there. ``bounds``: source partition to the offset behind it."""
    return any(item.start < bounds.get(item.partition, 0) for item in ranges)
