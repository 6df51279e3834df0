"""Bugs in what a checkpoint does that takes the place of a lost one."""

from __future__ import annotations

from ringlog.sim.imaging import PROFILE as IMAGES
from ringlog.sim.mutants.plant import Mutant

KNOWN, OPERATOR = "ringlog_cdc.known", "ringlog.sim.operator"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "nothing_looked_up",
        KNOWN,
        "return head.sequence < 0 and any(",
        "return head.sequence < -1 and any(",
        "a new checkpoint writes all rows, whatever is there",
        100,
        IMAGES,
    ),
    Mutant(
        "looked_up_before_the_fence",
        OPERATOR,
        "            take_rights()\n",
        "",
        "rows of the earlier checkpoint may still come when the topics have been looked through",
        200,
        IMAGES,
    ),
    Mutant(
        "lost_unnoticed",
        KNOWN,
        "return before is not None and before.fenced is None",
        'return before is not None and before.incarnation == ""',
        "an empty checkpoint is worked on under a name that has had another one",
        200,
    ),
    Mutant(
        "silence_forgotten",
        KNOWN,
        "return offset < max(self.settled.get(partition, 0), self.lasts.get((partition, to), 0))",
        "return offset < 0",
        "a write that was to have no row gets one after a checkpoint was lost, behind rows of later writes",
        200,
        IMAGES,
    ),
    Mutant(
        "claims_forgotten",
        KNOWN,
        "return offset < max(self.settled.get(partition, 0), self.lasts.get((partition, to), 0))",
        "return offset < self.lasts.get((partition, to), 0)",
        "what a writer said it had decided is decided anew after its checkpoint was lost",
        3_000,
    ),
    Mutant(
        "letters_not_looked_up",
        KNOWN,
        "letters.add((partition, offset))",
        "pass",
        "a new checkpoint sends dead letters once more",
        200,
        IMAGES,
    ),
)
