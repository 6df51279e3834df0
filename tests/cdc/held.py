"""A plain definition of held writes, the oracle of the tests."""

from __future__ import annotations


def is_held(timestamp: int, appended: int, horizon: int, leeway: int) -> bool:
    """Return whether a write waits for a higher lease (all times in microseconds).

    A timestamp beyond ``appended + leeway`` is refused under every set of generations, so it does not wait.
    """
    return appended >= horizon or (horizon <= timestamp <= appended + leeway)


def used_time(timestamp: int, appended: int, leeway: int) -> int:
    """Return the highest time that routing a write uses; a lease covers the write up to and including this time."""
    return max(appended, timestamp) if timestamp <= appended + leeway else appended
