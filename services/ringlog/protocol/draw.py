"""Where protocols take random bits from: a port. Its sources are ``ringlog.runtime.draw``."""

from __future__ import annotations

from typing import Protocol


class Draw(Protocol):
    """A source of random bits."""

    def take(self, count: int) -> bytes:
        """The next ``count`` bytes."""
