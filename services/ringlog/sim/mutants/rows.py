"""Bugs in how rows outlive a process."""

from __future__ import annotations

from ringlog.sim.keeping import PROFILE
from ringlog.sim.mutants.plant import Mutant

HOLDER = "ringlog.node.holder"

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
)
