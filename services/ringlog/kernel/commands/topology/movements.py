"""Requests of range movements: join, leave, move, replace, remove, assassinate, rebuild.

Each rule checks the conditions of its kind and makes the plan. ``movements.admission`` and the row of the kind
(``operations.kinds``) do everything else. ``commands.schema.keyspaces`` requests changes of a keyspace's replication.

- **Join**: A registered node gets tokens that no node owns.
- **Leave** and **Remove**: The nodes that stay must be able to hold every keyspace's replication. Remove is for a node
  that was declared down: the others drive it.
- **Move**: All tokens that the node owns afterwards; it may keep some.
- **Replace**: The new node takes over all tokens of another, in the same datacenter and rack, so that each range has
  one member exchanged and no rack is missed. A replaced node that is alive gives its rows itself.
- **Assassinate**: One entry. Others own the ranges at once, without the rows; possible losses are reported. If the node
  already leaves by an operation that can only go forward, that operation is finished without regard to
  acknowledgements. If the node has tablets of a node that it replaces, the replacement is cancelled if it still can be.
- **Rebuild**: The node streams all that it owns again; no group changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Final

from ringlog.kernel.commands.cluster.features import missing_feature
from ringlog.kernel.commands.cluster.service import last_reader
from ringlog.kernel.commands.rules import broken_field, registered, seed_rule, to_ignore
from ringlog.kernel.model.modes import TOPOLOGY, UNPAUSED
from ringlog.kernel.model.outcome import Accepted, Decision, EntryContext, Rejected
from ringlog.kernel.model.principals import ADMIN, NODE, OPERATOR
from ringlog.kernel.model.settings import setting
from ringlog.kernel.model.state import ClusterState, Node, Operation, Plan, StageMark, advance
from ringlog.kernel.movements.admission import admit, planned, refusal, requested
from ringlog.kernel.movements.cancel import cancel
from ringlog.kernel.movements.progress import at_once, enter
from ringlog.kernel.operations.gates import gaining_nodes, leaving_node
from ringlog.kernel.operations.kinds import ASSASSINATE, JOIN, LEAVE, MOVE, REBUILD, REMOVE, REPLACE, kind_of
from ringlog.kernel.operations.node_states import shown_state
from ringlog.kernel.operations.plan import plan_movement, plan_rebuild, unsourced
from ringlog.kernel.operations.rings import target_owners
from ringlog.kernel.operations.stages import FINISHED, POINT_OF_NO_RETURN, has_reached, in_flight
from ringlog.kernel.ownership.placements import nodes_of, read_ranges_of
from ringlog.kernel.tablets.mutual_exclusion import tables_on, undrainable
from ringlog.kernel.values import Command, NodeId, Token, is_token, replace

NAMES_MAX: Final = 5
"""The most names in the reason of an assassination."""


def bad_tokens(state: ClusterState, tokens: Sequence[Token], seed: bytes) -> Rejected | None:
    """Check the number, the range and the uniqueness of the tokens, and the seed."""
    if (broken := broken_field(seed_rule(seed))) is not None:
        return broken
    most = setting(state, "tokens_per_node_max")
    if not 1 <= len(tokens) <= most:
        return Rejected("bad_field", f"tokens: must be 1 to {most} tokens, not {len(tokens)}")
    for token in tokens:
        if not is_token(token):
            return Rejected("bad_field", f"tokens: {token} is not a token of the ring")
    ordered = sorted(tokens)
    twice = next((low for low, high in pairwise(ordered) if low == high), None)
    if twice is not None:
        return Rejected("duplicate_token", f"tokens: {twice} appears more than once")
    return None


def unavailable_tokens(state: ClusterState, tokens: Sequence[Token]) -> Rejected | None:
    """Reject new tokens that a node owns now or after an operation in flight, and tokens beyond the limit on ranges."""
    owners = target_owners(state)
    for token in sorted(tokens):
        if token in owners:
            return Rejected("token_owned", f"tokens: {token} belongs to {state.nodes[owners[token]].name}")
    if len(owners) + len(tokens) > setting(state, "ranges_max"):
        return Rejected("bad_field", f"tokens: the ring would have more than {setting(state, 'ranges_max')} ranges")
    return None


CODES: Final = {
    "different_rack": "The new node must be in the datacenter and rack of the replaced node.",
    "duplicate_token": "The request contains the same token twice.",
    "operations_in_flight": "The change would invalidate the plan of an operation in flight.",
    "plans_conflict": "Together with another operation in flight, the final placement would break the strategy.",
    "range_locked": "Another operation has locked a range that would change.",
    "too_few_replicas": "Too few replicas of a range are alive to have all of its rows.",
    "token_owned": "Another node owns one of the tokens.",
    "too_many_operations": "The maximum number of operations is in flight.",
}


class Join(Command):
    """Start the join of a registered node with these tokens.

    If a number of tokens is requested, the author chooses them.
    """

    PAUSED_BY = TOPOLOGY
    NEEDS = (NODE, OPERATOR)

    node: Annotated[str, "Id of the node."]
    tokens: Annotated[tuple[int, ...], "Tokens that the node will own. No node owns any of them now."]
    seed: Annotated[bytes, "16 random bytes for the stream ids of the CDC generation of the join."]


def decide_join(state: ClusterState, command: Join, context: EntryContext) -> Decision:
    """Request tokens for a registered node. It is ``bootstrapping``, and owns the tokens when it has joined."""
    refused = bad_tokens(state, command.tokens, command.seed)
    if refused is not None:
        return refused
    node = registered(state, command.node)
    if isinstance(node, Rejected):
        return node
    if node.state != "none":
        return Rejected(
            "wrong_node_state",
            f"node: {node.name} is {shown_state(state, node.id)}, only a node in state none can join",
        )
    there = [other for other in state.nodes.values() if other.address == node.address]
    for other in sorted(there, key=lambda other: other.name):
        if other.id != node.id and other.state != "left":
            return Rejected(
                "duplicate_address", f"node: {node.address} is also the address of {other.name}; replace {other.name}"
            )
    refused = missing_feature(state, node.name, node.features) or unavailable_tokens(state, command.tokens)
    if refused is not None:
        return refused
    operation = replace(requested(JOIN, node.id, context, command.seed), tokens=tuple(sorted(command.tokens)))
    return admit(state, operation, plan_movement(state, operation), context)


class Leave(Command):
    """Start the departure of a normal node. It streams its ranges to other nodes."""

    PAUSED_BY = TOPOLOGY
    NEEDS = (OPERATOR,)

    node: Annotated[str, "Id of the node."]


def decide_leave(state: ClusterState, command: Leave, context: EntryContext) -> Decision:
    """Request that a node leaves. It is ``decommissioning``; its tokens have no owner when it has left."""
    node = _normal(state, command.node, "node")
    if isinstance(node, Rejected):
        return node
    if (refused := undrainable(state, node.id)) is not None:
        return refused
    operation = replace(requested(LEAVE, node.id, context), gone=node.tokens)
    return admit(state, operation, plan_movement(state, operation), context)


class Move(Command):
    """Start the move of a normal node to other tokens."""

    PAUSED_BY = TOPOLOGY
    NEEDS = (OPERATOR,)

    node: Annotated[str, "Id of the node."]
    tokens: Annotated[tuple[int, ...], "All tokens that the node will own."]
    seed: Annotated[bytes, "16 random bytes for the stream ids of the CDC generation of the move."]


def decide_move(state: ClusterState, command: Move, context: EntryContext) -> Decision:
    """Request other tokens for a node. It is ``moving`` until it owns them."""
    refused = bad_tokens(state, command.tokens, command.seed)
    if refused is not None:
        return refused
    node = _normal(state, command.node, "node")
    if isinstance(node, Rejected):
        return node
    tokens = tuple(sorted(command.tokens))
    if tokens == node.tokens:
        return Rejected("bad_field", f"tokens: {node.name} already owns these tokens")
    refused = unavailable_tokens(state, [token for token in tokens if token not in node.tokens])
    if refused is not None:
        return refused
    gone = tuple(token for token in node.tokens if token not in tokens)
    operation = replace(requested(MOVE, node.id, context, command.seed), tokens=tokens, gone=gone)
    return admit(state, operation, plan_movement(state, operation), context)


class Replace(Command):
    """Start the replacement of a node by a registered node, which takes over its tokens."""

    PAUSED_BY = TOPOLOGY
    NEEDS = (OPERATOR,)

    node: Annotated[str, "Id of the node."]
    replaced: Annotated[str, "Id of the node whose tokens the new node takes over."]
    ignore_nodes: Annotated[
        tuple[str, ...],
        "Ids of down nodes that the operation neither waits for nor reads from.",
    ] = ()


def decide_replace(state: ClusterState, command: Replace, context: EntryContext) -> Decision:
    """Request a replacement. The new node is ``replacing``, the old one ``removing``."""
    node = registered(state, command.node)
    if isinstance(node, Rejected):
        return node
    if node.state != "none":
        return Rejected(
            "wrong_node_state",
            f"node: {node.name} is {shown_state(state, node.id)}, only a node in state none can replace",
        )
    if (lacks := missing_feature(state, node.name, node.features)) is not None:
        return lacks
    old = _normal(state, command.replaced, "replaced")
    if isinstance(old, Rejected):
        return old
    assert node.id != old.id, "a node without tokens replaces a node with tokens"
    if (node.datacenter, node.rack) != (old.datacenter, old.rack):
        there = f"{old.name} is in {old.datacenter}/{old.rack}, {node.name} in {node.datacenter}/{node.rack}"
        return Rejected("different_rack", f"replaced: {there}")
    ignored = to_ignore(state, command.ignore_nodes, (node.id, old.id))
    if isinstance(ignored, Rejected):
        return ignored
    if (refused := undrainable(state, old.id, node.id)) is not None:
        return refused
    ignored = tuple(sorted({*ignored, old.id})) if old.down else ignored
    operation = replace(requested(REPLACE, node.id, context), tokens=old.tokens, replaced=old.id, ignored=ignored)
    return admit(state, operation, plan_movement(state, operation), context)


class Remove(Command):
    """Start the removal of a node that is declared down. Other nodes stream its ranges."""

    PAUSED_BY = TOPOLOGY
    NEEDS = (OPERATOR,)

    node: Annotated[str, "Id of the node."]
    ignore_nodes: Annotated[
        tuple[str, ...],
        "Ids of down nodes that the operation neither waits for nor reads from.",
    ] = ()


def decide_remove(state: ClusterState, command: Remove, context: EntryContext) -> Decision:
    """Request the removal of a node that was declared down. It is ``removing``."""
    node = _down(state, command.node)
    if isinstance(node, Rejected):
        return node
    ignored = to_ignore(state, command.ignore_nodes, (node.id,))
    if isinstance(ignored, Rejected):
        return ignored
    if (refused := undrainable(state, node.id)) is not None:
        return refused
    ignored = tuple(sorted({*ignored, node.id}))
    operation = replace(requested(REMOVE, node.id, context), gone=node.tokens, ignored=ignored)
    plan = plan_movement(state, operation)
    dead = sorted(set(gaining_nodes(replace(operation, plan=plan))).intersection(ignored))
    if dead:
        return Rejected("bad_field", f"ignore_nodes: {state.nodes[dead[0]].name} would receive rows of {node.name}")
    return admit(state, operation, plan, context)


class Assassinate(Command):
    """Remove a node that is declared down at once, without streaming. This is the last resort.

    Rows may be lost.
    """

    PAUSED_BY = UNPAUSED
    NEEDS = (ADMIN,)
    DANGEROUS = True

    node: Annotated[str, "Id of the node."]


def decide_assassinate(state: ClusterState, command: Assassinate, context: EntryContext) -> Decision:
    """Make a dead node leave with this entry. The operation is recorded as finished, with the possible losses."""
    found = state.nodes.get(command.node)
    if found is not None and found.down:
        coming = next((one for one in in_flight(state) if kind_of(one).brings_node and one.node == found.id), None)
        if coming is not None and not has_reached(coming, POINT_OF_NO_RETURN) and tables_on(state, found.id):
            return Accepted(cancel(state, coming, "assassinated: rows of its tablets may be lost", context))
        leaving = next((one for one in in_flight(state) if leaving_node(one) == found.id), None)
        if leaving is not None:
            return _finished_without(state, leaving, context)
    node = _down(state, command.node)
    if isinstance(node, Rejected):
        return node
    if (last := last_reader(state, node.id)) is not None:
        return last
    if len(set(state.token_owners.values())) == 1 and state.placements:
        return Rejected("replication_impossible", f"node: {node.name} is the last one that owns tokens")
    operation = replace(requested(ASSASSINATE, node.id, context), gone=node.tokens, ignored=(node.id,))
    plan = plan_movement(state, operation)
    operation = planned(state, operation, plan)
    refused = refusal(state, operation)
    if refused is not None:
        return refused
    operation = replace(
        operation,
        stage=FINISHED,
        marks=(StageMark(FINISHED, context.epoch, context.time),),
        reason=_may_be_lost(state, plan),
    )
    after = at_once(state, operation, context)
    if node.id in after.service:
        after = advance(after, context.epoch, service=after.service.delete(node.id))
    return Accepted(after)


def _finished_without(state: ClusterState, operation: Operation, context: EntryContext) -> Decision:
    """Finish a dead node's leaving operation without the acknowledgements that it still needs."""
    if not has_reached(operation, POINT_OF_NO_RETURN):
        return Rejected(
            "wrong_node_state", f"node: {operation.id} can still be cancelled; cancel it, then assassinate the node"
        )
    told = "assassinated: reads and writes that other nodes planned before may have missed rows"
    return Accepted(enter(state, replace(operation, reason=told), FINISHED, context))


