"""Invariants of operations: each matches the row of its kind and owns its locks exclusively."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from ringlog.kernel.invariants.shape import Details, changed_items, invariant
from ringlog.kernel.model.settings import SETTINGS
from ringlog.kernel.model.state import ClusterState, LockedRange, Operation, Placement, Plan
from ringlog.kernel.operations.kinds import KINDS, Changes, kind_of
from ringlog.kernel.operations.rings import target_owners
from ringlog.kernel.operations.stages import (
    CANCELLED,
    COMMIT_CDC_GENERATION,
    PREPARED,
    PUBLISH_CDC_GENERATION,
    has_reached,
    in_flight,
    is_ended,
)
from ringlog.kernel.ring.ranges import in_range, index_at
from ringlog.kernel.values import NodeId


@invariant("an operation has exactly the fields that its kind requires", "operations")
def rows(state: ClusterState, known: ClusterState) -> Details:
    """Check each operation separately."""
    for name, operation in changed_items(state.operations, known.operations):
        kind = KINDS.get(operation.kind)
        if kind is None or operation.id != name:
            yield f"{name} is {operation.id}, of kind {operation.kind!r}"
            continue
        fits = (
            bool(operation.node) == (kind.changes is not Changes.SETTING),
            bool(operation.keyspace) == (operation.replication is not None) == (kind.changes is Changes.SETTING),
            bool(operation.replaced) == (kind.replaced is not None),
            bool(operation.tokens) == (kind.node is not None and not kind.parts),
            bool(operation.seed) == kind.makes_generation,
            bool(operation.gone) == kind.parts or kind.reorders,
            not operation.source_datacenter or kind.changes is Changes.ROWS,
            operation.generation is None or kind.makes_generation,
        )
        if not all(fits):
            yield f"{name} does not fit its kind: {fits}"
        if set(operation.tokens).intersection(operation.gone) or list(operation.tokens) != sorted(
            set(operation.tokens)
        ):
            yield f"the tokens of {name} do not ascend, or some are both added and removed"


@invariant(
    "an operation entered the stages of its kind in order, at ascending epochs, or was cancelled",
    "operations",
)
def stages(state: ClusterState, known: ClusterState) -> Details:
    """Check the marks of each operation, and that an ended one has neither plan nor locks."""
    for name, operation in changed_items(state.operations, known.operations):
        entered = tuple(mark.stage for mark in operation.marks)
        way = entered[:-1] if entered[-1:] == (CANCELLED,) else entered
        expected = kind_of(operation).stages
        if not entered or way != expected[: len(way)] or (way != entered and not way):
            yield f"{name} entered the stages {entered}"
        elif (operation.stage, operation.stage_epoch) != (entered[-1], operation.marks[-1].epoch):
            yield f"{name} is in {operation.stage} since epoch {operation.stage_epoch}, unlike its last mark"
        epochs = [mark.epoch for mark in operation.marks]
        if any(low >= high for low, high in pairwise(epochs)) or not 1 <= operation.stage_epoch <= state.epoch:
            yield f"{name} entered its stages with the epochs {epochs}"
        if is_ended(operation) and (operation.plan != Plan() or operation.locks):
            yield f"{name} is {operation.stage}, but has a plan or locks"
        before = known.operations.get(name)
        if before is not None and operation.marks[: len(before.marks)] != before.marks:
            yield f"the marks of {name} differ from those at epoch {known.epoch}"


@invariant(
    "the id of an operation is its kind, first epoch and number in a plan, so no later operation has it", "operations"
)
def named(state: ClusterState, known: ClusterState) -> Details:
    """Check the names. ``ForceState`` may add operations, and admission requires that a new name is unused."""
    for name, operation in changed_items(state.operations, known.operations):
        first = f"{operation.kind}-{operation.marks[0].epoch}" if operation.marks else name
        if name != first and not name.removeprefix(f"{first}-").isdecimal():
            yield f"{name} began at epoch {operation.marks[0].epoch}"


@invariant("a node is in transition if and only if an operation in flight requires it", "nodes", "operations")
def standings(state: ClusterState, known: ClusterState) -> Details:
    """Check the changed nodes and the nodes of changed operations."""
    expected: dict[NodeId, str] = {}
    for operation in in_flight(state):
        kind = kind_of(operation)
        for node, its in ((operation.node, kind.node), (operation.replaced, kind.replaced)):
            if node:
                expected[node] = "normal" if its is None else its.during
    changed = {name for name, _ in changed_items(state.nodes, known.nodes)}
    for _, operation in changed_items(state.operations, known.operations):
        changed.update(name for name in (operation.node, operation.replaced) if name)
    for name in sorted(changed.union(expected)):
        found = state.nodes.get(name)
        standing = "not registered" if found is None else found.state
        if standing not in ((expected[name],) if name in expected else ("none", "normal", "left")):
            yield f"{name} is {standing}, by operations in flight {expected.get(name, 'none')}"


@invariant(
    "operations in flight have different nodes and are within the limit; an exclusive one is alone", "operations"
)
def apart(state: ClusterState, known: ClusterState) -> Details:
    """Check the rules besides locks that separate operations."""
    flying = in_flight(state)
    about = Counter(node for operation in flying for node in (operation.node, operation.replaced) if node)
    yield from (
        f"{count} operations in flight have the node {node}" for node, count in sorted(about.items()) if count > 1
    )
    if len(flying) > 1 and any(kind_of(operation).is_exclusive for operation in flying):
        yield f"{', '.join(operation.id for operation in flying)} are in flight, but one of them is exclusive"
    ended = len(state.operations) - len(flying)
    for what, count in (("operations_admitted_max", len(flying)), ("operations_kept_max", ended)):
        if count > SETTINGS[what].maximum:
            yield f"there are {count}, but {what} is at most {SETTINGS[what].maximum}"


@invariant("no range is locked twice", "operations")
def locks(state: ClusterState, known: ClusterState) -> Details:
    """Check all locks if any are new: a disjoint range does not contain the end of the previous one."""
    held = [(one, lock) for one in in_flight(state) for lock in one.locks]
    before = {one.id: one.locks for one in in_flight(known)}
    if all(before.get(one.id) is one.locks for one in in_flight(state)):
        return
    by_setting: dict[str, list[tuple[Operation, LockedRange]]] = {}
    for one, lock in held:
        by_setting.setdefault(lock.replication, []).append((one, lock))
    for key, taken in sorted(by_setting.items()):
        taken.sort(key=lambda held: held[1].end)
        for index in range(len(taken)):
            (other, last), (one, lock) = taken[index - 1], taken[index]
            if len(taken) > 1 and in_range(last.end, lock.start, lock.end):
                yield f"{one.id} and {other.id} lock ({lock.start}, {lock.end}] of {key}"


@invariant(
    "the ranges locked by an operation exist, unchanged until it is prepared, with the same outer ends afterwards, and "
    "its plan changes and streams only locked ranges",
    "operations",
    "placements",
)
def held(state: ClusterState, known: ClusterState) -> Details:
    """Check the locks and plan of each operation if it or the placements have changed."""
    for operation in in_flight(state):
        if known.operations.get(operation.id) is operation and state.placements is known.placements:
            continue
        for lock in operation.locks:
            placement = state.placements.get(lock.replication)
            if placement is None or not _is_there(placement, lock, exactly=not has_reached(operation, PREPARED)):
                yield f"{operation.id} locks ({lock.start}, {lock.end}] of {lock.replication}, which does not exist"
        before = known.operations.get(operation.id)
        if before is None or before.plan is not operation.plan or before.locks is not operation.locks:
            yield from _unlocked(operation)


def _is_there(placement: Placement, lock: LockedRange, *, exactly: bool) -> bool:
    if not placement.ends:
        return False
    group = placement.ranges[index_at(placement.ends, lock.end)]
    if exactly:
        return (group.start, group.end, group.changed) == (lock.start, lock.end, lock.changed)
    first = placement.ranges[(index_at(placement.ends, lock.start) + 1) % len(placement.ends)]
    return group.end == lock.end and first.start == lock.start


def _unlocked(operation: Operation) -> Iterator[str]:
    """Yield the changes of a new operation's plan outside its locks. Ranges of an alteration have another key."""
    plan = operation.plan
    reached = {(one.replication, one.start, one.end) for one in plan.sources}
    for deltas in (plan.start, plan.middle, plan.finish):
        for changes in (deltas.read_added, deltas.read_removed, deltas.write_added, deltas.write_removed):
            reached.update((change.replication, change.start, change.end) for change in changes)
    elsewhere = kind_of(operation).changes is Changes.SETTING
    ranges: dict[str, list[LockedRange]] = {}
    for lock in operation.locks:
        ranges.setdefault("" if elsewhere else lock.replication, []).append(lock)
    for key, own in ranges.items():
        own.sort(key=lambda lock: lock.end)
        ends = [lock.end for lock in own]
        for where in [one for one in reached if elsewhere or one[0] == key]:
            lock = own[index_at(ends, where[2])]
            if in_range(where[2], lock.start, lock.end):
                reached.discard(where)
    yield from (f"{operation.id} changes {where}, but has not locked it" for where in sorted(reached))


