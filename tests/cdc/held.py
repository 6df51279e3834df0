"""The rule of held writes as a plain definition, to test against."""

from __future__ import annotations


def is_held(timestamp: int, appended: int, horizon: int, leeway: int) -> bool:
    """True if a write must wait for a higher horizon (all in microseconds).

    A timestamp beyond ``appended + leeway`` is refused under every set of generations, so it does not wait.
    """
    return appended >= horizon or (horizon <= timestamp <= appended + leeway)


def used_time(timestamp: int, appended: int, leeway: int) -> int:
    """The greatest time that routing a write uses: a horizon holds it exactly if it is not above this."""
    return max(appended, timestamp) if timestamp <= appended + leeway else appended
