"""A cluster as JSON or as a few numbers, and the state after its nodes have joined one after the other.

::

    {"nodes": [{"name": "A", "tokens": [100], "datacenter": "dc1", "rack": "r1", "shards": 1}, ...],
     "zones": [{"zone": "z", "partitions": 2, "replicas": 2}, ...],
     "service": {"size": 3},
     "keyspaces": [{"name": "ks", "replication": {"strategy": "simple", "factor": 3}}, ...]}

Datacenter, rack, shards, zones and the metadata service are optional (``dc1``, ``r1``, 1, none, no members). A keyspace
in tablets or in a zone gets a table ``t``, because only tables have tablets.

Instead of a cluster, the file may describe a protocol draft: ``histories``. Each has ``views`` (``name``, ``read``,
``write``, oldest first), and optionally ``title``, ``datacenters`` (node to datacenter) and ``streams`` (new replica to
the list of its sources). The gates between its views are those that R5 requires.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from itertools import pairwise
from typing import Any

from ringlog.kernel.commands.cluster.cluster import InitializeCluster
from ringlog.kernel.model.outcome import OutcomeKind
from ringlog.kernel.model.state import EMPTY_STATE, ClusterState
from ringlog.kernel.ownership.kinds import strategy_of
from ringlog.kernel.values import Command, Value, replace
from ringlog.operator.intents.intents import InvalidCommand
from ringlog.operator.intents.json_commands import from_json
from ringlog_testing.quorums.model import MEMBERS_MAX, Mask, Passage, RangeHistory, RangeStream, RangeView, demanded
from ringlog_testing.quorums.timeline import Placed
from ringlog_testing.quorums.walk import WalkWorld, drive

Json = Mapping[str, Any]
NODES_MAX = 64
TOKENS_MAX = 1_024
STEP = 1_000
"""Distance between the tokens of a regular cluster. Only their order matters."""


class BadDescription(Exception):
    """An error in a description, with its location. ``code`` is stable."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code


class PlacementKind(StrEnum):
    """The placements of a regular cluster: a keyspace for each."""

    RING = "ring"
    TABLETS = "tablets"
    ZONE = "zone"
    ALL = "all"

    def has(self, one: PlacementKind) -> bool:
        """Return whether there is a keyspace with this placement."""
        return self in (one, PlacementKind.ALL)


class Numbers(Value):
    """A regular cluster: ``nodes`` spread over datacenters, then racks. The ``tokens`` of the nodes interleave.

    ``placement``: of its keyspaces. With tablets, each node has two shards.
    """

    nodes: int = 4
    racks: int = 1
    datacenters: int = 1
    factor: int = 3
    tokens: int = 1
    placement: PlacementKind = PlacementKind.RING


