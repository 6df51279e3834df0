"""Gates: the acknowledgements and reports that an operation needs before it may leave a stage.

A node has acknowledged epoch e when it applied e durably and every write that it admitted below e is applied. For
every range that the plan changes, a quorum of *each* of four groups must have acknowledged the epoch at which the
stage began: the read group and the write group, as they were before the operation and as they will be after it. A
majority of their union is not enough if two replicas of a range change at once, or in several datacenters: the
command ``ringlog sim quorums --nodes 5 --datacenters 2 --factor 4 --rule R5=union`` prints a read that misses a write.

In a cluster of several datacenters each group needs a quorum of its members in each of them. Nodes that the operation
removes, replaces or ignores because they are dead are not witnesses: the need is the quorum of the full group, or all
other members if they are fewer. If the excluded nodes would be a quorum of a group in a datacenter, the leaving node is
asked after all, unless it is ignored: an operator who knows that it is dead assassinates it. So a quorum is left out
only on explicit request, in whatever order nodes die. Declaring any other node down changes no need: if it
acknowledges, it knows the stage. Stages that change nothing for readers and writers have no gate. A gate is data: the
rule of the fold, the coordinator and the displays read the same needs.

With the setting ``gate_prepared`` at 0 an operation leaves ``prepared`` when the gaining nodes know it. That is the
minimum: ``ringlog sim quorums --rule gate:prepared=off`` finds nothing, and a counterexample for each of the other two
gates. Each operation that used it is marked permanently (``relaxed``).

A node reports its own failure by an entry of the log; silence never counts as a failure. A recorded failure stops the
operation. No stage is left, whatever is acknowledged, until an operator retries it or, before ``write_both_read_new``,
cancels it. Tries are counted again from each stage and each retry, so a late report stops nothing.

Participants may be programs of other authors. Each report is checked by itself, so an unusable one stops only the
operation that needs it, and the collector can name its author. A report of rows has their number and a ``checksum`` in
lower-case hex, 2 to 128 digits. The log compares it with nothing: it is for people and for the store, whose nodes must
compute the same sum of the same rows in any order. The reference nodes use SHA-256; ``ringlog.client.node_reports`` has
a sum for others.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, Protocol

from immutables import Map

from ringlog.kernel.columns.ack_columns import AckColumns
from ringlog.kernel.columns.lazy_tuple import IdentityCache
from ringlog.kernel.model.plan_columns import nodes_in, targets_in
from ringlog.kernel.model.settings import setting
from ringlog.kernel.model.state import NO_MEMBER, ClusterState, Failure, Node, Operation, Plan, RangeGroup
from ringlog.kernel.operations.kinds import kind_of
from ringlog.kernel.operations.stages import PREPARED, STREAMING, WRITE_BOTH_READ_NEW, WRITE_BOTH_READ_OLD
from ringlog.kernel.ownership.deltas import Touched, touched
from ringlog.kernel.ownership.placements import group_at, nodes_of
from ringlog.kernel.values import Epoch, NodeId, OperationId, StreamReport, Token, Witness

GATED_STAGES = (PREPARED, WRITE_BOTH_READ_OLD, WRITE_BOTH_READ_NEW)
GAINING_MUST_STAGES = (PREPARED, STREAMING, WRITE_BOTH_READ_OLD)
"""Stages that every gaining node must have acknowledged itself, for it is about to take writes or to be read."""

REPORTED_STAGES = (STREAMING, WRITE_BOTH_READ_OLD)
"""Stages that end when every gaining node has reported that it has all rows."""

_NEEDS_DESCRIBED_MAX = 4
_unseen: Final = IdentityCache[frozenset[NodeId], tuple[Map[NodeId, Node], frozenset[NodeId]]](2)
"""Of those who have acknowledged: a directory, and who has not of it."""

_gaining: Final = IdentityCache[Plan, set[NodeId]](8)
"""Of a plan, which is asked for them several times at each stage."""


class InDatacenter(Protocol):
    """A node, or a host of the balancer's planner."""

    @property
    def datacenter(self) -> str:
        """The name of its datacenter."""