def _may_be_lost(state: ClusterState, plan: Plan) -> str:
    """Return the possible losses of an assassination, in words."""
    bare = {(change.replication, change.end) for change in plan.start.write_added}
    gaining = {change.node for change in plan.start.write_added}.union([source.target for source in plan.sources])
    names = sorted([state.nodes[node].name for node in gaining])
    shown = ", ".join(names[:NAMES_MAX]) + (", …" if len(names) > NAMES_MAX else "")
    bare.update((source.replication, source.end) for source in plan.sources)
    told = f"{len(bare)} ranges have replicas without all rows" + (
        f": run `ringlog node rebuild` for {shown}" if shown else ""
    )
    lossy = unsourced(plan)
    if not lossy:
        return f"{told}; enough old replicas of every range are left"
    key, (start, end) = lossy[0]
    return f"{told}; rows of {len(lossy)} ranges may be lost, the first is ({start}, {end}] under {key}"


class Rebuild(Command):
    """Start the rebuild of a normal node, which streams all of its ranges again.

    Ranges without another replica are skipped, as in Cassandra.
    """

    PAUSED_BY = TOPOLOGY
    NEEDS = (OPERATOR,)

    node: Annotated[str, "Id of the node."]
    source_datacenter: Annotated[str, "Datacenter to stream from. Empty: any."] = ""


