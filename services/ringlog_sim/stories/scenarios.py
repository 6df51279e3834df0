"""Situations that endanger invariants, each created on purpose in a part of the runs.

Faults at random times hit a narrow window once in thousands of runs. A scenario opens the window and places a fault in
it. In a run with a scenario a hit is likely, and other runs are unchanged (swarm testing, after Groce and others;
FoundationDB's "buggify"). A scenario is a list of ordinary actions, so it shrinks, replays and is traced like others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from ringlog.kernel.values import Micros, Value
from ringlog_sim.devices.world import MS, SECOND, Chance
from ringlog_sim.stories.moments import DAWDLE, HERE
from ringlog_sim.stories.story import AGENT_HOSTS, APPLICATIONS, WRITER, Drawn

PROFILE: Final = "scenarios"
"""The profile in which every run has a scenario or a rarity."""
SHARE = 0.2
"""Share of the other runs with a scenario."""


class ScenarioSetting(Value):
    """``start``: start time of the joining node ``joins``. ``nodes``: the initial nodes."""

    start: Micros
    joins: str
    nodes: tuple[str, ...]


class Scenario(Value):
    """``weight``: relative frequency. ``joins``: the scenario needs a joining node.

    ``lasts``: minimum duration of faults after that node's start. ``founded``, ``factors``: suitable numbers of nodes
    and replication factors, empty for any. ``bursts``: writes also come at other times.
    """

    draw: Callable[[Chance, ScenarioSetting], list[Drawn]]
    weight: int
    joins: bool = False
    lasts: Micros = 4 * SECOND
    founded: tuple[int, ...] = ()
    factors: tuple[int, ...] = ()
    bursts: bool = True


def choose(chance: Chance) -> Scenario | None:
    """Return the scenario of a run. Most have none."""
    return chance.weighted([(made, made.weight) for made in SCENARIOS]) if chance.happens(SHARE) else None


def when(moment: str, what: str, *arguments: Any, nth: int = 1, delay: int = 0) -> Drawn:
    """Return the action ``what``, this number of milliseconds after the n-th occurrence of a moment."""
    return 0, "when", (moment, nth, delay, what, *arguments)


def ask(at: Micros, *kinds: str, way: str = "validator") -> list[Drawn]:
    """Return commands that operators submit one after the other, 30 ms apart."""
    return [(at + number * 30 * MS, "command", (kind, way)) for number, kind in enumerate(kinds)]


# ------------------------------------------------------------------------------------------- agents


class Befalling(Value):
    """A fault of an agent of ``role``, at the ``nth`` occurrence of its ``moment`` or at ``at``, or of its input
    ``node``.

    ``long``: milliseconds.
    """

    role: str
    moment: str
    node: str
    at: Micros
    long: int
    nth: int

    def drawn(self, what: str) -> list[Drawn]:
        """Return the actions of a fault, for the profiles of agents that depend on nodes' reports."""
        match what:
            case "hand over":
                return [(self.at, "hand_over", (self.role,))]
            case "stall":
                return [when(self.moment, "stall", HERE, self.role, 2_500 + self.long, nth=self.nth)]
            case "crash":
                return [when(self.moment, "crash", HERE, self.long, nth=self.nth)]
            case "slow":
                # Requests of one instance arrive when another one is active.
                slow = when(self.moment, "slow", HERE, self.long, 2 * self.long, nth=self.nth)
                return [slow, when(self.moment, "hand_over", self.role, nth=self.nth, delay=200)]
            case "silent":
                return [(self.at, "cut", (self.node, "broker", "there", self.long))]
            case "late":
                return [(self.at, "late", (self.node, 50, self.long))]
            case "lost":
                return [(self.at, "lost", (self.node,)), (self.at + SECOND, "bury", (self.node, "Remove"))]
            case _:
                raise AssertionError(f"nothing is called {what}")


def _answered_twice(chance: Chance, _: ScenarioSetting) -> list[Drawn]:
    """Draw requests that were rejected, would now be accepted, and are sent again to another validator."""
    at = chance.between(0, 800) * MS
    drawn = ask(at, "DropKeyspace", "DropKeyspace", "DropKeyspace", "DropKeyspace")
    drawn.append((at + chance.between(300, 900) * MS, "hand_over", ("validator",)))
    drawn += ask(at + SECOND, "CreateKeyspace", "CreateKeyspace", "CreateKeyspace", "CreateKeyspace")
    drawn += [(at + after * MS, "asked_again", ()) for after in (2_500, 4_000)]
    return drawn


