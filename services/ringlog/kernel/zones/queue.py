"""The steps from one configuration of a group to another. A node that changes its role leaves the group for one step.

====================================  =================================================================================
change                                steps
====================================  =================================================================================
forced, from a reset, or the first    the target
no node changes its role              the target
only learners become voters           the target without them, the target
only voters become learners           the target without them, the target
both                                  without the new voters, while the old ones still vote (so that a majority of the
                                      old group remains); then with the new voters and without the new learners;
                                      then the target
====================================  =================================================================================

Invariants: the last step is the target. No node has another role in a step than in the step before.
"""

from __future__ import annotations

from typing import Final

from ringlog.kernel.model.zones import ZoneStep

STEPS_MAX: Final = 3


def step_of(peers: frozenset[str] | set[str], learners: frozenset[str] | set[str] = frozenset()) -> ZoneStep:
    """Return a configuration of these nodes."""
    return ZoneStep(tuple(sorted(peers)), tuple(sorted(learners)))


def is_same(one: ZoneStep | None, other: ZoneStep | None) -> bool:
    """Return whether the nodes and their roles are the same. ``forced`` and ``from_reset`` do not count."""
    if one is None or other is None:
        return one is other
    return one.peers == other.peers and one.learners == other.learners


def steps_between(have: ZoneStep | None, target: ZoneStep) -> tuple[ZoneStep, ...]:
    """Return the queue that leads to ``target``. It has one step if ``target`` is the present configuration."""
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
    assert len(steps) <= STEPS_MAX, "a queue is within the limit"
    assert is_same(steps[-1], target), "a queue ends with its target"
    return steps


def _without_changed(peers: frozenset[str], learners: frozenset[str], target: ZoneStep) -> tuple[ZoneStep, ...]:
    """Return a step without the nodes whose role changes, then the target. Only the target if that step had no
    voter.
    """
    return (step_of(peers, learners), target) if peers else (target,)
