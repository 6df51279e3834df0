"""Bugs of zones: of the rules of their partitions, of the agent that leads them on, and of the nodes that answer it."""

from __future__ import annotations

from ringlog.sim.mutants.plant import Mutant
from ringlog.sim.rebalancing import PROFILE as ZONES

GROUPS, AGENT, CORE = "ringlog.protocol.zone_groups", "ringlog.protocol.rebalancer", "ringlog.protocol.rebalancer_core"
MEMBERS, RULES, TIMERS = "ringlog.node.protocol.groups", "ringlog.kernel.zones.rebalance", "ringlog.protocol.data_nodes"
DATA = "ringlog.kernel.zones.data"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "zone_without_the_old_voters",
        GROUPS,
        "    if before(partition) and partition.reached is not None:\n",
        "    if not partition.pending:\n",
        "a step counts as applied although most of the voters before it have not seen it",
        60,
        ZONES,
    ),
    Mutant(
        "zone_without_who_comes",
        GROUPS,
        "    missing = {node for node in coming(partition) if node not in said}\n",
        "    missing = set[NodeId]()\n",
        "a step counts as applied before the nodes that come have answered",
        60,
        ZONES,
    ),
    Mutant(
        "zone_replica_does_not_run",
        MEMBERS,
        " or (comes and not self._replicas.runs(one)):\n",
        ":\n",
        "a node that comes says that it has the step before its replica runs",
        60,
        ZONES,
    ),
    Mutant(
        "zone_word_before_the_disk",
        MEMBERS,
        "        if one.revisions.pending > epoch or ",
        "        if ",
        "a node says that it has a step, and crashes before that is on its disk",
        60,
        ZONES,
    ),
    Mutant(
        "zone_turned_back_unheard",
        CORE,
        "        elif not not_returned(partition, known.words):\n",
        "        else:\n",
        "a cancel is over as soon as it is noted, whatever the group is doing",
        60,
        ZONES,
    ),
    Mutant(
        "zone_planned_forgotten",
        RULES,
        "    if before.planned is None:\n",
        "    if before.planned is None or before.planned.nodes:\n",
        "what is planned is dropped when what is pending is done",
        60,
        ZONES,
    ),
    Mutant(
        "zone_deaf_to_words",
        AGENT,
        "known.words, known.due)",
        "known.due)",
        "what nodes say is no reason to look again",
        60,
        ZONES,
    ),
    Mutant(
        "zone_failure_unheard",
        CORE,
        "    elif broken := failed(partition, known.words):\n",
        "    elif (broken := failed(partition, known.words)) and not partition.pending:\n",
        "a replica that can never follow a step is waited for",
        60,
        ZONES,
    ),
    Mutant(
        "zone_step_without_data",
        DATA,
        "    for tablets, tablet in elsewhere(state, partition, goal):\n",
        "    for tablets, tablet in list(elsewhere(state, partition, goal))[:0]:\n",
        "a step counts as applied, and a cancel as done, before the data are there",
        60,
        ZONES,
    ),
    Mutant(
        "zone_tablet_outside",
        DATA,
        "        head = frozenset(partition.pending[0].nodes)\n        return",
        "        head = frozenset((partition.planned or partition.pending[0]).nodes)\n        return",
        "tablets are moved to where their partition is planned to go, outside of its step",
        60,
        ZONES,
    ),
    Mutant(
        "zone_timer_never_over",
        TIMERS,
        "    return began is not None and wait != NEVER and (wait == 0 or now - began >= wait * SECOND)\n",
        "    return began is not None and wait == 0\n",
        "timers of data nodes are never over",
        60,
        ZONES,
    ),
    Mutant(
        "zone_keeps_who_left",
        TIMERS,
        "        down = went if _is_over(timers, zone, went - left, zone.scale_down, now) else left\n",
        "        down = went if _is_over(timers, zone, went, zone.scale_down, now) else left - left\n",
        "a node that has left stays a data node where nodes that are down do",
        60,
        ZONES,
    ),
)