@dataclass(frozen=True, slots=True)
class GateNeed:
    """``need`` of ``members`` (of ``group`` of the range, in ``datacenter``; empty: in all) must have acknowledged the
    epoch.
    """

    replication: str
    start: Token
    end: Token
    group: str
    datacenter: str
    members: tuple[NodeId, ...]
    need: int


@dataclass(frozen=True, slots=True)
class Gate:
    """Before ``operation`` leaves ``stage``, ``epoch`` must be acknowledged by all of ``must`` and for every need."""

    operation: OperationId
    stage: str
    epoch: Epoch
    must: tuple[NodeId, ...]
    needs: tuple[GateNeed, ...]


def quorum(count: int) -> int:
    """The least number of ``count`` members of which any two choices share one."""
    assert count >= 0, "members are counted"
    return count // 2 + 1


def gaining_nodes(operation: Operation) -> tuple[NodeId, ...]:
    """The nodes that get rows by an operation in flight, sorted; one that joins, replaces or rebuilds in any case.

    Some get rows of ranges that they have already: see ``operations.plan``.
    """
    plan = operation.plan
    gaining = _gaining.get(plan)
    if gaining is None:
        gaining = _gaining.put(plan, nodes_in(plan.start.write_added) | targets_in(plan.sources))
    return tuple(sorted(gaining.union([operation.node] if kind_of(operation).node_gains else ())))


def gate(state: ClusterState, operation: Operation) -> Gate:
    """The gate of the stage in which ``operation`` is now; without needs where the stage has none."""
    bare = _without_needs(operation)
    return bare if is_relaxed(state, operation) else replace(bare, needs=tuple(_needs(state, operation, frozenset())))


def is_met(state: ClusterState, operation: Operation, witnesses: Iterable[Witness]) -> bool:
    """True if and only if the gate of ``operation`` is met: ``not missing(gate(state, operation), witnesses)``."""
    if is_relaxed(state, operation):
        bare = _without_needs(operation)
        return acknowledged(bare, witnesses).issuperset(bare.must)
    return is_fully_met(state, operation, witnesses)


def is_fully_met(state: ClusterState, operation: Operation, witnesses: Iterable[Witness]) -> bool:
    """True if and only if the gate of the present stage is met as it is without any setting that relaxes it.

    Nearly all nodes have acknowledged, as a rule, so it looks only at ranges with a member that has not.
    """
    bare = _without_needs(operation)
    seen = acknowledged(bare, witnesses)
    if not seen.issuperset(bare.must):
        return False
    return all(len(seen.intersection(need.members)) >= need.need for need in _needs(state, operation, seen))


def awaited(state: ClusterState, operation: Operation) -> frozenset[NodeId]:
    """The nodes whose acknowledgement of the stage's epoch the gate may count, whatever setting relaxes it."""
    needs = _needs(state, operation, frozenset())
    return frozenset(_without_needs(operation).must).union(*(need.members for need in needs))


def is_relaxed(state: ClusterState, operation: Operation) -> bool:
    """True if a setting lets the operation leave its present stage with less than its whole gate."""
    return operation.stage == PREPARED and not setting(state, "gate_prepared")


def _without_needs(operation: Operation) -> Gate:
    must = gaining_nodes(operation) if operation.stage in GAINING_MUST_STAGES else ()
    return Gate(operation.id, operation.stage, operation.stage_epoch, must, ())


def _needs(state: ClusterState, operation: Operation, seen: frozenset[NodeId]) -> Iterator[GateNeed]:
    """The needs of the gate, by setting and range end; of ranges all of whose members are among ``seen``, none."""
    if operation.stage not in GATED_STAGES:
        return
    silent = frozenset({*operation.ignored, *dead_parting(state, operation)})
    unseen = _others(state.nodes, seen)
    if not unseen:
        return
    for where, found in _groups(state, operation):
        if any(not unseen.isdisjoint(members) for _, members in found):
            for group, members in found:
                yield from needs_of(state.nodes, where, group, members, silent, operation.ignored, keeps_quorum=True)


