"""Rules of the directory: nodes register before they request anything, are declared down or up, and unregister.

The log has no failure detector. A node is down when an operator or an external system declares it, and up again in the
same way. Neither cancels or removes anything. Down only permits the commands for dead nodes: Remove, Assassinate,
``ignore_nodes``, and a replacement under the same address.
"""

from __future__ import annotations

import re
from operator import attrgetter
from typing import Annotated, Any, Final

from ringlog.kernel.commands.cluster.features import missing_feature
from ringlog.kernel.commands.rules import NAME_RULE, UUID_RULE, Check, broken_field, made_of, reason_rule, registered
from ringlog.kernel.model.modes import REGISTRATIONS, UNPAUSED
from ringlog.kernel.model.outcome import Accepted, Decision, EntryContext, Rejected
from ringlog.kernel.model.principals import NODE, OPERATOR
from ringlog.kernel.model.state import ClusterState, Node, advance, in_order
from ringlog.kernel.operations.node_states import shown_state
from ringlog.kernel.operations.stages import in_flight
from ringlog.kernel.ring.shards import IGNORE_MSB_MAX, SHARDS_MAX
from ringlog.kernel.values import Command, is_name, is_uuid, replace
from ringlog.kernel.zones.change import has_data_node, with_capacity, with_liveness
from ringlog.kernel.zones.resets import members
from ringlog.kernel.zones.salvage import with_returned

CODES: Final = {
    "duplicate_address": "Another node that has not left has this address.",
    "duplicate_id": "A node has or had this id. Ids are never reused.",
    "duplicate_name": "A node has or had this name. Names are never reused.",
    "node_in_zone": "The node is a data node of a zone, or has a replica of a zone partition.",
    "unknown_node": "The node is not registered.",
    "wrong_node_state": "The node's state does not allow it.",
}

FEATURES_MAX = 256
CAPACITY_MAX = 2**62

UPDATED = ("address", "release", "features", "capacity", "shards")
"""The fields that UpdateNode changes."""
assert {*UPDATED} < {*Node.__struct_fields__}, "each name is a field of a node"
_given = attrgetter(*UPDATED)

_SHARDS_RULE = f"must be between 1 and {SHARDS_MAX}"
_FEATURES_RULE = f"must be at most {FEATURES_MAX}"
_FEATURE_RULE = f"each {NAME_RULE}"
_CAPACITY_RULE = f"must be between 1 and {CAPACITY_MAX}"

_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9][A-Za-z0-9_.-]{0,252}):([0-9]{1,5})")


def is_address(text: str) -> bool:
    """Return True for ``host:port`` (an IPv6 host in brackets) with a port from 1 to 65535."""
    match = _ADDRESS.fullmatch(text)
    return match is not None and text.isascii() and 1 <= int(match[2]) <= 65_535


WEIGHT: Final = "Relative weight of the node: with 2 it holds twice as much data as with 1."


class RegisterNode(Command):
    """Register a node. It owns no range yet.

    Its node state is ``none``.
    """

    PAUSED_BY = REGISTRATIONS
    NEEDS = (NODE, OPERATOR)

    name: Annotated[str, "Unique name of the node."]
    id: Annotated[str, "Unique id of the node, a UUID in text form."]
    address: Annotated[str, "Unique address of the node's server: host:port."]
    datacenter: Annotated[str, "Datacenter of the node."]
    rack: Annotated[str, "Rack of the node."]
    shards: Annotated[int, "Number of shards of the node."]
    ignore_msb: Annotated[int, "Number of highest token bits that the node ignores to choose a shard."]
    release: Annotated[str, "Release that the node runs."]
    features: Annotated[tuple[str, ...], "Features that the node supports."]
    capacity: Annotated[int, WEIGHT]