def decide_rebuild(state: ClusterState, command: Rebuild, context: EntryContext) -> Decision:
    """Request that a node streams its ranges again. The node keeps its state and its ranges."""
    node = _normal(state, command.node, "node")
    if isinstance(node, Rejected):
        return node
    wanted = command.source_datacenter
    if wanted and all(other.datacenter != wanted for other in state.nodes.values()):
        return Rejected("bad_field", f"source_datacenter: no node is in {wanted}")
    operation = replace(requested(REBUILD, node.id, context), source_datacenter=wanted)
    plan = plan_rebuild(state, node.id, wanted)
    for key, placement in sorted(state.placements.items()):
        served = {source.end for source in plan.sources if source.replication == key}
        alone = {group.end for group in placement.ranges if nodes_of(group.read) == (node.id,)}
        for start, end in read_ranges_of(placement, node.id):
            if end not in served and (end not in alone or not plan.sources):
                where = f"({start}, {end}] under {key}"
                return Rejected("too_few_replicas", f"node: too few other replicas of {where} are alive")
    return admit(state, operation, plan, context)


# ----------------------------------------------------------------------------------------------------------- nodes


def _normal(state: ClusterState, name: NodeId, field: str) -> Node | Rejected:
    node = registered(state, name, field)
    if isinstance(node, Rejected):
        return node
    if node.state != "normal":
        return Rejected("wrong_node_state", f"{field}: {node.name} is {shown_state(state, node.id)}, it must be normal")
    return node


def _down(state: ClusterState, name: NodeId) -> Node | Rejected:
    node = _normal(state, name, "node")
    if isinstance(node, Node) and not node.down:
        return Rejected("wrong_node_state", f"node: {node.name} was not declared down")
    return node
