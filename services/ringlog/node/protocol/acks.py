"""Acknowledgements of a node: the epoch that rows and registers both serve under, on the disk first, then published.

When one is due, ``ringlog.node.protocol.ack_schedule`` says. One is under way at a time: what was not taken is made
anew, with what is newest by then.

However much there is to say, one record takes it, or no gate would pass for the node any more: at most ``REPORTS_MAX``
reports, those of rows before those of zones, and ``TRIES_REPORTED_MAX`` streams that were tried in vain, those tried
most often. What is left out follows as these come to an end.

A node whose disk fails says so in a last acknowledgement: the epoch is that of the one before, since nothing new lasts,
and the only words are those of replicas that have failed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from ringlog.kernel.history import state_id_at
from ringlog.kernel.model.settings import setting
from ringlog.kernel.values import Epoch, Micros, OperationId, StreamReport
from ringlog.node.errors import RowsDamaged
from ringlog.node.protocol.ack_schedule import AckContent, AckSchedule
from ringlog.node.protocol.followers import Followers
from ringlog.node.protocol.groups import REPORTS_MAX, Member
from ringlog.node.rows.replica import RowReplica
from ringlog.node.stream_attempts import StreamAttempts, newsworthy_counts
from ringlog.protocol.effects import FaultPoint, Now, Steps, WallClock
from ringlog.wire.records import FailedTries, NodeAck


class RegisterSide(Protocol):
    """The progress of the node's registers."""

    def acknowledgeable(self) -> Epoch:
        """The newest epoch that the node may acknowledge as far as its registers go."""

    def received(self, operation: OperationId) -> bool:
        """True if everything that was to be streamed for the operation is here."""


@dataclass(frozen=True, slots=True)
class News:
    """Wait until there may be something to acknowledge."""


@dataclass(frozen=True, slots=True)
class Keep:
    """Have on the disk that this epoch is acknowledged; a lower one than is there changes nothing."""

    cluster_id: str
    epoch: Epoch
    state_id: str


@dataclass(frozen=True, slots=True)
class DiskFailed:
    """The disk takes no rows: the node is to end."""

    why: RowsDamaged


@dataclass(frozen=True, slots=True)
class TopicEnds:
    """Ask where the partitions of the mutations topic end. Outcome: these offsets (Mapping), None without an answer."""


@dataclass(frozen=True, slots=True)
class PublishAcknowledgement:
    """Publish the acknowledgement. Outcome: whether the broker has it for certain; the driver waits before a False that
    would come again at once.
    """

    ack: NodeAck


@dataclass(frozen=True, slots=True)
class AcknowledgementDraft:
    """An acknowledgement before it is written to the disk; ``content``: its parts on which other processes act."""

    keep: Keep
    reports: tuple[StreamReport, ...]
    tries: tuple[FailedTries, ...]
    rows: int
    content: AckContent


def acknowledge(
    row_replica: RowReplica, registers: RegisterSide, tries: StreamAttempts, incarnation: str, replicas: Followers
) -> Steps[None]:
    """Acknowledge what is due, as this incarnation of the node, until its replicas fail."""
    schedule, member, last = AckSchedule(row_replica.node), Member(row_replica.node, replicas), None
    while True:
        yield News()
        while row_replica.caught_up and replicas.failure() is None:
            now = yield Now()
            draft = _drafted(row_replica, registers, tries, member, schedule, now)
            if steps := replicas.asked():
                ends: Mapping[int, int] | None = yield TopicEnds()
                if ends is not None:
                    replicas.begin(steps, ends)
                    continue
            if draft is None:
                break
            keep = draft.keep
            try:  # rows first: a node that is killed in between has acknowledged less than it has
                row_replica.commit(sync=True)
            except RowsDamaged as damaged:
                replicas.fail(damaged.code)
                yield DiskFailed(damaged)
                break
            yield keep
            schedule.attempted(keep.epoch)
            at = yield WallClock()
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
            yield FaultPoint("acknowledging")
            last = ack  # whether or not the broker answers
            if (yield PublishAcknowledgement(ack)):
                schedule.sent(keep.epoch, draft.content, now)
        if replicas.failure() is not None:
            break
    with row_replica.lock:
        failures = member.reports(row_replica.state, 0)
    if last is not None:
        at = yield WallClock()
        yield PublishAcknowledgement(replace(last, reports=failures, rows=0, at=at, tries=()))


def _drafted(
    row_replica: RowReplica,
    registers: RegisterSide,
    tries: StreamAttempts,
    member: Member,
    schedule: AckSchedule,
    now: Micros,
) -> AcknowledgementDraft | None:
    """Return the acknowledgement that is due, or None."""
    with row_replica.lock:
        state = row_replica.state
        # Who becomes a member may hold less of the log than it acknowledged before: that stays said.
        epoch = max(schedule.least, min(state.epoch, registers.acknowledgeable()))
        reports = tuple(row_replica.reports[name] for name in sorted(row_replica.reports) if registers.received(name))
        reports = (reports + member.reports(state, epoch))[:REPORTS_MAX]
        failed = tries.failed_tries()
        content = (
            tuple(report.operation for report in reports),
            newsworthy_counts(failed, setting(state, "stream_tries_max")),
        )
        if not schedule.is_due(state, epoch, content, now):
            return None
        keep = Keep(state.cluster_id, epoch, state_id_at(state, epoch))
        return AcknowledgementDraft(keep, reports, failed, len(row_replica.store), content)