def decide_register_node(state: ClusterState, command: RegisterNode, context: EntryContext) -> Decision:
    """Register a new node in state ``none``. Names and ids are never free again.

    An address is in use until its node has left. If that node was declared down, its replacement may use the address.
    The new node must support every feature that is required or enabled.
    """
    broken = broken_field(
        (is_name(command.name), "name", NAME_RULE),
        (is_uuid(command.id), "id", UUID_RULE),
        _address(command.address),
        (is_name(command.datacenter), "datacenter", NAME_RULE),
        (is_name(command.rack), "rack", NAME_RULE),
        _shards(command.shards),
        (0 <= command.ignore_msb <= IGNORE_MSB_MAX, "ignore_msb", f"must be between 0 and {IGNORE_MSB_MAX}"),
        *_abilities(command.release, command.features, command.capacity),
    )
    if broken is not None:
        return broken
    if command.id in state.nodes:
        return Rejected("duplicate_id", f"id: {command.id} is the id of node {state.nodes[command.id].name}")
    if command.name in state.node_names:
        return Rejected("duplicate_name", f"name: {command.name} is taken")
    if (taken := _taken(state, command.address)) is not None:
        return taken
    if (lacks := missing_feature(state, command.name, command.features)) is not None:
        return lacks
    said = {"state": "none", "tokens": (), "registered": context.epoch}
    node = made_of(Node, command, features=tuple(sorted(command.features)), **said)
    nodes = state.nodes.set(node.id, node)
    return Accepted(advance(state, context.epoch, nodes=nodes, node_names=state.node_names.set(node.name, node.id)))


class UpdateNode(Command):
    """Update the properties of a node. Null properties stay as they are.

    Examples: another machine, another release, more disks.
    """

    PAUSED_BY = UNPAUSED
    NEEDS = (NODE, OPERATOR)

    node: Annotated[str, "Id of the node."]
    address: Annotated[str | None, "Unique address of the node's server: host:port."] = None
    release: Annotated[str | None, "Release that the node runs."] = None
    features: Annotated[tuple[str, ...] | None, "All features that the node supports from now on."] = None
    capacity: Annotated[int | None, WEIGHT] = None
    shards: Annotated[int | None, "Number of shards of the node. Only for a node without tokens."] = None


assert {*UpdateNode.__struct_fields__} == {"node", *UPDATED}, "no field of the command is ignored"


def decide_update_node(state: ClusterState, command: UpdateNode, context: EntryContext) -> Decision:
    """Update a node that has not left. Only a node without tokens changes its shards, because streams follow from them.

    The address must be free, as for RegisterNode. A node keeps the required and enabled features that it has.
    """
    given: dict[str, Any] = {}
    for name, said in zip(UPDATED, _given(command), strict=True):
        if said is not None:
            given[name] = said
    if not given:
        return Rejected("bad_field", f"node: no field was given; give at least one of {', '.join(UPDATED)}")
    node = registered(state, command.node)
    if isinstance(node, Rejected):
        return node
    if command.features is not None:
        given["features"] = tuple(sorted(command.features))
    updated = replace(node, **given)
    checks = _abilities(updated.release, updated.features, updated.capacity)
    broken = broken_field(_shards(updated.shards), *checks)
    if command.address is not None:  # the other fields were checked above
        broken = broken_field(_address(command.address)) or broken
    if broken is not None:
        return broken
    if node.state == "left":
        return Rejected("wrong_node_state", f"node: {node.name} has left")
    if updated.shards != node.shards and node.state != "none":
        return Rejected(
            "wrong_node_state",
            f"shards: {node.name} is {shown_state(state, node.id)}, only a node in state none changes them",
        )
    if updated.address != node.address and (taken := _taken(state, updated.address)) is not None:
        return taken
    lacked = sorted(set(state.features).difference(node.features))
    if (lacks := missing_feature(state, node.name, updated.features, lacked)) is not None:
        return lacks
    changed: dict[str, Any] = {"nodes": state.nodes.set(node.id, updated)}
    if updated.capacity != node.capacity:
        zones = with_capacity(state, node.id, context.epoch)
        changed |= {} if zones is state.zones else {"zones": zones}
    return Accepted(advance(state, context.epoch, **changed))


_id_of: Final = attrgetter("id")


def _address(address: str) -> Check:
    return is_address(address), "address", "must be host:port with a port from 1 to 65535"


def _shards(shards: int) -> Check:
    return 1 <= shards <= SHARDS_MAX, "shards", _SHARDS_RULE


def _abilities(release: str, features: tuple[str, ...], capacity: int) -> tuple[Check, ...]:
    return (
        (is_name(release), "release", NAME_RULE),
        (len(features) <= FEATURES_MAX, "features", _FEATURES_RULE),
        (all(map(is_name, features)), "features", _FEATURE_RULE),
        (len(set(features)) == len(features), "features", "must name each feature once"),
        (1 <= capacity <= CAPACITY_MAX, "capacity", _CAPACITY_RULE),
    )


