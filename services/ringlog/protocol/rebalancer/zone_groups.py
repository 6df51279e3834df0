"""What the nodes of a partition say of its steps, and when a step counts as applied: the protocol with a group.

A partition's *group* is the nodes of its configuration. Every request to it is an entry of the log: what is pending,
under its revision, and whether that is to be undone. So no request is lost, comes twice, or overtakes another one, and
no request of an instance that was replaced reaches anybody. The last revision that a node has seen is the epoch on its
disk. Nodes answer in their acknowledgements, each word as a report of a session of its own:

========  ==============================================================================================================
has       this node acts under the pending step: whatever it takes part in needs a majority of the voters before the
          step, and of those after it. It has that on its disk, and all that was written before the step was decided;
          ``rows`` of the report: the length of its log
returned  this node has seen the cancel, and acts under the configuration before the step alone
failed    of a node that comes: its replica can never follow the step, for a cause of ``CAUSES`` (its number is in
          ``rows``). Then the step is cancelled
copy      the voters alive are too few; this node has data, with a log of that length (``rows`` of the report)
========  ==============================================================================================================

A step is **applied** when each node that comes, a majority of the voters before it, and a majority of the voters after
it have said *has*; of a forced step, and of the first one, when all of its nodes have. Then no majority is left that
acts under the configuration before the step alone: two primaries can never be confirmed, since each needs a majority of
what it acts under. That the nodes that come must have answered is the await-replica gate. A step is **undone** when a
majority of the voters before it have said *returned*.

Source: Ignite 3's design of the rebalance, "Wait for the all needed replicas", "Failover logic" and
"Cancel an ongoing rebalance process".
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
"""Why a replica fails: codes of errors that end a node."""
COPY: Final = "copy"
SESSIONS: Final = "zone/"
"""How the names of these sessions begin; those of tablets begin with a table, which has a dot and no slash."""

SessionReports = Mapping[str, Mapping[NodeId, StreamReport]]
"""Session to who has said it."""


def session(partition: ZonePartition, kind: str) -> str:
    """The session of a word on what is pending of a partition."""
    return f"{SESSIONS}{partition.zone}/{partition.number}@{partition.revisions.pending}/{kind}"


def session_reports(state: ClusterState, acks: Mapping[str, NodeAck]) -> SessionReports:
    """All words that count."""
    found: dict[str, dict[NodeId, StreamReport]] = {}
    for node, ack in acks.items():
        for report in valid_reports(state, node, ack):
            if report.operation.startswith(SESSIONS):
                found.setdefault(report.operation, {})[node] = report
    return found


def coming(partition: ZonePartition) -> frozenset[NodeId]:
    """The nodes that the pending step brings in; of a forced one all."""
    step = partition.pending[0]
    return frozenset(step.nodes) - frozenset(before(partition))


def before(partition: ZonePartition) -> tuple[NodeId, ...]:
    """The nodes before the pending step; none before the first one, and none that count before a forced one."""
    reached = partition.reached
    return () if reached is None or partition.pending[0].forced else reached.nodes


def awaited(partition: ZonePartition, reports: SessionReports) -> tuple[NodeId, ...]:
    """Who is waited for until the pending step is applied, by id; empty: it is."""
    reported = reports.get(session(partition, HAS), {})
    missing = {node for node in coming(partition) if node not in reported}
    for peers in _voters(partition):
        missing |= _lacking(peers, reported)
    return tuple(sorted(missing))


def failed(partition: ZonePartition, reports: SessionReports) -> tuple[NodeId, ...]:
    """Who comes with the pending step and can never follow it, by id."""
    return tuple(sorted(coming(partition).intersection(reports.get(session(partition, FAILED), {}))))


def causes(partition: ZonePartition, reports: SessionReports) -> tuple[str, ...]:
    """Why they can never follow it, sorted; one that a later release has is unknown."""
    reported = reports.get(session(partition, FAILED), {})
    numbers = {reported[node].rows for node in failed(partition, reports)}
    return tuple(sorted({CAUSES[number] if number < len(CAUSES) else CAUSES[0] for number in numbers}))


def not_returned(partition: ZonePartition, reports: SessionReports) -> tuple[NodeId, ...]:
    """Who is waited for until the step that is being cancelled is undone, by id; empty: it is."""
    assert partition.cancel is not None, "it is being cancelled"
    return tuple(sorted(_lacking(partition.cancel.old.peers, reports.get(session(partition, RETURNED), {}))))


def _voters(partition: ZonePartition) -> Iterator[tuple[NodeId, ...]]:
    """The voters of which a majority must have each step: of before, if there are any, and of the step."""
    if before(partition) and partition.reached is not None:
        yield partition.reached.peers
    yield partition.pending[0].peers


def _lacking(peers: tuple[NodeId, ...], reported: Collection[NodeId]) -> set[NodeId]:
    """Those of a group who have not said it, while a majority has not."""
    missing = {node for node in peers if node not in reported}
    return missing if 2 * (len(peers) - len(missing)) <= len(peers) else set()
