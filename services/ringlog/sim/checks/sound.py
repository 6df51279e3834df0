"""Every state that the log makes keeps the kernel's own invariants."""

from __future__ import annotations

from ringlog.kernel.invariants.check import CODE, violations
from ringlog.kernel.outcome import Entry
from ringlog.kernel.state import EMPTY_STATE, ClusterState
from ringlog.sim.checks.base import Check

_looked_at: dict[int, ClusterState] = {}


class Sound(Check):
    """After each entry no invariant of ``ringlog.kernel.invariants`` is broken."""

    def begin(self, state: ClusterState) -> None:
        """The state that the run begins with, as a whole; once, for many runs begin with it."""
        if _looked_at.get(id(state)) is not state:
            self._look(state, EMPTY_STATE)
            _looked_at[id(state)] = state

    def applied(self, before: ClusterState, after: ClusterState, item: Entry, offset: int) -> None:
        """Look at what the entry has changed."""
        self._look(after, before)

    def _look(self, state: ClusterState, known: ClusterState) -> None:
        for found in violations(state, known):
            self.sim.broken(CODE, f"epoch {state.epoch}: {found.invariant} ({found.sentence}): {found.detail}")
