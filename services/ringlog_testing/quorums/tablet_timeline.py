"""A translation from the states of a plan to the histories of its tablets, as sets of bits.

A tablet's history begins with the entry that starts its transition and ends with the entry that settles it. Each stage
is a view with readers and writers (``tablets.groups``). The production gate of a stage (``tablets.gates``) is between
views. A reverting tablet skips the gate of the stage that it leaves, because the revert needs none.

A resize must not change the replicas of a token. If it does, the two groups are a history of two views without a gate,
and the check refutes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from ringlog.kernel.model.state import ClusterState, in_order
from ringlog.kernel.model.tablet_map import Tablet, TabletMap
from ringlog.kernel.ring.ranges import ranges_between
from ringlog.kernel.tablets.gates import gate
from ringlog.kernel.tablets.groups import group_of, moving_of, streams_of
from ringlog.kernel.tablets.mutual_exclusion import is_anywhere
from ringlog.kernel.tablets.stages import KINDS, STAGES, Side, StageWork, members, nodes_of, readers, writers
from ringlog.kernel.values import NodeId, Token, replace
from ringlog_testing.quorums.model import Mask, Passage, RangeHistory, RangeStream, RangeView
from ringlog_testing.quorums.timeline import Placed, informed, mask_of

BEFORE, AFTER, RECUT = "before", "after", "resized"


@dataclass(slots=True)
class TabletPassage:
    """The history so far of a tablet in transition. ``meant``: the write group that the transition leads to."""

    bit: Mapping[NodeId, Mask]
    meant: Mask
    stage: str
    views: list[RangeView]
    gates: list[Passage] = field(default_factory=list)
    streams: dict[Mask, Mask] = field(default_factory=dict)


def histories(states: Sequence[ClusterState]) -> Iterator[Placed]:
    """Yield the history of every tablet that settled after a transition, and of every range that a resize changed."""
    running: dict[tuple[str, Token], TabletPassage] = {}
    for before, after in pairwise(states):
        for name, tablets in in_order(after.tablets):
            earlier = before.tablets.get(name)
            if earlier is None or earlier is tablets:
                continue
            if earlier.ends != tablets.ends:
                yield from _recut_ranges(earlier, after, tablets)
                continue
            for index in sorted({*earlier.transitions, *tablets.transitions}):
                key, now = (name, tablets.ends[index]), tablets.tablet(index)
                if key not in running:
                    running[key] = _begun(earlier.tablet(index), now)
                passage = running[key]
                if index in earlier.transitions:
                    _left(before, earlier, earlier.tablet(index), now, passage)
                if now.transition is not None:
                    _entered(name, now, passage)
                else:
                    yield _settled(after, tablets, now, running.pop(key))


def _begun(was: Tablet, now: Tablet) -> TabletPassage:
    assert now.transition is not None, "the tablet is migrating"
    all_nodes = nodes_of(members(now, Side.BOTH))
    bit = {node: 1 << number for number, node in enumerate(dict.fromkeys(all_nodes))}
    settled = mask_of(bit, nodes_of(was.replicas))
    meant = mask_of(bit, nodes_of(now.transition.next))
    return TabletPassage(bit, meant, "", [RangeView(BEFORE, settled, settled, both=False)])


def _entered(table: str, now: Tablet, passage: TabletPassage) -> None:
    """Add the view of a stage, if it is a new stage."""
    assert now.transition is not None, "the tablet is migrating"
    stage = STAGES[now.transition.stage]
    if stage.name == passage.stage:
        return
    passage.stage = stage.name
    read, write = (mask_of(passage.bit, nodes_of(group)) for group in (readers(now), writers(now)))
    view = RangeView(stage.name, read, write, both=bool(moving_of(table, now)))
    if view != replace(passage.views[-1], name=view.name):
        passage.views.append(view)


def _left(before: ClusterState, tablets: TabletMap, was: Tablet, now: Tablet, passage: TabletPassage) -> None:
    """Add the gate and the streams of the stage that the tablet leaves with this entry."""
    assert was.transition is not None, "the tablet was migrating"
    stage, following = was.transition.stage, now.transition.stage if now.transition is not None else ""
    if following == stage:
        return
    anywhere = is_anywhere(before, tablets.table)
    if following == STAGES[stage].back and following:
        return  # reverted, by an entry without a gate
    guard = gate(before, tablets, was)
    passage.gates.append(Passage(len(passage.views) - 1, stage, informed(guard, passage.bit)))
    if STAGES[stage].work is StageWork.STREAM and not KINDS[was.transition.kind].within_node:
        for source, target in streams_of(was, before.nodes, anywhere):
            one = passage.bit[target]
            passage.streams[one] = passage.streams.get(one, 0) | passage.bit.get(source, 0)


def _settled(after: ClusterState, tablets: TabletMap, now: Tablet, passage: TabletPassage) -> Placed:
    group = mask_of(passage.bit, nodes_of(now.replicas))
    view = RangeView(AFTER, group, group, both=False)
    if view != replace(passage.views[-1], name=AFTER):
        passage.views.append(view)
    others = passage.views[0].read
    streams = tuple(RangeStream(target, sources, others) for target, sources in sorted(passage.streams.items()))
    return _placed(after, tablets, now, passage, streams)


def _placed(
    state: ClusterState, tablets: TabletMap, now: Tablet, passage: TabletPassage, streams: tuple[RangeStream, ...]
) -> Placed:
    anywhere, nodes = is_anywhere(state, tablets.table), [state.nodes[node] for node in passage.bit]
    # If a replication names no datacenters, a tablet's groups count as one. LOCAL_QUORUM then guarantees nothing.
    datacenters = tuple("" if anywhere else node.datacenter for node in nodes)
    history = RangeHistory(
        datacenters, tuple(passage.views), tuple(passage.gates), streams, local=not anywhere, meant=passage.meant
    )
    where = f"{tablets.table}/{now.index}"
    return Placed(history, where, now.start, now.end, tuple(node.name for node in nodes))


def _recut_ranges(old: TabletMap, after: ClusterState, new: TabletMap) -> Iterator[Placed]:
    """Yield ranges whose groups a resize has changed. There should be none."""
    for _, end in ranges_between(sorted({*old.ends, *new.ends})):
        was, now = old.tablet(old.index_of(end)), new.tablet(new.index_of(end))
        groups = [{replica.node for replica in group_of(one).read} for one in (was, now)]
        if groups[0] != groups[1]:
            bit = {node: 1 << number for number, node in enumerate(sorted(groups[0] | groups[1]))}
            views = [
                RangeView(name, mask_of(bit, sorted(group)), mask_of(bit, sorted(group)), both=False)
                for name, group in zip((BEFORE, RECUT), groups, strict=True)
            ]
            yield _placed(after, new, now, TabletPassage(bit, 0, "", views), ())
