"""Now and then an agent looks whether the state that it has folded is sound.

What is broken is reported, in the log of the process and in the agent's status (code ``invariant_broken``), and nothing
else happens: the state is what the log says, for everybody. It is a defect of this release, or memory that failed. The
thread of the heartbeat looks, each ``EPOCHS`` epochs and not before its ``BEATS``-th beat, so that no fold has to wait
for its end; it shares the interpreter, so it must be rare: of thousands of commits a second, too. The first look of a
life is at everything (half a second for a ring of 16,000 tokens), a later one at what has changed since the last.
"""

from __future__ import annotations

from ringlog.kernel.invariants.check import CODE, violations
from ringlog.kernel.state import EMPTY_STATE, ClusterState
from ringlog.runtime.logs import get_logger

EPOCHS = 5_000
"""Rare enough that a busy validator does not notice; a busy CDC writer alone makes 17,280 a day."""
BEATS = 100
"""Of the heartbeat: ten seconds."""

log = get_logger(__name__)


class Soundness:
    """What a role knows of the soundness of its states. ``alarm``: what is broken, in a line; empty if nothing is."""

    def __init__(self, role: str) -> None:
        self.alarm = ""
        self._role = role
        self._known = EMPTY_STATE
        self._looked_at = -EPOCHS
        self._beats = BEATS

    def look(self, state: ClusterState) -> None:
        """One beat: look at a state, if it is that far from the last one.

        What was broken is looked at again as a whole.
        """
        self._beats += 1
        if self._beats < BEATS or state.epoch == 0 or state.epoch < self._looked_at + EPOCHS:
            return
        self._looked_at, self._beats = state.epoch, 0
        found = violations(state, self._known)
        self._known = EMPTY_STATE if found else state
        self.alarm = f"{CODE}: {found[0].invariant} at epoch {state.epoch}: {found[0].detail}" if found else ""
        for one in found:
            log.error(
                CODE, role=self._role, epoch=state.epoch, invariant=one.invariant, promise=one.sentence, why=one.detail
            )
