"""What operators seldom do, brought about on purpose in a part of the runs: what it takes comes first, in this order.

Drawn by themselves these commands hardly ever find what they need: a node that is down for good while enough others
are there, a stream that was tried in vain, a table that is nobody's, a writer without rights. A rarity is a scenario
like others, in runs that have none; all other runs are as they were.
"""

from __future__ import annotations

from ringlog_sim.devices.world import MS, SECOND, Chance
from ringlog_sim.stories.scenarios import Scenario, ScenarioSetting, ask, when
from ringlog_sim.stories.story import Drawn

SHARE = 0.06
"""How many of the runs without a scenario have a rarity."""


def rarity(chance: Chance) -> Scenario | None:
    """The rarity of a run without a scenario; most have none."""
    return chance.weighted([(made, made.weight) for made in RARITIES]) if chance.happens(SHARE) else None


def _tables(chance: Chance, _: ScenarioSetting) -> list[Drawn]:
    """Tables come and go; so do the keyspaces that nobody writes to."""
    at, drawn = chance.between(0, 500) * MS, []
    for number, kinds in enumerate(
        (("CreateKeyspace",), ("CreateTable",) * 3, ("AlterTable",), ("DropTable",) * 4, ("DropKeyspace",) * 2)
    ):
        drawn += ask(at + number * 200 * MS, *kinds)
    return drawn


def _removed(chance: Chance, setting: ScenarioSetting) -> list[Drawn]:
    """When another node has joined, one goes for good, as a rule, and is removed: every range has enough others."""
    gone = chance.pick(setting.nodes)
    drawn = [when("stage finished", "bury", gone, "Remove", delay=chance.between(20, 400))]
    if chance.happens(0.6):
        drawn.append(when("stage finished", "lost", gone))
    return drawn


def _assassinated(chance: Chance, setting: ScenarioSetting) -> list[Drawn]:
    """A node goes for good, or only seems to, and somebody does not wait for its removal, or takes the word back."""
    at, gone = chance.between(0, 800) * MS, chance.pick(setting.nodes)
    drawn: list[Drawn] = [(at, "lost", (gone,))] if chance.happens(0.5) else []
    return [*drawn, (at + 100 * MS, "bury", (gone, chance.pick(["Assassinate", "Assassinate", "DeclareUp"])))]


def _stopped(chance: Chance, setting: ScenarioSetting) -> list[Drawn]:
    """Sources are behind with their reading, or away, and nobody tries a stream for long; or somebody says so who has
    not even tried. Then an operator decides.
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
    """The job is taken for gone for good, in the middle of something as often as not, and comes back after a while."""
    moment = chance.pick(["part", "CommitCdcGeneration", "PublishCdcGeneration"])
    fence = (chance.between(1_500, 5_000), chance.happens(0.6))
    drawn = [when(moment, "fence", *fence, nth=chance.between(1, 2), delay=chance.below(1_500))]
    drawn.append((setting.start, "burst", (3,)))
    for delay in (0, 1_000, 2_100):
        drawn.append(when("CommitCdcGeneration", "burst", 3, delay=delay + chance.below(400)))
    return drawn


RARITIES: tuple[Scenario, ...] = (
    Scenario(_tables, 1),
    # Two nodes and one that joins lie in one datacenter, with two replicas: one of them may die.
    Scenario(_removed, 3, joins=True, lasts=8 * SECOND, founded=(2,), factors=(2,)),
    Scenario(_assassinated, 2, founded=(2, 3)),
    Scenario(_stopped, 3, joins=True, lasts=7 * SECOND, founded=(2, 3)),
    Scenario(_fenced, 3, joins=True, lasts=7 * SECOND, founded=(1, 2, 3)),
)
