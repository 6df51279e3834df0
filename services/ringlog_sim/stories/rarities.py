"""Rare commands of operators, in a part of the runs, after the actions that make them possible.

Random commands rarely find their preconditions: a permanently lost node with enough others, a stream after failed
attempts, an unused table, a writer without permissions. A rarity is a scenario for runs that have none. Other runs are
unchanged.
"""

from __future__ import annotations

from ringlog_sim.devices.world import MS, SECOND, Chance
from ringlog_sim.stories.scenarios import Scenario, ScenarioSetting, ask, when
from ringlog_sim.stories.story import Drawn

SHARE = 0.06
"""Share of the runs without a scenario that have a rarity."""


def rarity(chance: Chance) -> Scenario | None:
    """Return the rarity of a run without a scenario. Most have none."""
    return chance.weighted([(made, made.weight) for made in RARITIES]) if chance.happens(SHARE) else None


def _tables(chance: Chance, _: ScenarioSetting) -> list[Drawn]:
    """Draw creations and drops of tables, and of keyspaces without writes."""
    at, drawn = chance.between(0, 500) * MS, []
    for number, kinds in enumerate(
        (("CreateKeyspace",), ("CreateTable",) * 3, ("AlterTable",), ("DropTable",) * 4, ("DropKeyspace",) * 2)
    ):
        drawn += ask(at + number * 200 * MS, *kinds)
    return drawn


def _removed(chance: Chance, setting: ScenarioSetting) -> list[Drawn]:
    """Draw a removal of a node, which is mostly lost, after another node has joined. Every range has enough
    replicas.
    """
    gone = chance.pick(setting.nodes)
    drawn = [when("stage finished", "bury", gone, "Remove", delay=chance.between(20, 400))]
    if chance.happens(0.6):
        drawn.append(when("stage finished", "lost", gone))
    return drawn


def _assassinated(chance: Chance, setting: ScenarioSetting) -> list[Drawn]:
    """Draw a lost node, or one that seems lost, which an operator assassinates or declares up."""
    at, gone = chance.between(0, 800) * MS, chance.pick(setting.nodes)
    drawn: list[Drawn] = [(at, "lost", (gone,))] if chance.happens(0.5) else []
    return [*drawn, (at + 100 * MS, "bury", (gone, chance.pick(["Assassinate", "Assassinate", "DeclareUp"])))]


def _stopped(chance: Chance, setting: ScenarioSetting) -> list[Drawn]:
    """Draw streams that give up soon because sources are behind or down, or an invented failure.

    An operator then decides.
    """
    drawn: list[Drawn] = [(at * MS, "set", ("stream_tries_max", 1)) for at in (150, 500)]
    way = chance.pick(["behind", "away", "said"])
    if way == "said":
        drawn += [when("stage write_both_read_old", "command", "FailOperation", "validator") for _ in range(4)]
    elif way == "behind":
        drawn += [(0, "slow_reader", (name, chance.between(1_500, 4_000))) for name in setting.nodes]
        for moment in ("CommitCdcGeneration", "stage publish_cdc_generation", "PublishCdcGeneration"):
            drawn.append(when(moment, "burst", 3, delay=chance.below(30)))
    else:
        drawn += [when("stage write_both_read_old", "crash", name, 3_500) for name in setting.nodes]
    for nth in (1, 2):
        delay = chance.pick([20, 300, 1_500])
        drawn.append(when("FailOperation", "command", "RetryOperation", "validator", nth=nth, delay=delay))
    return drawn


def _fenced(chance: Chance, setting: ScenarioSetting) -> list[Drawn]:
    """Draw a fence of a job that seems lost, often in the middle of work, and its later return."""
    moment = chance.pick(["part", "CommitCdcGeneration", "PublishCdcGeneration"])
    fence = (chance.between(1_500, 5_000), chance.happens(0.6))
    drawn = [when(moment, "fence", *fence, nth=chance.between(1, 2), delay=chance.below(1_500))]
    drawn.append((setting.start, "burst", (3,)))
    for delay in (0, 1_000, 2_100):
        drawn.append(when("CommitCdcGeneration", "burst", 3, delay=delay + chance.below(400)))
    return drawn


RARITIES: tuple[Scenario, ...] = (
    Scenario(_tables, 1),
    # Two nodes and a joining one are in one datacenter, with two replicas: one of them may be lost.
    Scenario(_removed, 3, joins=True, lasts=8 * SECOND, founded=(2,), factors=(2,)),
    Scenario(_assassinated, 2, founded=(2, 3)),
    Scenario(_stopped, 3, joins=True, lasts=7 * SECOND, founded=(2, 3)),
    Scenario(_fenced, 3, joins=True, lasts=7 * SECOND, founded=(1, 2, 3)),
)
