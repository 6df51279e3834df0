"""How far from its append time a write's timestamp may lie, at each epoch and for each write.

Behind the start of a generation the leeway of that generation's commit counts. Ahead of the append time the setting
counts that was in force for the write: like a schema change, a changed leeway counts for writes appended from the
settled time on. Before a settled time was promised, the leeway of the epoch at which the job planned the write counts.
A dead letter names that epoch. A row does not, so it may be there if any leeway since its append lets it in.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

SKEW_US = 60_000_000
"""Clocks of authors and brokers may be so far apart."""


@dataclass(frozen=True, slots=True)
class LeewayStep:
    """The setting from ``epoch`` on, written at ``at`` by its author's clock; microseconds.

    It counts for writes appended from ``since`` on.
    """

    epoch: int
    at: int
    leeway: int
    since: int = 0


@dataclass(frozen=True, slots=True)
class Leeways:
    """``steps``: by ascending epoch, the first one from the beginning on. ``settled_from``: the first epoch with a
    settled time, 0: none has one.
    """

    steps: tuple[LeewayStep, ...]
    settled_from: int = 0

    def at_epoch(self, epoch: int) -> int:
        """The leeway in force at an epoch."""
        return next((step.leeway for step in reversed(self.steps) if step.epoch <= epoch), self.steps[0].leeway)

    def ahead(self, now: int, epoch: int | None) -> int:
        """How far a timestamp may lie ahead of ``now``. ``epoch``: at which the write was judged, None: not known."""
        if self.settled_from and (epoch is None or epoch >= self.settled_from):
            return next((step.leeway for step in reversed(self.steps) if step.since <= now), self.steps[0].leeway)
        return self.widest(now) if epoch is None else self.at_epoch(epoch)

    def widest(self, now: int) -> int:
        """The greatest leeway that was in force at ``now`` or later."""
        earlier = (step for step, after in pairwise(self.steps) if after.at > now - SKEW_US)
        return max(step.leeway for step in (*earlier, self.steps[-1]))


def always(leeway: int) -> Leeways:
    """One leeway that never changed."""
    return Leeways((LeewayStep(0, 0, leeway),))
