"""The shards that a transition reads and writes, and the limits on streaming.

Limits count the weights of kinds, for each shard that is read or written, for each node, and for the cluster. A
transition counts until it has streamed. An idle shard, node or cluster can always take one transition of any weight.
Admission and planner count with these functions, so a plan asks for nothing that admission refuses because of a limit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from ringlog.kernel.model.outcome import Rejected
from ringlog.kernel.model.settings import setting
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.model.tablet_map import Tablet, TabletReplica
from ringlog.kernel.tablets.groups import is_dead
from ringlog.kernel.tablets.mutual_exclusion import transitions
from ringlog.kernel.tablets.stages import STREAMING_STAGES, Giver, TransitionKind, kind_of, leaving, pending
from ringlog.kernel.values import NodeId, Value

Place = tuple[NodeId, int]
"""A shard of a node."""
_PLACES: Final = ("reads_per_shard", "writes_per_shard", "reads_per_node", "writes_per_node")
_LIMITS: Final = (*(f"tablet_stream_{place}_max" for place in _PLACES), "tablet_streams_max")


class StreamUse(Value):
    """The shards that one transition reads and writes, and its weight."""

    weight: int
    reads: Sequence[Place]
    writes: Sequence[Place]


def stream_use(kind: TransitionKind, alive: Sequence[Place], source: Place | None, target: Place | None) -> StreamUse:
    """Return the use of a transition of ``kind``. ``alive``: the settled places of its tablet on living nodes."""
    if not kind.exchanges:
        return StreamUse(kind.weight, alive, alive)
    others = [place for place in alive if place != source]
    reads = [source] if kind.giver is Giver.LEAVING and source is not None else others
    return StreamUse(kind.weight, reads, [] if target is None else [target])


def use_of(state: ClusterState, tablet: Tablet) -> StreamUse:
    """Return the use of the transition of ``tablet``."""
    assert tablet.transition is not None, "only transitions stream"
    alive = [(one.node, one.shard) for one in tablet.replicas if not is_dead(state.nodes[one.node])]
    return stream_use(kind_of(tablet.transition), alive, _place(leaving(tablet)), _place(pending(tablet)))


def uses_in(state: ClusterState) -> Iterator[StreamUse]:
    """Yield the use of each transition that has not finished streaming, including tables in zones."""
    for tablets, transition in transitions(state):
        if transition.stage in STREAMING_STAGES:
            yield use_of(state, tablets.tablet(transition.tablet))


def exceeds(now: int, weight: int, most: int, count: int = 1) -> bool:
    """Return whether ``count`` further transitions of ``weight`` each pass the limit ``most``. 0 means unlimited."""
    before = now + (count - 1) * weight
    return bool(most and before and before + weight > most)


class Streams:
    """The weights of all streaming transitions of a state, by shard, by node and in total."""

    def __init__(self, state: ClusterState) -> None:
        self.reads: Counter[Place] = Counter()
        self.writes: Counter[Place] = Counter()
        self.node_reads: Counter[NodeId] = Counter()
        self.node_writes: Counter[NodeId] = Counter()
        self.all = 0
        self._limits = {name: setting(state, name) for name in _LIMITS}
        for use in uses_in(state):
            self._count(use)
        assert self.reads.total() == self.node_reads.total(), "the reads of a node are those of its shards"
        assert self.writes.total() == self.node_writes.total(), "the writes of a node are those of its shards"

    def add(self, state: ClusterState, tablet: Tablet) -> Rejected | None:
        """Count a transition that begins. If it would pass a limit, return the rejection and do not count it."""
        use = use_of(state, tablet)
        counts: tuple[Mapping[Any, int], ...] = (
            self.reads,
            self.writes,
            self.node_reads,
            self.node_writes,
            {"all": self.all},
        )
        places_of = (use.reads, use.writes, _nodes(use.reads), _nodes(use.writes), ["all"])
        for counted, places, (name, most) in zip(counts, places_of, self._limits.items(), strict=True):
            for place in places if most else ():
                now = counted.get(place, 0)
                if exceeds(now, use.weight, most):
                    where = f"{state.nodes[place[0]].name}/{place[1]}" if isinstance(place, tuple) else place
                    return Rejected("streaming_limit", f"{where} streams {now} already, {name} is {most}")
        self._count(use)
        return None

    def _count(self, use: StreamUse) -> None:
        for counted, nodes, places in (
            (self.reads, self.node_reads, use.reads),
            (self.writes, self.node_writes, use.writes),
        ):
            for place in places:
                counted[place] += use.weight
                nodes[place[0]] += use.weight
        self.all += use.weight


def _place(replica: TabletReplica | None) -> Place | None:
    return None if replica is None else (replica.node, replica.shard)


def _nodes(places: Sequence[Place]) -> list[NodeId]:
    return [place[0] for place in places] if len(places) < 2 else sorted({node for node, _ in places})
