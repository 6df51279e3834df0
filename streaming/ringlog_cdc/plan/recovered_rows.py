"""Rules for a checkpoint that replaces a lost one: which rows and dead letters exist already and must not be written
again.

A writer's name can continue with an empty checkpoint only after its right to write was revoked. The rows written until
then are final and can be looked up. Rows and letters are identified by their position in the source, never in the
topic.

A write without any output, because its table had no log, leaves no trace. Decided again today, it might become a row
after the rows of later writes, and readers would take it for a repetition. Two facts show that such a write was
decided:

* The writer's own report in the metadata log (``CdcWriter.decided``). The writer sends it with every promise, and
  before it plans anything under changed tables (``may_revive``). Nothing below that offset is written.
* A row of a later write of the same source partition, in the same partition of the CDC topic (``KnownRows.lasts``).
  Rows arrive there in the order of the source, so a missing earlier row was never meant to exist. The same holds for
  letters.

Writes that neither fact covers are at the end. Their rows follow no later ones.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ringlog.kernel.model.state import CdcWriter, ClusterState
from ringlog.kernel.rows.log_rows import POSTIMAGE, PREIMAGE
from ringlog.kernel.values import Value, field
from ringlog_cdc.errors import CdcError
from ringlog_cdc.plan.decisions import closed_for
from ringlog_cdc.plan.plan import OffsetRange, PlanEntry

Noted = tuple[int, int, int, int, int, bool, bool]
"""Identity of a row: source partition, offset, timestamp, number, operation, True for the last row, False. Identity of
a letter: source partition, offset, 0, 0, 0, False, True.
"""

LETTERS = -1
"""Represents the dead-letter topic among the partitions of the CDC topic."""

Write = tuple[int, int, int]
"""Source partition, offset, timestamp: the rows of a write that are numbered together."""


class KnownRows(Value):
    """Existing rows and letters for the mutations of a plan part.

    Attributes:
        rows: (partition, offset, timestamp, number) of each row.
        whole: Writes whose last row exists.
        letters: (partition, offset) of each letter.
        begun: Other writes with rows, to the operations of these rows by number.
        settled: Source partition to an offset. All writes below it are decided.
        lasts: (source partition, partition of the CDC topic or ``LETTERS``) to the largest source offset there.
    """

    rows: frozenset[tuple[int, int, int, int]]
    whole: frozenset[Write]
    letters: frozenset[tuple[int, int]]
    begun: Mapping[Write, tuple[int, ...]] = field(default_factory=dict)
    settled: Mapping[int, int] = field(default_factory=dict)
    lasts: Mapping[tuple[int, int], int] = field(default_factory=dict)

    def is_settled(self, partition: int, offset: int, to: int) -> bool:
        """Return True if nothing more of that write may go to this partition of the CDC topic, or to ``LETTERS``."""
        return offset < max(self.settled.get(partition, 0), self.lasts.get((partition, to), 0))

    def has_row(self, name: tuple[int, int, int, int], to: int) -> bool:
        """Return True for a row that must not be written to that partition."""
        return self.is_settled(*name[:2], to) or name in self.rows or name[:3] in self.whole or name[:2] in self.letters


def known_of(noted: Iterable[Noted]) -> KnownRows:
    """Build the lookup tables from identities."""
    rows: dict[tuple[int, int, int, int], int] = {}
    whole: set[Write] = set()
    letters: set[tuple[int, int]] = set()
    for partition, offset, timestamp, number, operation, last, letter in noted:
        if letter:
            letters.add((partition, offset))
        else:
            rows[partition, offset, timestamp, number] = operation
        if last:
            whole.add((partition, offset, timestamp))
    begun: dict[Write, tuple[int, ...]] = {}
    for name, operation in sorted(rows.items()):
        if name[:3] not in whole:
            begun[name[:3]] = (*begun.get(name[:3], ()), operation)
    return KnownRows(frozenset(rows), frozenset(whole), frozenset(letters), begun)


def settled_of(state: ClusterState, source: str) -> dict[int, int]:
    """Return partition of ``source`` to the end offset of its decided writes, from the reports of all its writers."""
    found: dict[int, int] = {}
    for writer in state.writers.values():
        for position in writer.decided if writer.source == source else ():
            found[position.partition] = max(position.offset, found.get(position.partition, 0))
    return found


def has_said(mine: CdcWriter, durable: Mapping[int, int]) -> bool:
    """Return True if the metadata log has all decisions of this checkpoint.

    Args:
        mine: The writer.
        durable: Source partition to the first offset that may not be durable.
    """
    said = {position.partition: position.offset for position in mine.decided}
    return all(said.get(partition, 0) >= offset for partition, offset in durable.items())


def may_revive(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Return True if a write without output under one context might have output under another."""
    was, is_now = (json.loads(json.dumps(context["tables"])) for context in (before, now))
    return any(is_now.get(name) != shape for name, shape in was.items())


