"""Partitions that an operator adds to the mutations topic, in a part of the longer runs.

Producers use a new partition at once. The writes of one key then lie in two partitions. Nodes find it while
they run or when they start, and the CDC job starts again to read it. No table of these runs keeps images, since images
follow the order of a partition.
"""

from __future__ import annotations

from typing import Any, Final

from ringlog.kernel.values import Micros
from ringlog_sim.devices.world import MS, Chance

RUNS: Final = ("medium", "large")
"""The profiles that have it."""
SHARE: Final = 0.3
"""In how many of their runs without another story."""


def draw_added_partitions(chance: Chance, profile: str) -> list[tuple[Micros, str, tuple[Any, ...]]]:
    """Return (time, action, arguments) for each action; most runs have none."""
    if profile not in RUNS or not chance.happens(SHARE):
        return []
    drawn: list[tuple[Micros, str, tuple[Any, ...]]] = []
    for _ in range(chance.between(1, 2)):
        at = chance.between(500, 15_000)
        drawn.append((at * MS, "add_partition", ()))
        drawn += [((at + chance.between(0, 3_000)) * MS, "burst", (chance.between(3, 6),)) for _ in range(2)]
    return drawn
