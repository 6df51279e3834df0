"""A table in tablets under load, in a part of the runs: its tablets move, revert and resize while registers are used.

Random commands rarely find a tablet. Faults are those of every run.
"""

from __future__ import annotations

from ringlog.kernel.commands.schema.keyspaces import CreateKeyspace
from ringlog.kernel.commands.schema.tables import CreateTable
from ringlog.kernel.values import CdcOptions, Command, Micros, Replication, TabletOptions
from ringlog.runtime.draw import draw_uuid
from ringlog_sim.devices.world import MS, SECOND, Chance
from ringlog_sim.shape import COLUMNS
from ringlog_sim.stories.story import APPLICATIONS, Drawn, StorySetting

SHARE = 0.12
"""Share of the runs with this story, of those that begin with at least two nodes and have no other story."""
PROFILE = "tablets"
"""The profile that always has this story."""
LOGGED, TURNS_BACK = 0.4, 0.3
"""Shares of its runs with a CDC log of the table, or with operators who revert tablets."""
LASTS: Micros = 4 * SECOND
KEYSPACE = "in_tablets"
KINDS = (("MigrateTablets", 8), ("RevertTablets", 1), ("AdvanceTablets", 1), ("DecideResize", 1))


def draw_moving_tablets(setting: StorySetting) -> list[Drawn]:
    """Draw a table in tablets for every run of the profile, and for a part of the others."""
    chance = setting.chance(f"tablets/{setting.profile}")
    if setting.profile != PROFILE:
        return _moving_tablets(chance, setting.founded, SHARE)
    drawn = _moving_tablets(chance, setting.founded, 1.0)
    drawn += _turning_back(setting.chance("tablets/back")) if drawn else []
    return _with_log(setting.chance("tablets/log"), drawn)


def _moving_tablets(chance: Chance, founded: int, share: float) -> list[Drawn]:
    if founded < 2 or not chance.happens(share):
        return []
    drawn: list[Drawn] = [
        (chance.between(0, 60) * MS, "tablets", (chance.between(1, founded), chance.pick([1, 1, 2, 4])))
    ]
    for _ in range(chance.between(4, 10)):
        at = chance.between(300, 3_000) * MS
        drawn.append((at, "command", (chance.weighted(KINDS), "validator")))
        for wish in ("write", "read", "read"):
            register, moment = chance.below(2), at + chance.between(-100, 400) * MS
            application = APPLICATIONS[register] if wish == "write" else chance.pick(APPLICATIONS)
            drawn.append(
                (moment, "register", (application, register, f"{wish}-{chance.pick(['QUORUM', 'QUORUM', 'ALL'])}"))
            )
    return drawn


def _with_log(chance: Chance, drawn: list[Drawn]) -> list[Drawn]:
    """Draw a CDC log of the table in a part of the runs, with writes during resizes."""
    if not drawn or not chance.happens(LOGGED):
        return drawn
    logged = [(at, "logged_tablets" if what == "tablets" else what, arguments) for at, what, arguments in drawn]
    bursts = [(chance.between(200, 5_000) * MS, "tablet_burst", (chance.between(1, 3),)) for _ in range(5)]
    cuts = [(chance.between(300, 4_000) * MS, "command", ("DecideResize", "validator")) for _ in range(2)]
    return [*logged, *bursts, *cuts]


def _turning_back(chance: Chance) -> list[Drawn]:
    """Draw reverts of migrating tablets in a part of the runs, some of them too late."""
    if not chance.happens(TURNS_BACK):
        return []
    nths = [chance.between(1, 10) for _ in range(4)]
    return [(0, "when", ("AdvanceTablets", nth, 0, "command", "RevertTablets", "validator")) for nth in nths]


def table_in_tablets(chance: Chance, factor: int, count: int, log: CdcOptions) -> list[Command]:
    """Return the commands that create the keyspace and its table. ``log``: its CDC options."""
    options = TabletOptions(count)
    return [
        CreateKeyspace(KEYSPACE, Replication("tablets", factor)),
        CreateTable(KEYSPACE, "t", draw_uuid(chance), COLUMNS, ("k",), ("c",), log, tablets=options),
    ]
