"""Rules of reads, writes and movements, and for each rule a scenario that fails without it.

``python -m tests.client.explorer.rules`` (``make explore``) explores every scenario and then disables one rule after
the other. A rule that others imply is disabled in every scenario. The command prints the results as Markdown tables.
``--states`` bounds each search, ``--walks`` adds random walks after a bounded search, ``--seed`` seeds them.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from ringlog.kernel.operations.gates import Gate
from ringlog.kernel.values import Value, Witness, replace
from ringlog_sim.mutants.plant import bugs_of, planted, read_bugs
from tests.client.explorer.log_path import GateRule, gate_is_met
from tests.client.explorer.model import Explored, Explorer
from tests.client.explorer.resets import RESETS
from tests.client.explorer.scenarios import OVERRIDDEN, SCENARIOS

FINDERS = read_bugs(
    """
answers_of_another_time: what a read got before the group changed counts
ringlog.client.data.plans:counts, 1
- now.request.access is Access.READ and answer.epoch < now.changed
+ now.request.access is Access.READ and answer.epoch < 0

answers_of_a_namesake: what was answered for a keyspace of that name before it was made anew counts
ringlog.client.data.plans:counts, 1
- answer.epoch < now.made
+ answer.epoch < 0

survivors_not_streamed: who stays in a group that shrinks gets no rows
ringlog.kernel.operations.sources:sources_of, 1
- merging.update(_surer((old, new), lost, fresh, merging, scopes, dead))
+ pass

nobody_reports: reads go to the new owner before it has its rows
ringlog.kernel.movements.progress:unreported, 1
- operation.stage not in REPORTED_STAGES
+ operation.stage

leaver_not_asked: who leaves is not asked once it is declared down, also where it and those left out are a quorum
ringlog.kernel.operations.gates:_needs, 1
- yield from needs_of(state.nodes, where, group, members, silent, operation.ignored, keeps_quorum=True)
+ yield from needs_of(state.nodes, where, group, members, silent, operation.ignored)

tablet_gate_of_too_few: a quorum of a tablet's old replicas may not know that the new ones are read
ringlog.kernel.tablets.gates:blocking_size, 1
- return count - quorum(count) + 1
+ return count - quorum(count)
"""
)
"""Bugs that only the explorer checks."""

_PARTS = ("operations", "registers", "explored", "rare", "zones")
_KNOWN = {mutant.name: mutant for mutant in (*(one for part in _PARTS for one in bugs_of(part)), *FINDERS)}


class Off(Value):
    """A rule that a planted bug or an open gate disables.

    If neither is set, an operator has overridden the rule. ``shows``: a scenario with a read that then misses a write;
    empty if other rules imply this one, as ``implied`` states.
    """

    rule: str
    without: str
    shows: str
    mutant: str = ""
    open_stage: str = ""
    implied: str = ""

    @contextmanager
    def off(self) -> Iterator[GateRule]:
        """Yield the rule of the gates while this rule is disabled."""
        with planted(_KNOWN[self.mutant]) if self.mutant else nullcontext():
            yield self._lax if self.open_stage else gate_is_met

    def _lax(self, found: Gate, witnesses: tuple[Witness, ...]) -> bool:
        return found.stage == self.open_stage or gate_is_met(found, witnesses)

    def search(self, scenario: str, states_max: int) -> Explored:
        """Explore with the rule disabled; nodes restart only if the rule needs it."""
        with self.off() as rule:
            made = (SCENARIOS | OVERRIDDEN)[scenario]()
            return Explorer(replace(made, restarts=int(self.rule.startswith("R6"))), rule).explore(states_max)


def _bug(rule: str, mutant: str, shows: str) -> Off:
    return Off(rule, _KNOWN[mutant].bug, shows, mutant)


MOVES, MOVES_3 = "tablet moves, 1 replica", "tablet moves, 3 replicas"
TURNS_BACK = "tablet only turns back after it was read, 3 replicas"
LEFT_OUT, ASSASSINATED, ADMITTED = OVERRIDDEN
RESET, _, RESET_KNOWN, RESET_STUCK, RESET_BACK, _ = RESETS

OFF = (
    _bug("R1 both groups", "new_group_not_needed", "join, 1 replica"),
    _bug("R1 both groups", "old_group_not_needed", "join, 1 replica"),
    _bug("R1 a quorum", "quorum_of_half", "join, 2 replicas"),
    _bug("R2 epoch of the admission", "plans_epoch_answered", "join, 1 replica"),
    _bug("R3 membership checked again", "membership_not_checked_again", "join, 1 replica"),
    _bug("R3 no answers from the future", "future_answers_count", "join, 1 replica"),
    _bug("R3 reads of the present group", "answers_of_another_time", "from 3 replicas to 1"),
    _bug("R3 answers of the present keyspace", "answers_of_a_namesake", "keyspace made anew, 1 replica"),
    _bug("R4 drained source", "source_not_drained", "join, 1 replica"),
    _bug("R4 from whose place is taken", "streams_from_any_replica", "join, 3 replicas"),
    _bug("R4 a quorum for a dead giver", "too_few_sources", "replace a dead node, 3 replicas"),
    _bug("R4 all of the streams", "first_stream_is_all", "replace a dead node, 3 replicas"),
    _bug("R4 a shrinking group streams", "survivors_not_streamed", "from 3 replicas to 1"),
    Off("R5 gate", "`write_both_read_new` is left at once", "join, 1 replica", open_stage="write_both_read_new"),
    _bug("R5 epoch of the stage", "gate_one_epoch_early", "join, 1 replica"),
    _bug("R5 old groups", "gate_ignores_old_groups", "join, 1 replica"),
    Off("R5 a quorum is asked", "a quorum is left out at the end (`--admit-loss`), and lives", LEFT_OUT),
    _bug("R5 a quorum is asked", "leaver_not_asked", "leave, one that lives is left out, then the leaver, 3 replicas"),
    Off("R5 an heir has its rows", "it is read before it was rebuilt (assassination)", ASSASSINATED),
    _bug("R5 reports", "nobody_reports", "join, 1 replica"),
    _bug("R6 durable epochs", "restart_goes_back", "join, 1 replica"),
    _bug("R6 drained", "acknowledged_before_drained", "join, 1 replica"),
    _bug("R7 reads before deletion", "deleted_before_read", "join, 3 replicas"),
    _bug("members before a join of placements", "joined_counts_as_gained", "take over a new setting, 1 replica"),
    _bug("R1 a survivor is written, too", "zone_salvage_written_by_the_old_alone", RESET),
    _bug("R4 a survivor merges who is alive", "zone_salvage_of_the_survivor_alone", RESET),
    _bug("R4 a survivor merges a majority", "zone_salvage_with_whoever_lives", RESET_STUCK),
    _bug("R4 a survivor merges who comes back", "zone_salvage_without_who_comes_back", RESET_BACK),
    Off("R4 a survivor merges a majority", "somebody admits the loss (`--admit-loss`)", ADMITTED),
    _bug("R5 reports of a survivor", "zone_salvage_left_early", RESET),
    Off("R5 gate of a salvage", "`salvaged` is left at once", RESET_KNOWN, open_stage="salvaged"),
    Off("R5 gate of a tablet", "`write_both_read_new` is left at once", MOVES, open_stage="write_both_read_new"),
    Off("R5 gate of a tablet", "it turns back at once", TURNS_BACK, open_stage="write_both_read_old_fallback_cleanup"),
    _bug("R5 each quorum of a tablet is met", "tablet_gate_of_too_few", MOVES_3),
    _bug("repair before an answer", "no_read_repair", "join, 3 replicas, read before"),
    _bug("repair at a write's level", "repair_of_readers_only", "join, 1 replica, read before"),
)


IMPLIED = (
    Off(
        "R5 gate",
        "`write_both_read_old` is left as soon as all rows are reported",
        "",
        open_stage="write_both_read_old",
        implied="R4 drained source, R5 reports",
    ),
    Off(
        "R5 new groups",
        _KNOWN["gate_ignores_new_groups"].bug,
        "",
        "gate_ignores_new_groups",
        implied="R4 drained source, R5 reports, R5 old groups",
    ),
)
"""Rules that others imply; without them no read misses a write. The guide explains why."""


def main() -> int:
    """Print the tables; return 1 if a rule is broken, or if a disabled rule has no counterexample."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--states", type=int, default=300_000)
    parser.add_argument("--walks", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="scenarios whose name has this in it, and no rules")
    parser.add_argument("--rules", action="store_true", help="no scenarios but those that the rules need")
    parser.add_argument("--everywhere", action="store_true", help="each rule in each scenario")
    args = parser.parse_args()
    is_fine = args.rules or _explore_all(args)
    if args.only:
        return 0 if is_fine else 1
    print("\n| rule | without it | a read misses a write in | states | steps |\n|---|---|---|---|---|")
    for off in OFF:
        is_fine &= _switch_off(off, args.states, args.everywhere)
    print("\n| rule | without it | implied by | scenarios | of these whole | states | misses |")
    print("|---|---|---|---|---|---|---|")
    for off in IMPLIED:
        is_fine &= _look_everywhere(off, args.states)
    return 0 if is_fine else 1


