"""Where protocols take random bits from: a port. Its sources are ``ringlog.runtime.draw`` and ``ringlog.sim.chance``;
they pass one suite (``tests/runtime/test_draw_conformance.py``).
"""

from __future__ import annotations

from typing import Protocol


class Draw(Protocol):
    """A source of random bits."""

    def take(self, count: int) -> bytes:
        """The next ``count`` bytes. Raises ValueError if ``count`` is negative."""