def _others(nodes: Map[NodeId, Node], seen: frozenset[NodeId]) -> frozenset[NodeId]:
    """Who may be a member of groups and is not among ``seen``, which is one object from step to step as a rule."""
    known = _unseen.get(seen)
    if known is None or known[0] is not nodes:
        found = [node for node in set(nodes) - seen if nodes[node].state not in NO_MEMBER]
        assert len(found) + len(seen.intersection(nodes)) <= len(nodes), "each is one of them or another"
        known = _unseen.put(seen, (nodes, frozenset(found)))
    return known[1]


def _groups(state: ClusterState, operation: Operation) -> Iterator[tuple[tuple[str, Token, Token], Views]]:
    """((setting, start, end), its four groups) of every range that the plan changes."""
    plan = operation.plan
    for key, changes in sorted(touched(plan.start, plan.middle, plan.finish).items()):
        if key in state.placements:
            for (start, end), change in changes:
                yield (key, start, end), views(group_at(state.placements[key], end), change)


def outnumbered(state: ClusterState, operation: Operation) -> GateNeed | None:
    """A group in a datacenter of which a quorum is not asked, by what the operation ignores; None if there is none.

    Where fewer are not asked, all that are left are in every quorum together: a coordinator that knows only an earlier
    view meets one of them, and hears of this one. That holds even if those who are ignored live.
    """
    silent = frozenset({*operation.ignored, *dead_parting(state, operation)})
    for where, found in _groups(state, operation):
        for group, members in found:
            for need in needs_of(state.nodes, where, group, members, frozenset(), ()):
                if len(silent.intersection(need.members)) >= need.need:
                    return need
    return None


def parting(operation: Operation) -> NodeId:
    """Who has left when the operation is finished; empty if nobody."""
    return operation.replaced or (operation.node if kind_of(operation).parts else "")


def dead_parting(state: ClusterState, operation: Operation) -> tuple[NodeId, ...]:
    """Who leaves, if it was declared down: it is not waited for where enough others of its group are asked."""
    node = parting(operation)
    return (node,) if node and state.nodes[node].down else ()


Views = tuple[tuple[str, tuple[NodeId, ...]], ...]


def views(live: RangeGroup, change: Touched) -> Views:
    """(name, members) of the four groups of a range, before and after all that a plan changes in it.

    ``live`` may be at any stage of the plan: what has entered already is taken out again, and so on.
    """
    named = []
    for kind, group, entering, leaving in (
        ("read", live.read, change.read_added, change.read_removed),
        ("write", live.write, change.write_added, change.write_removed),
    ):
        now = set(nodes_of(group))
        named.append((f"old {kind}", tuple(sorted(now.difference(entering).union(leaving)))))
        named.append((f"new {kind}", tuple(sorted(now.difference(leaving).union(entering)))))
    return tuple(named)


def acknowledged(gate: Gate, witnesses: Iterable[Witness]) -> frozenset[NodeId]:
    """The nodes that acknowledged the gate's epoch, each once: applied it, and drained the writes admitted below it."""
    if isinstance(witnesses, AckColumns):
        return witnesses.nodes_acknowledging(gate.epoch)
    return frozenset(w.node for w in witnesses if w.applied >= gate.epoch and w.drained >= gate.epoch)


def shortfalls(gate: Gate, witnesses: Iterable[Witness]) -> tuple[GateNeed, ...]:
    """The needs that the witnesses do not satisfy."""
    seen = acknowledged(gate, witnesses)
    return tuple(need for need in gate.needs if len(seen.intersection(need.members)) < need.need)


def missing(gate: Gate, witnesses: Iterable[Witness]) -> tuple[NodeId, ...]:
    """The nodes that are waited for, sorted; empty if and only if the gate is met. Not all of them may be needed."""
    witnesses = tuple(witnesses)
    seen = acknowledged(gate, witnesses)
    awaited = set(gate.must).difference(seen)
    for need in shortfalls(gate, witnesses):
        awaited.update(set(need.members).difference(seen))
    return tuple(sorted(awaited))


