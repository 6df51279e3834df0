"""Planted bugs: proof that the simulator finds what it is there to find."""

from __future__ import annotations

from ringlog.sim.mutants import (
    balancer,
    cdc,
    columns,
    images,
    log,
    log_ends,
    operations,
    peers,
    recovery,
    registers,
    rows,
    tablets,
    zones,
)
from ringlog.sim.mutants.plant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    *log.MUTANTS,
    *operations.MUTANTS,
    *cdc.MUTANTS,
    *images.MUTANTS,
    *recovery.MUTANTS,
    *registers.MUTANTS,
    *tablets.MUTANTS,
    *balancer.MUTANTS,
    *log_ends.MUTANTS,
    *columns.MUTANTS,
    *zones.MUTANTS,
    *rows.MUTANTS,
    *peers.MUTANTS,
)
"""All of them, by part of the system; names are unique."""

RARE: tuple[Mutant, ...] = (
    Mutant(
        "stranger_first",
        log.VALIDATOR,
        "elif twin is not None and answered is None:",
        "elif twin is not None:",
        "a request that was rejected hears another answer when it comes again behind a stranger with its id",
        0,
    ),
    Mutant(
        "replaced_driver_goes_on",
        "ringlog_cdc.protocol.batch",
        "            self._promises.mine(state)\n            context",
        "            context",
        "a driver that stood still, and was replaced, takes what the other one has carried out for late rows",
        0,
    ),
    Mutant(
        "half_written_by_number",
        recovery.KNOWN,
        "if name[:3] not in whole:",
        "if name[:3] is None:",
        "of a write that is half written a row counts as there by its number, whatever it is now",
        0,
    ),
    Mutant(
        "cut_off_unnoticed",
        recovery.KNOWN,
        "return any(closed_for(entry, state) != entry.closed for entry in undone)",
        "return any(not entry.ranges for entry in undone)",
        "a part that a fence has cut off is carried out under closed generations: rows with letters beside them",
        0,
    ),
    Mutant(
        "cut_off_after_the_look",
        "ringlog_cdc.protocol.batch",
        "if is_cut_off(undone, registered):",
        "if is_cut_off((), registered):",
        "a fence and a close between a job's look at the log and its registration go unnoticed",
        0,
    ),
    Mutant(
        "forgotten_answer_is_final",
        "ringlog.node.protocol.joining",
        "if answer.code == FORGOTTEN:",
        'if answer.code == "":',
        "a node whose answer was forgotten takes that for a refusal, and ends",
        0,
    ),
    Mutant(
        "folder_of_a_late_writer",
        images.WORK,
        "if kept_before is False:",
        "if kept_before is False and not self._files.partitions():",
        "states that a replaced driver began after its successor had let all go are taken for its own",
        0,
        "medium",
    ),
    Mutant(
        "joined_counts_as_gained",
        "ringlog.node.registers",
        "before = max(replica.durable.epoch, joined_at(state, name))",
        "before = replica.durable.epoch",
        "a node that adopts at once that a setting is new, and that a keyspace has it, drops its registers",
        0,
        "medium",
    ),
)
"""Defects that were met once in thousands of seeds. They are in no table: the saved script finds them."""
