"""A run's script: its initial cluster and its actions, as plain data.

The script is drawn from the seed before the run, so it can be shortened (``shrink``), stored as a regression test and
replayed. An action's draws depend on its own number only. So removing another action does not change it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ringlog.kernel.values import Micros, Value, asdict
from ringlog.protocol.roles import ROLES
from ringlog_sim.devices.world import MS, SECOND, Chance
from ringlog_sim.families import FAMILIES
from ringlog_sim.families.principals import PROFILE as PRINCIPALS
from ringlog_sim.shape import ClusterShape, two_racks_each
from ringlog_sim.stories.balancing import has_balancer
from ringlog_sim.stories.pipeline_faults import switches
from ringlog_sim.stories.rarities import RARITIES, rarity
from ringlog_sim.stories.scenarios import PROFILE as SITUATIONS
from ringlog_sim.stories.scenarios import SCENARIOS, Scenario, ScenarioSetting, choose
from ringlog_sim.stories.story import (
    AGENT_HOSTS,
    APPLICATIONS,
    CONSUMER,
    OPERATOR,
    PRODUCER,
    WRITER,
    StorySetting,
)
from ringlog_sim.stories.table import STORIES, drawn_stories, stories_of

BUSY_ROLES = tuple(name for name, row in ROLES.items() if not row.is_optional)


class Action(Value):
    """An action: at ``at`` (microseconds), ``what`` happens, with ``arguments``."""

    number: int
    at: Micros
    what: str
    arguments: tuple[Any, ...] = ()


class Script(Value):
    """All inputs of a run, except the code. ``calm``: end of the last fault in microseconds."""

    seed: int
    profile: str
    shape: ClusterShape
    calm: Micros
    actions: tuple[Action, ...]


class Profile(Value):
    """The amount of activity in ``length``. A fault lasts at most ``fault`` milliseconds."""

    name: str
    length: Micros
    fault: int
    commands: tuple[int, int]
    faults: tuple[int, int]
    bursts: tuple[int, int]
    writes: tuple[int, int]
    reads: int
    nodes: tuple[int, int]
    joining: tuple[int, int]
    tokens: int
    registers: int


PROFILES: Mapping[str, Profile] = {
    profile.name: profile
    for profile in (
        Profile("tablets", 2 * SECOND, 1_000, (0, 1), (0, 3), (1, 1), (1, 3), 1, (2, 3), (0, 0), 2, 3),
        Profile("truncation", 2 * SECOND, 1_000, (1, 4), (0, 2), (1, 1), (1, 2), 1, (1, 3), (0, 1), 2, 0),
        Profile("columns", 2 * SECOND, 1_000, (0, 1), (0, 2), (1, 1), (1, 2), 1, (1, 2), (0, 1), 2, 0),
        Profile("zones", 2 * SECOND, 1_000, (0, 1), (0, 3), (1, 1), (1, 2), 1, (2, 3), (1, 2), 2, 0),
        Profile("rows", 2 * SECOND, 1_000, (0, 1), (0, 2), (1, 2), (1, 3), 1, (1, 3), (1, 1), 2, 0),
        Profile("peers", 2 * SECOND, 1_000, (1, 3), (0, 2), (0, 1), (1, 2), 1, (2, 4), (0, 1), 2, 3),
        Profile("members", 2 * SECOND, 1_000, (0, 1), (0, 2), (0, 1), (1, 2), 1, (2, 6), (0, 1), 2, 0),
        Profile("images", 2 * SECOND, 1_000, (0, 1), (0, 2), (1, 1), (1, 2), 1, (1, 2), (0, 1), 2, 0),
        Profile("scenarios", 2 * SECOND, 1_000, (1, 4), (1, 4), (1, 1), (1, 3), 1, (0, 3), (0, 1), 2, 3),
        Profile("small", 2 * SECOND, 1_000, (1, 4), (1, 4), (1, 1), (1, 3), 1, (0, 3), (0, 1), 2, 3),
        Profile("medium", 20 * SECOND, 4_000, (8, 20), (3, 10), (2, 5), (4, 12), 6, (0, 4), (1, 3), 3, 20),
        Profile("principals", 2 * SECOND, 1_000, (0, 2), (1, 4), (1, 1), (1, 3), 1, (1, 3), (0, 1), 2, 0),
        Profile("large", 60 * SECOND, 4_000, (20, 60), (8, 30), (5, 15), (5, 20), 20, (1, 6), (2, 5), 4, 60),
    )
}

ALL: Final = "all"
"""The name for all profiles. Each seed then has one of them, drawn by ``SHARES``."""

SHARES: Mapping[str, int] = {
    "small": 29,
    "tablets": 12,
    "zones": 8,
    "images": 10,
    "medium": 8,
    "scenarios": 8,
    "rows": 5,
    "members": 5,
    "truncation": 4,
    "columns": 3,
    "peers": 2,
    "principals": 5,
    "large": 1,
}
"""Number of runs with each profile, of 100 runs of ``ALL``.