def _taken(state: ClusterState, address: str) -> Rejected | None:
    there = [other for other in state.nodes.values() if other.address == address]
    there = [other for other in there if other.state != "left" and not other.down]
    if not there:
        return None
    return Rejected("duplicate_address", f"address: {address} is the address of node {min(there, key=_id_of).name}")


class UnregisterNode(Command):
    """Unregister a node that owns nothing.

    Its id and name are never used again.
    """

    PAUSED_BY = REGISTRATIONS
    NEEDS = (OPERATOR,)

    node: Annotated[str, "Id of the node."]


def decide_unregister_node(state: ClusterState, command: UnregisterNode, context: EntryContext) -> Decision:
    """Unregister a node that owns nothing and requests nothing. Reject it while it belongs to a zone or a partition."""
    node = registered(state, command.node)
    if isinstance(node, Rejected):
        return node
    if node.state != "none":
        return Rejected(
            "wrong_node_state",
            f"node: {node.name} is {shown_state(state, node.id)}, only a node in state none can be unregistered",
        )
    if zone := next((name for name, zone in in_order(state.zones) if has_data_node(zone, node.id)), None):
        return Rejected("node_in_zone", f"node: {node.name} is a data node of zone {zone}: change its filter first")
    for key, partition in in_order(state.zone_partitions):
        if node.id in members(partition):
            return Rejected(
                "node_in_zone",
                f"node: {node.name} has a replica of zone partition {key}; wait until the replica has moved",
            )
    return Accepted(advance(state, context.epoch, nodes=state.nodes.set(node.id, replace(node, state="left"))))


class DeclareDown(Command):
    """Declare a node down, by an operator or an external system.

    The log has no other information about liveness.
    """

    PAUSED_BY = UNPAUSED
    NEEDS = (OPERATOR,)

    node: Annotated[str, "Id of the node."]
    reason: Annotated[str, "Reason, in free text."]


def decide_declare_down(state: ClusterState, command: DeclareDown, context: EntryContext) -> Decision:
    """Declare a node down. From now on it counts as dead for commands that ignore, remove or replace it."""
    return _declared(state, command.node, command.reason, context, down=True)


class DeclareUp(Command):
    """Declare a node up again."""

    PAUSED_BY = UNPAUSED
    NEEDS = (OPERATOR,)

    node: Annotated[str, "Id of the node."]
    reason: Annotated[str, "Reason, in free text."]


def decide_declare_up(state: ClusterState, command: DeclareUp, context: EntryContext) -> Decision:
    """Declare a node up. Reject it while an operation continues without the node, or another node has its address.

    A node that lacks a required feature is rejected until it is upgraded. If a reset is salvaging a tablet that the
    node has, the node is a source, too.
    """
    node = state.nodes.get(command.node)
    if node is not None:
        for operation in in_flight(state):
            if node.id in operation.ignored:
                return Rejected("operations_in_flight", f"node: {operation.id} continues without {node.name}")
        for _, other in in_order(state.nodes):
            if other.address == node.address and other.id != node.id and other.state != "left":
                return Rejected("duplicate_address", f"node: {node.address} is also the address of {other.name}")
        if node.down and (lacks := missing_feature(state, node.name, node.features)) is not None:
            return lacks
    return _declared(state, command.node, command.reason, context, down=False)


def _declared(state: ClusterState, name: str, reason: str, context: EntryContext, *, down: bool) -> Decision:
    if (broken := broken_field(reason_rule(reason, 0))) is not None:
        return broken
    node = registered(state, name)
    if isinstance(node, Rejected):
        return node
    if node.state == "left":
        return Rejected("wrong_node_state", f"node: {node.name} has left")
    if node.down == down:
        return Rejected("wrong_node_state", f"node: {node.name} is declared {'down' if down else 'up'} already")
    declared = replace(node, down=down, down_reason=reason if down else "")
    tablets = state.tablets if down else with_returned(state, node.id, context.epoch)
    changed: dict[str, Any] = {} if tablets is state.tablets else {"tablets": tablets}
    if (zones := with_liveness(state, node.id, context.epoch)) is not state.zones:
        changed["zones"] = zones
    return Accepted(advance(state, context.epoch, nodes=state.nodes.set(node.id, declared), **changed))