def _look_everywhere(off: Off, states_max: int) -> bool:
    found = [off.search(name, states_max) for name in SCENARIOS]
    whole, states = sum(one.exhausted for one in found), sum(one.states for one in found)
    missed = sum(bool(one.story) for one in found)
    row = (off.rule, off.without, off.implied, len(found), whole, f"{states:,}", missed)
    print("|", " | ".join(map(str, row)), "|", flush=True)
    return not missed


def _explore_all(args: argparse.Namespace) -> bool:
    print("| scenario | epochs | nodes | states | after the write | how far |\n|---|---|---|---|---|---|")
    broken = 0
    for name in SCENARIOS:
        if args.only in name:
            broken += not _explore(name, args.states, args.walks, args.seed)
    return not broken


def _explore(name: str, states_max: int, walks: int, seed: int) -> bool:
    started = time.process_time()
    explorer = Explorer(SCENARIOS[name]())
    found = explorer.explore(states_max)
    how = "all" if found.exhausted else "the nearest"
    if not found.exhausted and not found.story:
        walked = explorer.walk(seed, walks)
        how = f"the nearest; {walks:,} walks see {walked.states:,}, {walked.reads:,} after the write"
        found = walked if walked.story else found
    row = (name, len(explorer.log), len(explorer.nodes), f"{found.states:,}", f"{found.reads:,}", how)
    print("|", " | ".join(map(str, row)), "|", flush=True)
    print(f"{time.process_time() - started:.1f} s of {name}", file=sys.stderr)
    for event in found.story:
        print(f"    {event}")
    return not found.story


def _switch_off(off: Off, states_max: int, everywhere: bool) -> bool:
    names = [off.shows, *(name for name in SCENARIOS if everywhere and name != off.shows)]
    shown = [(name, found) for name in names if (found := off.search(name, states_max)).story]
    if not shown:
        print(f"| {off.rule} | {off.without} | nowhere | | |", flush=True)
        return False
    name, found = min(shown, key=lambda pair: len(pair[1].story))
    where = name if len(shown) == 1 else f"{name} and {len(shown) - 1} others"
    print(f"| {off.rule} | {off.without} | {where} | {found.states:,} | {len(found.story)} |", flush=True)
    return True


if __name__ == "__main__":
    sys.exit(main())
