"""Acknowledgements of a node: write the epoch to disk, then publish it.

A node acknowledges an epoch when its rows and its registers are both served under it. The time of an acknowledgement is
decided by ``ringlog.protocol.nodes.ack_schedule``. Only one acknowledgement is in flight. If publishing fails, the next
attempt builds a new record from the newest state.

An acknowledgement must fit into one record, because an oversized record would block every barrier for this node. So it
contains at most ``REPORTS_MAX`` reports, row streams before zones. It also contains at most ``TRIES_REPORTED_MAX``
failed streams, those with the most attempts. Omitted reports follow when earlier ones are done.

A node whose disk fails reports that in a last acknowledgement. It repeats the previous epoch, because nothing newer is
durable, and contains only the reports of failed replicas.

Invariant: an epoch is on disk before any acknowledgement of it is published.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from ringlog.client.participant.stream_attempts import StreamAttempts, reportable_counts
from ringlog.kernel.history import state_id_at
from ringlog.kernel.model.settings import setting
from ringlog.kernel.values import Epoch, Micros, OperationId, StreamReport, Value, replace
from ringlog.node.protocol.followers import RowGroupReplicas
from ringlog.node.rows.replica import RowReplica
from ringlog.protocol.effects import Effect, FaultPoint, Now, WallClock
from ringlog.protocol.nodes.ack_schedule import AckContent, AckSchedule
from ringlog.protocol.nodes.errors import RowsDamaged
from ringlog.protocol.nodes.groups import REPORTS_MAX, Member
from ringlog.wire.records import FailedTries, NodeAck


class RegisterSide(Protocol):
    """The progress of the node's registers."""

    def acknowledgeable(self) -> Epoch:
        """Return the newest epoch that the registers allow the node to acknowledge."""

    def received(self, operation: OperationId) -> bool:
        """Return True if the node has received all registers that the operation streams to it."""


class News(Effect[None], Value):
    """Wait until there may be something to acknowledge."""


class Keep(Effect[None], Value):
    """Write the acknowledged epoch to disk. A lower epoch than the stored one changes nothing."""

    cluster_id: str
    epoch: Epoch
    state_id: str


class DiskFailed(Effect[None], Value):
    """Report that the disk rejects rows. The driver ends the node."""

    why: RowsDamaged


class TopicEnds(Effect[Mapping[int, int] | None], Value):
    """Read the end offsets of the mutations topic. Outcome: offsets by partition, or None without an answer."""


class PublishAcknowledgement(Effect[bool], Value):
    """Publish the acknowledgement. Outcome: True if the broker has confirmed it.

    Before an outcome of False that would repeat immediately, the driver waits.
    """

    ack: NodeAck


class AcknowledgementDraft(Value):
    """An acknowledgement before it is written to disk.

    Attributes:
        content: The parts that other processes act on, to detect changes.
    """

    keep: Keep
    reports: tuple[StreamReport, ...]
    tries: tuple[FailedTries, ...]
    rows: int
    content: AckContent


async def acknowledge(
    row_replica: RowReplica,
    registers: RegisterSide,
    tries: StreamAttempts,
    incarnation: str,
    replicas: RowGroupReplicas,
) -> None:
    """Acknowledge epochs on schedule, until the node's replicas fail. ``incarnation``: identifies this start."""
    schedule, member, last = AckSchedule(row_replica.node), Member(row_replica.node, replicas), None
    while True:
        await News()
        while row_replica.caught_up and replicas.failure() is None:
            now = await Now()
            draft = _drafted(row_replica, registers, tries, member, schedule, now)
            if steps := replicas.steps_without_start():
                # A zone step begins at the topic's current end, so that the replica has all writes from before the
                # step. The draft is built again, because the steps may follow at once.
                ends = await TopicEnds()
                if ends is not None:
                    replicas.set_start(steps, ends)
                    continue
            if draft is None:
                break
            keep = draft.keep
            # Sync rows first: a crash in between leaves the node with more rows than it acknowledged, never with fewer.
            try:
                row_replica.commit(sync=True)
            except RowsDamaged as damaged:
                replicas.fail(damaged.code)
                await DiskFailed(damaged)
                break
            await keep
            # From here on the record may reach the topic, so a later acknowledgement must not name a lower epoch.
            schedule.attempted(keep.epoch)
            at = await WallClock()
            ack = NodeAck(
                keep.cluster_id,
                row_replica.node,
                incarnation,
                keep.epoch,
                keep.epoch,
                draft.reports,
                draft.rows,
                at,
                draft.tries,
                keep.state_id,
            )
            await FaultPoint("acknowledging")
            last = ack  # The broker may have the record even if it did not answer.
            if await PublishAcknowledgement(ack):
                schedule.sent(keep.epoch, draft.content, now)
        if replicas.failure() is not None:
            break
    with row_replica.lock:
        # The final acknowledgement lets operators cancel steps that wait for this node.
        failures = member.reports(row_replica.state, 0)
    if last is not None:
        at = await WallClock()
        await PublishAcknowledgement(replace(last, reports=failures, rows=0, at=at, tries=()))


def _drafted(
    row_replica: RowReplica,
    registers: RegisterSide,
    tries: StreamAttempts,
    member: Member,
    schedule: AckSchedule,
    now: Micros,
) -> AcknowledgementDraft | None:
    """Return the acknowledgement to send now, or None."""
    with row_replica.lock:
        state = row_replica.state
        # A new member of the metadata service may have less of the log than it acknowledged before. An acknowledged
        # epoch is never taken back.
        epoch = max(schedule.least, min(state.epoch, registers.acknowledgeable()))
        reports = tuple(row_replica.reports[name] for name in sorted(row_replica.reports) if registers.received(name))
        reports = (reports + member.reports(state, epoch))[:REPORTS_MAX]
        failed = tries.failed_tries()
        content = (
            tuple(report.operation for report in reports),
            reportable_counts(failed, setting(state, "stream_tries_max")),
        )
        if not schedule.is_due(state, epoch, content, now):
            return None
        keep = Keep(state.cluster_id, epoch, state_id_at(state, epoch))
        return AcknowledgementDraft(keep, reports, failed, len(row_replica.store), content)