def _usurped(chance: Chance, _: ScenarioSetting) -> list[Drawn]:
    """Draw an agent that pauses during its work, is superseded, and then continues."""
    moment, role = chance.weighted(
        [
            (("decided", "validator"), 2),
            (("publishing", "validator"), 5),
            (("caching", "keeper"), 5),
            (("proposing", "coordinator"), 1),
            (("announcing", "publisher"), 2),
            (("took over validator", "validator"), 1),
            (("took over publisher", "publisher"), 1),
        ]
    )
    at = chance.between(0, 600) * MS
    nth = 1 if moment.startswith("took over") else chance.between(1, 3)
    drawn = [when(moment, "stall", HERE, role, chance.between(2_500, 5_000), nth=nth)]
    if moment.startswith("took over"):
        drawn.append((at, "hand_over", (role,)))
    for after in (0, 1_500, 2_500, 4_000):
        drawn += ask(at + after * MS, "DropKeyspace", "Noop", "CreateKeyspace")
    return drawn


def _strangers(chance: Chance, _: ScenarioSetting) -> list[Drawn]:
    """Draw invalid and repeated entries that other processes write to the log."""
    times = [chance.between(300, 5_000) * MS for _ in range(6)]
    return [(at, chance.pick(["garbage", "garbage", "copies"]), (3,)) for at in times]


def _hit(chance: Chance, _: ScenarioSetting) -> list[Drawn]:
    """Draw a machine that goes down during its work."""
    moments = ["decided", "publishing", "caching", "proposing", "announcing", "acknowledging", "part", "lowering"]
    drawn = [
        when(chance.pick(moments), "crash", HERE, chance.between(200, 2_000), nth=chance.between(1, 4))
        for _ in range(2)
    ]
    return drawn + ask(chance.between(0, 800) * MS, "DropKeyspace", "Noop", "CreateKeyspace", "Noop")


# ---------------------------------------------------------------------------------------- generations


def _lowered_under_load(chance: Chance, setting: ScenarioSetting) -> list[Drawn]:
    """Draw writes while a lowering of the horizon is in progress."""
    drawn: list[Drawn] = [(setting.start + after * MS, "burst", (2,)) for after in (0, 150, 300, 450)]
    drawn += [when("lowering", "pause", name, chance.between(100, 800), delay=1) for name in AGENT_HOSTS]
    drawn += [when("lowering", "burst", 4, delay=delay) for delay in (0, 40, 80)]
    return drawn


def _late_job(chance: Chance, _: ScenarioSetting) -> list[Drawn]:
    """Draw a job that starts late, while writes arrive and generations follow each other."""
    drawn: list[Drawn] = [(0, "crash", (WRITER, chance.between(800, 5_000)))]
    return drawn + [(after * MS, "burst", (2,)) for after in (50, 600)]


def _slow_rows(chance: Chance, _: ScenarioSetting) -> list[Drawn]:
    """Draw a slow task of the job while the next generation begins. Rows of the previous generation are
    still to come.
    """
    drawn: list[Drawn] = [
        (0, "when", ("CommitCdcGeneration", 1, 0, "when", "part", 1, 0, DAWDLE, chance.between(6_500, 9_000))),
        when("CommitCdcGeneration", "burst", 1, delay=1),
    ]
    if chance.happens(0.5):
        drawn.append(when("CommitCdcGeneration", "burst", 3, delay=chance.between(200, 1_500)))
    return drawn


def _one_after_another(_: Chance, __: ScenarioSetting) -> list[Drawn]:
    """Draw a second generation that is prepared before the first one begins, with an arbitrary commit."""
    drawn: list[Drawn] = [
        when("CommitCdcGeneration", "crash", WRITER, 6_000),
        when("PublishCdcGeneration", "call_off", delay=2),
        when("CancelOperation", "command", "RequestCdcGeneration", "validator", delay=1),
    ]
    hastes: list[tuple[Any, ...]] = [("pause", name, 400) for name in AGENT_HOSTS]
    hastes += [("command", "CommitCdcGeneration", "direct")] * 3
    for delay, haste in enumerate(hastes):
        drawn.append((0, "when", ("RequestCdcGeneration", 1, 0, "when", "PutCdcGenerationData", 1, delay, *haste)))
    return drawn


def _widened(chance: Chance, _: ScenarioSetting) -> list[Drawn]:
    """Draw a closed generation, then a much wider window, and writes within it.

    A cluster that was created with two nodes begins with a generation that ended an hour ago and is still open.
    """
    moment = chance.pick(["closing", "CloseCdcGeneration"])
    drawn: list[Drawn] = [when(moment, "set", "cdc_leeway_us", 7_200 * SECOND)]
    return drawn + [when(moment, "late_burst", 2, delay=chance.between(0, 900)) for _ in range(2)]


