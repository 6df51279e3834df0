"""A checkpoint that is lost in the middle of something, a fence, and another checkpoint under the same name.

Some rows of the part in hand are on their way when it happens, and get there late, or not at all.
"""

from __future__ import annotations

from typing import Any

from ringlog.kernel.values import Micros
from ringlog.sim.actors.producer import IMAGED
from ringlog.sim.chance import Chance
from ringlog.sim.world import MS, SECOND

SHARE = 0.05
"""How many of the runs lose a checkpoint like this, of those that begin with nodes and have nothing else special."""
LASTS: Micros = 6 * SECOND
Drawn = tuple[Micros, str, tuple[Any, ...]]


def losing(chance: Chance, founded: int, writer: str, share: float = SHARE) -> list[Drawn]:
    """(time, what happens, with which arguments); nothing in most runs: ``share`` of them have something.

    ``writer``: host of the job.
    """
    if not founded or not chance.happens(share):
        return []
    start, with_images = chance.between(200, 1_200), chance.happens(0.5)
    moment = "imaged" if with_images else "part"
    drawn: list[Drawn] = [(at * MS, "burst", (chance.between(4, 8),)) for at in (100, start, start + 2_500)]
    nth, delay = chance.between(2, 8), chance.between(0, 6)
    if chance.happens(0.6):
        drawn.append((100 * MS, "when", (moment, nth, 0, "late", writer, 80, 60)))
    drawn.append((100 * MS, "when", (moment, nth, delay, "wipe", writer, chance.between(50, 500))))
    away, closes = chance.between(100, 1_000), chance.happens(0.3)
    drawn.append((100 * MS, "when", (moment, nth, delay + chance.between(50, 800), "fence", away, closes)))
    if with_images:
        # The table has other ones, or none, by the time its writes are decided anew.
        drawn.append((0, "images", ("create", IMAGED[0])))
        drawn += [(at * MS, "imaged_burst", (5,)) for at in (150, 300, start + 50, start + 2_600)]
        drawn.append((100 * MS, "when", (moment, nth, delay + 1, "images", chance.pick(["off", "switch"]), IMAGED[0])))
    for number in range(chance.between(0, 2)):
        # The new checkpoint does not have it easy either.
        at = start + 1_500 + 700 * number
        drawn.append((at * MS, "mid_batch", (chance.between(1, 12), chance.between(100, 500))))
    if with_images and chance.happens(0.5):
        # For a while the table had no log; what was written then has no rows, also when it is decided anew.
        off, on = chance.between(10, 250), chance.between(300, start + 1_500)
        drawn += [(off * MS, "images", ("silent", IMAGED[0])), (on * MS, "images", ("switch", IMAGED[0]))]
        drawn += [(at * MS, "imaged_burst", (4,)) for at in (off + 20, on + 50)]
    return drawn
