"""From one configuration of a group to another: the steps, since a role never changes in one step with the rest.

====================================  =================================================================================
change                                steps
====================================  =================================================================================
forced, or from a reset; first ever   the target
no node changes its role              the target
only learners that vote from now on   the target without them, the target
only voters that learn from now on    the target without them, the target
both                                  without the new voters and with the old ones voting as before (so that a majority
                                      of the old group is kept), then with the new voters and without the others,
                                      then the target
====================================  =================================================================================

Invariants: the last step is the target; no node has another role in a step than in the one before it.
"""

from __future__ import annotations

from typing import Final

from ringlog.kernel.model.zones import ZoneStep

STEPS_MAX: Final = 3


def step_of(peers: frozenset[str] | set[str], learners: frozenset[str] | set[str] = frozenset()) -> ZoneStep:
    """A configuration of these nodes."""
    return ZoneStep(tuple(sorted(peers)), tuple(sorted(learners)))


def is_same(one: ZoneStep | None, other: ZoneStep | None) -> bool:
    """True if the nodes are the same, in the same roles; by what it came about does not count."""
    if one is None or other is None:
        return one is other
    return one.peers == other.peers and one.learners == other.learners


def steps_between(have: ZoneStep | None, target: ZoneStep) -> tuple[ZoneStep, ...]:
    """The queue that leads to ``target``; of one step even if it is what there is."""
    if have is None or target.forced or target.from_reset:
        return (target,)
    peers, learners = frozenset(target.peers), frozenset(target.learners)
    promoted, demoted = peers & set(have.learners), learners & set(have.peers)
    steps: tuple[ZoneStep, ...] = (target,)
    if promoted and demoted:
        steps = (
            step_of(peers - promoted | demoted, learners - demoted),
            step_of(peers, learners - demoted),
            target,
        )
    elif promoted or demoted:
        steps = _without_changed(peers - promoted, learners - demoted, target)
    assert len(steps) <= STEPS_MAX, "a queue is short"
    assert is_same(steps[-1], target), "a queue ends with its target"
    return steps


def _without_changed(peers: frozenset[str], learners: frozenset[str], target: ZoneStep) -> tuple[ZoneStep, ...]:
    """First those whose role does not change. Where none of them votes, nobody could: then the target at once."""
    return (step_of(peers, learners), target) if peers else (target,)
