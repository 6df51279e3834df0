"""Bugs in how rows outlive a process, and in how they are read."""

from __future__ import annotations

from ringlog.sim.keeping import PROFILE
from ringlog.sim.mutants.plant import Mutant

HOLDER = "ringlog.node.holder"
READS = "ringlog.client.row_reads"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "offset_apart_from_rows",
        "ringlog.node.memory_rows",
        "            self._kept_ids = commit.ids\n            self.mark = commit.before\n",
        "            self._kept_ids = commit.ids\n",
        "the position is kept apart from the rows: after a crash it is ahead of them",
        20,
        PROFILE,
    ),
    Mutant(
        "offset_of_what_was_read",
        "ringlog.node.protocol.turn",
        "            self._waiting.add((item.partition, item) for item in taken)\n",
        "            self._waiting.add((item.partition, item) for item in taken)\n"
        "            [holder.passed(item.partition, item.offset + 1) for item in taken]\n",
        "the position counts what was read, not what was judged",
        20,
        PROFILE,
    ),
    Mutant(
        "lost_while_down_stays",
        HOLDER,
        "owned, owner = self._owned.get(table, NOTHING), before.get(table)",
        "owned, owner = self._owned.get(table, NOTHING), before.get(table, NOTHING)",
        "rows of ranges that a node lost while it was down stay",
        120,
        PROFILE,
    ),
    Mutant(
        "acknowledged_before_synced",
        HOLDER,
        "dict(self.positions)), sync)",
        "dict(self.positions)))",
        "a node acknowledges what a power cut may still take",
        300,
        PROFILE,
    ),
    Mutant(
        "row_read_without_position",
        READS,
        "request.table_id, request.partition_key, request.at",
        "request.table_id, request.partition_key, ()",
        "a read does not say which positions it wants",
        20,
        PROFILE,
    ),
    Mutant(
        "row_read_behind",
        "ringlog.node.row_reads",
        "if any(holder.positions[partition] < offset for partition, offset in request.at):",
        "if any(offset < 0 for _, offset in request.at):",
        "a replica that is behind the positions answers",
        20,
        PROFILE,
    ),
    Mutant(
        "row_read_not_judged_again",
        "ringlog.client.protocol",
        "if plans.counts(now, found.answer))",
        "if not found.answer.refused)",
        "a read takes what a node said that is no replica by now, or was none for a while",
        120,
        PROFILE,
    ),
    Mutant(
        "row_read_waits_for_nobody",
        READS,
        "    if repair is not None:\n        wait =",
        "    if repair is not None and not holders:\n        wait =",
        "a read at a quorum gives away what one replica has, and others may not have yet",
        60,
        PROFILE,
    ),
    Mutant(
        "row_read_before_caught_up",
        "ringlog.node.row_reads",
        "if not holder.caught_up:",
        "if holder.caught_up is None:",
        "a node that was started again answers before it knows what it knew",
        60,
        PROFILE,
    ),
)