def explain(gate: Gate, witnesses: Iterable[Witness], nodes: Mapping[NodeId, Node]) -> str:
    """A sentence that names who is waited for and, for the first few groups, how many of whom; the gate is not met."""
    witnesses = tuple(witnesses)
    seen = acknowledged(gate, witnesses)

    def names(members: Iterable[NodeId]) -> str:
        return ", ".join(nodes[node].name for node in members if node not in seen)

    reasons = [f"the gaining node {names([node])} must" for node in gate.must if node not in seen]
    by_members: dict[tuple[NodeId, ...], GateNeed] = {}
    for need in shortfalls(gate, witnesses):
        by_members.setdefault(need.members, need)
    for need in list(by_members.values())[:_NEEDS_DESCRIBED_MAX]:
        lacking = need.need - len(seen.intersection(need.members))
        where = f"{need.group} group of {need.replication} ({need.start}, {need.end}]"
        where += f" in {need.datacenter}" if need.datacenter else ""
        reasons.append(f"{lacking} of {names(need.members)} must ({where})")
    if len(by_members) > _NEEDS_DESCRIBED_MAX:
        reasons.append(f"and {len(by_members) - _NEEDS_DESCRIBED_MAX} more groups")
    awaited = names(missing(gate, witnesses))
    return f"witnesses: epoch {gate.epoch} ({gate.stage}) waits for {awaited} to acknowledge: {'; '.join(reasons)}"


def needs_of(
    nodes: Mapping[NodeId, Node],
    where: tuple[str, Token, Token],
    group: str,
    members: tuple[NodeId, ...],
    silent: frozenset[NodeId],
    ignored: tuple[NodeId, ...],
    as_one: bool = False,
    keeps_quorum: bool = False,
) -> list[GateNeed]:
    """One need for each part of the members (``parts_of``), without the ``silent`` ones, as long as others are left;
    ``keeps_quorum``: as long as they are less than a quorum.

    ``where``: setting or tablet, start and end of the range; ``group``: its name; who is ``ignored`` is never asked.
    """
    needs = []
    for datacenter, local in parts_of(nodes, members, as_one):
        left = tuple(node for node in local if node not in silent)
        if not left or (keeps_quorum and len(local) - len(left) >= quorum(len(local))):
            left = tuple(node for node in local if node not in ignored)
        assert set(left) <= set(local), "only members are asked"
        needs.append(GateNeed(*where, group, datacenter, left, min(quorum(len(local)), len(left))))
    return needs


def parts_of(
    nodes: Mapping[NodeId, InDatacenter], members: Iterable[NodeId], as_one: bool
) -> list[tuple[str, list[NodeId]]]:
    """The members of a group by datacenter, each of which has a quorum of its own; ``as_one``: all of them, under no
    name. So tablets count whose replication knows no datacenters: where their replicas are is chance.
    """
    found: dict[str, list[NodeId]] = {}
    for node in members:
        found.setdefault("" if as_one else nodes[node].datacenter, []).append(node)
    return sorted(found.items())


def counts_from(operation: Operation) -> Epoch:
    """The epoch from which failed tries count: the stage began with it, or an operator had it tried again."""
    return max(operation.stage_epoch, *(retry.epoch for retry in operation.retries[-1:]), 0)


def stopped_by(operation: Operation) -> tuple[Failure, ...]:
    """The failures because of which an operation in flight waits for an operator; empty if it goes on."""
    since = counts_from(operation)
    return tuple(failure for failure in operation.failures if failure.epoch > since)


def describe(state: ClusterState, failure: Failure) -> str:
    """A failure in words."""
    who = state.nodes[failure.node].name if failure.node in state.nodes else "somebody"
    often = f" after {failure.tries} tries" if failure.tries else ""
    return f"{who}{often} at epoch {failure.epoch}: {failure.reason or 'no reason given'}"


_CHECKSUM = re.compile(r"[0-9a-f]{2,128}")
CHECKSUM_RULE = "must be 2 to 128 lower-case hex digits"


def broken_report(report: StreamReport) -> str | None:
    """The field of a report that cannot be used, and its rule; None if it is sound."""
    if report.rows < 0:
        return f"rows {report.rows} must be 0 or above"
    if not _CHECKSUM.fullmatch(report.checksum):
        return f"checksum {report.checksum[:40]!r} {CHECKSUM_RULE}"
    return None


def broken_epochs(applied: Epoch, drained: Epoch) -> str | None:
    """Why an acknowledgement cannot be used; None if it is sound."""
    if applied < 0 or drained < 0:
        return f"applied {applied} and drained {drained} must be 0 or above"
    return None