def described(numbers: Numbers) -> dict[str, Any]:
    """Return the description of a regular cluster with these numbers."""
    for name, value, most in (
        ("nodes", numbers.nodes, NODES_MAX),
        ("racks", numbers.racks, NODES_MAX),
        ("datacenters", numbers.datacenters, NODES_MAX),
        ("factor", numbers.factor, MEMBERS_MAX - 1),
        ("tokens", numbers.tokens, TOKENS_MAX // numbers.nodes if numbers.nodes > 0 else 0),
    ):
        if not 1 <= value <= most:
            raise BadDescription("bad_field", f"{name}: must be between 1 and {most}, not {value}")
    nodes = [
        {
            "name": f"n{number + 1}",
            "datacenter": f"dc{number % numbers.datacenters + 1}",
            "rack": f"r{number // numbers.datacenters % numbers.racks + 1}",
            "tokens": [STEP * (1 + number + numbers.nodes * turn) for turn in range(numbers.tokens)],
            "shards": 1 if numbers.placement is PlacementKind.RING else 2,
        }
        for number in range(numbers.nodes)
    ]
    zone = {"zone": "z", "partitions": 1, "replicas": numbers.factor}
    keyspaces = {
        PlacementKind.RING: ("ks", _simple(numbers.factor)),
        PlacementKind.TABLETS: ("kt", {"strategy": "tablets", "factor": numbers.factor}),
        PlacementKind.ZONE: ("kz", {"strategy": "zone", "zone": "z"}),
    }
    wanted = [found for kind, found in keyspaces.items() if numbers.placement.has(kind)]
    return {
        "nodes": nodes,
        "zones": [zone] if numbers.placement.has(PlacementKind.ZONE) else [],
        "keyspaces": [{"name": name, "replication": replication} for name, replication in wanted],
    }


def _simple(factor: int) -> Json:
    return {"strategy": "simple", "factor": factor}


def state_of(description: Json) -> ClusterState:
    """Return the quiet state of the cluster. Every step to it is a command of the log. Raise BadDescription."""
    _only(description, ("nodes", "zones", "service", "keyspaces"), "the description")
    nodes, keyspaces = _objects(description, "nodes"), _objects(description, "keyspaces")
    if not keyspaces:
        raise BadDescription("bad_field", "keyspaces: at least one keyspace is required")
    if not 1 <= len(nodes) <= NODES_MAX:
        raise BadDescription("bad_field", f"nodes: must be 1 to {NODES_MAX}, not {len(nodes)}")
    world = WalkWorld(EMPTY_STATE)
    world.apply(InitializeCluster("quorums"))
    for node in nodes:
        _only(node, ("name", "tokens", "datacenter", "rack", "shards"), "a node")
        _apply(world, {"command": "RegisterNode", **{name: node[name] for name in node if name != "tokens"}})
        join = _command(world, {"command": "Join", "node": node.get("name"), "tokens": node.get("tokens", [])})
        _, fault = drive(world, join)
        if fault is not None:
            raise BadDescription("bad_field", f"nodes: {node.get('name')}: {fault.detail}")
    for zone in _objects(description, "zones") if "zones" in description else []:
        _only(zone, ("zone", "partitions", "replicas", "quorum", "filter"), "a zone")
        _apply(world, {"command": "CreateZone", **zone})
    if "service" in description:
        _only(_object(description, "service"), ("size", "automatic", "excluded"), "the service")
        _apply(world, {"command": "ReconfigureService", **_object(description, "service")})
        while any(world.coordinate()):
            pass
    for keyspace in keyspaces:
        _only(keyspace, ("name", "replication"), "a keyspace")
        _apply(world, {"command": "CreateKeyspace", **keyspace})
        made = world.state.keyspaces[str(keyspace["name"])]
        if not strategy_of(made.replication).in_ring:
            key = {"columns": {"k": "text"}, "partition_key": ["k"]}
            _apply(world, {"command": "CreateTable", "keyspace": made.name, "name": "t", **key})
    return world.state


def _apply(world: WalkWorld, value: Json) -> None:
    outcome = world.apply(_command(world, value))
    if outcome.kind is not OutcomeKind.APPLIED:
        raise BadDescription(outcome.code, f"{value['command']}: {outcome.detail}")


def _command(world: WalkWorld, value: Json) -> Command:
    command = from_json(world.state, value, world.draw)
    if isinstance(command, InvalidCommand):
        raise BadDescription(command.code, f"{value['command']}: {command.detail}")
    return command


# ------------------------------------------------------------------------------------------------ drawn by hand


def drawn(description: Json) -> list[tuple[str, Placed]]:
    """Return (title, history) of every history in a description. Raise BadDescription."""
    _only(description, ("histories",), "the description")
    found = []
    for number, one in enumerate(_objects(description, "histories"), start=1):
        _only(one, ("title", "views", "datacenters", "streams"), "a history")
        found.append((str(one.get("title", f"history {number}")), _drawn(one)))
    if not found:
        raise BadDescription("bad_field", "histories: at least one history is required")
    return found


def _drawn(value: Json) -> Placed:
    rows = [
        (str(view.get("name", f"view {n}")), _texts(view, "read"), _texts(view, "write")) for n, view in _views(value)
    ]
    streams = {target: _strings(f"streams.{target}", given) for target, given in _object(value, "streams").items()}
    named = (name for _, read, write in rows for name in (*write, *read))
    names = tuple(dict.fromkeys((*named, *(name for target in streams for name in (target, *streams[target])))))
    if len(names) > MEMBERS_MAX:
        raise BadDescription("bad_field", f"views: {len(names)} nodes, but at most {MEMBERS_MAX} can be checked")
    bit = {name: 1 << number for number, name in enumerate(names)}

    def mask(group: Sequence[str]) -> Mask:
        return sum(bit[name] for name in set(group))

    inner = range(1, len(rows) - 1)
    views = tuple(RangeView(name, mask(r), mask(w), number in inner) for number, (name, r, w) in enumerate(rows))
    for view in views:
        if view.read & ~view.write:
            raise BadDescription("bad_field", f"views: a node of {view.name} reads but does not write")
    where = _object(value, "datacenters")
    history = RangeHistory(
        tuple(str(where.get(name, "dc1")) for name in names),
        views,
        streams=tuple(RangeStream(bit[target], mask(from_), views[0].read) for target, from_ in streams.items()),
    )
    gates = tuple(Passage(number, views[number].name, demanded(history)) for number in inner)
    return Placed(replace(history, gates=gates), "drawn by hand", 0, 0, names)


def _views(value: Json) -> list[tuple[int, Json]]:
    views = _objects(value, "views")
    if len(views) < 2:
        raise BadDescription("bad_field", "views: a history needs at least two")
    for view in views:
        _only(view, ("name", "read", "write"), "a view")
    same = [one for one, other in pairwise(views) if one == other]
    if same:
        raise BadDescription("bad_field", f"views: {same[0].get('name', 'a view')} occurs twice in a row")
    return list(enumerate(views))


# ------------------------------------------------------------------------------------------------------- fields


def _only(value: Json, allowed: tuple[str, ...], what: str) -> None:
    unknown = sorted(set(value) - set(allowed))
    if unknown:
        raise BadDescription("unknown_field", f"{unknown[0]}: {what} can have {', '.join(allowed)}")


def _objects(value: Json, name: str) -> list[Json]:
    found = value.get(name)
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise BadDescription("bad_field", f"{name}: must be a list of objects")
    return found


def _object(value: Json, name: str) -> Json:
    found = value.get(name, {})
    if not isinstance(found, dict):
        raise BadDescription("bad_field", f"{name}: must be an object")
    return found


def _texts(value: Json, name: str) -> tuple[str, ...]:
    return _strings(name, value.get(name))


def _strings(name: str, found: object) -> tuple[str, ...]:
    if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
        raise BadDescription("bad_field", f"{name}: must be a list of names")
    return tuple(found)
