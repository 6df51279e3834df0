"""Faults of the CDC pipeline: failing drivers during a generation switch, lost checkpoints, added partitions.

A generation switch lasts only moments, and randomly placed faults rarely hit it. So writes and driver failures are
placed around it. A checkpoint is lost in the middle of a part, followed by a fence and a new checkpoint of the same
name; some rows of that part arrive late or never.
"""

from __future__ import annotations

from typing import Final

from ringlog.kernel.values import Micros
from ringlog_sim.actors.cdc.producer import IMAGED
from ringlog_sim.devices.world import MS, SECOND, Chance
from ringlog_sim.stories.story import WRITER, Drawn, StorySetting

LOSS_SHARE = 0.05
"""Share of the runs that lose a checkpoint in this way, of those that begin with nodes and have no other story."""
LASTS: Micros = 6 * SECOND


def draw_lost_checkpoint(setting: StorySetting) -> list[Drawn]:
    """Draw the loss of a checkpoint for a part of the runs."""
    return lost_checkpoint(setting.chance(f"checkpoint/{setting.profile}"), setting.founded, LOSS_SHARE)


def lost_checkpoint(chance: Chance, founded: int, share: float) -> list[Drawn]:
    """Draw the loss of a checkpoint. The list is empty in all but ``share`` of the runs."""
    if not founded or not chance.happens(share):
        return []
    start, with_images = chance.between(200, 1_200), chance.happens(0.5)
    moment = "imaged" if with_images else "part"
    drawn: list[Drawn] = [(at * MS, "burst", (chance.between(4, 8),)) for at in (100, start, start + 2_500)]
    nth, delay = chance.between(2, 8), chance.between(0, 6)
    if chance.happens(0.6):
        drawn.append((100 * MS, "when", (moment, nth, 0, "late", WRITER, 80, 60)))
    drawn.append((100 * MS, "when", (moment, nth, delay, "wipe", WRITER, chance.between(50, 500))))
    away, closes = chance.between(100, 1_000), chance.happens(0.3)
    drawn.append((100 * MS, "when", (moment, nth, delay + chance.between(50, 800), "fence", away, closes)))
    if with_images:
        # The table has other images, or none, when its writes are decided again.
        drawn.append((0, "images", ("create", IMAGED[0])))
        drawn += [(at * MS, "imaged_burst", (5,)) for at in (150, 300, start + 50, start + 2_600)]
        drawn.append((100 * MS, "when", (moment, nth, delay + 1, "images", chance.pick(["off", "switch"]), IMAGED[0])))
    for number in range(chance.between(0, 2)):
        # The new checkpoint also has faults.
        at = start + 1_500 + 700 * number
        drawn.append((at * MS, "mid_batch", (chance.between(1, 12), chance.between(100, 500))))
    if with_images and chance.happens(0.5):
        # The table had no log for some time. Writes of that time have no rows, even if they are decided again.
        off, on = chance.between(10, 250), chance.between(300, start + 1_500)
        drawn += [(off * MS, "images", ("silent", IMAGED[0])), (on * MS, "images", ("switch", IMAGED[0]))]
        drawn += [(at * MS, "imaged_burst", (4,)) for at in (off + 20, on + 50)]
    return drawn


SWITCH_SHARE = 0.5
"""Share of the runs with a starting node that have a switch under load."""


def switches(chance: Chance, moments: list[Micros]) -> list[Drawn]:
    """Draw faults around a generation switch. ``moments``: start times of nodes."""
    if not moments or not chance.happens(SWITCH_SHARE):
        return []
    start = chance.pick(moments)
    drawn: list[Drawn] = [(start + chance.between(100 * MS, 2 * SECOND), "burst", (chance.between(2, 6),))]
    duration = chance.between(200, 4_000)
    what, arguments = chance.weighted(
        [
            (("mid_batch", (chance.between(1, 12), duration)), 4),
            (("pause", (WRITER, duration)), 2),
            (("crash", (WRITER, duration)), 2),
            (("slow", (WRITER, chance.between(50, 400), duration)), 2),
            (("second_writer", (duration,)), 2),
            (("cut", (WRITER, "broker", chance.pick(["both", "there", "back"]), duration)), 1),
        ]
    )
    drawn.append((start + chance.between(0, 3 * SECOND), what, arguments))
    # While the writer is down, the coordinator waits for its horizon. These commands do not wait.
    for _ in range(2):
        at = start + chance.between(300 * MS, 3_500 * MS)
        drawn.append((at, "command", ("CommitCdcGeneration", chance.pick(["validator", "direct"]))))
    # A generation begins about two seconds after its commit. The writes are from before its begin until after it.
    for delay in (1_300, 1_700, 2_100):
        drawn.append((0, "when", ("CommitCdcGeneration", 1, delay + chance.below(300), "burst", 2)))
    return drawn


PARTITION_RUNS: Final = ("medium", "large")
"""The profiles whose runs may add partitions."""
PARTITION_SHARE: Final = 0.3
"""Share of their runs without another story."""


def draw_added_partitions(setting: StorySetting) -> list[Drawn]:
    """Draw partitions that an operator adds to the mutations topic, for a part of the longer runs.

    Producers use a new partition at once, so the writes of one key are in two partitions. Nodes find it while they run
    or when they start. The CDC job restarts to read it. No table of these runs has images, because images follow the
    order of a partition.
    """
    chance = setting.chance("added partitions")
    if setting.profile not in PARTITION_RUNS or not chance.happens(PARTITION_SHARE):
        return []
    drawn: list[Drawn] = []
    for _ in range(chance.between(1, 2)):
        at = chance.between(500, 15_000)
        drawn.append((at * MS, "add_partition", ()))
        drawn += [((at + chance.between(0, 3_000)) * MS, "burst", (chance.between(3, 6),)) for _ in range(2)]
    return drawn
