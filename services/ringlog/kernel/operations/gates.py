"""Gates: the acknowledgements and reports that an operation needs before it may leave a stage.

A node has acknowledged epoch e when it applied e durably and every write that it admitted below e is applied. Each
range that the plan changes has four groups: the read group and the write group, each before and after the operation. A
quorum of *each* of them must have acknowledged the first epoch of the stage. A majority of their union is not enough if
two replicas of a range change at once, or in several datacenters. The command ``ringlog sim quorums --nodes 5
--datacenters 2 --factor 4 --rule R5=union`` prints a read that misses a write.

In a cluster of several datacenters each group needs a quorum of its members in each of them. Nodes that the operation
removes, replaces or ignores because they are dead are not witnesses. Then the need is the quorum of the full group, or
all other members if they are fewer. If the excluded nodes would be a quorum of a group in a datacenter, the leaving
node is asked after all, unless it is ignored. An operator who knows that it is dead assassinates it. So a quorum is
left out only on explicit request, in whichever order nodes die. Declaring any other node down changes no need: if it
acknowledges, it knows the stage. Stages that change nothing for readers and writers have no gate. A gate is data: the
rule of the fold, the coordinator and the displays read the same needs.

With the setting ``gate_prepared`` at 0 an operation leaves ``prepared`` when the gaining nodes know it. That is the
minimum: ``ringlog sim quorums --rule gate:prepared=off`` finds nothing, and a counterexample for each of the other two
gates. Each operation that used it is marked permanently (``relaxed``).

A node reports its own failure by an entry of the log; silence never counts as a failure. A recorded failure stops the
operation. No acknowledgement ends its stage until an operator retries it or, before ``write_both_read_new``, cancels
it. The count of tries starts again with each stage and each retry, so a late report stops nothing.

Participants may be programs of other authors. Each report is checked separately, so an unusable one stops only the
operation that needs it, and the collector can name its author. A report of rows has their number and a ``checksum`` in
lower-case hex, 2 to 128 digits. The log does not compare checksums. They are for people and for the store, whose nodes
must compute the same sum of the same rows in any order. The reference nodes use SHA-256;
``ringlog.client.node_reports`` has a sum for others.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
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
from ringlog.kernel.values import Epoch, NodeId, OperationId, StreamReport, Token, Value, Witness, replace

GATED_STAGES = (PREPARED, WRITE_BOTH_READ_OLD, WRITE_BOTH_READ_NEW)
GAINING_MUST_STAGES = (PREPARED, STREAMING, WRITE_BOTH_READ_OLD)
"""Stages that every gaining node must acknowledge, because it is about to take writes or to serve reads."""

REPORTED_STAGES = (STREAMING, WRITE_BOTH_READ_OLD)
"""Stages that end when every gaining node has reported that it has all rows."""
assert set(REPORTED_STAGES) <= set(GAINING_MUST_STAGES), "a node reports a stage that it has acknowledged"

_NEEDS_DESCRIBED_MAX = 4
_unseen: Final = IdentityCache[frozenset[NodeId], tuple[Map[NodeId, Node], frozenset[NodeId]]](2)
"""A cache by the set of nodes that acknowledged: the directory, and its nodes that have not acknowledged."""

_gaining: Final = IdentityCache[Plan, set[NodeId]](8)
"""A cache of gaining nodes by plan. Each stage asks for them several times."""


class InDatacenter(Protocol):
    """A node, or a host of the balancer's planner."""

    @property
    def datacenter(self) -> str:
        """The name of its datacenter."""


class GateNeed(Value):
    """A number of acknowledgements in one group: ``need`` of ``members`` must have acknowledged the epoch.

    ``datacenter``: the datacenter of the members; empty: all datacenters.
    """

    replication: str
    start: Token
    end: Token
    group: str
    datacenter: str
    members: tuple[NodeId, ...]
    need: int


class Gate(Value):
    """The acknowledgements that ``operation`` needs to leave ``stage``: ``epoch`` by all of ``must``, and
    every need.
    """

    operation: OperationId
    stage: str
    epoch: Epoch
    must: tuple[NodeId, ...]
    needs: tuple[GateNeed, ...]


def quorum(count: int) -> int:
    """Return the size of a majority of ``count`` members, so that any two quorums share a member."""
    assert count >= 0, "the number of members is not negative"
    return count // 2 + 1


def gaining_nodes(operation: Operation) -> tuple[NodeId, ...]:
    """Return the nodes that get rows by an operation in flight, sorted. A node that joins, replaces or rebuilds always
    counts.

    Some get rows of ranges that they have already: see ``operations.plan``.
    """
    plan = operation.plan
    gaining = _gaining.get(plan)
    if gaining is None:
        gaining = _gaining.put(plan, nodes_in(plan.start.write_added) | targets_in(plan.sources))
    return tuple(sorted(gaining.union([operation.node] if kind_of(operation).node_gains else ())))


