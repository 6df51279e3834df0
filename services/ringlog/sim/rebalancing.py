"""Zones in all runs of a profile of their own, under the agent ``rebalancer``: replicas, partitions, data nodes change.

Moves are cancelled in the midst, nodes join, sleep, are declared down, are lost; instances of the rebalancer stand
still or die between any two of their requests and are taken over; words of nodes get lost or come late. All other
faults are those of every run.
"""

from __future__ import annotations

from typing import Final

from ringlog.kernel.values import Micros
from ringlog.protocol.rebalancer_core import ROLE
from ringlog.sim.chance import Chance
from ringlog.sim.moments import HERE
from ringlog.sim.scenarios import Befalling, Drawn, when
from ringlog.sim.world import MS, SECOND

PROFILE: Final = "zones"
"""The profile of which every run has them."""
LASTS: Micros = 8 * SECOND
KINDS: Final = (
    ("AlterZone", 6),
    ("CancelRebalance", 2),
    ("TriggerRebalance", 2),
    ("SetDataNodes", 1),
    ("ResetPartitions", 1),
    ("CreateZone", 1),
    ("DropZone", 1),
)


def rebalancing(chance: Chance, nodes: list[str], agents: tuple[str, ...]) -> list[Drawn]:
    """(time, what happens, with which arguments). ``nodes``: all that there will be; ``agents``: hosts of agents."""
    drawn: list[Drawn] = [(0, "with_role", (ROLE,))]
    drawn += [(chance.between(0, 60) * MS, "zone", ("CreateZone",)) for _ in range(2)]
    for _ in range(chance.between(3, 8)):
        drawn.append((chance.between(200, 6_500) * MS, "zone", (chance.weighted(KINDS),)))
    drawn += [(chance.between(500, 7_000) * MS, "zone", ("RestartReplicas",)) for _ in range(2)]
    for _ in range(chance.between(1, 3)):
        nth, delay = chance.between(1, 4), chance.pick([0, 5, 50, 400])
        drawn.append(when("TriggerRebalance", "zone", "CancelRebalance", nth=nth, delay=delay))
    for _ in range(chance.between(1, 4)):
        drawn += _befalls(chance, nodes, agents)
    return drawn


def _befalls(chance: Chance, nodes: list[str], agents: tuple[str, ...]) -> list[Drawn]:
    """Something that happens to the rebalancer, to what it hears, or to members of groups."""
    at, name, long = chance.between(300, 6_000) * MS, chance.pick(nodes), chance.between(300, 2_500)
    nth = chance.between(1, 5)
    match what := chance.weighted(_BEFALLS):
        case "member dies":
            return [when(chance.pick(["TriggerRebalance", "SwitchStable"]), "crash", name, long, nth=nth)]
        case "dies with its word":
            return [when("acknowledging", "crash", HERE, long, nth=chance.between(4, 20))]
        case "asleep":
            return [when(chance.pick(["TriggerRebalance", "CancelRebalance"]), "pause", name, 2 * long, nth=nth)]
        case "limits":
            return [
                (500 * MS, "set", ("zone_moves_max", chance.between(1, 2))),
                (LASTS, "set", ("zone_moves_max", 100)),
            ]
        case "clock":
            return [(at, "clock", (chance.pick(agents), chance.pick([-3_000, 3_000])))]
        case "down":
            return [(at, "bury", (name, "DeclareUp"))]
        case "removed":
            return [(at, "bury", (name, "Remove"))]
        case _:
            return Befalling(ROLE, "rebalancing", name, at, long, nth).drawn(what)


_BEFALLS: Final = (
    ("hand over", 3),
    ("stall", 3),
    ("crash", 3),
    ("slow", 3),
    ("silent", 2),
    ("late", 2),
    ("member dies", 3),
    ("dies with its word", 3),
    ("asleep", 3),
    ("limits", 2),
    ("clock", 1),
    ("down", 3),
    ("removed", 2),
    ("lost", 2),
)
