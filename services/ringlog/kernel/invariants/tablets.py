"""Invariants of tablets: maps that cover the ring, possible replicas, transitions that match the stage table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from ringlog.kernel.invariants.shape import Details, changed_items, invariant
from ringlog.kernel.model.state import EMPTY_STATE, ClusterState
from ringlog.kernel.model.tablet_map import CHUNK, Tablet, TabletMap, Transition
from ringlog.kernel.operations.stages import REQUESTED, in_flight
from ringlog.kernel.ownership.kinds import strategy_of
from ringlog.kernel.tablets.groups import group_of
from ringlog.kernel.tablets.mutual_exclusion import transitions
from ringlog.kernel.tablets.stages import KINDS, STAGES, TURNED_BACK, Side, is_salvage, kind_of, nodes_of
from ringlog.kernel.values import TOKEN_MAX, is_token


def _new_tablets(state: ClusterState, known: ClusterState) -> Iterator[tuple[TabletMap, Tablet]]:
    """Yield the tablets that the known state does not share, by their chunks and transitions."""
    for name, tablets in changed_items(state.tablets, known.tablets):
        before = known.tablets.get(name)
        old = set(map(id, before.chunks)) if before is not None and before.ends is tablets.ends else set()
        for number, chunk in enumerate(tablets.chunks):
            if id(chunk) not in old:
                for index in range(number * CHUNK, chunk.end):
                    yield tablets, tablets.tablet(index)
        for index, transition in tablets.transitions.items():
            if before is None or before.transitions.get(index) is not transition:
                yield tablets, tablets.tablet(index)


@invariant(
    "a table has or shares tablets if and only if its keyspace is in tablets",
    "tablets",
    "tables",
    "keyspaces",
)
def cut(state: ClusterState, known: ClusterState) -> Details:
    """Compare tables with maps."""
    for name, table in sorted(state.tables.items()):
        in_tablets = not strategy_of(state.keyspaces[table.keyspace].replication).in_ring
        if in_tablets != (table.tablets is not None):
            yield f"{name} has {table.tablets}, but its keyspace {'is' if in_tablets else 'is not'} in tablets"
        base = "" if table.tablets is None or not table.tablets.base else f"{table.keyspace}.{table.tablets.base}"
        if (name in state.tablets) != (in_tablets and not base) or (base and base not in state.tablets):
            yield f"{name} shares {base!r}, and {'has a' if name in state.tablets else 'has no'} map"
    yield from (f"{name} has tablets, but is not a table" for name in sorted(state.tablets) if name not in state.tables)


@invariant("tablets tile the ring up to the last token, in full chunks with correct ends", "tablets")
def tablet_ends(state: ClusterState, known: ClusterState) -> Details:
    """Check the ends, the chunks and the fields derived from them."""
    for name, tablets in changed_items(state.tablets, known.tablets):
        before, ends = known.tablets.get(name), tablets.ends
        if before is None or before.ends is not ends:
            if not ends or ends[-1] != TOKEN_MAX or any(low >= high for low, high in pairwise(ends)):
                yield f"{name}: the ends do not ascend to the last token"
            elif not is_token(ends[0]):
                yield f"{name}: {ends[0]} is not a token"
        sizes = [len(chunk.rows) for chunk in tablets.chunks]
        if sum(sizes) != len(ends) or any(size != CHUNK for size in sizes[:-1]) or tablets.table != name:
            yield f"{name}: chunk sizes {sizes[:4]} do not match its {len(ends)} tablets"
        elif [chunk.end for chunk in tablets.chunks] != [
            min(end, len(ends)) for end in range(CHUNK, len(ends) + CHUNK, CHUNK)
        ]:
            yield f"{name}: the stored ends of chunks are wrong"
    for tablets, tablet in _new_tablets(state, known):
        if tablet.end != tablets.ends[tablet.index]:
            yield f"{tablets.table}/{tablet.index}: tablet end {tablet.end}, map end {tablets.ends[tablet.index]}"


@invariant("the replicas of a tablet are on existing shards of different member nodes", "tablets", "nodes")
def tablet_replicas(state: ClusterState, known: ClusterState) -> Details:
    """Check settled and next replicas."""
    seen = known if state.nodes is known.nodes else EMPTY_STATE
    for tablets, tablet in _new_tablets(state, seen):
        where = f"{tablets.table}/{tablet.index}"
        for group in (tablet.replicas, () if tablet.transition is None else tablet.transition.next):
            if len(set(nodes_of(group))) < len(group):
                yield f"{where}: two replicas are on one node"
            for replica in group:
                node = state.nodes.get(replica.node)
                if node is None or not 0 <= replica.shard < node.shards or node.state == "none":
                    yield f"{where}: shard {replica.shard} of {replica.node} does not exist"
        if not tablet.replicas:
            yield f"{where} has no replica"


@invariant("a map has the correct number of replicas for each node", "tablets")
def tablets_held(state: ClusterState, known: ClusterState) -> Details:
    """Compare ``held`` with all replicas, if chunks are new."""
    for name, tablets in changed_items(state.tablets, known.tablets):
        before = known.tablets.get(name)
        if before is not None and before.chunks == tablets.chunks and before.held == tablets.held:
            continue
        counted = Counter(tablets.columns().node.tolist())
        if tuple(counted[place] for place in range(len(tablets.nodes))) != tablets.held:
            yield f"{name} has wrong replica counts: {tablets.held}"


@invariant(
    "a transition has a stage of its kind, exchanges at most one replica, and started before its stage", "tablets"
)
def tablet_stages(state: ClusterState, known: ClusterState) -> Details:
    """Compare transitions with the stage table."""
    for tablets, tablet in _new_tablets(state, known):
        if (transition := tablet.transition) is not None:
            where = f"{tablets.table}/{tablet.index}"
            kind = KINDS.get(transition.kind)
            if (
                kind is None
                or transition.stage not in (*kind.stages, *TURNED_BACK)
                or transition.tablet != tablet.index
            ):
                yield f"{where}: {transition.stage} is not a stage of {transition.kind} of tablet {transition.tablet}"
                continue
            yield from (f"{where}: {wrong}" for wrong in _wrong(state, tablet, transition))


def _wrong(state: ClusterState, tablet: Tablet, transition: Transition) -> Iterator[str]:
    old = {(one.node, one.shard) for one in tablet.replicas}
    new = {(one.node, one.shard) for one in transition.next}
    most = len(old) if is_salvage(transition) else 1
    if len(old - new) > most or len(new - old) > 1 or not new:
        yield f"{sorted(old)} become {sorted(new)} in one transition"
    if kind_of(transition).within_node and {node for node, _ in old} != {node for node, _ in new}:
        yield "a move within a node adds another node"
    if not transition.started <= transition.stage_epoch <= state.epoch or transition.changed > transition.stage_epoch:
        yield f"started at {transition.started}, stage at {transition.stage_epoch}, changed at {transition.changed}"
    writes = STAGES[transition.stage].writes
    for one in transition.next:
        came = (one.node, one.shard) not in old and one.node not in {node for node, _ in old}
        if came and (one.since == 0) != (writes is Side.PREV):
            yield f"{one.node} is a writer since {one.since} in {transition.stage}"


@invariant("readers of a tablet are writers, and no member is newer than the tablet's last change", "tablets")
def tablet_groups(state: ClusterState, known: ClusterState) -> Details:
    """Check the groups that requests use."""
    for tablets, tablet in _new_tablets(state, known):
        group = group_of(tablet)
        where = f"{tablets.table}/{tablet.index}"
        if not {one.node for one in group.read} <= {one.node for one in group.write}:
            yield f"{where}: a reader is not a writer"
        if any(one.since > group.changed for one in group.write) or group.changed > state.epoch:
            yield f"{where} changed at {group.changed}, before a member was added"


@invariant("while an operation is past requested, no tablet is in transition", "tablets", "operations")
def excluded(state: ClusterState, known: ClusterState) -> Details:
    """Compare tablet transitions with node operations."""
    running = [one for one in in_flight(state) if one.stage != REQUESTED]
    for operation in running[:1]:
        for tablets, transition in transitions(state):
            yield f"{operation.id}: {operation.stage}, {tablets.table}/{transition.tablet}: {transition.stage}"


@invariant("a decision to resize has the table's last number", "tablets")
def resizes(state: ClusterState, known: ClusterState) -> Details:
    """Check the resize decisions of changed maps."""
    for name, tablets in changed_items(state.tablets, known.tablets):
        resize = tablets.resize
        if resize is not None and (resize.sequence != tablets.sequence or resize.decision not in ("split", "merge")):
            yield f"{name}: {resize}, but its last number is {tablets.sequence}"
        before = known.tablets.get(name)
        if before is not None and before.made == tablets.made and before.sequence > tablets.sequence:
            yield f"{name}: the last number decreased from {before.sequence} to {tablets.sequence}"


INVARIANTS = (
    cut,
    tablet_ends,
    tablet_replicas,
    tablets_held,
    tablet_stages,
    tablet_groups,
    excluded,
    resizes,
)