class RestOfWrite:
    """The remaining rows of a half-written write, while its rows are made again.

    Images may differ from the first attempt, or be missing, since states start with a checkpoint and tables change.
    Rows are therefore matched by kind (before, the write, after) and count, and new rows are numbered after the
    existing ones. The last row is always written, because readers wait for it.
    """

    def __init__(self, operations: Sequence[int]) -> None:
        """Start with the operations of the existing rows, by number."""
        kinds = [_kind(operation) for operation in operations]
        self._furthest = max(kinds)
        self._there = kinds.count(self._furthest)
        self._next = len(kinds)

    def take(self, operation: int, last: bool) -> int | None:
        """Return the number for the next row in order, or None if it exists."""
        kind = _kind(operation)
        is_there = kind < self._furthest or (kind == self._furthest and self._there > 0)
        if kind == self._furthest:
            self._there -= 1
        if is_there and not last:
            return None
        self._next += 1
        return self._next - 1


class LeftToWrite:
    """Filter for the outgoing rows and letters of a part. Must see all of them, in order."""

    def __init__(self, known: KnownRows) -> None:
        self._known = known
        self._whole = frozenset((partition, offset) for partition, offset, _ in known.whole)
        self._rests = {write: RestOfWrite(operations) for write, operations in known.begun.items()}

    def number(self, name: tuple[int, int, int, int], to: int, operation: int, last: bool) -> int | None:
        """Return the number to write a row with, or None if it must not be written.

        Args:
            name: Identity of the row, as in ``KnownRows.rows``.
            to: Partition of the CDC topic.
            operation: ``cdc$operation``.
            last: True for the last row of its timestamp.
        """
        known, rest = self._known, self._rests.get(name[:3])
        if rest is None or name[:2] in known.letters or known.is_settled(*name[:2], to):
            return None if known.has_row(name, to) else name[3]
        return rest.take(operation, last)

    def has_letter(self, place: tuple[int, int]) -> bool:
        """Return True if the letter of the mutation at this position must not be written.

        A write may have been routed, and its generation closed before its rows were written. It then gets a letter,
        even if letters of later writes exist, and even if some of its rows exist: readers drop those at the close.
        """
        decided = place[1] < self._known.settled.get(place[0], 0)
        return decided or place in self._known.letters or place in self._whole


def _kind(operation: int) -> int:
    """Return 0 for a preimage, 1 for the write, 2 for a postimage."""
    return 0 if operation == PREIMAGE else 2 if operation == POSTIMAGE else 1


def is_lost(before: CdcWriter | None) -> bool:
    """Return True if an empty checkpoint means that the previous one was lost.

    A fenced name starts over, also with an empty checkpoint, because its old plans are void.

    Args:
        before: The registered writer of that name, if any.
    """
    return before is not None and before.fenced is None


def may_have_written(state: ClusterState, head: PlanEntry) -> bool:
    """Return True for a checkpoint without plans if some writer was fenced, and may have written before.

    Ask before this checkpoint's writer registers, which ends its fence.
    """
    return head.sequence < 0 and any(writer.fenced is not None for writer in state.writers.values())


def is_cut_off(undone: Iterable[PlanEntry], state: ClusterState) -> bool:
    """Return True if a part may be half-written and a generation was closed since.

    Only a fence of the writer allows that.

    Under such a plan, a write with an existing row would get a letter as well.

    Args:
        undone: Unfinished parts of the checkpoint.
        state: Cluster state.
    """
    return any(closed_for(entry, state) != entry.closed for entry in undone)


def cut_off(writer: str) -> CdcError:
    """Return the error for a checkpoint that ``is_cut_off``."""
    return CdcError(
        "checkpoint_cut_off",
        f"CDC writer {writer!r} was fenced within a part, and a generation was sealed since",
        (
            "start with an empty checkpoint: the job finds the written rows in the topics and writes the "
            "missing ones. If it fails again, fence the writer once more ('ringlog cdc fence --writer "
            f"{writer} ...')"
        ),
    )


def withdrawn(writer: str, start: int) -> CdcError:
    """Return the error for a chain with a closing before a generation that an operator withdrew."""
    return CdcError(
        "checkpoint_cut_off",
        (
            f"CDC writer {writer!r} had a clock that was ahead and sealed everything before {start}; the "
            "generation that started there was withdrawn"
        ),
        (
            f"fence the writer ('ringlog cdc fence --writer {writer} ...') and start it with an empty "
            "checkpoint: the job finds the written rows in the topics and writes the missing ones"
        ),
    )


def behind(why: str) -> CdcError:
    """Return the error for a checkpoint that misses decisions and would make them again."""
    return CdcError(
        "checkpoint_cut_off",
        why,
        (
            "fence the writer ('ringlog cdc fence ...') unless it is fenced, and start it with an empty "
            "checkpoint: the job finds the written rows in the topics and writes the missing ones"
        ),
    )


def concerns(bounds: Mapping[int, int], ranges: Sequence[OffsetRange]) -> bool:
    """Return True unless these ranges follow everything that existed.

    Args:
        bounds: Source partition to the offset after the last existing row or letter.
        ranges: Ranges of a plan part.
    """
    return any(item.start < bounds.get(item.partition, 0) for item in ranges)
