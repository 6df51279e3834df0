"""What the faust app and a role's worker ask of each other; neither needs to import the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ringlog.agents.exits import End
from ringlog.agents.watched import RoleView


class RoleWorker(Protocol):
    """What a role does with its records, in threads of its own."""

    def start(self) -> None:
        """Take the role over, then work."""
        ...

    def offer(self, offset: int, value: bytes | None) -> bool:
        """One record of the role's topic, in offset order. False: the worker has read it by itself, or will, and may
        have acknowledged it already.
        """
        ...

    def seen(self) -> RoleView:
        """A look at it, from any thread; waits for nothing."""
        ...

    def stop(self) -> None:
        """Stop, and return when no thread works any more."""
        ...


Acknowledge = Callable[[int], None]
Ended = Callable[[End], None]
MakeWorker = Callable[[Acknowledge, Ended], RoleWorker]
"""Makes a worker; it calls the first when all up to an offset is answered, the second when it ends by itself."""
