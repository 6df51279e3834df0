"""Tables with images, in a part of the runs. They are created, altered, dropped and recreated under load.

Row states must survive the job's faults: drivers that die between any two steps, a second driver, and late tasks.
"""

from __future__ import annotations

from typing import Final

from ringlog.kernel.commands.schema.tables import AlterTable, CreateTable, DropTable
from ringlog.kernel.values import CdcOptions, Column, Command, Micros, replace
from ringlog.runtime.draw import draw_uuid
from ringlog_sim.actors.cdc.producer import IMAGED, KEYSPACE
from ringlog_sim.devices.world import MS, SECOND, Chance
from ringlog_sim.shape import COLUMNS
from ringlog_sim.stories.moments import HERE
from ringlog_sim.stories.pipeline_faults import lost_checkpoint
from ringlog_sim.stories.story import WRITER, Drawn, StorySetting

PROFILE: Final = "images"
"""The profile in which every run has images, or loses a checkpoint (``pipeline_faults``)."""
SHARE = 0.12
"""Share of other runs with images, of those that begin with nodes and have no scenario."""
OTHER_COLUMNS: Final = 0.35
"""Share of the profile's runs that change columns of the tables."""
LOST, STAND_STILL = 0.3, 0.3
"""Share of the profile's runs that lose a checkpoint, and share of the others in which a driver pauses."""
LASTS: Micros = 4 * SECOND
OFF, ON = (
    CdcOptions(True, ttl=1),
    tuple(
        CdcOptions(True, preimage, postimage, ttl=1)
        for preimage in ("false", "true", "full")
        for postimage in (False, True)
        if preimage != "false" or postimage
    ),
)


def draw_images(setting: StorySetting) -> list[Drawn]:
    """Draw tables with images for a part of the runs."""
    return _images(setting.chance(f"images/{setting.profile}"), SHARE) if setting.founded else []


def draw_images_or_loss(setting: StorySetting) -> list[Drawn]:
    """Draw for the profile: images are switched under load, or a checkpoint is lost."""
    if loses := lost_checkpoint(setting.chance("checkpoint"), setting.founded, LOST):
        return loses
    drawn = _images(setting.chance("images"), 1.0) if setting.founded else []
    drawn += _other_columns(setting.chance("images/columns"))
    still = setting.chance("images/still")
    return [*drawn, *_stood_still(still)] if still.happens(STAND_STILL) else drawn


def _images(chance: Chance, share: float) -> list[Drawn]:
    if not chance.happens(share):
        return []
    drawn: list[Drawn] = [(chance.between(0, 100) * MS, "images", ("create", table)) for table in IMAGED]
    moments = [chance.between(300, 3_800) * MS for _ in range(chance.between(2, 4))]
    for _ in range(chance.between(0, 2)):
        at, table = chance.between(500, 3_000) * MS, chance.pick(IMAGED)
        what = chance.weighted([("switch", 2), ("off", 3), ("all off", 3), ("anew", 3)])
        drawn += [
            (at, "images", (what.removeprefix("all "), one)) for one in (IMAGED if what == "all off" else [table])
        ]
        moments.append(at + chance.between(50, 300) * MS)
        if what.endswith("off"):
            drawn.append((at + chance.between(300, 800) * MS, "images", ("switch", table)))
            moments.append(at + 1_000 * MS)
    drawn += [(at, "imaged_burst", (chance.between(2, 5),)) for at in moments]
    for _ in range(chance.between(1, 3)):
        drawn += _befalls(chance, moments)
    return drawn


def _stood_still(chance: Chance) -> list[Drawn]:
    """Draw a driver that pauses before a part without images and is replaced. Its successor begins to store images."""
    at, keeps = chance.between(700, 1_400), chance.between(250, 500)
    drawn: list[Drawn] = [(at * MS, "images", ("off", table)) for table in IMAGED]
    drawn.append(((at + chance.between(40, 120)) * MS, "when", ("part", 1, 0, "second_writer", keeps + 1_400)))
    drawn.append(((at + keeps) * MS, "images", ("switch", IMAGED[0])))
    return drawn + [((at + after) * MS, "imaged_burst", (4,)) for after in (-300, 100, keeps + 100, keeps + 500)]


def _other_columns(chance: Chance) -> list[Drawn]:
    """Draw column changes in a part of the runs, during writes that an earlier version may read."""
    if not chance.happens(OTHER_COLUMNS):
        return []
    drawn: list[Drawn] = []
    for table in IMAGED:
        at = chance.between(900, 2_500)
        drawn.append((at * MS, "images", (chance.pick(["narrow", "widen"]), table)))
        drawn += [((at + after) * MS, "imaged_burst", (5,)) for after in (-500, -100)]
    return drawn


def _befalls(chance: Chance, moments: list[Micros]) -> list[Drawn]:
    """Draw a fault of the job, mostly at a critical point of a part, and otherwise during writes."""
    at, lasts = chance.pick(moments) + chance.between(-50, 150) * MS, chance.between(200, 1_500)
    if chance.happens(0.25):
        return _replaced_twice(chance)
    nth = chance.between(1, 8)
    return [
        chance.weighted(
            [
                ((0, "when", ("imaged", nth, 0, "second_writer", lasts)), 6),
                ((0, "when", ("states", nth, 0, "crash", HERE, lasts)), 6),
                ((at, "mid_batch", (chance.between(1, 9), lasts)), 4),
                ((at, "straggle", (chance.between(10, 150),)), 4),
                ((at, "second_writer", (lasts,)), 1),
                ((at, "crash", (WRITER, lasts)), 1),
                ((at, "pause", (WRITER, lasts)), 1),
            ]
        )
    ]


def _replaced_twice(chance: Chance) -> list[Drawn]:
    """Draw three drivers: one dies with committed states, the next pauses before it has checked them.

    A third driver has progressed a little by the time the second one checks. A later check would do no harm.
    """
    nth = chance.between(1, 6)
    return [
        (0, "when", ("states", nth, 0, "when", "imaged", 1, 0, "second_writer", chance.between(30, 120))),
        (0, "when", ("states", nth, 60, "imaged_burst", 5)),
        (0, "when", ("states", nth, 0, "crash", HERE, 100)),
    ]


def changes(chance: Chance, what: str, table: str) -> list[Command]:
    """Return an operator's commands.

    ``what``: create, bare (created without images), switch (to other images), off, silent (no log at all), anew
    (dropped and created again), narrow (drop a column), widen (add one).
    """
    if what in ("narrow", "widen"):
        added = (Column("x", "text"),) if what == "widen" else ()
        return [AlterTable(KEYSPACE, table, added, drop_columns=() if added else ("w",))]
    created = CreateTable(
        KEYSPACE, table, draw_uuid(chance), (*COLUMNS, Column("w", "text")), ("k",), ("c",), chance.pick(ON)
    )
    if what in ("create", "bare"):
        return [created if what == "create" else replace(created, cdc=OFF)]
    if what == "anew":
        return [DropTable(KEYSPACE, table), created]
    silent = CdcOptions(enabled=False, ttl=1)
    if what == "silent":
        return [AlterTable(KEYSPACE, table, (), silent)]
    options = chance.pick(ON) if what == "switch" else chance.pick([OFF, OFF, silent])
    return [AlterTable(KEYSPACE, table, (), options)]
