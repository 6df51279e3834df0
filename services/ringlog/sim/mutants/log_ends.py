"""Bugs in snapshots, the archive and the truncation of the log."""

from __future__ import annotations

from ringlog.sim.mutants.plant import Mutant
from ringlog.sim.truncating import PROFILE

ENDS, BEGINNING, SNAPSHOTS = "ringlog.agents.truncation", "ringlog.log.beginning", "ringlog.log.snapshots"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "truncates_what_is_not_archived",
        ENDS,
        "            _holds(self._archive.segments(), state, allowed)\n",
        "            pass\n",
        "the log's entries go before the archive has them",
        100,
        PROFILE,
    ),
    Mutant(
        "truncates_above_the_snapshot",
        ENDS,
        "self._delete(allowed)",
        "self._delete(allowed + 1)",
        "the entry that made the snapshot's state goes, too: nobody can begin",
        30,
        PROFILE,
    ),
    Mutant(
        "truncates_before_the_publisher",
        ENDS,
        "if (published := self._published()) <= bound.epoch:",
        "if (published := self._published()) < 0:",
        "entries go that are not published yet",
        1_000,
        PROFILE,
    ),
    Mutant(
        "truncates_without_the_snapshot",
        ENDS,
        "        self._covered(bound)\n",
        "",
        "entries go while no snapshot is there to begin with in their place",
        1_000,
        PROFILE,
    ),
    Mutant(
        "archive_skips_an_entry",
        "ringlog.log.archive",
        "if record.offset >= self._position:",
        "if record.offset > self._position:",
        "the first entry of each segment is not in it",
        30,
        PROFILE,
    ),
    Mutant(
        "believes_one_witness",
        SNAPSHOTS,
        "if all(one.by == head.by for one in said):",
        "if not head.by:",
        "a snapshot is begun with before a second reader has the same state",
        100,
        PROFILE,
    ),
    Mutant(
        "disputes_do_not_count",
        SNAPSHOTS,
        "if _what(one) != _what(head):",
        "if not one.by:",
        "a reader that has another state confirms a snapshot",
        60,
        PROFILE,
    ),
    Mutant(
        "snapshot_of_another_log",
        BEGINNING,
        "            fits(head, identity, _record_before(metadata, head.position))\n",
        "",
        "a snapshot is begun with that was taken of another log",
        60,
        PROFILE,
    ),
    Mutant(
        "begins_behind_the_next_entry",
        BEGINNING,
        "return Start(snapshots.state(head), head.position)",
        "return Start(snapshots.state(head), head.position + 1)",
        "the first entry behind a snapshot is passed over",
        10,
        PROFILE,
    ),
    Mutant(
        "first_snapshot_goes",
        BEGINNING,
        "dropped(records, {begin, allowed_begin(start.state)})",
        "dropped(records)",
        "the snapshot with which the log begins is dropped as an old one",
        60,
        PROFILE,
    ),
    Mutant(
        "next_first_snapshot_only",
        BEGINNING,
        "dropped(records, {begin, allowed_begin(start.state)})",
        "dropped(records, {allowed_begin(start.state)})",
        "a snapshot is dropped when a later one may take its place, and the log still begins there",
        150,
        PROFILE,
    ),
)