def gate(state: ClusterState, operation: Operation) -> Gate:
    """Return the gate of the present stage of ``operation``. It has no needs if the stage has none."""
    bare = _without_needs(operation)
    return bare if is_relaxed(state, operation) else replace(bare, needs=tuple(_needs(state, operation, frozenset())))


def is_met(state: ClusterState, operation: Operation, witnesses: Iterable[Witness]) -> bool:
    """Return whether the gate of ``operation`` is met, as ``not missing(gate(state, operation), witnesses)`` says."""
    if is_relaxed(state, operation):
        bare = _without_needs(operation)
        return acknowledged(bare, witnesses).issuperset(bare.must)
    return is_fully_met(state, operation, witnesses)


def is_fully_met(state: ClusterState, operation: Operation, witnesses: Iterable[Witness]) -> bool:
    """Return whether the gate of the present stage is met, without any setting that relaxes it.

    Usually nearly all nodes have acknowledged, so it checks only ranges with a member that has not.
    """
    bare = _without_needs(operation)
    seen = acknowledged(bare, witnesses)
    if not seen.issuperset(bare.must):
        return False
    return all(len(seen.intersection(need.members)) >= need.need for need in _needs(state, operation, seen))


def gate_nodes(state: ClusterState, operation: Operation) -> frozenset[NodeId]:
    """Return the nodes whose acknowledgement of the stage's epoch the gate may count if no setting relaxes it."""
    needs = _needs(state, operation, frozenset())
    return frozenset(_without_needs(operation).must).union(*(need.members for need in needs))


def is_relaxed(state: ClusterState, operation: Operation) -> bool:
    """Return whether a setting lets the operation leave its present stage with less than its whole gate."""
    return operation.stage == PREPARED and not setting(state, "gate_prepared")


def _without_needs(operation: Operation) -> Gate:
    must = gaining_nodes(operation) if operation.stage in GAINING_MUST_STAGES else ()
    return Gate(operation.id, operation.stage, operation.stage_epoch, must, ())


def _needs(state: ClusterState, operation: Operation, seen: frozenset[NodeId]) -> Iterator[GateNeed]:
    """Yield the needs of the gate, by setting and range end, without ranges whose members are all among ``seen``."""
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
    """Return the nodes outside ``seen`` that may be members of groups. ``seen`` is usually the same object in each
    step.
    """
    known = _unseen.get(seen)
    if known is None or known[0] is not nodes:
        found = [node for node in set(nodes) - seen if nodes[node].state not in NO_MEMBER]
        assert len(found) + len(seen.intersection(nodes)) <= len(nodes), "answered and missing nodes are disjoint"
        known = _unseen.put(seen, (nodes, frozenset(found)))
    return known[1]


def _groups(state: ClusterState, operation: Operation) -> Iterator[tuple[tuple[str, Token, Token], Views]]:
    """Yield ((setting, start, end), its four groups) of every range that the plan changes."""
    plan = operation.plan
    for key, changes in sorted(touched(plan.start, plan.middle, plan.finish).items()):
        if key in state.placements:
            for (start, end), change in changes:
                yield (key, start, end), views(group_at(state.placements[key], end), change)


def unasked_group(state: ClusterState, operation: Operation) -> GateNeed | None:
    """Return a group in a datacenter whose quorum the gate does not ask, because of ignored nodes; None if there is
    none.

    If the nodes not asked are fewer than a quorum, each quorum includes a node that was asked. So a coordinator that
    knows only an earlier view meets such a node and learns of this one, even if the ignored nodes are alive.
    """
    silent = frozenset({*operation.ignored, *dead_parting(state, operation)})
    for where, found in _groups(state, operation):
        for group, members in found:
            for need in needs_of(state.nodes, where, group, members, frozenset(), ()):
                if len(silent.intersection(need.members)) >= need.need:
                    return need
    return None


def leaving_node(operation: Operation) -> NodeId:
    """Return the node that has left once the operation is finished; empty if there is none."""
    return operation.replaced or (operation.node if kind_of(operation).parts else "")


def dead_parting(state: ClusterState, operation: Operation) -> tuple[NodeId, ...]:
    """Return the leaving node if it was declared down. The gate does not wait for it if enough others of its group are
    asked.
    """
    node = leaving_node(operation)
    return (node,) if node and state.nodes[node].down else ()


Views = tuple[tuple[str, tuple[NodeId, ...]], ...]


def views(live: RangeGroup, change: Touched) -> Views:
    """Return (name, members) of the four groups of a range: read and write, before and after the whole plan.

    ``live`` may be at any stage of the plan. Members that have entered already are removed for the old groups, and
    those that have left are added.
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
    """Return the nodes that acknowledged the gate's epoch: they applied it and drained the writes admitted below it."""
    if isinstance(witnesses, AckColumns):
        return witnesses.nodes_acknowledging(gate.epoch)
    return frozenset(w.node for w in witnesses if w.applied >= gate.epoch and w.drained >= gate.epoch)