def _other_leeway(chance: Chance, _: ScenarioSetting) -> list[Drawn]:
    """Draw a change of the allowed lateness after decisions were settled ahead.

    If writes appended in between are validated wrongly, both values are used for them.
    """
    at = chance.between(600, 1_500)
    drawn: list[Drawn] = [(after * MS, "burst", (3,)) for after in (200, at - 100)]
    drawn.append((at * MS, "set", ("cdc_leeway_us", chance.pick([100_000, 400_000, 3_000_000]))))
    return drawn + [((at + after) * MS, "burst", (3,)) for after in (20, 150, 400, 2_500)]


# ------------------------------------------------------------------------------------------- movements


def _written_at_the_edge(chance: Chance, setting: ScenarioSetting) -> list[Drawn]:
    """Draw writes just before a node becomes a replica, while its source is behind."""
    drawn: list[Drawn] = [(0, "slow_reader", (name, chance.between(200, 2_500))) for name in setting.nodes]
    for moment in ("CommitCdcGeneration", "stage publish_cdc_generation", "PublishCdcGeneration"):
        drawn.append(when(moment, "burst", 4, delay=chance.below(30)))
    return drawn


def _called_off_with_rows_in_hand(chance: Chance, _: ScenarioSetting) -> list[Drawn]:
    """Draw a cancel of a movement while its rows are in transit, or have just arrived."""
    drawn: list[Drawn] = [(after * MS, "burst", (4,)) for after in (0, 300)]
    # The last of these is too late: a client may have read from the new owner.
    moments = [("streamed", 6), ("stage write_both_read_old", 2), ("stage write_both_read_new", 2)]
    drawn.append(when(chance.weighted(moments), "call_off", delay=chance.below(60)))
    drawn.append(when("streamed", DAWDLE, chance.between(300, 2_000)))
    return drawn


def _registers_at_the_edge(chance: Chance, setting: ScenarioSetting) -> list[Drawn]:
    """Draw writes of registers just before a node becomes their replica, with a slow source.

    There are few writes, because a later one that reaches all replicas hides the loss of an earlier one.
    """
    drawn: list[Drawn] = [(0, "slow_disk", (name, chance.pick([100, 400, 1_500]))) for name in setting.nodes]
    for register, name in enumerate(APPLICATIONS):
        drawn.append((0, "slow", (name, 0, 1)))
        # From here on the application learns epochs late, so it considers writes done with the old group alone.
        drawn.append(when("PublishCdcGeneration", "slow", name, chance.between(1_000, 4_000), 9_000))
        drawn += [
            when("PublishCdcGeneration", "register", name, register, "write-QUORUM", delay=chance.below(12))
            for _ in range(2)
        ]
        drawn.append(when("stage finished", "register", name, register, "read-QUORUM", delay=chance.below(300)))
    return drawn + _read_between(chance, setting) if chance.happens(0.4) else drawn


def _read_between(chance: Chance, setting: ScenarioSetting) -> list[Drawn]:
    """Draw a write that the new replica misses, and a read that still finds it while both groups are written."""
    (one, other), stage = APPLICATIONS, "stage write_both_read_old"
    drawn = [when("streamed", DAWDLE, chance.between(600, 1_500))]
    drawn.append(when(stage, "cut", one, setting.joins, "there", 4_000))
    for _ in range(4):
        at = chance.between(100, 700)
        drawn.append(when(stage, "register", one, 0, "write-QUORUM", delay=at))
        drawn.append(when(stage, "register", other, 0, "read-QUORUM", delay=at + chance.between(20, 200)))
        drawn.append(when("stage finished", "register", other, 0, "read-QUORUM", delay=chance.below(300)))
    return drawn


SCENARIOS: tuple[Scenario, ...] = (
    Scenario(_answered_twice, 3),
    Scenario(_usurped, 6),
    Scenario(_strangers, 1),
    Scenario(_hit, 1),
    Scenario(_late_job, 3, founded=(2, 3)),
    Scenario(_lowered_under_load, 2, joins=True),
    Scenario(_slow_rows, 4, joins=True, founded=(1, 2, 3), bursts=False),
    Scenario(_one_after_another, 3, joins=True),
    Scenario(_widened, 2, founded=(2, 3)),
    Scenario(_other_leeway, 2, founded=(1, 2, 3)),
    Scenario(_written_at_the_edge, 6, joins=True, lasts=5 * SECOND, founded=(1, 2, 3)),
    Scenario(_called_off_with_rows_in_hand, 2, joins=True, founded=(1, 2, 3)),
    Scenario(_registers_at_the_edge, 6, joins=True, lasts=7 * SECOND, founded=(2, 3, 3, 3), factors=(1, 1, 1, 3)),
)
