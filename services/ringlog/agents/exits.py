"""How an agent's process ends: exit codes, and the reason as a value.

===== ==================================================================================================
0     stopped on request
1     crashed: the broker or another part failed; starting again helps once it is back
3     superseded: another instance acts in this role now; starting again makes a stand-by
4     halted: the log or the change topics are not what they were, or are gone; starting again does not help
===== ==================================================================================================
"""

from __future__ import annotations

from dataclasses import dataclass

from ringlog.runtime.logs import get_logger

STOPPED = 0
CRASHED = 1
SUPERSEDED = 3
HALTED = 4

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class End:
    """Why an instance ended; ``error`` is there after a crash."""

    code: int
    detail: str
    error: BaseException | None = None


class Superseded(Exception):
    """A higher term of this role was folded, or the broker fenced this instance's transactional id."""


class Diverged(Exception):
    """What this agent finds in a topic cannot come from this log: nothing is written, an operator has to look."""


def say_end(role: str, end: End, *, goodbye: bool = True) -> None:
    """The last line of an agent: that of one that halted is an error, since somebody has to look."""
    say, event = (log.error, "halted") if end.code == HALTED else (log.info, "stopped")
    say(event, role=role, code=end.code, why=end.detail, left_group=goodbye)
