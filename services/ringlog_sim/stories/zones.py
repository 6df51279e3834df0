"""Zones in all runs of a profile of their own, under the agent ``rebalancer``: replicas, partitions, data nodes change.
In half of them a zone places a keyspace, whose registers are used while their tablets follow the partitions; in some
of these a partition of it loses its majority, and is reset: by itself, or, where most voters are lost and most of those
who have the data are not, by an operator, who may admit a loss, while another node goes down.

Moves are cancelled in the midst, nodes join, sleep, are declared down, are lost; instances of the rebalancer stand
still or die between any two of their requests and are taken over; words of nodes get lost or come late; the disk of one
that comes fails. All other faults are those of every run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ringlog.kernel.commands.schema.keyspaces import CreateKeyspace
from ringlog.kernel.commands.schema.tables import CreateTable
from ringlog.kernel.commands.topology.nodes import DeclareDown, DeclareUp
from ringlog.kernel.model.state import ClusterState, in_order
from ringlog.kernel.model.zones import mode_of
from ringlog.kernel.tablets.mutual_exclusion import transitions
from ringlog.kernel.tablets.stages import is_salvage, nodes_of
from ringlog.kernel.values import CdcOptions, Command, Micros
from ringlog.kernel.zones.distribution import is_alive
from ringlog.operator.intents.replication import in_zone
from ringlog.protocol.rebalancer.core import ROLE
from ringlog.protocol.rebalancer.zone_groups import before, coming
from ringlog.runtime.draw import draw_uuid
from ringlog_sim.devices.world import MS, SECOND, Chance
from ringlog_sim.shape import COLUMNS
from ringlog_sim.stories.moments import HERE
from ringlog_sim.stories.scenarios import Befalling, when
from ringlog_sim.stories.story import AGENT_HOSTS, APPLICATIONS, Drawn, StorySetting

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


KEYSPACE: Final = "in_zone"
OF_DATA: Final = "z3"
"""The zone that is made to place it."""
PLACE: Final = "Place"
ROWS_FAIL_IN: Final = 0.6
"""In how many of the runs the disk of a node fails that comes."""
PLACES: Final = 0.5
"""How many of the runs have a keyspace that a zone places."""


BURST: Final = "Burst"
ROWS_FAIL: Final = "RowsFail"
STEPS: Final = (
    "TriggerRebalance",
    "MigrateTablets",
    "AdvanceTablets",
    "AdvanceTablets",
    "SwitchStable",
    "CancelRebalance",
    "FinishCancel",
    "RestartReplicas",
)
"""The entries that lead data on: at each of them a node may die."""
SELDOM: Final = ("MigrateTablets", "CancelRebalance", "FinishCancel", "RestartReplicas")
"""Those of which a run has few."""


STRONG_ZONE: Final = "StrongZone"
HIGH_ZONE: Final = "HighZone"
WIDEN: Final = "Widen"
OUTAGE: Final = "Outage"
RETURN: Final = "Return"
LOSERS: Final = 4
"""The nodes of these runs at first: of four replicas two may be left, each with writes that the other one lacks."""
LOSES: Final = 0.3
"""In how many of the runs with a keyspace its zone is highly available, and a majority of a partition is lost."""
WIDE_ZONE: Final = "WideZone"
VOTERS: Final = "Voters"
RESET: Final = "Reset"
STRIKE: Final = "Strike"
WIDE: Final = 5
"""The nodes of these runs at first, and the replicas of their zone, of which three vote."""
LOSES_VOTERS: Final = 0.3
"""In how many of the others two of three voters are lost."""


def loses_majority(seed: int) -> bool:
    """True of the runs in which a highly available zone places a keyspace, and loses majorities."""
    return Chance(seed, "placing").happens(PLACES) and Chance(seed, "losing").happens(LOSES)


def loses_voters(seed: int) -> bool:
    """True of the runs in which a wide zone places a keyspace, and loses voters."""
    is_placing = Chance(seed, "placing").happens(PLACES) and not loses_majority(seed)
    return is_placing and Chance(seed, "losing voters").happens(LOSES_VOTERS)


def draw_zones(setting: StorySetting) -> list[Drawn]:
    """Draw changes of zones, and a keyspace that a zone places."""
    return _rebalancing(setting.chance("zones"), setting.nodes) + _placing(setting.chance("placing"), setting.nodes)


def draw_lost_voters(setting: StorySetting) -> list[Drawn]:
    """Draw the same, and losses of voters in a wide zone."""
    data = _placing(setting.chance("placing"), setting.nodes)
    lost = _lost_voters(setting.chance("outage of voters"), setting.nodes, data)
    return _rebalancing(setting.chance("zones"), setting.nodes) + lost


def draw_lost_majority(setting: StorySetting) -> list[Drawn]:
    """Draw the same, and losses of a majority in a highly available zone."""
    data = _placing(setting.chance("placing"), setting.nodes)
    lost = _lost_majority(setting.chance("outage"), setting.nodes, data)
    return _rebalancing(setting.chance("zones"), setting.nodes) + lost


def _lost_voters(chance: Chance, nodes: Sequence[str], placing: list[Drawn]) -> list[Drawn]:
    """Draw ``placing`` and two outages: two of three voters are declared down, whether they sleep or not, and an
    operator resets. Just then one more may be declared down. Registers are written and read all the while. Later all
    nodes return.
    """
    drawn: list[Drawn] = [(at, what, (WIDE_ZONE,) if rest == (STRONG_ZONE,) else rest) for at, what, rest in placing]
    for at in (chance.between(1_200, 2_500), chance.between(4_800, 6_000)):
        for name in nodes:
            if chance.happens(0.3):
                drawn.append((at * MS, "pause", (name, chance.between(300, 1_500))))
        gone = at + chance.between(200, 400)
        drawn.append((gone * MS, "zone", (VOTERS,)))
        drawn += [((gone + chance.between(50, 700)) * MS, "zone", (RESET,)) for _ in range(3)]
        if chance.happens(0.7):
            drawn.append(when("ResetPartitions", "zone", STRIKE, nth=1, delay=chance.pick([0, 5, 30, 150, 400])))
        drawn.append(((gone + chance.between(900, 2_300)) * MS, "zone", (RETURN,)))
        for turn in range(12):
            application, register = chance.pick(APPLICATIONS), chance.below(2)
            wish = "write" if application == APPLICATIONS[register] else "read"
            drawn.append(((at + 120 * turn) * MS, "register", (application, register, f"{wish}-QUORUM")))
    return drawn


def voters_lost(state: ClusterState, chance: Chance) -> list[Command]:
    """Two voters of a partition that has data, of three, are declared down; nothing where there is none."""
    used = {one.replication.zone for one in state.keyspaces.values()}
    found = [one for _, one in in_order(state.zone_partitions) if one.zone in used and one.reached is not None]
    groups = [one.reached.peers for one in found if one.reached is not None and len(one.reached.peers) > 2]
    if not groups:
        return []
    voters = chance.pick(groups)
    spared = chance.below(len(voters))
    others = [*voters[spared + 1 :], *voters[:spared]]
    return [DeclareDown(node, "an outage of voters") for node in others[:2]]


def struck(state: ClusterState, chance: Chance) -> list[Command]:
    """One from whom a survivor fetches is declared down; nothing where nobody fetches."""
    found = {
        replica.node
        for tablets, transition in transitions(state)
        for replica in (tablets.replicas(transition.tablet) if is_salvage(transition) else ())
        if replica.node not in nodes_of(transition.next) and is_alive(state, replica.node)
    }
    return [DeclareDown(chance.pick(sorted(found)), "struck")] if found else []


def _lost_majority(chance: Chance, nodes: Sequence[str], placing: list[Drawn]) -> list[Drawn]:
    """Draw what such a run has beside ``placing``: twice half of a partition's nodes, or one more, are declared down,
    whether they sleep or not, while registers are written and read; later they are back.
    """
    drawn: list[Drawn] = [(at, what, (HIGH_ZONE,) if rest == (STRONG_ZONE,) else rest) for at, what, rest in placing]
    if chance.happens(0.7):
        drawn.append((chance.between(100, 1_000) * MS, "zone", (WIDEN,)))
    for at in (chance.between(1_200, 2_500), chance.between(4_800, 6_000)):
        for name in nodes:
            if chance.happens(0.4):  # what is written now it lacks
                drawn.append((at * MS, "pause", (name, chance.between(300, 1_500))))
        for turn, application in enumerate(APPLICATIONS):
            drawn.append(((at + 60 * turn + 50) * MS, "register", (application, turn, "write-QUORUM")))
        drawn.append(((at + chance.between(300, 600)) * MS, "zone", (OUTAGE,)))
        drawn.append(((at + chance.between(900, 2_800)) * MS, "zone", (RETURN,)))
        for _ in range(6):
            application, register = chance.pick(APPLICATIONS), chance.below(2)
            wish = "write" if application == APPLICATIONS[register] else "read"
            drawn.append(((at + chance.between(0, 1_500)) * MS, "register", (application, register, f"{wish}-QUORUM")))
    return drawn


def outage(state: ClusterState, chance: Chance) -> list[Command]:
    """Half of the nodes of a partition that has data are declared down, or one more; nothing where there is none."""
    used = {one.replication.zone for one in state.keyspaces.values()}
    high = [one for _, one in in_order(state.zone_partitions) if mode_of(state.zones[one.zone]).resets_itself]
    groups = [one.reached.nodes for one in high if one.zone in used and one.reached is not None]
    groups = [nodes for nodes in groups if len(nodes) > 1]
    if not groups:
        return []
    nodes = chance.pick(groups)
    spared = chance.below(len(nodes))
    others = [*nodes[spared + 1 :], *nodes[:spared]]
    return [DeclareDown(node, "an outage") for node in others[: (len(nodes) + 1) // 2]]


def returning(state: ClusterState) -> list[Command]:
    """All that are down are up again."""
    down = [node for node, found in in_order(state.nodes) if found.down and found.state != "left"]
    return [DeclareUp(node, "it is over") for node in down]


def _placing(chance: Chance, nodes: Sequence[str]) -> list[Drawn]:
    """Nothing in a part of the runs; else a keyspace in a zone, tables that are written to, and registers that are
    used, while nodes die at any step.
    """
    if not chance.happens(PLACES):
        return []
    drawn: list[Drawn] = [(chance.between(0, 20) * MS, "zone", (STRONG_ZONE,))]
    drawn += [(chance.between(80 + 300 * number, 300 + 600 * number) * MS, "zone", (PLACE,)) for number in range(4)]
    drawn += [(chance.between(900, 6_500) * MS, "zone", (chance.pick(["Shift", "AlterZone"]),)) for _ in range(4)]
    for _ in range(chance.between(6, 14)):
        at, register = chance.between(600, 7_000) * MS, chance.below(2)
        for wish in ("write", "read", "read"):
            application = APPLICATIONS[register] if wish == "write" else chance.pick(APPLICATIONS)
            drawn.append(
                (at, "register", (application, register, f"{wish}-{chance.pick(['QUORUM', 'QUORUM', 'ALL'])}"))
            )
            at += chance.between(0, 400) * MS
    drawn += [(chance.between(600, 7_000) * MS, "zone", (BURST,)) for _ in range(5)]
    for _ in range(3):
        name, long, nth = chance.pick(nodes), chance.between(300, 2_500), chance.between(1, 6)
        step = chance.pick(STEPS)
        drawn.append(when(step, "crash", name, long, nth=1 if step in SELDOM else nth))
    return drawn


def placed(state: ClusterState, chance: Chance) -> list[Command]:
    """A keyspace in some zone, unless there is one, and a table in it, now and then with a CDC log; nothing without a
    zone that may place it.
    """
    able = [zone.name for _, zone in in_order(state.zones) if not mode_of(zone).resets_itself]
    of_data = state.zones.get(OF_DATA)
    able = [OF_DATA] if of_data is not None and (mode_of(of_data).resets_itself or of_data.replicas == WIDE) else able
    have = state.keyspaces.get(KEYSPACE)
    if have is None and not able:
        return []
    made = [] if have is not None else [CreateKeyspace(KEYSPACE, in_zone(chance.pick(able)))]
    name, log = chance.pick(["t", "t", "u"]), CdcOptions(enabled=chance.happens(0.3))
    table = CreateTable(KEYSPACE, name, draw_uuid(chance), COLUMNS, ("k",), ("c",), log)
    return [*made, table]


def _rebalancing(chance: Chance, nodes: Sequence[str]) -> list[Drawn]:
    """Draw changes of zones, and faults at the steps that follow. ``nodes``: all that there will be."""
    drawn: list[Drawn] = [(0, "with_role", (ROLE,))]
    drawn += [(chance.between(0, 60) * MS, "zone", ("CreateZone",)) for _ in range(2)]
    for _ in range(chance.between(3, 8)):
        drawn.append((chance.between(200, 6_500) * MS, "zone", (chance.weighted(KINDS),)))
    drawn += [(chance.between(500, 7_000) * MS, "zone", ("RestartReplicas",)) for _ in range(2)]
    for _ in range(chance.between(1, 3)):
        nth, delay = chance.between(1, 4), chance.pick([0, 5, 50, 400])
        drawn.append(when("TriggerRebalance", "zone", "CancelRebalance", nth=nth, delay=delay))
    for _ in range(chance.between(1, 4)):
        drawn += _befalls(chance, nodes)
    if chance.happens(ROWS_FAIL_IN):
        drawn.append(
            when("TriggerRebalance", "zone", ROWS_FAIL, nth=chance.between(1, 4), delay=chance.pick([0, 20, 200]))
        )
    return drawn


def node_with_failing_rows(state: ClusterState, chance: Chance) -> str:
    """A node that comes with a step that has a way back; empty if there is none."""
    steps = [one for _, one in in_order(state.zone_partitions) if one.pending and one.cancel is None and before(one)]
    found = sorted({node for one in steps for node in coming(one) if is_alive(state, node)})
    return chance.pick(found) if found else ""


def _befalls(chance: Chance, nodes: Sequence[str]) -> list[Drawn]:
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
            return [(at, "clock", (chance.pick(AGENT_HOSTS), chance.pick([-3_000, 3_000])))]
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
