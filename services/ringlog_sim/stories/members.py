"""The metadata service, in all runs of its profile. Its members change while the participating processes die.

Operators request one, three, five or ten members, or a number that follows the number of nodes. They add, remove and
exclude single members. Members leave the cluster, are removed, assassinated, declared down, or permanently lost. A part
of this happens in a recovery. Coordinators, validators and nodes die at each step, nodes also in a write of their copy.
In a part of the runs there are snapshots and truncations, so that copies restart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from immutables import Map

from ringlog.kernel.commands.cluster.service import (
    AddServiceMember,
    AdvanceService,
    ReconfigureService,
    RemoveServiceMember,
)
from ringlog.kernel.commands.control.recovery import EnterRecovery, ForcedPart, ForceState, LeaveRecovery
from ringlog.kernel.commands.topology.movements import Assassinate, Leave, Remove
from ringlog.kernel.commands.topology.nodes import DeclareDown, DeclareUp
from ringlog.kernel.encoding.encoder import encoded_parts
from ringlog.kernel.model.state import ClusterState, in_order
from ringlog.kernel.service import GONE, STAGES, read_group
from ringlog.kernel.values import Command, Micros, NodeId, replace
from ringlog.protocol.coordinator.core import ROLE
from ringlog_sim.devices.world import MS, SECOND, Chance
from ringlog_sim.stories.moments import HERE
from ringlog_sim.stories.scenarios import Befalling, when
from ringlog_sim.stories.story import AGENT_HOSTS, Drawn, StorySetting

PROFILE: Final = "members"
"""The profile that always has this story. Others never have it."""
LASTS: Micros = 8 * SECOND
SIZES: Final = ((1, 3), (3, 3), (5, 1), (10, 1))
"""Requested numbers of members, with weights."""
CUTS: Final = 0.3
"""Share of the runs in which the log is truncated."""
STEP: Final = "AdvanceService"
"""The entry of each step. A process may die at each of them."""


def _members(state: ClusterState) -> list[NodeId]:
    return [name for name, _ in in_order(state.service)]


def _pick(names: Sequence[NodeId], chance: Chance) -> NodeId:
    """Return one of the names, or an unknown node if there are none."""
    return chance.pick(names) if names else "nobody"


def _any(state: ClusterState, chance: Chance) -> NodeId:
    return _pick([name for name, _ in in_order(state.nodes)], chance)


def _member(state: ClusterState, chance: Chance) -> NodeId:
    return _pick(_members(state), chance)


def _size(_: ClusterState, chance: Chance) -> list[Command]:
    return [ReconfigureService(chance.weighted(SIZES))]


def _automatic(_: ClusterState, __: Chance) -> list[Command]:
    return [ReconfigureService(automatic=True)]


def _exclude(state: ClusterState, chance: Chance) -> list[Command]:
    """Return an exclusion of one or more members, or the end of all exclusions."""
    some = {name for name in read_group(state) if chance.happens(0.4)}
    return [ReconfigureService(excluded=tuple(sorted(some)) if chance.happens(0.8) else ())]


def _add(state: ClusterState, chance: Chance) -> list[Command]:
    others = [name for name, node in in_order(state.nodes) if name not in state.service and node.tokens]
    return [AddServiceMember(_pick(others, chance) if chance.happens(0.9) else _any(state, chance))]


def _remove(state: ClusterState, chance: Chance) -> list[Command]:
    return [RemoveServiceMember(_member(state, chance) if chance.happens(0.9) else _any(state, chance))]


def _step(state: ClusterState, chance: Chance) -> list[Command]:
    """Return an operator's manual step, usually a wrong one and without acknowledgements."""
    return [AdvanceService(_any(state, chance), chance.pick([*STAGES, GONE]))]


def _leave(state: ClusterState, chance: Chance) -> list[Command]:
    return [Leave(_member(state, chance))]


def _down(state: ClusterState, chance: Chance) -> list[Command]:
    return [DeclareDown(_member(state, chance), "no heartbeat")]


def _up(state: ClusterState, _: Chance) -> list[Command]:
    return [DeclareUp(name, "it is back") for name, node in in_order(state.nodes) if node.down]


