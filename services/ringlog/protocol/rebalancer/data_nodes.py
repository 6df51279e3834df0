"""The data nodes of a zone, and its two timers: when nodes that came, or went, count.

=========================================  ============================================================================
a node                                     what becomes of it
=========================================  ============================================================================
matches the filter, is no data node        is one, ``scale_up`` seconds after the last of such nodes came
matches no more (is down, has other         is none any more, ``scale_down`` seconds after the last of such nodes went
values), is a data node
has left                                    is none any more, at once: it never comes back
comes back, or goes, before that           nothing: its timer is gone
has not joined                              is none: it has nothing to lose, and may never run
is asked to leave                           is none any more, at once, while there are others: it must give its
                                           partitions away
=========================================  ============================================================================

0 seconds is at once, ``NEVER`` is never. A timer is no part of the state: an instance notes for each node that differs
when it first saw that, at the time of the last entry that changed a node. An instance that takes over sees all of them
then, so a timer never begins later than the last change of any node, and a take-over loses none. Another value for a
wait counts from there, too. Times are of the authors of entries, and *now* is this machine's: a wrong clock makes a
timer fire early or late, nothing else.

A filter is asked about a list of one node, an object with these members: ``name``, ``id``, ``address``,
``datacenter``, ``rack``, ``shards``, ``release``, ``features``, ``capacity``. The node matches if the filter finds
anything there. So ``$[?(@.rack == "r1")]`` matches by an attribute, ``$[*].features[?@ == "ssd"]`` by one of several;
``$..*`` matches all. A comparison of what the node does not have is false, but for ``!=``.

A library evaluates it; that a text is a filter, the rule of the command says (``kernel.zones.filter``). What is none
matches nobody.

Source: Apache Ignite 3, scale-up and scale-down timers of distribution zones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from immutables import Map

from ringlog.kernel.commands.placement.zones import SetDataNodes
from ringlog.kernel.history import state_id_at
from ringlog.kernel.model.state import STAYS, ClusterState, Node, in_order
from ringlog.kernel.model.zones import EVERY_NODE, NEVER, Zone
from ringlog.kernel.tablets.mutual_exclusion import drained_by
from ringlog.kernel.values import SECOND_US, Epoch, Micros, NodeId
from ringlog.kernel.zones.distribution import is_alive
from ringlog.kernel.zones.filter import broken_filter
from ringlog.wire.ids import time_of

ATTRIBUTES: Final = (
    "name",
    "id",
    "address",
    "datacenter",
    "rack",
    "shards",
    "release",
    "features",
    "capacity",
)
"""What a filter sees of a node."""
SCALE_UP: Final = "scale_up"
SCALE_DOWN: Final = "scale_down"

_PARTS: Final = ("nodes", "zones", "operations")
"""What the timers follow from."""

Differing = tuple[str, NodeId]
"""Zone, and a node that is to become a data node of it, or to be none any more."""


def matching(
    state: ClusterState, text: str, profiles: Iterable[str], runs: Callable[[ClusterState, NodeId], bool] = is_alive
) -> tuple[str, ...]:
    """Ids of the nodes that run, have these profiles and match the filter; none if it is no filter."""
    wanted = frozenset(profiles)
    nodes = [node for _, node in sorted(state.nodes.items()) if runs(state, node.id)]
    nodes = [node for node in nodes if wanted <= set(node.features)]
    if text == EVERY_NODE:
        return tuple(node.id for node in nodes)
    if broken_filter(text):
        return ()
    from jsonpath import JSONPathEnvironment, JSONPathError

    try:
        path = JSONPathEnvironment(strict=True).compile(text)
        return tuple(node.id for node in nodes if path.findall([_attributes(node)]))
    except JSONPathError:
        return ()


def _attributes(node: Node) -> dict[str, Any]:
    values = {name: getattr(node, name) for name in ATTRIBUTES}
    return values | {"features": list(node.features)}


@dataclass(frozen=True, slots=True)
class Timers:
    """Since when which nodes differ, as of a state. ``matched``: zone to the nodes that its filter matches there."""

    since: Map[Differing, Micros] = field(default_factory=Map)
    matched: Map[str, frozenset[NodeId]] = field(default_factory=Map)
    of: tuple[Epoch, ...] = ()


def followed(timers: Timers, state: ClusterState) -> Timers:
    """The timers on a newer state: those of nodes that differ no more are gone, others begin."""
    of = tuple(state.changed.get(part, 0) for part in _PARTS)
    if of == timers.of:
        return timers
    began = time_of(state_id_at(state, max(of[0], state.history.first)))
    since, matched = {}, {}
    for name, zone in in_order(state.zones):
        nodes = matched[name] = frozenset(matching(state, zone.filter, zone.profiles)) - unfit(state)
        for node in nodes.symmetric_difference(zone.nodes):
            since[name, node] = timers.since.get((name, node), began)
    return Timers(Map(since), Map(matched), of)


def unfit(state: ClusterState) -> frozenset[NodeId]:
    """The nodes that may not be data nodes: those that have not joined, or are to leave."""
    outside = (node.id for node in state.nodes.values() if node.state not in STAYS)
    return frozenset(outside).union(drained_by(state))


def due(timers: Timers, state: ClusterState, now: Micros) -> tuple[SetDataNodes, ...]:
    """The data nodes of zones whose timers are over, as ``followed`` on this state."""
    found = []
    for name, zone in in_order(state.zones):
        nodes, have = timers.matched[name], frozenset(zone.nodes)
        came, went, left = nodes - have, have - nodes, _at_once(state, zone)
        up = came if _is_over(_timer(timers, zone, SCALE_UP, came), now) else frozenset()
        down = went if _is_over(_timer(timers, zone, SCALE_DOWN, went - left), now) else left
        if up or down:
            cause = max(state.changed.get("nodes", 0), zone.cause, 1)
            found.append(SetDataNodes(name, tuple(sorted((have | up) - down)), cause))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class RunningTimer:
    """Nodes that came and are to count (``scale_up``), or that went and are to count no more (``scale_down``).

    ``since``: when the last of them came, or went; ``fires``: when they count, or count no more, together; None: never.
    """

    zone: str
    name: str
    nodes: tuple[NodeId, ...]
    since: Micros
    fires: Micros | None
    wait: int


def running(timers: Timers, state: ClusterState) -> Iterator[RunningTimer]:
    """The timers of all zones that run, or would if their zone let them, as ``followed`` on this state."""
    for name, zone in in_order(state.zones):
        nodes, have = timers.matched[name], frozenset(zone.nodes)
        for kind, differ in ((SCALE_UP, nodes - have), (SCALE_DOWN, have - nodes - _at_once(state, zone))):
            timer = _timer(timers, zone, kind, differ)
            if timer is not None:
                yield timer


def _at_once(state: ClusterState, zone: Zone) -> frozenset[NodeId]:
    """The data nodes that go without a timer: who has left; who may have none of the data, too, where others stay."""
    have = frozenset(zone.nodes)
    left = frozenset(node for node in have if state.nodes[node].state == "left")
    gone = left | unfit(state) & have
    return gone if have - gone else left


def _timer(timers: Timers, zone: Zone, name: str, nodes: frozenset[NodeId]) -> RunningTimer | None:
    if not nodes:
        return None
    wait = zone.scale_up if name == SCALE_UP else zone.scale_down
    since = max(timers.since[zone.name, node] for node in nodes)
    fires = None if wait == NEVER else since + wait * SECOND_US
    return RunningTimer(zone.name, name, tuple(sorted(nodes)), since, fires, wait)


def _is_over(timer: RunningTimer | None, now: Micros) -> bool:
    """True if its nodes came, or went, as long ago as its zone waits; 0 seconds are over whatever the clock says."""
    return timer is not None and timer.fires is not None and (timer.wait == 0 or now >= timer.fires)
