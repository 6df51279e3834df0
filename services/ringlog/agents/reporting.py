"""When an agent reports its status: soon after each change, each second in any case.

A new epoch is reported when it is the last one for a moment. While many are committed, each record of a status would be
one more that the broker has to take between them.
"""

from __future__ import annotations

HEARTBEAT_S = 1.0


class Reporting:
    """What was reported last, and when. ``epoch``: up to which the agent is; ``rest``: all else of its status."""

    def __init__(self) -> None:
        self._reported: tuple[int, object] | None = None
        self._seen = -1
        self._silent_s = 0.0

    def is_due(self, epoch: int, rest: object, passed_s: float) -> bool:
        """True if the status is to be reported now; it counts as reported then. ``passed_s``: since the last look."""
        self._silent_s += passed_s
        rests, self._seen = epoch == self._seen, epoch
        is_new = self._reported is None or rest != self._reported[1] or (rests and epoch != self._reported[0])
        if not is_new and self._silent_s < HEARTBEAT_S:
            return False
        self._reported, self._silent_s = (epoch, rest), 0.0
        return True
