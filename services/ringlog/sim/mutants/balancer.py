"""Bugs of the balancer: of its planner, of its agent, and of the rules that bind its plans."""

from __future__ import annotations

from ringlog.sim.moving_tablets import PROFILE as MOVING
from ringlog.sim.mutants.plant import Mutant

AGENT, STEPS = "ringlog.protocol.balancer", "ringlog.protocol.tablet_steps"
LEDGER, DRAIN = "ringlog.kernel.balance.ledger", "ringlog.kernel.balance.drain"
SOURCE, RULES = "ringlog.kernel.balance.source", "ringlog.kernel.balance.rules"
ADMISSION, TRACK = "ringlog.kernel.tablets.admission", "ringlog.kernel.tablets.track"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "balance_never_stops",
        LEDGER,
        "    return (giver.load - size) * getter.capacity >= (getter.load + size) * giver.capacity\n",
        "    return giver.load * getter.capacity > getter.load * giver.capacity\n",
        "a tablet moves from the more loaded node, however loaded the other one is then",
        60,
        MOVING,
    ),
    Mutant(
        "balance_from_the_less_loaded",
        LEDGER,
        "    return (giver.load - size) * getter.capacity >= (getter.load + size) * giver.capacity\n",
        "    return giver.load - size >= getter.load + size\n",
        "loads are compared without capacities, so the less loaded of two nodes may give",
        60,
        MOVING,
    ),
    Mutant(
        "balance_before_the_move",
        SOURCE,
        "    if transition.stage in _TURNED_BACK:\n",
        "    if transition.stage:\n",
        "a plan counts tablets that move where they were",
        60,
        MOVING,
    ),
    Mutant(
        "balance_believes_a_part",
        LEDGER,
        "        return self.host.serving and not self.incomplete\n",
        "        return self.host.serving\n",
        "a node that has not reported all that it has is given more, or gives",
        100,
        MOVING,
    ),
    Mutant(
        "balance_to_no_other_rack",
        RULES,
        'else "rack_full"',
        'and False else "rack_full"',
        "the planner takes every other rack for full",
        60,
        MOVING,
    ),
    Mutant(
        "balance_fills_a_rack",
        ADMISSION,
        "    if counted[_rack_of(node)] >= counted[_rack_of(here)]:\n",
        "    if counted[_rack_of(node)] > counted[_rack_of(here)]:\n",
        "a rack takes a replica although it has as many as the one it comes from",
        100,
        MOVING,
    ),
    Mutant(
        "balance_gives_to_who_leaves",
        "ringlog.kernel.tablets.allocation",
        '        if node.state in ("normal", "moving") and',
        '        if node.state in ("normal", "moving", "leaving") and',
        "a node that leaves may be given tablets",
        150,
        MOVING,
    ),
    Mutant(
        "balance_drains_the_living",
        DRAIN,
        "        kind, why = (MIGRATION, DRAIN) if source.alive else (REBUILD, REBUILDS)\n",
        "        kind, why = MIGRATION, DRAIN\n",
        "what a dead node has is to be read from it",
        400,
        MOVING,
    ),
    Mutant(
        "balance_ignores_a_node_request",
        TRACK,
        "        if not is_draining(state, operation):\n",
        "        if not is_draining(state, operation) and operation.stage != REQUESTED:\n",
        "tablets begin to move while a node operation waits for them",
        100,
        MOVING,
    ),
    Mutant(
        "balance_forgets_the_limits",
        ADMISSION,
        "                if most and now and now + weight > most:\n",
        "                if most and now and now > most:\n",
        "one transition more may stream than the limit says",
        200,
        MOVING,
    ),
    Mutant(
        "balance_while_paused",
        SOURCE,
        "        paused=pause_of(state, BALANCING, found.table) is not None,\n",
        "        paused=False,\n",
        "a pause holds the balancer up no more",
        400,
        MOVING,
    ),
    Mutant(
        "balance_of_any_term",
        "ringlog.kernel.commands.tablets",
        "    if command.term and (acting is None or acting.term != command.term):\n",
        "    if command.term and acting is None:\n",
        "the plan of an instance that was taken over begins",
        2_000,
        MOVING,
    ),
    Mutant(
        "balance_deaf_to_reports",
        AGENT,
        "    return (*(state.changed.get(part, 0) for part in _PARTS), reports.newest)\n",
        "    return (*(state.changed.get(part, 0) for part in _PARTS),)\n",
        "a report that comes is no reason to plan",
        60,
        MOVING,
    ),
    Mutant(
        "tablet_never_turned_back",
        STEPS,
        'why_back(state, tablet) or (tried if STAGES[transition.stage].back else "")',
        "why_back(state, tablet)",
        "a tablet whose rows were tried as often as they may be waits for ever",
        60,
        MOVING,
    ),
    Mutant(
        "tablet_allowed_too_early",
        "ringlog.kernel.tablets.gates",
        "    if stage in _PENDING_MUST and comes is not None:\n",
        "    if stage in _PENDING_MUST[1:] and comes is not None:\n",
        "writes go to who comes before it knows that they may: allow_write_both_read_old is left too early",
        60,
        MOVING,
    ),
)
