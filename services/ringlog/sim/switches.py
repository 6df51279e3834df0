"""What befalls the CDC pipeline while generations switch: writes around the switch, and drivers that fail in it.

A switch is over in moments, and faults that know nothing of it hit it too rarely to prove anything.
"""

from __future__ import annotations

from typing import Any

from ringlog.kernel.values import Micros
from ringlog.sim.chance import Chance
from ringlog.sim.world import MS, SECOND

SHARE = 0.5
"""How many of the runs in which a node starts have a switch under load."""

Drawn = tuple[Micros, str, tuple[Any, ...]]


def switches(chance: Chance, moments: list[Micros], writer: str) -> list[Drawn]:
    """(time, what happens, with which arguments); ``moments``: when nodes start, ``writer``: host of the job."""
    if not moments or not chance.happens(SHARE):
        return []
    start = chance.pick(moments)
    drawn: list[Drawn] = [(start + chance.between(100 * MS, 2 * SECOND), "burst", (chance.between(2, 6),))]
    duration = chance.between(200, 4_000)
    what, arguments = chance.weighted(
        [
            (("mid_batch", (chance.between(1, 12), duration)), 4),
            (("pause", (writer, duration)), 2),
            (("crash", (writer, duration)), 2),
            (("slow", (writer, chance.between(50, 400), duration)), 2),
            (("second_writer", (duration,)), 2),
            (("cut", (writer, "broker", chance.pick(["both", "there", "back"]), duration)), 1),
        ]
    )
    drawn.append((start + chance.between(0, 3 * SECOND), what, arguments))
    # While the writer is away the coordinator waits for its horizon; somebody who does not wait asks for the commit.
    for _ in range(2):
        at = start + chance.between(300 * MS, 3_500 * MS)
        drawn.append((at, "command", ("CommitCdcGeneration", chance.pick(["validator", "direct"]))))
    # A generation begins some two seconds after it was committed: writes come from before that until after it.
    for delay in (1_300, 1_700, 2_100):
        drawn.append((0, "when", ("CommitCdcGeneration", 1, delay + chance.below(300), "burst", 2)))
    return drawn
