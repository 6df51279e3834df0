"""What a checkpoint that takes the place of a lost one must know, and leaves out: the decisions of ``recovery``.

A writer's name goes on with an empty checkpoint only after its right to write was taken away: what it wrote until then
is all that there is, and may be looked up. Names of rows and letters are places of the source, never of the topic.

Nothing tells of a write of which nothing became (its table kept no log), and today it might become a row, behind rows
of later writes, where readers take it for a repetition. Two things say that such a write was decided:

- the writer's own word in the metadata log (``CdcWriter.decided``), which it gives with every promise, and always
  before it plans anything under tables that are not what they were (``may_revive``): below it nothing goes out;
- a row in the same partition of the CDC topic, of a later write of the same source partition (``Known.lasts``): rows
  come there in the order of the source, so what is missing before it was to be no row. Likewise letters.

What neither of them covers lies at the end: it goes out behind nothing that came later.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ringlog.client.cdc.rows import POSTIMAGE, PREIMAGE
from ringlog.kernel.model.state import CdcWriter, ClusterState
from ringlog_cdc.errors import CdcError
from ringlog_cdc.plan.decisions import closed_for
from ringlog_cdc.plan.plan import OffsetRange, PlanEntry

Noted = tuple[int, int, int, int, int, bool, bool]
"""Of a row: source partition, offset, timestamp, number, operation, is it the last, False. Of a letter: partition,
offset, 0, 0, 0, False, True."""

LETTERS = -1
"""Stands for the topic of dead letters among partitions of the CDC topic."""

Write = tuple[int, int, int]
"""Source partition, offset, timestamp: a part of a write whose rows are numbered together."""


@dataclass(frozen=True, slots=True)
class KnownRows:
    """What is there of the mutations of a plan part: rows by (partition, offset, timestamp, number), and letters.

    ``whole``: parts of writes whose last row is there; ``begun``: of others the operations that are there, by number.
    ``settled``: source partition to the offset below which all is decided; ``lasts``: (source partition, partition of
    the CDC topic, or ``LETTERS``) to the greatest source offset there.
    """

    rows: frozenset[tuple[int, int, int, int]]
    whole: frozenset[Write]
    letters: frozenset[tuple[int, int]]
    begun: Mapping[Write, tuple[int, ...]] = field(default_factory=dict)
    settled: Mapping[int, int] = field(default_factory=dict)
    lasts: Mapping[tuple[int, int], int] = field(default_factory=dict)

    def is_settled(self, partition: int, offset: int, to: int) -> bool:
        """True if nothing more of that write goes to the partition ``to`` of the CDC topic, or to the ``LETTERS``."""
        return offset < max(self.settled.get(partition, 0), self.lasts.get((partition, to), 0))

    def has_row(self, name: tuple[int, int, int, int], to: int) -> bool:
        """True for a row that must not go out to that partition."""
        return self.is_settled(*name[:2], to) or name in self.rows or name[:3] in self.whole or name[:2] in self.letters


def known_of(noted: Iterable[Noted]) -> KnownRows:
    """What these identities say."""
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
    """Partition of ``source`` to the offset below which every write is decided, by the word of all its writers."""
    found: dict[int, int] = {}
    for writer in state.writers.values():
        for position in writer.decided if writer.source == source else ():
            found[position.partition] = max(position.offset, found.get(position.partition, 0))
    return found


def has_said(mine: CdcWriter, durable: Mapping[int, int]) -> bool:
    """True if the metadata log has all that this checkpoint has decided. ``durable``: source partition to offset."""
    said = {position.partition: position.offset for position in mine.decided}
    return all(said.get(partition, 0) >= offset for partition, offset in durable.items())


def may_revive(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """True if a write of which nothing became under the tables of one context might become something under another."""
    was, is_now = (json.loads(json.dumps(context["tables"])) for context in (before, now))
    return any(is_now.get(name) != shape for name, shape in was.items())


class RestOfWrite:
    """The rows of a write that was left half written, as they are made once more: which go out, and as which number.

    Images may be others by now, or none, for their states begin with a checkpoint and tables are altered. So a row is
    there if as many of its kind are, before what is logged anyway, that, or after it; and what goes out is numbered
    behind what is there. The last row always goes out, for a reader waits for it.
    """

    def __init__(self, operations: Sequence[int]) -> None:
        """``operations``: of the rows that are there, by number."""
        kinds = [_kind(operation) for operation in operations]
        self._furthest = max(kinds)
        self._there = kinds.count(self._furthest)
        self._next = len(kinds)

    def take(self, operation: int, last: bool) -> int | None:
        """The next row in order: its number, None if it is there."""
        kind = _kind(operation)
        is_there = kind < self._furthest or (kind == self._furthest and self._there > 0)
        if kind == self._furthest:
            self._there -= 1
        if is_there and not last:
            return None
        self._next += 1
        return self._next - 1


class LeftToWrite:
    """What is still to go out where these rows and letters are there. It is asked of all that would, in order."""

    def __init__(self, known: KnownRows) -> None:
        self._known = known
        self._whole = frozenset((partition, offset) for partition, offset, _ in known.whole)
        self._rests = {write: RestOfWrite(operations) for write, operations in known.begun.items()}

    def number(self, name: tuple[int, int, int, int], to: int, operation: int, last: bool) -> int | None:
        """The number under which a row goes out to that partition; None: it must not. ``name``: as in ``KnownRows``."""
        known, rest = self._known, self._rests.get(name[:3])
        if rest is None or name[:2] in known.letters or known.is_settled(*name[:2], to):
            return None if known.has_row(name, to) else name[3]
        return rest.take(operation, last)

    def has_letter(self, place: tuple[int, int]) -> bool:
        """True for the letter of a mutation that must not go out.

        A write may have been routed, and its generation closed before its rows were there. So it gets the letter even
        if letters of later writes are there, and even if it has some of its rows: readers drop those at the close.
        """
        decided = place[1] < self._known.settled.get(place[0], 0)
        return decided or place in self._known.letters or place in self._whole


def _kind(operation: int) -> int:
    """0: before the write, 1: the write, 2: after it."""
    return 0 if operation == PREIMAGE else 2 if operation == POSTIMAGE else 1


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


def is_cut_off(undone: Iterable[PlanEntry], state: ClusterState) -> bool:
    """True if a part may be half written and a generation was closed since, as only a fence of its writer allows.

    Carried out under such a plan, a write whose row is there would get a letter as well. ``undone``: of a checkpoint.
    """
    return any(closed_for(entry, state) != entry.closed for entry in undone)


def cut_off(writer: str) -> CdcError:
    """The error of a writer whose checkpoint ``is_cut_off``."""
    return CdcError(
        "checkpoint_cut_off",
        f"CDC writer {writer!r} was fenced in the middle of a part, and a generation was closed since",
        "start with an empty checkpoint: the job then looks up in the topics what was written, and writes what is "
        f"missing; if it is refused as well, fence the writer once more ('ringlog cdc fence --writer {writer} ...')",
    )


def withdrawn(writer: str, start: int) -> CdcError:
    """The error of a writer whose chain closes what lies before a generation that an operator withdrew."""
    return CdcError(
        "checkpoint_cut_off",
        f"CDC writer {writer!r} has closed, by a clock that was ahead, what lies before {start}, where a generation "
        "began that was withdrawn since",
        f"fence the writer ('ringlog cdc fence --writer {writer} ...') and start it with an empty checkpoint: the job "
        "then looks up in the topics what was written, and writes what is missing",
    )


def behind(why: str) -> CdcError:
    """The error of a checkpoint that does not have all that is decided of the source: it would be decided again."""
    return CdcError(
        "checkpoint_cut_off",
        why,
        "fence the writer ('ringlog cdc fence ...'), if it is not, and start it with an empty checkpoint: the job then "
        "looks up in the topics what was written, and writes what is missing",
    )


def concerns(bounds: Mapping[int, int], ranges: Sequence[OffsetRange]) -> bool:
    """True unless these ranges lie behind all that was there. ``bounds``: source partition to the offset behind it."""
    return any(item.start < bounds.get(item.partition, 0) for item in ranges)