def shortfalls(gate: Gate, witnesses: Iterable[Witness]) -> tuple[GateNeed, ...]:
    """Return the needs that the witnesses do not satisfy."""
    seen = acknowledged(gate, witnesses)
    return tuple(need for need in gate.needs if len(seen.intersection(need.members)) < need.need)


def missing(gate: Gate, witnesses: Iterable[Witness]) -> tuple[NodeId, ...]:
    """Return the nodes that the gate waits for, sorted; empty only if the gate is met. Some of them may not be
    needed.
    """
    witnesses = tuple(witnesses)
    seen = acknowledged(gate, witnesses)
    awaited = set(gate.must).difference(seen)
    for need in shortfalls(gate, witnesses):
        awaited.update(set(need.members).difference(seen))
    return tuple(sorted(awaited))


def explain(gate: Gate, witnesses: Iterable[Witness], nodes: Mapping[NodeId, Node]) -> str:
    """Return a sentence that names the missing nodes and, for the first few groups, the number still needed.

    The gate is not met.
    """
    witnesses = tuple(witnesses)
    seen = acknowledged(gate, witnesses)

    def names(members: Iterable[NodeId]) -> str:
        return ", ".join(nodes[node].name for node in members if node not in seen)

    reasons = [f"gaining node {names([node])} must acknowledge" for node in gate.must if node not in seen]
    by_members: dict[tuple[NodeId, ...], GateNeed] = {}
    for need in shortfalls(gate, witnesses):
        by_members.setdefault(need.members, need)
    for need in list(by_members.values())[:_NEEDS_DESCRIBED_MAX]:
        lacking = need.need - len(seen.intersection(need.members))
        where = f"{need.group} group of {need.replication} ({need.start}, {need.end}]"
        where += f" in {need.datacenter}" if need.datacenter else ""
        reasons.append(f"{lacking} of {names(need.members)} must acknowledge ({where})")
    assert reasons, "the gate is not met"
    if len(by_members) > _NEEDS_DESCRIBED_MAX:
        reasons.append(f"and {len(by_members) - _NEEDS_DESCRIBED_MAX} more groups")
    awaited = names(missing(gate, witnesses))
    return f"witnesses: epoch {gate.epoch} ({gate.stage}) waits for {awaited}: {'; '.join(reasons)}"


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
    """Return one need for each part of the members (``parts_of``), without ``silent`` nodes while other nodes are left.

    ``keeps_quorum``: without ``silent`` nodes only while these are fewer than a quorum. ``where``: setting or tablet,
    start and end of the range. ``group``: its name. ``ignored`` nodes are never asked.
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
    """Return the members of a group by datacenter. Each part has its own quorum.

    ``as_one``: return all members as one part without a name. This is for tablets whose replication names no
    datacenters: their replicas are in arbitrary datacenters.
    """
    found: dict[str, list[NodeId]] = {}
    for node in members:
        found.setdefault("" if as_one else nodes[node].datacenter, []).append(node)
    return sorted(found.items())


def counts_from(operation: Operation) -> Epoch:
    """Return the epoch after which failed tries count: that of the stage or, if later, of the last retry."""
    return max(operation.stage_epoch, *(retry.epoch for retry in operation.retries[-1:]), 0)


def stopped_by(operation: Operation) -> tuple[Failure, ...]:
    """Return the failures that make an operation in flight wait for an operator; empty if it continues."""
    since = counts_from(operation)
    return tuple(failure for failure in operation.failures if failure.epoch > since)


def describe(state: ClusterState, failure: Failure) -> str:
    """Return a text about a failure."""
    name = state.nodes[failure.node].name if failure.node in state.nodes else "an unknown node"
    often = f" after {failure.tries} tries" if failure.tries else ""
    return f"{name} failed{often} at epoch {failure.epoch}: {failure.reason or 'no reason given'}"


_CHECKSUM = re.compile(r"[0-9a-f]{2,128}")
CHECKSUM_RULE = "must be 2 to 128 lower-case hex digits"


def broken_report(report: StreamReport) -> str | None:
    """Return the field of an unusable report and its rule; None if the report is usable."""
    if report.rows < 0:
        return f"rows {report.rows} must be 0 or above"
    if not _CHECKSUM.fullmatch(report.checksum):
        return f"checksum {report.checksum[:40]!r} {CHECKSUM_RULE}"
    return None


def broken_epochs(applied: Epoch, drained: Epoch) -> str | None:
    """Return why an acknowledgement is unusable; None if it is usable."""
    if applied < 0 or drained < 0:
        return f"applied {applied} and drained {drained} must be 0 or above"
    return None
