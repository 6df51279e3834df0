"""The balancer, in a part of the runs of the profile with tablets. A node joins, and a second table spreads onto it.

During that, instances of the balancer pause or die with a plan and are superseded. Nodes' reports are lost, late or
have wrong times. Operators pause and resume it. Nodes leave, are declared down or are lost. Other faults and commands
are those of every run of the profile, so operators also move tablets and resize tables.
"""

from __future__ import annotations

from ringlog.kernel.model.settings import SETTINGS
from ringlog.protocol.balancer.balancer import ROLE
from ringlog_sim.devices.world import MS, SECOND, Chance
from ringlog_sim.stories.moving_tablets import KEYSPACE, PROFILE
from ringlog_sim.stories.scenarios import Befalling, when
from ringlog_sim.stories.story import Drawn, StorySetting

SHARE = 0.5
"""Share of the runs of the profile that have a balancer."""
PAUSES, COPIES = 0.25, 0.25
"""Shares of these runs in which an operator pauses the balancer, or alters a keyspace."""
LIMITS = (
    "tablet_stream_reads_per_shard_max",
    "tablet_stream_writes_per_shard_max",
    "tablet_stream_reads_per_node_max",
    "tablet_stream_writes_per_node_max",
    "tablet_streams_max",
)
LASTS = 8 * SECOND
SPREAD = "spread"
"""The keyspace of the second table."""


def has_balancer(seed: int, profile: str, founded: int) -> bool:
    """Return whether a run has a balancer, and so a node that joins."""
    return _has_balancer(Chance(seed, "balancing"), profile, founded)


def _has_balancer(chance: Chance, profile: str, founded: int) -> bool:
    return profile == PROFILE and founded >= 2 and chance.happens(SHARE)


def draw_balancing(setting: StorySetting) -> list[Drawn]:
    """Draw a balancer with a second table, and faults, for a part of the runs of the profile."""
    chance, founded = setting.chance("balancing"), setting.founded
    if not _has_balancer(chance, setting.profile, founded):
        return []
    # A node can be behind or dead during a migration only with three replicas and a fourth node.
    factor = founded if chance.happens(0.5) else chance.between(1, founded)
    drawn: list[Drawn] = [(0, "with_role", (ROLE,)), (0, SPREAD, (factor, chance.pick([2, 4, 8])))]
    for _ in range(chance.between(1, 3)):
        drawn += _befalls(chance, [f"n{number}" for number in range(1, founded + 2)])
    if chance.happens(PAUSES):
        # The pause lasts until the new node has joined, so that there are tablets to move.
        of = chance.pick(["", SPREAD, f"{SPREAD}.t"])
        drawn += [when("Join", "hold", of), when("Join", "let_go", of, delay=chance.between(2_500, 5_000))]
    if chance.happens(COPIES):
        at, keyspace = chance.between(500, 6_000) * MS, chance.pick([SPREAD, KEYSPACE])
        drawn.append((at, "factor", (keyspace, chance.between(1, founded))))
    return drawn


def _befalls(chance: Chance, nodes: list[str]) -> list[Drawn]:
    """Draw an event that affects the balancer, its input, or the nodes that get tablets."""
    at, name, long = chance.between(500, 6_000) * MS, chance.pick(nodes), chance.between(500, 3_000)
    nth = chance.between(1, 4)
    match what := chance.weighted(_BEFALLS):
        case "clock":
            return [(at, "clock", (name, 100_000))]
        case "vain":
            # Sources are down or not ready, and the target gives up soon. With one attempt that would repeat forever if
            # a source learns of each stage after its target. So the limit is raised at the end.
            few, many = chance.pick([1, 3, 3]), SETTINGS["stream_tries_max"].default
            tries: list[Drawn] = [(500 * MS, "set", ("stream_tries_max", few))]
            tries += [(LASTS, "set", ("stream_tries_max", many))] if few == 1 else []
            return [*tries, when("AdvanceTablets", "crash", name, long, nth=chance.between(1, 12))]
        case "asleep":
            # The target learns of its new tablets late.
            return [when("MigrateTablets", "pause", nodes[-1], long, nth=nth)]
        case "limits":
            return [(500 * MS, "set", (chance.pick(LIMITS), chance.between(1, 2)))]
        case "leave":
            return [(at, "command", ("Leave", "validator"))]
        case "down":
            return [(at, "bury", (name, chance.pick(["DeclareUp", "Remove"])))]
        case _:
            return Befalling(ROLE, "balancing", name, at, long, nth).drawn(what)


_BEFALLS = (
    ("hand over", 3),
    ("stall", 3),
    ("crash", 3),
    ("slow", 3),
    ("silent", 2),
    ("late", 2),
    ("clock", 1),
    ("vain", 3),
    ("limits", 2),
    ("asleep", 3),
    ("leave", 3),
    ("down", 3),
    ("lost", 2),
)
