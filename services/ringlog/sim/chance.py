"""Randomness of a run: one seed, many named streams.

Each thing that draws has a stream of its own, made from the seed and the thing's name. Taking an event out of a script
therefore leaves the draws of all others as they were, which is what shrinking a failing run rests on. Only
``Random.random`` and ``getrandbits`` are used, whose sequences Python keeps stable.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from random import Random
from typing import TypeVar

T = TypeVar("T")


class Chance:
    """A stream of draws: the same for the same seed and name, on every machine."""

    __slots__ = ("_random", "random")

    def __init__(self, seed: int, name: str) -> None:
        key = blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()
        self._random = Random(int.from_bytes(key, "big"))
        self.random = self._random.random

    def happens(self, probability: float) -> bool:
        """True with that probability."""
        return self.random() < probability

    def below(self, bound: int) -> int:
        """A whole number from 0 to ``bound - 1``."""
        return int(self.random() * bound)

    def between(self, low: int, high: int) -> int:
        """A whole number from ``low`` to ``high``, both included."""
        return low + int(self.random() * (high - low + 1))

    def pick(self, items: Sequence[T]) -> T:
        """One of ``items``, which are not empty."""
        return items[int(self.random() * len(items))]

    def weighted(self, items: Sequence[tuple[T, int]]) -> T:
        """One of the items, each as likely as its weight; the weights do not sum to 0."""
        left = int(self.random() * sum(weight for _, weight in items))
        for item, weight in items:
            left -= weight
            if left < 0:
                return item
        raise AssertionError("weights cover their sum")

    def take(self, count: int) -> bytes:
        """``count`` random bytes: a ``ringlog.protocol.draw.Draw``."""
        return self._random.getrandbits(8 * count).to_bytes(count, "big") if count else b""