def _bury(state: ClusterState, chance: Chance) -> list[Command]:
    """Return commands that declare a member down, and remove it after a hand-over or assassinate it at once."""
    name = _member(state, chance)
    return [DeclareDown(name, "no heartbeat"), Remove(name) if chance.happens(0.5) else Assassinate(name)]


def _recover(state: ClusterState, chance: Chance) -> list[Command]:
    """Return the start of a recovery, which needs no quorum, and sometimes a forced removal of one or all members."""
    composed = state.service.delete(_member(state, chance)) if state.service else state.service
    if chance.happens(0.2):
        composed = Map()
    part = ForcedPart("service", encoded_parts(replace(state, service=composed)).get("service", b""))
    forced = [ForceState("a majority is lost", "ann", (part,))] if chance.happens(0.5) else []
    return [EnterRecovery("a majority is lost", "ann"), *forced]


def _recovered(_: ClusterState, __: Chance) -> list[Command]:
    return [LeaveRecovery("it is mended", "ann")]


ASKED: Final[Mapping[str, tuple[int, Callable[[ClusterState, Chance], list[Command]]]]] = {
    "size": (6, _size),
    "automatic": (2, _automatic),
    "exclude": (3, _exclude),
    "add": (3, _add),
    "remove": (3, _remove),
    "step": (2, _step),
    "leave": (3, _leave),
    "down": (3, _down),
    "up": (2, _up),
    "bury": (2, _bury),
    "recover": (1, _recover),
    "recovered": (1, _recovered),
}
"""The operators' requests: weight, and function that draws the commands for the current members."""


def drawn_commands(kind: str, state: ClusterState, chance: Chance) -> list[Command]:
    """Return an operator's commands, in order."""
    return ASKED[kind][1](state, chance)


def draw_member_changes(setting: StorySetting) -> list[Drawn]:
    """Draw operators' requests, and faults at the following steps."""
    chance = setting.chance("members")
    drawn: list[Drawn] = [(0, "keep_log", ())]
    drawn.append((chance.between(0, 300) * MS, "service", (chance.pick(["size", "size", "automatic", "add"]),)))
    kinds = [(kind, weight) for kind, (weight, _) in ASKED.items()]
    for _ in range(chance.between(6, 12)):
        drawn.append((chance.between(400, 6_500) * MS, "service", (chance.weighted(kinds),)))
    if any(one[1:] == ("service", ("recover",)) for one in drawn):
        drawn.append((LASTS - SECOND, "service", ("recovered",)))
    for _ in range(chance.between(2, 4)):
        drawn += _befalls(chance, setting.nodes)
    return drawn


def _befalls(chance: Chance, nodes: Sequence[str]) -> list[Drawn]:
    """Draw an event at a step, or for one of its participants."""
    name, long, nth = chance.pick(nodes), chance.between(100, 2_000), chance.between(1, 8)
    at = chance.between(300, 6_000) * MS
    match what := chance.weighted(_BEFALLS):
        case "agent dies":
            return [when(STEP, "crash", chance.pick(AGENT_HOSTS), long, nth=nth, delay=chance.pick([0, 0, 5, 50]))]
        case "node dies":
            return [when(STEP, "crash", name, long, nth=nth, delay=chance.pick([0, 1, 20, 200]))]
        case "dies with its word":
            return [when("acknowledging", "crash", HERE, long, nth=chance.between(4, 20))]
        case "dies in a write":
            return [when(STEP, "torn", name, nth=nth)]
        case "asleep":
            return [when(STEP, "pause", name, 2 * long, nth=nth)]
        case "cut off":
            return [(at, "cut_off", (name, long))]
        case _:
            return Befalling(ROLE, "proposing", name, at, long, nth).drawn(what)


_BEFALLS: Final = (
    ("agent dies", 4),
    ("node dies", 4),
    ("dies with its word", 3),
    ("dies in a write", 3),
    ("asleep", 2),
    ("cut off", 2),
    ("hand over", 2),
    ("stall", 3),
    ("crash", 3),
    ("slow", 2),
    ("silent", 1),
    ("late", 1),
    ("lost", 1),
)
