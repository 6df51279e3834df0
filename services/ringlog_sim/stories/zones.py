"""Zones, in all runs of their profile, with the agent ``rebalancer``. Replicas, partitions and data nodes change.

In half of the runs a zone places a keyspace. Its registers are used while their tablets follow the partitions. In some
of these, a partition loses its majority and is reset. The reset is automatic, or an operator resets it after the loss
of most voters but not of most data nodes. The operator may admit a loss, while another node goes down.

Moves are cancelled while in progress. Nodes join, pause, are declared down, or are lost. Instances of the rebalancer
pause or die between any two of their requests and are superseded. Nodes' reports are lost or late. The disk of an added
node fails. Other faults are those of every run.
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
from ringlog.protocol.rebalancer.zone_groups import added_nodes, previous_nodes
from ringlog.runtime.draw import draw_uuid
from ringlog_sim.devices.world import MS, SECOND, Chance
from ringlog_sim.shape import COLUMNS
from ringlog_sim.stories.moments import HERE
from ringlog_sim.stories.scenarios import Befalling, when
from ringlog_sim.stories.story import AGENT_HOSTS, APPLICATIONS, Drawn, StorySetting

PROFILE: Final = "zones"
"""The profile that always has this story."""
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
"""The zone that is created to place it."""
PLACE: Final = "Place"
ROWS_FAIL_IN: Final = 0.6
"""Share of the runs in which the disk of an added node fails."""
PLACES: Final = 0.5
"""Share of the runs with a keyspace that a zone places."""


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
"""The entries that move data. A node may die at each of them."""
SELDOM: Final = ("MigrateTablets", "CancelRebalance", "FinishCancel", "RestartReplicas")
"""Entries that are rare in a run."""


STRONG_ZONE: Final = "StrongZone"
HIGH_ZONE: Final = "HighZone"
WIDEN: Final = "Widen"
OUTAGE: Final = "Outage"
RETURN: Final = "Return"
LOSERS: Final = 4
"""Initial nodes of these runs. Two of four replicas may remain, each with writes that the other one lacks."""
LOSES: Final = 0.3
"""Share of the runs with a keyspace in which its zone is highly available and a partition loses its majority."""
WIDE_ZONE: Final = "WideZone"
VOTERS: Final = "Voters"
RESET: Final = "Reset"
STRIKE: Final = "Strike"
WIDE: Final = 5
"""Initial nodes of these runs, and replicas of their zone, three of them voters."""
LOSES_VOTERS: Final = 0.3
"""Share of the other runs in which two of three voters are lost."""


def loses_majority(seed: int) -> bool:
    """Return True if a highly available zone places a keyspace and loses majorities in the run."""
    return Chance(seed, "placing").happens(PLACES) and Chance(seed, "losing").happens(LOSES)


def loses_voters(seed: int) -> bool:
    """Return True if a wide zone places a keyspace and loses voters in the run."""
    is_placing = Chance(seed, "placing").happens(PLACES) and not loses_majority(seed)
    return is_placing and Chance(seed, "losing voters").happens(LOSES_VOTERS)


def draw_zones(setting: StorySetting) -> list[Drawn]:
    """Draw changes of zones, and a keyspace that a zone places."""
    return _rebalancing(setting.chance("zones"), setting.nodes) + _placing(setting.chance("placing"), setting.nodes)


def draw_lost_voters(setting: StorySetting) -> list[Drawn]:
    """Draw changes of zones, a keyspace, and losses of voters in a wide zone."""
    data = _placing(setting.chance("placing"), setting.nodes)
    lost = _lost_voters(setting.chance("outage of voters"), setting.nodes, data)
    return _rebalancing(setting.chance("zones"), setting.nodes) + lost


def draw_lost_majority(setting: StorySetting) -> list[Drawn]:
    """Draw changes of zones, a keyspace, and losses of a majority in a highly available zone."""
    data = _placing(setting.chance("placing"), setting.nodes)
    lost = _lost_majority(setting.chance("outage"), setting.nodes, data)
    return _rebalancing(setting.chance("zones"), setting.nodes) + lost


def _lost_voters(chance: Chance, nodes: Sequence[str], placing: list[Drawn]) -> list[Drawn]:
    """Draw ``placing`` and two outages: two of three voters, paused or not, are declared down, and an operator resets.

    At that time one more node may be declared down. Registers are written and read throughout. Later all nodes return.
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
    """Return commands that declare two of three voters of a partition with data down, or nothing without
    such voters.
    """
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
    """Return a command that declares a source of a salvage's survivor down, or nothing without one."""
    found = {
        replica.node
        for tablets, transition in transitions(state)
        for replica in (tablets.replicas(transition.tablet) if is_salvage(transition) else ())
        if replica.node not in nodes_of(transition.next) and is_alive(state, replica.node)
    }
    return [DeclareDown(chance.pick(sorted(found)), "struck")] if found else []


def _lost_majority(chance: Chance, nodes: Sequence[str], placing: list[Drawn]) -> list[Drawn]:
    """Draw ``placing`` and two outages: half of a partition's nodes or one more, paused or not, are declared down.

    Registers are written and read during that. Later the nodes return.
    """
    drawn: list[Drawn] = [(at, what, (HIGH_ZONE,) if rest == (STRONG_ZONE,) else rest) for at, what, rest in placing]
    if chance.happens(0.7):
        drawn.append((chance.between(100, 1_000) * MS, "zone", (WIDEN,)))
    for at in (chance.between(1_200, 2_500), chance.between(4_800, 6_000)):
        for name in nodes:
            if chance.happens(0.4):  # the node lacks the writes of this time
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
    """Return commands that declare half of the nodes of a partition with data down, or one more, or nothing without
    one.
    """
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
    """Return commands that declare all down nodes up."""
    down = [node for node, found in in_order(state.nodes) if found.down and found.state != "left"]
    return [DeclareUp(node, "it is over") for node in down]


def _placing(chance: Chance, nodes: Sequence[str]) -> list[Drawn]:
    """Draw, in a part of the runs, a keyspace in a zone, written tables, and used registers, while nodes die at any
    step.
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
    """Return commands that create a keyspace in a zone, unless it exists, and a table, sometimes with a CDC log.

    Return nothing without a zone that may place it.
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
    """Draw changes of zones, and faults at the following steps. ``nodes``: all nodes of the run."""
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
    """Return a node that a reversible step adds, or empty text."""
    steps = [
        one for _, one in in_order(state.zone_partitions) if one.pending and one.cancel is None and previous_nodes(one)
    ]
    found = sorted({node for one in steps for node in added_nodes(one) if is_alive(state, node)})
    return chance.pick(found) if found else ""


def _befalls(chance: Chance, nodes: Sequence[str]) -> list[Drawn]:
    """Draw an event that affects the rebalancer, its input, or members of groups."""
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
