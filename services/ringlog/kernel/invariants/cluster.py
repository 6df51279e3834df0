"""Invariants of every cluster: identity, history, settings, terms, directory, token map, schema, metadata service."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise, zip_longest
from operator import attrgetter

from ringlog.kernel.cardinality_limits import COUNTS_MAX
from ringlog.kernel.cql.user_types import used_in
from ringlog.kernel.history import (
    ARCHIVED,
    CHAIN_BYTES,
    STORED_MAX,
    TRUNCATED,
    allowed_begin,
    confirmed_snapshots,
    state_id_at,
)
from ringlog.kernel.invariants.shape import Details, changed_items, invariant
from ringlog.kernel.model.modes import SCOPES, Feature, pause_key
from ringlog.kernel.model.plans import COMMANDS_MAX, DANGEROUS, PLANS_BYTES_MAX, plans_size
from ringlog.kernel.model.principals import PRINCIPAL_ROLES, has_admin
from ringlog.kernel.model.settings import SETTINGS, broken_setting, setting
from ringlog.kernel.model.state import EMPTY_STATE, NO_MEMBER, NODE_STATES, OWNING, PARTS, ClusterState, Node, in_order
from ringlog.kernel.model.tables import TableIndex, View
from ringlog.kernel.ring.shards import IGNORE_MSB_MAX, SHARDS_MAX
from ringlog.kernel.schema.dependents import types_of
from ringlog.kernel.schema.stored import stored_names
from ringlog.kernel.service import EXCLUDED_MAX, MEMBER, SIZE_MAX, STAGES, read_group
from ringlog.kernel.values import is_token, is_uuid

ROUTINES = ("types", "functions", "aggregates")


@invariant("a state has the ids of its cluster and its entry; the empty state has no data", "history", "state_id")
def identity(state: ClusterState, known: ClusterState) -> Details:
    """Check ids, epoch, time and chain of the state."""
    if state.epoch == 0:
        if state != EMPTY_STATE:
            yield "epoch 0 is not empty"
        return
    if not is_uuid(state.cluster_id) or not is_uuid(state.state_id):
        yield f"cluster {state.cluster_id!r} or state id {state.state_id!r} is not a UUID"
    if state_id_at(state, state.epoch) != state.state_id:
        yield f"the history has another state id than {state.state_id} for epoch {state.epoch}"
    if state.epoch < known.epoch or state.time < known.time:
        yield f"epoch {state.epoch} or time {state.time} is below {known.epoch} and {known.time}"
    if len(state.chain) != CHAIN_BYTES:
        yield f"the chain of epoch {state.epoch} is {state.chain.hex() or 'empty'}"
    if known.epoch and state.cluster_id != known.cluster_id:
        yield f"the cluster {known.cluster_id} became {state.cluster_id}"


@invariant(
    "the history and its indexes contain exactly the last epochs, within the set limit",
    "history",
    "settings",
)
def history(state: ClusterState, known: ClusterState) -> Details:
    """Check the contents of new entries and the number of all entries."""
    memory = state.history
    first = memory.first
    expected = max(state.epoch - first + 1, 0)
    if len(memory) != expected:
        yield f"it has {len(memory)} entries, expected {expected}: epochs {first} to {state.epoch}"
    if memory.oldest < known.history.oldest or expected > setting(state, "history_entries"):
        yield f"the oldest epoch is {memory.oldest} at epoch {state.epoch}"
    last = ""
    for epoch in range(max(first, known.epoch), state.epoch + 1):
        applied = memory.at(epoch)
        if applied is None or applied.epoch != epoch or memory.of_request(applied.request_id) is not applied:
            yield f"the indexes do not match epoch {epoch}"
        elif applied.state_id <= last:
            yield f"the state id of epoch {epoch} does not ascend"
        else:
            last = applied.state_id


_parts = attrgetter(*PARTS)


@invariant("a replaced section is stamped with the epoch of its replacement", "changed", *PARTS)
def stamps(state: ClusterState, known: ClusterState) -> Details:
    """Check the stamps of the replaced sections, and that no other stamps exist."""
    if state.changed is not known.changed and (unknown := sorted(set(state.changed).difference(PARTS))):
        yield f"{unknown[0]} is stamped, but is not a section of the state"
    for name, part, before in zip(PARTS, _parts(state), _parts(known), strict=True):
        if part is not before:
            epoch = state.changed.get(name, 0)
            if not known.epoch < epoch <= state.epoch and part != before:
                yield f"{name} changed after epoch {known.epoch} and is stamped with {epoch}"


@invariant("settings have known names, and values within their bounds and their joint bounds", "settings")
def settings(state: ClusterState, known: ClusterState) -> Details:
    """Check the changed values together with the defaults of the others."""
    if unknown := sorted(set(state.settings) - SETTINGS.keys()):
        yield f"{unknown[0]} is not a setting"
    elif (broken := broken_setting(state.settings)) is not None:
        yield broken


@invariant("the term of a role began at an earlier epoch, or this one", "terms")
def terms(state: ClusterState, known: ClusterState) -> Details:
    """Check that terms only increase."""
    for role, term in changed_items(state.terms, known.terms):
        before = known.terms.get(role)
        if term.role != role or term.term < 1 or not 1 <= term.since <= state.epoch:
            yield f"{role} has {term}"
        if before is not None and term.term <= before.term:
            yield f"{role} changed from term {before.term} to {term.term}"


@invariant(
    "a revoked principal stays revoked and has no roles; keys only advance; one principal is an admin", "principals"
)
def principals(state: ClusterState, known: ClusterState) -> Details:
    """Check the changed principals, and that none was removed."""
    for name, one in changed_items(state.principals, known.principals):
        before = known.principals.get(name, one)
        roles = [grant.role for grant in one.roles]
        if one.name != name or one.key < before.key or one.created != before.created or one.created > state.epoch:
            yield f"{name} is {one}, previously {before}"
        if one.revoked != (before.revoked or one.revoked) or (one.revoked and roles):
            yield f"{name} was revoked with epoch {before.revoked}, and has the roles {roles}, revoked {one.revoked}"
        if roles != sorted({*roles} & {*PRINCIPAL_ROLES}):
            yield f"{name} has the roles {roles}"
    if lost := sorted(set(known.principals) - set(state.principals)):
        yield f"the principal {lost[0]} was removed"
    if state.principals and not has_admin(state.principals):
        yield "no principal is an admin"


@invariant("a plan has a past epoch, commands, an effect and a time limit; plans have bounded bytes", "plans")
def plans(state: ClusterState, known: ClusterState) -> Details:
    """Check the new plans, and the size of all."""
    for name, plan in changed_items(state.plans, known.plans):
        is_whole = 1 <= len(plan.commands) <= COMMANDS_MAX and plan.effect and plan.expires_at > 0
        if plan.name != name or not 1 <= plan.staged <= state.epoch or not is_whole:
            yield f"{name} is {plan.name}, staged with epoch {plan.staged}, with {len(plan.commands)} commands"
    if (size := plans_size(state.plans.values())) > PLANS_BYTES_MAX:
        yield f"plans have {size} bytes"


@invariant("approvals name commands that can need one, and have past epochs", "approvals")
def approvals(state: ClusterState, known: ClusterState) -> Details:
    """Check each name."""
    for name, since in in_order(state.approvals):
        if name not in DANGEROUS or not 1 <= since <= state.epoch:
            yield f"{name} needs an approval since epoch {since}"


@invariant("sections that only grow have a maximum number of items", *COUNTS_MAX)
def counts(state: ClusterState, known: ClusterState) -> Details:
    """Check the bounds of ``kernel.cardinality_limits``."""
    for part, (most, subject) in COUNTS_MAX.items():
        if len(getattr(state, part)) > most:
            yield f"there are {len(getattr(state, part))} {subject}, but at most {most} are allowed"


@invariant("the log begins with the entry of a past epoch, and its begin never decreases", "log_bounds", "snapshots")
def log_bounds(state: ClusterState, known: ClusterState) -> Details:
    """Check the bounds, that positions of confirmed snapshots ascend, and that the needed snapshots are known."""
    for name, bound in sorted(state.log_bounds.items()):
        if name not in (ARCHIVED, TRUNCATED) or not 1 <= bound.epoch <= state.epoch or bound.position < 0:
            yield f"{name} is {bound}"
    if allowed_begin(state) < allowed_begin(known):
        yield f"the log may begin at offset {allowed_begin(state)}, previously at {allowed_begin(known)}"
    for one, other in pairwise(confirmed_snapshots(state)):
        if one.position >= other.position:
            yield f"epochs {one.epoch} and {other.epoch} end before offsets {one.position} and {other.position}"
    newest = [[one.epoch for one in reversed(confirmed_snapshots(it))][:STORED_MAX] for it in (state, known)]
    if any(here < before for here, before in zip_longest(*newest, fillvalue=0)):
        yield f"the newest confirmed snapshots are of epochs {newest[0]}, previously of {newest[1]}"
    begins = state.log_bounds.get(TRUNCATED)
    if begins is not None and not ((mark := state.snapshots.get(str(begins.epoch))) and mark.witnesses):
        yield f"the log begins with the snapshot of epoch {begins.epoch}, which is pruned"


# -------------------------------------------------------------------------------------------------- directory


@invariant("ids and names of nodes are unique, and the name index matches the nodes", "nodes", "node_names")
def names(state: ClusterState, known: ClusterState) -> Details:
    """Check that the two maps match."""
    if {node.name: name for name, node in state.nodes.items()} != dict(state.node_names):
        yield f"{len(state.nodes)} nodes and {len(state.node_names)} names do not match"
    yield from (f"{name} has the key {key}" for key, node in in_order(state.nodes) if (name := node.id) != key)
    if lost := sorted(set(known.node_names) - set(state.node_names)):
        yield f"the name {lost[0]} was removed"
    else:
        others = [name for name, node in known.node_names.items() if state.node_names[name] != node]
        yield from (f"the name {name} belongs to another node" for name in sorted(others))


@invariant("a node has tokens, in ascending order, if and only if its state owns tokens", "nodes")
def nodes(state: ClusterState, known: ClusterState) -> Details:
    """Check each node separately."""
    for _, node in changed_items(state.nodes, known.nodes):
        if node.state not in NODE_STATES or not 1 <= node.registered <= state.epoch:
            yield f"{node.name} is {node.state!r}, registered with epoch {node.registered}"
        if (node.state in OWNING) != bool(node.tokens):
            yield f"{node.name} is {node.state}, but has {len(node.tokens)} tokens"
        if any(low >= high for low, high in pairwise(node.tokens)) or not all(map(is_token, node.tokens)):
            yield f"the tokens of {node.name} do not ascend, or are not tokens"
        if not 1 <= node.shards <= SHARDS_MAX or not 0 <= node.ignore_msb <= IGNORE_MSB_MAX or node.capacity < 1:
            yield f"{node.name} has {node.shards} shards, {node.ignore_msb} ignored bits, weight {node.capacity}"
        if node.down_reason and not node.down:
            yield f"{node.name} is up, but has the reason for down {node.down_reason}"


@invariant("the token map equals the nodes' tokens", "nodes", "token_owners")
def tokens(state: ClusterState, known: ClusterState) -> Details:
    """Check all nodes if the token map changed, otherwise the changed nodes."""
    same = state.token_owners is known.token_owners
    owned = 0
    for key, node in changed_items(state.nodes, known.nodes) if same else state.nodes.items():
        owned += len(node.tokens)
        if any(state.token_owners.get(token) != key for token in node.tokens):
            yield f"{node.name} has tokens that the map assigns to other nodes"
    if not same and owned != len(state.token_owners):
        yield f"the map has {len(state.token_owners)} tokens, the nodes have {owned}"


@invariant("of the nodes with the same address, at most one is neither down nor left", "nodes")
def addresses(state: ClusterState, known: ClusterState) -> Details:
    """Check addresses. The replacement of a node that was declared down may reuse its address."""
    used = Counter(node.address for node in state.nodes.values() if node.state != "left" and not node.down)
    yield from (f"{count} nodes are at {address}" for address, count in sorted(used.items()) if count > 1)


@invariant(
    "members support every enabled feature, features stay enabled, and new nodes support required ones",
    "nodes",
    "features",
)
def features(state: ClusterState, known: ClusterState) -> Details:
    """Check all nodes if a feature is new, otherwise the nodes that changed."""
    for name, feature in changed_items(state.features, known.features):
        enabled = state.epoch if feature.enabled is None else feature.enabled
        if feature.name != name or not 1 <= feature.required <= enabled <= state.epoch:
            yield f"{name} is {feature.name}, required since {feature.required}, enabled since {feature.enabled}"
    for name, before in in_order(known.features):
        if before.enabled is not None and ((now := state.features.get(name)) is None or now.enabled != before.enabled):
            yield f"{name} is no longer enabled"
    same = state.features is known.features
    for key, node in changed_items(state.nodes, known.nodes) if same else in_order(state.nodes):
        for name in sorted(set(state.features).difference(node.features)):
            if state.features[name].enabled is not None and node.state not in NO_MEMBER:
                yield f"{node.name} is {node.state}, but does not support {name}"
            elif _came_without(state.features[name], node, known.features.get(name), known.nodes.get(key)):
                yield f"{node.name} does not support {name}, which was required when the node came"


def _came_without(feature: Feature, node: Node, known: Feature | None, before: Node | None) -> bool:
    """Return True if a node that lacks a feature registered, joined, returned or lost it while it was required."""
    if node.state == "left":
        return False
    if known is None or known.required != feature.required:
        return node.registered > feature.required
    if before is None or feature.name in before.features:
        return True
    return (before.state in NO_MEMBER and node.state not in NO_MEMBER) or (before.down and not node.down)


# ----------------------------------------------------------------------------------------------------- schema


@invariant("the key of a keyspace is its name", "keyspaces")
def keyspaces(state: ClusterState, known: ClusterState) -> Details:
    """Check each keyspace separately; other invariants cover its ranges."""
    for name, keyspace in changed_items(state.keyspaces, known.keyspaces):
        if keyspace.name != name or keyspace.version > state.state_id:
            yield f"{name} is {keyspace.name}, of version {keyspace.version}"
        if not 1 <= keyspace.made <= state.epoch or not 0 <= keyspace.joined <= state.epoch:
            yield f"{name} was made with epoch {keyspace.made}, and its placement joined with {keyspace.joined}"


@invariant("a table has a keyspace, a unique id, and a key of its own columns", "tables", "table_ids")
def tables(state: ClusterState, known: ClusterState) -> Details:
    """Check each table separately, and that no id was removed."""
    for name, table in changed_items(state.tables, known.tables):
        columns = [column.name for column in table.columns]
        if table.full_name != name or state.table_ids.get(table.id) != name:
            yield f"{name} is {table.full_name}, but its id belongs to {state.table_ids.get(table.id)}"
        if len(set(columns)) != len(columns) or not table.partition_key:
            yield f"{name} has the columns {columns} and the partition key {table.partition_key}"
        if missing := {*table.partition_key, *table.clustering_key, *dict(table.declared)}.difference(columns):
            yield f"{name} has no column {min(missing)}"
        places = stored_names(table)
        if len(set(places.values())) != len(places) or not set(dict(table.stored)).issubset(columns):
            yield f"{name} stores cells of two columns under one name: {table.stored}"
        if (table.stored and not table.respelled) or not 0 <= table.respelled <= table.changed:
            yield f"{name} was renamed or dropped columns at epoch {table.respelled}, stored as {table.stored}"
        if not 1 <= table.made <= table.changed:
            yield f"{name} was made with epoch {table.made} and last changed with epoch {table.changed}"
        if not 1 <= table.changed <= state.epoch or (table.committed_by_log and table.version > state.state_id):
            yield f"{name} changed with epoch {table.changed}"
    if len(state.table_ids) < len(known.table_ids):
        yield "an id of a table was removed"


@invariant("a keyspace with tables, types or functions is not dropped", "keyspaces", "tables", "types", "functions")
def contents(state: ClusterState, known: ClusterState) -> Details:
    """Check tables, user types and functions."""
    homes = {name: table.keyspace for name, table in state.tables.items()}
    homes.update((name, found.keyspace) for name, found in state.types.items())
    homes.update((name, found.keyspace) for name, found in state.functions.items())
    yield from (f"{name} is in no keyspace" for name, home in sorted(homes.items()) if home not in state.keyspaces)


@invariant("the key of a user type is its name, and its field names are unique", "types")
def types(state: ClusterState, known: ClusterState) -> Details:
    """Check each type separately."""
    for name, found in changed_items(state.types, known.types):
        fields = [field.name for field in found.fields]
        if f"{found.keyspace}.{found.name}" != name or not fields or len(set(fields)) != len(fields):
            yield f"{name} is {found.keyspace}.{found.name} with the fields {fields}"


@invariant("views and indexes have columns of an existing table, and its key", "tables", "views", "indexes")
def derived(state: ClusterState, known: ClusterState) -> Details:
    """Check all views and indexes, since a table may have been dropped."""
    named: list[tuple[str, View | TableIndex, tuple[str, ...]]]
    named = [(name, one, one.columns) for name, one in in_order(state.views)]
    named += [(name, one, (one.column,)) for name, one in in_order(state.indexes)]
    for name, one, columns in named:
        table = state.tables.get(f"{one.keyspace}.{one.table}")
        if name != f"{one.keyspace}.{one.name}":
            yield f"{name} is {one.keyspace}.{one.name}"
        if table is None:
            yield f"{name} is of {one.table}, which does not exist"
        elif missing := sorted(set(columns).difference(column.name for column in table.columns)):
            yield f"{name} has {missing[0]}, which is not a column of {table.full_name}"
    for name, view in in_order(state.views):
        table = state.tables.get(f"{view.keyspace}.{view.table}")
        key = {*view.partition_key, *view.clustering_key}
        if name in state.tables or not view.partition_key or not key.issubset(view.columns):
            yield f"{name} has the key {sorted(key)} and the columns {view.columns}, or is a table"
        if table is not None and not key.issuperset(table.partition_key + table.clustering_key):
            yield f"{name} lacks a key column of {table.full_name}"


@invariant("the key of a function is its signature, of existing types and functions", *ROUTINES)
def routines(state: ClusterState, known: ClusterState) -> Details:
    """Check all functions and aggregates, since a type may have been dropped."""
    for name, function in in_order(state.functions):
        used = {used for kind in types_of(function) for used in used_in(kind)}
        if missing := sorted(kind for kind in used if f"{function.keyspace}.{kind}" not in state.types):
            yield f"{name} uses the type {missing[0]}, which does not exist"
        if function.signature != name or name in state.aggregates:
            yield f"{name} is {function.signature}, or an aggregate"
    for name, aggregate in in_order(state.aggregates):
        if aggregate.signature != name:
            yield f"{name} is {aggregate.signature}"
        if lost := [key for key in aggregate.functions if key not in state.functions]:
            yield f"{name} uses {lost[0]}, which does not exist"


@invariant("the key of a pause is its scope and its subject, and it began at a past epoch", "pauses")
def pauses(state: ClusterState, known: ClusterState) -> Details:
    """Check each pause separately."""
    for name, pause in changed_items(state.pauses, known.pauses):
        if name != pause_key(pause.scope, pause.of) or pause.scope not in SCOPES or not 1 <= pause.since <= state.epoch:
            yield f"{name} is {pause.scope} of {pause.of!r}, since epoch {pause.since}"


INVARIANTS = (
    identity,
    history,
    stamps,
    settings,
    terms,
    principals,
    plans,
    approvals,
    counts,
    names,
    nodes,
    tokens,
    addresses,
    features,
    log_bounds,
    pauses,
    keyspaces,
    tables,
    contents,
    types,
    derived,
    routines,
)


@invariant("nodes in a group of the metadata service own tokens, and at most one joins or leaves", "service", "nodes")
def service(state: ClusterState, known: ClusterState) -> Details:
    """Check the groups: once there is a member, there is always one.

    The read group is a subset of the write group by construction: it is the nodes in one stage.
    """
    for name, member in sorted(state.service.items()):
        node = state.nodes.get(name)
        if member.node != name or member.stage not in STAGES or not 1 <= member.since <= state.epoch:
            yield f"{name} is {member.node}, {member.stage} since epoch {member.since}"
        if node is None or node.state not in OWNING:
            yield f"{name} is in a group, but {'unknown' if node is None else node.state}"
    moving = [name for name, member in sorted(state.service.items()) if member.stage != MEMBER]
    if len(moving) > 1 or len(state.service) > SIZE_MAX + 1:
        yield f"{len(moving)} of {len(state.service)} nodes are joining or leaving"
    if read_group(known) and not read_group(state):
        yield "no member remains"


@invariant("the goal of the metadata service is a size within its bounds, or automatic", "service_goal")
def service_goal(state: ClusterState, known: ClusterState) -> Details:
    """Check the goal: a number or automatic, and known nodes."""
    goal = state.service_goal
    if not 0 <= goal.size <= SIZE_MAX or (goal.automatic and (goal.size or goal.by_hand)):
        yield f"{goal.size} members are wanted, automatic {goal.automatic}, by hand {goal.by_hand}"
    if list(goal.excluded) != sorted(set(goal.excluded)) or len(goal.excluded) > EXCLUDED_MAX:
        yield f"the {len(goal.excluded)} excluded nodes are not unique and ordered"
    if unknown := sorted(set(goal.excluded) - set(state.nodes)):
        yield f"{unknown[0]} is excluded, but not registered"


@invariant("a recovery is never removed, and at most one is active", "recoveries")
def recoveries(state: ClusterState, known: ClusterState) -> Details:
    """Check each recovery separately, and that none is removed or started again."""
    for key, one in changed_items(state.recoveries, known.recoveries):
        ends = state.epoch if one.left is None else one.left
        if key != str(one.entered) or not 1 <= one.entered <= ends <= state.epoch or not one.operator:
            yield f"{key} lasts from epoch {one.entered} to {one.left}, by {one.operator!r}"
        if (one.left is None) != (one.left_by == ""):
            yield f"{key} ended at {one.left} by {one.left_by!r}"
        if any(not one.entered <= epoch <= ends for epoch in one.forced):
            yield f"{key} has the forced epochs {one.forced}"
    if len([one for one in state.recoveries.values() if one.left is None]) > 1:
        yield "two recoveries are active"
    for key, one in known.recoveries.items():
        now = state.recoveries.get(key)
        if now is None or (one.left is not None and now != one):
            yield f"{key} was removed or replaced"


SERVICE_INVARIANTS = (service, service_goal, recoveries)
