"""The allowed lateness: the maximum distance of a write's timestamp from its append time.

Before the start of a generation, the allowed lateness at that generation's commit applies. Ahead of the append time,
the setting for the write applies. Like a schema change, a changed setting applies to writes appended at or after the
validation watermark. Before the first validation watermark, the setting as of the epoch in the job's plan applies. A
dead letter names that epoch, but a row does not. So a row is correct if any setting since its append accepts it.
"""

from __future__ import annotations

from itertools import pairwise

from ringlog.kernel.values import Value

SKEW_US = 60_000_000
"""The maximum difference between the clocks of authors and brokers."""


class LeewayStep(Value):
    """The setting from ``epoch`` on. Its author wrote it at ``at``, by the author's clock. All times are microseconds.

    It applies to writes appended from ``since`` on.
    """

    epoch: int
    at: int
    leeway: int
    since: int = 0


class Leeways(Value):
    """The allowed lateness over time. ``steps``: by ascending epoch; the first applies from the beginning.

    ``settled_from``: the first epoch with a validation watermark, 0 for none.
    """

    steps: tuple[LeewayStep, ...]
    settled_from: int = 0

    def at_epoch(self, epoch: int) -> int:
        """Return the allowed lateness at an epoch."""
        return next((step.leeway for step in reversed(self.steps) if step.epoch <= epoch), self.steps[0].leeway)

    def ahead(self, now: int, epoch: int | None) -> int:
        """Return how far a timestamp may be ahead of ``now``. ``epoch``: epoch of the validation, None if not known."""
        if self.settled_from and (epoch is None or epoch >= self.settled_from):
            return next((step.leeway for step in reversed(self.steps) if step.since <= now), self.steps[0].leeway)
        return self.widest(now) if epoch is None else self.at_epoch(epoch)

    def widest(self, now: int) -> int:
        """Return the greatest allowed lateness that was set at ``now`` or later."""
        earlier = (step for step, after in pairwise(self.steps) if after.at > now - SKEW_US)
        return max(step.leeway for step in (*earlier, self.steps[-1]))


def always(leeway: int) -> Leeways:
    """Return an allowed lateness that never changes."""
    return Leeways((LeewayStep(0, 0, leeway),))
