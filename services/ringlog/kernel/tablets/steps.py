"""One step of a tablet: it enters a stage, is reverted, or settles.

``changed`` and ``since`` follow from the stage table alone. A node that starts to take writes is a member since that
entry, and a node that stops is not a member. Whenever the read or the write group differs, the tablet has changed.
"""

from __future__ import annotations

from collections.abc import Mapping

from ringlog.kernel.model.tablet_map import Tablet, TabletMap, TabletReplica, Transition, with_settled, with_transitions
from ringlog.kernel.tablets.stages import KINDS, SETTLED, STAGES, Side
from ringlog.kernel.values import Epoch, Value


class SettledTablet(Value):
    """A tablet whose transition has ended."""

    replicas: tuple[TabletReplica, ...]
    changed: Epoch


Step = Transition | SettledTablet


def begun(kind: str, tablet: Tablet, wanted: tuple[TabletReplica, ...], epoch: Epoch) -> Transition:
    """Return the transition of a settled tablet to other replicas. Replicas that stay keep their ``since``."""
    assert tablet.transition is None, "a tablet is in one transition at a time"
    stage = STAGES[KINDS[kind].stages[0]]
    writes = stage.writes is not Side.PREV
    since = {replica.node: replica.since for replica in tablet.replicas}
    to = tuple(TabletReplica(one.node, one.shard, since.get(one.node, epoch if writes else 0)) for one in wanted)
    return Transition(tablet.index, kind, stage.name, epoch, epoch, to, epoch if writes else 0)


def entered(tablet: Tablet, stage: str, epoch: Epoch, reason: str = "") -> Step:
    """Return the tablet in ``stage`` since ``epoch``, or settled."""
    before = tablet.transition
    assert before is not None, "only a migrating tablet has a stage"
    assert before.stage_epoch < epoch, "epochs of stages ascend"
    old = STAGES[before.stage]
    if stage == SETTLED:
        assert old.settles is not None, "only the last stage settles"
        replicas = before.next if old.settles is Side.NEXT else tablet.replicas
        return SettledTablet(replicas, max(tablet.changed, before.changed))
    new = STAGES[stage]
    changed = before.changed if (old.reads, old.writes) == (new.reads, new.writes) else epoch
    to = before.next
    if Side.PREV in (old.writes, new.writes) and new.writes is not old.writes:
        there = {replica.node for replica in tablet.replicas}
        at = epoch if old.writes is Side.PREV else 0
        to = tuple([one if one.node in there else TabletReplica(one.node, one.shard, at) for one in to])
    return Transition(tablet.index, before.kind, stage, epoch, before.started, to, changed, reason or before.reason)


def stepped(tablets: TabletMap, steps: Mapping[int, Step]) -> TabletMap:
    """Return the map after these steps of its tablets."""
    after = with_transitions(
        tablets, {index: step if isinstance(step, Transition) else None for index, step in steps.items()}
    )
    settled = {index: (step.replicas, step.changed) for index, step in steps.items() if isinstance(step, SettledTablet)}
    changed = {
        index: found
        for index, found in settled.items()
        if found != ((before := tablets.tablet(index)).replicas, before.changed)
    }
    return with_settled(after, changed) if changed else after