Profiles that have found defects lately get more runs. Profiles with expensive runs get fewer: a run of ``large`` costs
as much as 20 of ``small``.
"""


def profile_of(seed: int) -> str:
    """Return the profile of a seed in a search over all of them."""
    return Chance(seed, "profile").weighted([*SHARES.items()])


FIRST_SWITCH, FIRST_OF_SCENARIO, FIRST_REPLACEMENT = 1_000, 2_000, 3_000
"""Number of the first action of a switch under load, of a scenario, and of a replacement by a new node.

Numbers of stories begin above these (``stories.table``).
"""

STAY_OUT = 0.55
"""Share of runs without a scenario in which the minimum number of nodes joins. Runs with a scenario have more."""


def draw_script(seed: int, profile: Profile) -> Script:
    """Return the script of a seed."""
    chance, special = Chance(seed, f"script/{profile.name}"), Chance(seed, f"scenario/{profile.name}")
    chosen = _chosen(seed, profile.name, special)
    founded, joining, factor = _cluster(seed, chance, profile, chosen, special)
    is_balanced = has_balancer(seed, profile.name, founded)
    joining = max(joining, int(is_balanced))
    history = chance.pick([10_000, 10_000, 100])
    # Short runs have few shapes, because preparing a shape costs as much as a run.
    shape = ClusterShape(
        founded=founded,
        joining=joining,
        factor=factor,
        tokens=chance.between(1, profile.tokens) if profile.tokens > 2 else _few_tokens(seed, founded, is_balanced),
        history=history,
        old=founded > 0 and history == 100 and chance.happens(0.7),
        racked=two_racks_each(seed, profile.name),
        guarded=profile.name == PRINCIPALS,
    )
    drawn: list[tuple[str, tuple[Any, ...]]] = [("start", (f"n{founded + number + 1}",)) for number in range(joining)]
    newcomers = range(founded + 1, founded + joining + 1) if chosen is None else range(0)
    replaced = _replaced(Chance(seed, f"replace/{profile.name}"), founded, newcomers, shape.places)
    if chosen is None or chosen.bursts:
        drawn += [("burst", (chance.between(*profile.writes),)) for _ in range(chance.between(*profile.bursts))]
    drawn += [("read", ()) for _ in range(profile.reads)]
    kinds = [(kind, entry[0]) for family in FAMILIES for kind, entry in family.commands.items() if entry is not None]
    for _ in range(chance.between(*profile.commands)):
        drawn.append(("command", (chance.weighted(kinds), chance.weighted([("validator", 5), ("direct", 1)]))))
    names = tuple(f"n{number + 1}" for number in range(founded + joining))
    hosts = [*AGENT_HOSTS, *AGENT_HOSTS, *names, WRITER, CONSUMER, PRODUCER, OPERATOR]
    mix = [kind for kind in FAULTS if chance.happens(0.5)] or ["crash"]
    for _ in range(chance.between(*profile.faults)):
        what = chance.pick(mix)
        drawn.append((what, _arguments(what, chance, hosts, profile.fault)))
    moments = _moments(drawn, chance, profile)
    actions = [
        Action(number, _when(number, moments, chance, profile), what, arguments)
        for number, (what, arguments) in enumerate(drawn)
    ]
    starts = [at for _, at in sorted(moments.items())]
    switching = switches(Chance(seed, f"switches/{profile.name}"), starts) if chosen is None else []
    actions += [Action(FIRST_SWITCH + n, at, what, arguments) for n, (at, what, arguments) in enumerate(switching)]
    actions += _replacements(Chance(seed, f"lost/{profile.name}"), actions, replaced)
    if chosen is None or (not chosen.factors and special.happens(0.5)):
        actions += _registers(Chance(seed, f"registers/{profile.name}"), len(drawn), moments, profile)
    calm = profile.length + profile.fault * MS
    if chosen is None:
        for story, made in drawn_stories(StorySetting(seed, profile.name, founded, names)):
            actions += [Action(story.first + n, *one) for n, one in enumerate(made)]
            calm = max(calm, story.lasts + (profile.fault * MS if story.faults_after else 0))
    if chosen is not None:
        number = special.pick(sorted(moments)) if moments else -1
        start, name = (moments[number], drawn[number][1][0]) if moments else (0, "")
        nodes = tuple(f"n{number + 1}" for number in range(founded))
        befalls = chosen.draw(special, ScenarioSetting(start, name, nodes))
        actions += [
            Action(FIRST_OF_SCENARIO + n, at, what, arguments) for n, (at, what, arguments) in enumerate(befalls)
        ]
        calm = max(calm, start + chosen.lasts if chosen.joins else 0, *(at for at, _, _ in befalls))
    return Script(seed, profile.name, shape, calm, tuple(sorted(actions, key=lambda a: a.at)))


def _chosen(seed: int, profile: str, special: Chance) -> Scenario | None:
    """Return the scenario or the rarity of a run, or None if the profile has a story in every run."""
    chosen = choose(special) or rarity(Chance(seed, f"rarity/{profile}"))
    if profile == SITUATIONS:
        return special.weighted([(made, made.weight) for made in (*SCENARIOS, *RARITIES)])
    return None if profile in STORIES else chosen


def _few_tokens(seed: int, founded: int, balanced: bool) -> int:
    """Return the number of tokens of each node of a short run. An odd number implies one datacenter."""
    return 1 if balanced and Chance(seed, "balancing/shape").happens(0.5) else 1 + founded % 2


def _replaced(chance: Chance, founded: int, newcomers: range, places: int) -> dict[str, str]:
    """Return new nodes that replace an initial node of their datacenter and rack instead of joining."""
    numbers = [number for number in newcomers if 1 <= number - places <= founded]
    return {f"n{number}": f"n{number - places}" for number in numbers if chance.happens(0.35)}


def _replacements(chance: Chance, actions: list[Action], replaced: dict[str, str]) -> list[Action]:
    """Return the replacements. In half of them, the replaced node has lost its disk before and never returns."""
    starts = {action.arguments[0]: action.at for action in actions if action.what == "start"}
    made = []
    for number, (newcomer, founder) in enumerate(sorted(replaced.items())):
        at = chance.between(0, starts[newcomer])
        made.append(Action(FIRST_REPLACEMENT + 2 * number, at, "replace", (newcomer, founder)))
        if chance.happens(0.5):
            made.append(Action(FIRST_REPLACEMENT + 2 * number + 1, at, "lost", (founder,)))
    return made


def _cluster(
    seed: int, chance: Chance, profile: Profile, chosen: Scenario | None, special: Chance
) -> tuple[int, int, int]:
    """Return (initial nodes, joining nodes, replication factor) for a scenario."""
    founded = chance.between(*profile.nodes)
    joining, factor = chance.between(*profile.joining), chance.between(1, 3)
    if chosen is not None:
        founded = special.pick(chosen.founded) if chosen.founded else founded
        factor = special.pick(chosen.factors) if chosen.factors else factor
        joining = max(joining, int(chosen.joins))
    elif special.happens(STAY_OUT):
        joining = profile.joining[0]
    needs = next(iter(stories_of(profile.name, seed)), None)
    if needs is not None:
        founded, factor = needs.founded or founded, needs.factor or factor
    return founded, joining if founded else max(joining, 1), factor


def _registers(chance: Chance, first: int, moments: dict[int, Micros], profile: Profile) -> list[Action]:
    """Return the applications' operations on registers: overlapping writes and reads, mostly while a node joins.

    Each register has one writer, and both applications read. The last register is for writes at ONE, which guarantee
    little.
    """
    levels = [("QUORUM", 10), ("ALL", 2), ("ONE", 1)]
    actions: list[Action] = []

    def add(at: Micros, what: str, *arguments: Any) -> None:
        actions.append(Action(first + len(actions), at, what, arguments))

    for turn in range(profile.registers // 2):
        at, register = _near(moments, chance, profile), chance.below(2)
        for wish in ("write", "read", "read" if turn % 2 else "write", "read"):
            moment, level = at + chance.below(500_000), chance.weighted(levels)
            chosen = 2 if level == "ONE" and chance.happens(0.5) else register
            if wish == "read":
                add(moment, "register", chance.pick(APPLICATIONS), chosen, f"read-{level}")
            else:
                chosen = 2 if level == "ONE" else register
                add(moment, "register", APPLICATIONS[chosen % 2], chosen, f"write-{level}")
    # A fault for the registers.
    what = chance.pick(["crash", "crash", "pause", "cut", "slow", "none"])
    hosts = [*APPLICATIONS, *(f"n{number + 1}" for number in range(3))]
    if what != "none":
        add(_near(moments, chance, profile), what, *_arguments(what, chance, hosts, profile.fault))
    return actions


def _near(moments: dict[int, Micros], chance: Chance, profile: Profile) -> Micros:
    """Return a time, mostly while a node joins, which takes about a second."""
    if moments and chance.happens(0.8):
        return moments[chance.pick(sorted(moments))] + chance.between(0, 1_200_000)
    return chance.between(0, profile.length)


def _moments(drawn: list[tuple[str, tuple[Any, ...]]], chance: Chance, profile: Profile) -> dict[int, Micros]:
    """Return the start times of nodes by action number. Most are early, so that the run covers their joins."""
    return {
        number: chance.between(0, SECOND if chance.happens(0.7) else profile.length)
        for number, (what, _) in enumerate(drawn)
        if what == "start"
    }


def _when(number: int, moments: dict[int, Micros], chance: Chance, profile: Profile) -> Micros:
    """Return the time of an action. More than half are while a node joins, close enough to share a stage."""
    if number in moments:
        return moments[number]
    if moments and chance.happens(0.6):
        return moments[chance.pick(sorted(moments))] + chance.between(0, 2 * SECOND)
    return chance.between(0, profile.length)


FAULTS: tuple[str, ...] = (
    "crash",
    "wipe",
    "pause",
    "cut",
    "lossy",
    "late",
    "slow",
    "clock",
    "leader",
    "broker_down",
    "hand_over",
    "cache_flush",
    "cache_down",
    "cache_stale",
    "garbage",
    "copies",
    "torn",
    "second_writer",
    "mid_batch",
)


def _arguments(what: str, chance: Chance, hosts: list[str], longest: int) -> tuple[Any, ...]:
    """Return the arguments of an action. Durations are in milliseconds."""
    host, duration = chance.pick(hosts), chance.between(100, longest)
    match what:
        case "crash" | "pause":
            return host, duration
        case "wipe":
            return chance.pick([*AGENT_HOSTS, WRITER]), duration
        case "cut":
            other = chance.weighted([("broker", 6), (chance.pick(hosts), 2), ("cache", 1)])
            return host, other, chance.pick(["both", "there", "back"]), duration
        case "lossy":
            return host, chance.pick([5, 20, 50]), duration
        case "late":
            return host, chance.pick([5, 20, 50]), duration
        case "slow":
            return host, chance.between(5, 600), duration
        case "clock":
            return host, chance.pick([-30_000, -3_000, -200, 200, 3_000, 30_000])
        case "broker_down" | "cache_down" | "second_writer":
            return (duration,)
        case "hand_over":
            return (chance.pick(BUSY_ROLES),)
        case "torn":
            return (host,)
        case "mid_batch":
            return chance.between(1, 16), duration
        case "garbage" | "copies":
            return (chance.between(1, 3),)
        case _:
            return ()


def to_json(script: Script) -> dict[str, Any]:
    """Return the script as JSON. ``from_json`` reverses it."""
    return asdict(script)


def from_json(value: Mapping[str, Any]) -> Script:
    """Return the script from ``to_json``. Raise KeyError or TypeError for other values."""
    actions = tuple(
        Action(action["number"], action["at"], action["what"], tuple(action["arguments"]))
        for action in value["actions"]
    )
    return Script(value["seed"], value["profile"], ClusterShape(**value["shape"]), value["calm"], actions)


def trace_line(action: Action) -> str:
    """Return an action as a line of the trace."""
    return " ".join([action.what, *(str(argument) for argument in action.arguments)])
