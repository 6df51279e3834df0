"""A second implementation of stages, locks and cancels: the allowed effects of one entry on operations."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import TYPE_CHECKING

from ringlog.kernel.commands.cdc.generations import CommitCdcGeneration, PublishCdcGeneration
from ringlog.kernel.commands.topology.movements import Assassinate
from ringlog.kernel.commands.topology.operations import AdvanceOperation, CancelOperation, FailOperation
from ringlog.kernel.model.outcome import Entry
from ringlog.kernel.model.state import ClusterState, Operation, Plan
from ringlog_sim.checks.base import Check
from ringlog_sim.checks.ring.movements import movements
from ringlog_testing.placement.layout import holds
from ringlog_testing.placement.movements import ORDER, READS_AT, Movements, SeenMovement

if TYPE_CHECKING:
    from ringlog_sim.simulation import Simulation

ENDED = ("finished", "cancelled")


class Stages(Check):
    """An operation advances one stage at a time, with an entry that names it, and reverts only before new readers."""

    def __init__(self, sim: Simulation) -> None:
        super().__init__(sim)
        self._ids: set[str] = set()
        self._ends: dict[str, frozenset[int]] = {}
        self._published: set[str] = set()

    def begin(self, state: ClusterState) -> None:
        """Record used ids, and the generations before the run, which are all published."""
        record = movements(self.sim).upto(state.epoch)
        self._ids = {*record.flying, *record.ended}
        for generation in state.generations:
            self._ends[generation.id] = frozenset(described.end for described in generation.ranges)
            self._published.add(generation.id)

    def applied(self, before: ClusterState, after: ClusterState, item: Entry, offset: int) -> None:
        """Check that the difference of two states is a single step."""
        record = movements(self.sim).upto(after.epoch)
        self._record(item, after)
        if after.operations is not before.operations:
            moved = [
                name for name in sorted(after.operations) if self._moved(before, after, after.operations[name], item)
            ]
            if len(moved) > 1:
                self._broken(after, f"{', '.join(moved)} advanced with one entry")
            self._forgotten(before, after)
        stages = {name: op.stage for name, op in after.operations.items() if op.stage not in ENDED}
        if stages != {name: move.stage for name, move in record.flying.items()}:
            self._broken(after, f"operations in flight are {stages}, expected {sorted(record.flying)}")
        standing = {node.id: node.state for node in after.nodes.values()}
        if after.nodes is not before.nodes and standing != record.standing:
            self._broken(after, f"nodes are {standing}, expected {record.standing}")

    def _broken(self, state: ClusterState, detail: str) -> None:
        self.sim.broken("stages", f"epoch {state.epoch}: {detail}")

    def _record(self, item: Entry, after: ClusterState) -> None:
        match item.command:
            case CommitCdcGeneration(name):
                ranges = next(found.ranges for found in after.generations if found.id == name)
                self._ends[name] = frozenset(described.end for described in ranges)
            case PublishCdcGeneration(name):
                self._published.add(name)

    def _moved(self, before: ClusterState, after: ClusterState, op: Operation, item: Entry) -> bool:
        """Check the change of one operation. Return True if it is new or in another stage."""
        old = before.operations.get(op.id)
        if op is old:
            return False
        record = movements(self.sim)
        move = record.flying.get(op.id) or record.ended.get(op.id)
        if move is None:
            self._broken(after, f"{op.id} exists, but no entry requested it")
            return False
        if tuple((mark.stage, mark.epoch) for mark in op.marks) != tuple(move.marks):
            self._broken(after, f"{op.id} has the marks {op.marks}, expected {move.marks}")
        if (op.stage, op.stage_epoch) != move.marks[-1]:
            self._broken(after, f"{op.id} is in {op.stage} since {op.stage_epoch}, expected {move.marks[-1]}")
        if old is None:
            if op.id in self._ids:
                self._broken(after, f"the id {op.id} is used again")
            self._ids.add(op.id)
            if op.stage not in ENDED:
                move.streaming = frozenset(source.target for source in op.plan.sources)
                for fault in source_faults(record, op, move):
                    self._broken(after, fault)
                for fault in lock_faults(record, op, move):
                    self.sim.broken("locks", f"epoch {after.epoch}: {fault}")
            return True
        if (old.id, old.kind, old.node, old.tokens, old.seed) != (op.id, op.kind, op.node, op.tokens, op.seed):
            self._broken(after, f"{op.id} has become another operation")
        if old.stage == op.stage:
            if (old.plan, old.locks, old.reports) != (op.plan, op.locks, op.reports):
                self._broken(after, f"plan, locks or reports of {op.id} changed within {op.stage}")
            return False
        self._step(after, old, op, item, move)
        return True

    def _step(self, after: ClusterState, old: Operation, op: Operation, item: Entry, move: SeenMovement) -> None:
        order, command = ORDER[op.kind], item.command
        if old.stage in ENDED:
            self._broken(after, f"{op.id} was {old.stage} and is in {op.stage}")
        if op.stage == "cancelled":
            if not isinstance(command, (CancelOperation, FailOperation)) or command.operation != op.id:
                self._broken(after, f"{item.kind} cancelled {op.id}")
            if READS_AT in order and order.index(old.stage) >= order.index(READS_AT):
                self._broken(after, f"{op.id} was cancelled in {old.stage}, when its new owner may have been read")
        else:
            assassinated = isinstance(command, Assassinate) and command.node in (op.node, op.replaced)
            if not assassinated and (not isinstance(command, AdvanceOperation) or command.operation != op.id):
                self._broken(after, f"{item.kind} moved {op.id}")
            elif not assassinated and move.is_stopped:
                self._broken(after, f"{op.id} left {old.stage} before an operator retried it")
            if order.index(op.stage) != order.index(old.stage) + 1:
                self._broken(after, f"{op.id} went from {old.stage} to {op.stage}")
        if old.stage == "commit_cdc_generation" and op.stage in order:
            missing = set(op.tokens) - self._ends.get(op.generation or "", frozenset())
            if missing:
                self._broken(after, f"{op.id} advanced, but {op.generation} has no range to {sorted(missing)}")
        if old.stage == "publish_cdc_generation" and op.stage in order and op.generation not in self._published:
            self._broken(after, f"{op.id} advanced before {op.generation} was published")
        if op.stage in ENDED and (op.plan != Plan() or op.locks):
            self._broken(after, f"{op.id} is {op.stage}, but has a plan or locks")

    def _forgotten(self, before: ClusterState, after: ClusterState) -> None:
        """Check that only ended operations are pruned, oldest first."""
        gone = [op for name, op in before.operations.items() if name not in after.operations]
        kept = [op.stage_epoch for op in after.operations.values() if op.stage in ENDED]
        for op in gone:
            if op.stage not in ENDED:
                self._broken(after, f"{op.id} was removed in stage {op.stage}")
            if kept and op.stage_epoch > min(kept):
                self._broken(after, f"{op.id} was pruned before older operations")


def lock_faults(record: Movements, op: Operation, move: SeenMovement) -> Iterator[str]:
    """Yield errors: a new operation locks the ranges that it will change, and no other operation has locked them."""
    locks = tuple(sorted((lock.replication, lock.start, lock.end, lock.changed) for lock in op.locks))
    if locks != tuple(sorted(move.locked)):
        yield f"{op.id} locks {locks}, but changes {move.locked}"
    for other in record.flying.values():
        if other is not move and _meet(other, move):
            yield f"{op.id} was admitted on ranges that {other.id} has locked"


def source_faults(record: Movements, op: Operation, move: SeenMovement) -> Iterator[str]:
    """Yield errors: each write of a quorum is known to every later quorum, by remaining members or by streams."""
    given: dict[tuple[str, int, int], dict[str, set[str]]] = {}
    for s in op.plan.sources:
        given.setdefault((s.replication, s.start, s.end), {}).setdefault(s.target, set()).add(s.source)
    dead, places = {*record.down, *move.ignored}, record.places
    for key, start, end, old, new in _served(record, move):
        sources = given.pop((key, start, end), {})
        where = f"{op.id} streams {key} ({start}, {end}] {old} to {new} from {sources}"
        if any(giver in dead or giver not in old for givers in sources.values() for giver in givers):
            yield f"{where}: a source does not have the rows"
        if not set(sources) <= set(new) or any(node not in sources for node in new if old and node not in old):
            yield f"{where}: the targets are not the nodes that need the rows"
        scopes = [{places[node][0]} for node in (*old, *new)] if not key.startswith("simple") else []
        for scope in ({place for place, _ in places.values()}, *scopes):
            before = [node for node in old if places[node][0] in scope]
            then = [node for node in new if places[node][0] in scope]
            if before and then and not _kept(before, then, sources):
                yield f"{where}: a quorum in {sorted(scope)} may miss a write"
    if given:
        yield f"{op.id} streams ranges that it does not change: {given}"


def _served(record: Movements, move: SeenMovement) -> Iterator[tuple[str, int, int, tuple[str, ...], tuple[str, ...]]]:
    """Yield (key, start, end, nodes with the rows, nodes to receive them) of each streamed range."""
    for change in move.exchanges:
        yield change.key, change.start, change.end, change.old, change.new
    if move.kind == "rebuild":
        for key, start, end, _ in move.locked:
            old = tuple(record.layouts[key][end].read)
            if move.datacenter:
                old = tuple(node for node in old if record.places[node][0] == move.datacenter and node != move.node)
            yield key, start, end, old, (move.node,)


def _kept(old: list[str], new: list[str], sources: dict[str, set[str]]) -> bool:
    """Return True if each majority of ``new`` has a node that knows the writes of any majority of ``old``.

    The node is a member of that majority, or streams from a member.
    """
    for knowing in combinations(old, len(old) // 2 + 1):
        ignorant = [node for node in new if node not in knowing and not sources.get(node, set()).intersection(knowing)]
        if len(ignorant) > len(new) // 2:
            return False
    return True


def _meet(one: SeenMovement, other: SeenMovement) -> bool:
    """Return True if both change a keyspace's replication, concern one node, or lock a common range."""
    if "alter" in (one.kind, other.kind) or {one.node, one.replaced} & {other.node, other.replaced} - {""}:
        return True
    return any(
        key == its_key and (holds(start, end, its_end) or holds(its_start, its_end, end))
        for key, start, end, _ in one.locked
        for its_key, its_start, its_end, _ in other.locked
    )
