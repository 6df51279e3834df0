"""Rules of the directory: a node makes itself known before it may ask for anything."""

from __future__ import annotations

import re

from ringlog.kernel.commands.model import RegisterNode
from ringlog.kernel.commands.rules import NAME_RULE, UUID_RULE, broken_field
from ringlog.kernel.outcome import Accepted, Context, Decision, Rejected
from ringlog.kernel.state import ClusterState, Node, advance, in_order
from ringlog.kernel.values import is_name, is_uuid

SHARDS_MAX = 4_096
IGNORE_MSB_MAX = 63
FEATURES_MAX = 256
CAPACITY_MAX = 2**62

_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9][A-Za-z0-9_.-]{0,252}):([0-9]{1,5})")


def is_address(text: str) -> bool:
    """True for ``host:port`` (an IPv6 host in brackets) with a port from 1 to 65535."""
    match = _ADDRESS.fullmatch(text)
    return match is not None and text.isascii() and 1 <= int(match[2]) <= 65_535


def decide_register_node(state: ClusterState, command: RegisterNode, context: Context) -> Decision:
    """A new node in state ``none``. Names and ids stay taken for ever, an address while its node has not left."""
    features = command.features
    broken = broken_field(
        (is_name(command.name), "name", NAME_RULE),
        (is_uuid(command.id), "id", UUID_RULE),
        (is_address(command.address), "address", "must be host:port with a port from 1 to 65535"),
        (is_name(command.datacenter), "datacenter", NAME_RULE),
        (is_name(command.rack), "rack", NAME_RULE),
        (1 <= command.shards <= SHARDS_MAX, "shards", f"must be between 1 and {SHARDS_MAX}"),
        (0 <= command.ignore_msb <= IGNORE_MSB_MAX, "ignore_msb", f"must be between 0 and {IGNORE_MSB_MAX}"),
        (is_name(command.release), "release", NAME_RULE),
        (len(features) <= FEATURES_MAX, "features", f"must be at most {FEATURES_MAX}"),
        (all(is_name(feature) for feature in features), "features", f"each {NAME_RULE}"),
        (len(set(features)) == len(features), "features", "must name each feature once"),
        (1 <= command.capacity <= CAPACITY_MAX, "capacity", f"must be between 1 and {CAPACITY_MAX}"),
    )
    if broken is not None:
        return broken
    if command.id in state.nodes:
        return Rejected("duplicate_id", f"id: {command.id} is that of node {state.nodes[command.id].name}")
    if command.name in state.node_names:
        return Rejected("duplicate_name", f"name: {command.name} is taken")
    for _, other in in_order(state.nodes):
        if other.address == command.address and other.state != "left":
            return Rejected("duplicate_address", f"address: {command.address} is that of node {other.name}")
    node = Node(
        id=command.id,
        name=command.name,
        address=command.address,
        datacenter=command.datacenter,
        rack=command.rack,
        shards=command.shards,
        ignore_msb=command.ignore_msb,
        release=command.release,
        features=tuple(sorted(features)),
        capacity=command.capacity,
        state="none",
        tokens=(),
        registered=context.epoch,
    )
    nodes = state.nodes.set(node.id, node)
    return Accepted(advance(state, context.epoch, nodes=nodes, node_names=state.node_names.set(node.name, node.id)))
