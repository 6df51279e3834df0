"""The data nodes of a zone, and its two timers.

=========================================  ============================================================================
a node that                                effect
=========================================  ============================================================================
matches the filter, is not a data node     becomes one ``scale_up`` seconds after the last such node appeared
is a data node, no longer matches          is removed ``scale_down`` seconds after the last such node stopped matching
                                           (it is down, or has other values)
returns, or goes, before its timer fires   none: the timer ends
has left                                   is removed at once, because it never returns
has not joined                             does not become a data node: it has no data to lose, and may never run
is asked to leave                          is removed at once if other data nodes remain, so that it can give its
                                           partitions away
=========================================  ============================================================================

A wait of 0 seconds means at once, ``NEVER`` means never. Timers are not part of the state. For each node that differs,
an instance notes when it first saw the difference, at the time of the last entry that changed a node. An instance that
takes over sees all differences then. So a timer never starts later than the last change of any node, and a take-over
loses none. A changed wait counts from the same start. These times come from the authors of entries, *now* comes from
this machine. With a wrong clock a timer fires early or late, and nothing else goes wrong.

A filter is a JSONPath query over a list of one node. The node is an object with these members: ``name``, ``id``,
``address``, ``datacenter``, ``rack``, ``shards``, ``release``, ``features``, ``capacity``. It matches if the query
finds anything. So ``$[?(@.rack == "r1")]`` matches by an attribute, ``$[*].features[?@ == "ssd"]`` by one of several,
and ``$..*`` matches every node. A comparison with an absent member is false, except ``!=``.

A library evaluates filters. The rule of the command decides whether a text is a filter (``kernel.zones.filter``). Any
other text matches no node.

Source: Apache Ignite 3, scale-up and scale-down timers of distribution zones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from immutables import Map

from ringlog.extras import explained
from ringlog.kernel.commands.placement.zones import SetDataNodes
from ringlog.kernel.history import state_id_at
from ringlog.kernel.model.state import STAYS, ClusterState, Node, in_order
from ringlog.kernel.model.zones import EVERY_NODE, NEVER, Zone
from ringlog.kernel.tablets.mutual_exclusion import drained_by
from ringlog.kernel.values import SECOND_US, Epoch, Micros, NodeId, Value, field
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
"""The members of a node in a filter."""
SCALE_UP: Final = "scale_up"
SCALE_DOWN: Final = "scale_down"

_PARTS: Final = ("nodes", "zones", "operations")
"""The state sections that timers depend on."""

Differing = tuple[str, NodeId]
"""A zone, and a node that will become one of its data nodes or stop being one."""


def matching_nodes(
    state: ClusterState, text: str, profiles: Iterable[str], runs: Callable[[ClusterState, NodeId], bool] = is_alive
) -> tuple[str, ...]:
    """Return the ids of the running nodes that have these profiles and match the filter; none if it is not a filter."""
    wanted = frozenset(profiles)
    nodes = [node for _, node in sorted(state.nodes.items()) if runs(state, node.id)]
    nodes = [node for node in nodes if wanted <= set(node.features)]
    if text == EVERY_NODE:
        return tuple(node.id for node in nodes)
    if broken_filter(text):
        return ()
    with explained():
        from jsonpath import JSONPathEnvironment, JSONPathError

    try:
        path = JSONPathEnvironment(strict=True).compile(text)
        return tuple(node.id for node in nodes if path.findall([_attributes(node)]))
    except JSONPathError:
        return ()


def _attributes(node: Node) -> dict[str, Any]:
    values = {name: getattr(node, name) for name in ATTRIBUTES}
    return values | {"features": list(node.features)}


class Timers(Value):
    """The nodes that differ in a state, with the start of their timers.

    ``since``: the start, by zone and node. ``matched``: the nodes that match the filter of each zone. ``of``: the
    epochs of the state sections that this was computed from.
    """

    since: Map[Differing, Micros] = field(default_factory=Map)
    matched: Map[str, frozenset[NodeId]] = field(default_factory=Map)
    of: tuple[Epoch, ...] = ()


def updated_timers(timers: Timers, state: ClusterState) -> Timers:
    """Return the timers for a newer state. Timers of nodes that no longer differ end, others start."""
    of = tuple(state.changed.get(part, 0) for part in _PARTS)
    if of == timers.of:
        return timers
    began = time_of(state_id_at(state, max(of[0], state.history.first)))
    since, matched = {}, {}
    for name, zone in in_order(state.zones):
        nodes = matched[name] = frozenset(matching_nodes(state, zone.filter, zone.profiles)) - unfit(state)
        for node in nodes.symmetric_difference(zone.nodes):
            since[name, node] = timers.since.get((name, node), began)
    return Timers(Map(since), Map(matched), of)


def unfit(state: ClusterState) -> frozenset[NodeId]:
    """Return the nodes that may not be data nodes, because they have not joined or must leave."""
    outside = (node.id for node in state.nodes.values() if node.state not in STAYS)
    return frozenset(outside).union(drained_by(state))


def new_data_nodes(timers: Timers, state: ClusterState, now: Micros) -> tuple[SetDataNodes, ...]:
    """Return the new data nodes of the zones with an expired timer.

    Args:
        timers: the result of ``updated_timers`` for this state.
    """
    found = []
    for name, zone in in_order(state.zones):
        nodes, have = timers.matched[name], frozenset(zone.nodes)
        came, went, left = nodes - have, have - nodes, _removed_at_once(state, zone)
        up = came if _is_over(_timer(timers, zone, SCALE_UP, came), now) else frozenset()
        down = went if _is_over(_timer(timers, zone, SCALE_DOWN, went - left), now) else left
        if up or down:
            cause = max(state.changed.get("nodes", 0), zone.cause, 1)
            found.append(SetDataNodes(name, tuple(sorted((have | up) - down)), cause))
    return tuple(found)


class RunningTimer(Value):
    """A timer of a zone. ``name``: ``scale_up`` for nodes that came, ``scale_down`` for nodes that went.

    ``since``: when the last of the nodes came or went. ``fires``: when all of them take effect; None: never. ``wait``:
    the seconds between the two.
    """

    zone: str
    name: str
    nodes: tuple[NodeId, ...]
    since: Micros
    fires: Micros | None
    wait: int


def running_timers(timers: Timers, state: ClusterState) -> Iterator[RunningTimer]:
    """Yield the timers of all zones, including those that never fire.

    Args:
        timers: the result of ``updated_timers`` for this state.
    """
    for name, zone in in_order(state.zones):
        nodes, have = timers.matched[name], frozenset(zone.nodes)
        for kind, differ in ((SCALE_UP, nodes - have), (SCALE_DOWN, have - nodes - _removed_at_once(state, zone))):
            timer = _timer(timers, zone, kind, differ)
            if timer is not None:
                yield timer


def _removed_at_once(state: ClusterState, zone: Zone) -> frozenset[NodeId]:
    """Return the data nodes that are removed without a timer.

    These are nodes that have left and, if other data nodes remain, nodes that must have no data.
    """
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
    """Return whether a timer has expired. A wait of 0 seconds has, independent of the clock."""
    return timer is not None and timer.fires is not None and (timer.wait == 0 or now >= timer.fires)
