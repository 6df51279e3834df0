"""What pure functions made of the last few objects, known again by identity.

Values are immutable, so what was made of one stays right; and it is held as long as it is known, so that no other
object can be taken for it. A fold asks the same of a plan at each stage, of a token map at each movement.
"""

from __future__ import annotations

from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Remembered(Generic[K, V]):
    """At most ``most`` of them; the one that was made last goes last."""

    __slots__ = ("_known", "_most")

    def __init__(self, most: int) -> None:
        assert most > 0, "who remembers nothing need not ask"
        self._most = most
        self._known: tuple[tuple[K, V], ...] = ()

    def get(self, of: K) -> V | None:
        """What was made of this very object; None if that is not known."""
        for known, made in self._known:
            if known is of:
                return made
        return None

    def put(self, of: K, made: V) -> V:
        """``made``, remembered. Several threads fold: what is known is replaced as a whole."""
        self._known = ((of, made), *self._known[: self._most - 1])
        return made