@invariant("an operation in flight ignores only nodes that are declared down", "nodes", "operations")
def ignored(state: ClusterState, known: ClusterState) -> Details:
    """Check the ignored nodes: one that is not down could return without being asked."""
    for operation in in_flight(state):
        for name in operation.ignored:
            if name not in state.nodes or not state.nodes[name].down:
                yield f"{operation.id} ignores {name}, which is not down"


@invariant(
    "an operation past commit_cdc_generation has a generation with range ends at its tokens, and that generation is "
    "published before writes begin",
    "operations",
    "generations",
    "prepared",
)
def served(state: ClusterState, known: ClusterState) -> Details:
    """Check the generations of operations in flight."""
    committed = {found.id: found for found in state.generations}
    for operation in in_flight(state):
        name = operation.generation
        found = committed.get(name or "")
        is_prepared = state.prepared is not None and state.prepared.id == name
        if name is not None and found is None and not is_prepared:
            yield f"{operation.id} needs {name}, which is neither committed nor prepared"
        if not kind_of(operation).makes_generation or not _is_past(operation, COMMIT_CDC_GENERATION):
            continue
        if found is None:
            yield f"{operation.id} is in {operation.stage} without a generation"
            continue
        if found.forgotten is None and set(operation.tokens).difference(one.end for one in found.ranges):
            yield f"{operation.id} is in {operation.stage}, but {name} has no ranges that end at its tokens"
        if _is_past(operation, PUBLISH_CDC_GENERATION) and found.published is None:
            yield f"{operation.id} is in {operation.stage}, but {name} is not published"


def _is_past(operation: Operation, stage: str) -> bool:
    return has_reached(operation, stage) and operation.stage != stage


@invariant(
    "a prepared generation has tokens, and its operation, if any, waits for it",
    "prepared",
    "operations",
    "token_owners",
)
def preparing(state: ClusterState, known: ClusterState) -> Details:
    """Check the prepared generation."""
    if state.prepared is None:
        return
    if not target_owners(state):
        yield f"{state.prepared.id} is prepared, but no token exists or is requested"
    if state.prepared.operation is not None:
        whose = state.operations.get(state.prepared.operation)
        if whose is None or (whose.stage, whose.generation) != (COMMIT_CDC_GENERATION, state.prepared.id):
            yield f"{state.prepared.id} is prepared for {state.prepared.operation}, which does not wait for it"


INVARIANTS = (rows, stages, named, standings, apart, locks, held, ignored, served, preparing)
