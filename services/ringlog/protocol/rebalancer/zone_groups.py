"""The steps of a partition's group: requests to its nodes, their reports, and the condition to count a step as applied.

The *group* of a partition is the nodes of its configuration. Every request to it is an entry of the log: the pending
steps, under their revision, and a cancel. So requests are not lost, repeated or reordered, and a replaced instance
cannot send one. The last revision that a node has seen is the epoch on its disk. Nodes answer with reports in their
acknowledgements. Each kind of report has its session:

========  =============================================================================================================
report    meaning
========  =============================================================================================================
has       The node acts under the pending step: its actions need a majority of the voters before the step, and one of
          the voters after it. Its disk has that, and all writes from before the decision. ``rows``: the length of its
          log.
returned  The node has seen the cancel, and acts under the configuration before the step alone.
failed    The replica of this coming node can never follow the step. ``rows``: the number of the cause in ``CAUSES``.
          The step is then cancelled.
copy      Too few voters are alive, and this node has data. ``rows``: the length of its log.
========  =============================================================================================================

A step is **applied** after reports *has* from each coming node, a majority of the voters before it, and a majority of
the voters after it. The first step and a forced step need a report from each node of the step. Then no majority acts
under the configuration before the step alone. So two primaries can never be confirmed, since each needs a majority of
the configuration that it acts under. The reports of the coming nodes are the await-replica gate.

A step is **undone** after reports *returned* from a majority of the voters before it.

Source: Apache Ignite 3, design of the rebalance: "Wait for the all needed replicas", "Failover logic" and "Cancel an
ongoing rebalance process".
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Final

from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.model.zones import ZonePartition
from ringlog.kernel.values import NodeId, StreamReport
from ringlog.protocol.coordinator.witnesses import valid_reports
from ringlog.wire.records import NodeAck

HAS: Final = "has"
RETURNED: Final = "returned"
FAILED: Final = "failed"
CAUSES: Final = ("unknown", "rows_damaged")
"""The causes of a failed replica: codes of errors that end a node."""
COPY: Final = "copy"
SESSIONS: Final = "zone/"
"""The prefix of session names for partitions. Those of tablets begin with a table name: a dot, and no slash."""

SessionReports = Mapping[str, Mapping[NodeId, StreamReport]]
"""Session to its reports, by node."""


def session(partition: ZonePartition, kind: str) -> str:
    """Return the session name for a kind of report about the pending steps of a partition."""
    return f"{SESSIONS}{partition.zone}/{partition.number}@{partition.revisions.pending}/{kind}"


def session_reports(state: ClusterState, acks: Mapping[str, NodeAck]) -> SessionReports:
    """Return all reports that count."""
    found: dict[str, dict[NodeId, StreamReport]] = {}
    for node, ack in acks.items():
        for report in valid_reports(state, node, ack):
            if report.operation.startswith(SESSIONS):
                found.setdefault(report.operation, {})[node] = report
    return found


def added_nodes(partition: ZonePartition) -> frozenset[NodeId]:
    """Return the nodes that the pending step adds. A forced step adds all of its nodes."""
    step = partition.pending[0]
    return frozenset(step.nodes) - frozenset(previous_nodes(partition))


def previous_nodes(partition: ZonePartition) -> tuple[NodeId, ...]:
    """Return the nodes before the pending step. None before the first step, and none that count before a forced one."""
    reached = partition.reached
    return () if reached is None or partition.pending[0].forced else reached.nodes


def unanswered_nodes(partition: ZonePartition, reports: SessionReports) -> tuple[NodeId, ...]:
    """Return the nodes that the pending step waits for, by id; empty: it is applied."""
    reported = reports.get(session(partition, HAS), {})
    missing = {node for node in added_nodes(partition) if node not in reported}
    for peers in _voters(partition):
        missing |= _lacking(peers, reported)
    return tuple(sorted(missing))


def failed_nodes(partition: ZonePartition, reports: SessionReports) -> tuple[NodeId, ...]:
    """Return the coming nodes that can never follow the pending step, by id."""
    return tuple(sorted(added_nodes(partition).intersection(reports.get(session(partition, FAILED), {}))))


def failure_causes(partition: ZonePartition, reports: SessionReports) -> tuple[str, ...]:
    """Return the causes of ``failed_nodes``, sorted. A cause of a later release counts as unknown."""
    reported = reports.get(session(partition, FAILED), {})
    numbers = {reported[node].rows for node in failed_nodes(partition, reports)}
    return tuple(sorted({CAUSES[number] if number < len(CAUSES) else CAUSES[0] for number in numbers}))


def awaiting_return(partition: ZonePartition, reports: SessionReports) -> tuple[NodeId, ...]:
    """Return the nodes that an open cancel waits for, by id; empty: the step is undone."""
    assert partition.cancel is not None, "the partition has a cancellation"
    return tuple(sorted(_lacking(partition.cancel.old.peers, reports.get(session(partition, RETURNED), {}))))


def _voters(partition: ZonePartition) -> Iterator[tuple[NodeId, ...]]:
    """Yield the groups that need a majority each: the voters before the step, if any, and those of the step."""
    if previous_nodes(partition) and partition.reached is not None:
        yield partition.reached.peers
    yield partition.pending[0].peers


def _lacking(peers: tuple[NodeId, ...], reported: Collection[NodeId]) -> set[NodeId]:
    """Return the members of a group without a report, or none once a majority has reported."""
    missing = {node for node in peers if node not in reported}
    return missing if 2 * (len(peers) - len(missing)) <= len(peers) else set()
