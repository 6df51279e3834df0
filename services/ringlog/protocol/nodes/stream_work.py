"""Streaming work of a node: an operation in a streaming stage, or the session of a tablet.

A *work* has a name, which the node uses in its reports, and is open as long as the state contains it. Names are unique:
the name of a session contains the epoch of its stage. So a late message names closed work, and both sides drop it.

===================  =================================================================================================
Operation            Its plan lists the sources, and the replication setting of their ranges.
Tablet: stream       From the replica that is replaced, or from a quorum (``tablets.groups.streams_of``).
Tablet: repair       Each live replica receives the rows of the others.
Tablet: clean        Nothing is streamed. Rows and cells are dropped with the epoch that requires it.
Table: resize        Nothing is streamed. A half is served like a whole tablet.
===================  =================================================================================================

A *space* is the namespace of registers: a keyspace, or ``keyspace.table`` if the table has tablets. Streams belong to a
*replication*: a setting of the token ring, or the table of the tablets.

Source: ScyllaDB, ``docs/dev/topology-over-raft.md``, "Topology guards", and ``session_manager``.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations

from ringlog.kernel.commands.placement.resizes import members, resize_session
from ringlog.kernel.model.state import ClusterState, Operation, Placement, RangeGroup, Source
from ringlog.kernel.model.tablet_map import Tablet, TabletMap
from ringlog.kernel.operations.gates import REPORTED_STAGES, gaining_nodes
from ringlog.kernel.operations.sources import NO_SOURCE
from ringlog.kernel.ownership.placements import group_at, placement_key, placement_of_keyspace
from ringlog.kernel.ring.ranges import Range, ranges_between
from ringlog.kernel.tablets.change_records import changed_tablets
from ringlog.kernel.tablets.gates import reporters
from ringlog.kernel.tablets.groups import group_of, is_dead, map_of, streams_of
from ringlog.kernel.tablets.mutual_exclusion import is_anywhere, transitions
from ringlog.kernel.tablets.resize import MERGE
from ringlog.kernel.tablets.stages import STAGES, nodes_of, session
from ringlog.kernel.tablets.stages import StageWork as Kind
from ringlog.kernel.values import Epoch, NodeId, Token, Value


class StreamingWork(Value):
    """A piece of streaming work.

    Attributes:
        epoch: The epoch of its stage.
        sources: The sources and targets of all ranges, for all nodes.
    """

    name: str
    epoch: Epoch
    sources: tuple[Source, ...]

    def ranges_from(self, source: NodeId, replication: str) -> set[Range]:
        """Return the ranges of a replication that ``source`` sends."""
        return {(one.start, one.end) for one in self.sources if (one.source, one.replication) == (source, replication)}

    def ranges_to(self, target: NodeId) -> dict[tuple[NodeId, str], tuple[Range, ...]]:
        """Return the ranges that ``target`` receives, in order, by (source, replication)."""
        wanted: dict[tuple[NodeId, str], list[Range]] = {}
        for one in self.sources:
            if one.target == target:
                wanted.setdefault((one.source, one.replication), []).append((one.start, one.end))
        return {where: tuple(sorted(ranges)) for where, ranges in sorted(wanted.items())}


def works_for_node(state: ClusterState, node: NodeId) -> dict[str, StreamingWork]:
    """Return the work that ``node`` has to report on, by name. Excludes tablets without a known source."""
    streaming = (one for one in state.operations.values() if one.stage in REPORTED_STAGES)
    found = [*(_of_operation(one) for one in streaming if node in gaining_nodes(one)), *_of_tablets(state, node)]
    return {work.name: work for work in sorted(found, key=lambda work: work.name)}


def work_by_name(state: ClusterState, name: str) -> StreamingWork | None:
    """Return the open work of that name, for one of its sources, or None."""
    operation = state.operations.get(name)
    if operation is not None:
        return _of_operation(operation) if operation.stage in REPORTED_STAGES else None
    tablets = state.tablets.get(name.rpartition("/")[0])
    number = name.rpartition("/")[2].partition("@")[0]
    if tablets is None or not number.isdecimal() or int(number) not in tablets.transitions:
        return None
    work = _of_session(state, tablets, tablets.tablet(int(number)))
    return work if work is not None and work.name == name else None


def _of_operation(operation: Operation) -> StreamingWork:
    return StreamingWork(operation.id, operation.stage_epoch, operation.plan.sources)


def _of_tablets(state: ClusterState, node: NodeId) -> Iterator[StreamingWork]:
    for tablets, transition in transitions(state):
        tablet = tablets.tablet(transition.tablet)
        if node not in nodes_of((*tablet.replicas, *transition.next)):
            continue
        work = _of_session(state, tablets, tablet)
        if work is None or any(source.source == NO_SOURCE for source in work.sources):
            continue
        if node in reporters(tablet, state.nodes, is_anywhere(state, tablets.table)):
            yield work
    for name, tablets in state.tablets.items():
        resize = tablets.resize
        if resize is not None and resize.decision != MERGE and node in members(tablets):
            yield StreamingWork(resize_session(name, resize.sequence), resize.epoch, ())


def _of_session(state: ClusterState, tablets: TabletMap, tablet: Tablet) -> StreamingWork | None:
    transition = tablet.transition
    assert transition is not None, "only a migrating tablet has stream sessions"
    name = session(tablets.table, tablet.index, transition)
    if not name:
        return None
    pairs: tuple[tuple[NodeId, NodeId], ...] = ()
    kind = STAGES[transition.stage].work
    if kind is Kind.STREAM:
        pairs = streams_of(tablet, state.nodes, is_anywhere(state, tablets.table))
    if kind is Kind.REPAIR:
        pairs = tuple(permutations([one for one in nodes_of(tablet.replicas) if not is_dead(state.nodes[one])], 2))
    sources = tuple(
        Source(tablets.table, tablet.start, tablet.end, source, target) for source, target in pairs if source != target
    )
    return StreamingWork(name, transition.stage_epoch, sources)


# -------------------------------------------------------------------------------------------------------- spaces


def placement_of_space(state: ClusterState, space: str) -> Placement | TabletMap | None:
    """Return the placement of a space, or None if the space does not exist."""
    keyspace, _, table = space.partition(".")
    if not table:
        return placement_of_keyspace(state, keyspace)
    found = state.tables.get(space)
    return None if found is None else map_of(state, found)


def creation_epoch(state: ClusterState, space: str) -> Epoch:
    """Return the epoch that created a space: its keyspace or, with tablets, its table. 0: it does not exist.

    A dropped space of the same name has an earlier epoch.
    """
    keyspace, table = state.keyspaces.get(space.partition(".")[0]), state.tables.get(space)
    return max(0 if keyspace is None else keyspace.made, 0 if table is None else table.made)


def merge_epoch(state: ClusterState, space: str) -> Epoch:
    """Return the epoch that last merged the placement of a space's keyspace with another, or 0.

    Members had the data before that epoch, regardless of their ``since``.
    """
    found = state.keyspaces.get(space.partition(".")[0])
    return 0 if found is None else found.joined


def replicas_of_token(found: Placement | TabletMap | None, token: Token) -> RangeGroup | None:
    """Return the replicas of a token, or None if it has none. O(log n)."""
    if isinstance(found, TabletMap):
        return group_of(found.tablet(found.index_of(token)))
    return group_at(found, token) if found is not None and found.ends else None


def spaces(state: ClusterState) -> list[str]:
    """Return all spaces, sorted."""
    return sorted((*state.keyspaces, *(name for name, table in state.tables.items() if table.tablets is not None)))


def spaces_under(state: ClusterState, replication: str) -> tuple[str, ...]:
    """Return the spaces with registers that are streamed under a replication."""
    if replication in state.tablets:
        return tables_under(state, replication)
    return tuple(one.name for one in state.keyspaces.values() if placement_key(one) == replication)


def tables_under(state: ClusterState, replication: str) -> tuple[str, ...]:
    """Return the tables with rows that are streamed under a replication."""
    if replication in state.tablets:
        tablets = state.tablets[replication]
        return tuple(name for name, table in state.tables.items() if map_of(state, table) is tablets)
    keyspaces = set(spaces_under(state, replication))
    return tuple(name for name, table in state.tables.items() if table.keyspace in keyspaces)


def changed_ranges(was: Placement | TabletMap | None, now: Placement | TabletMap) -> Iterator[tuple[Range, RangeGroup]]:
    """Yield the ranges of ``now``, with their groups, that differ from ``was``."""
    if isinstance(now, TabletMap):
        tablets = was if isinstance(was, TabletMap) else None
        for index in sorted(changed_tablets(tablets, now)):
            tablet = now.tablet(index)
            yield (tablet.start, tablet.end), group_of(tablet)
        return
    same = was.ranges if isinstance(was, Placement) and was.ends == now.ends else (None,) * len(now.ranges)
    for one, group, old in zip(ranges_between(now.ends), now.ranges, same, strict=True):
        if group is not old:
            yield one, group
