"""Acknowledgements of a node: the epoch that rows and registers both serve under, on the disk first, then published.

When one is due, ``ringlog.node.due`` says. One is under way at a time: what was not taken is made anew, with what is
newest by then.

However much there is to say, one record takes it, or no gate would pass for the node any more: at most ``WORDS_MAX``
reports, those of rows before those of zones, and ``TOLD_MAX`` streams that were tried in vain, those tried most often.
What is left out follows as these come to an end.

A node whose disk fails says so in a last acknowledgement: the epoch is that of the one before, since nothing new lasts,
and the only words are those of replicas that have failed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from ringlog.kernel.history import state_id_at
from ringlog.kernel.settings import setting
from ringlog.kernel.values import Epoch, Micros, OperationId, StreamReport
from ringlog.node.due import Due, Words
from ringlog.node.errors import RowsDamaged
from ringlog.node.holder import Holder
from ringlog.node.protocol.followers import Followers
from ringlog.node.protocol.groups import WORDS_MAX, Member
from ringlog.node.tries import Tries, news_of
from ringlog.protocol.effects import At, Now, Steps, WallClock
from ringlog.wire.records import FailedTries, NodeAck


class RegisterSide(Protocol):
    """What the registers of the node have come to."""

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
    """What is to be acknowledged; ``words``: what of it somebody acts on."""

    keep: Keep
    reports: tuple[StreamReport, ...]
    tries: tuple[FailedTries, ...]
    rows: int
    words: Words


def acknowledge(
    holder: Holder, registers: RegisterSide, tries: Tries, incarnation: str, replicas: Followers
) -> Steps[None]:
    """Acknowledge what is due, as this incarnation of the node, until its replicas fail."""
    due, member, last = Due(holder.node), Member(holder.node, replicas), None
    while True:
        yield News()
        while holder.caught_up and replicas.failure() is None:
            now = yield Now()
            draft = _drafted(holder, registers, tries, member, due, now)
            if steps := replicas.asked():
                ends: Mapping[int, int] | None = yield TopicEnds()
                if ends is not None:
                    replicas.begin(steps, ends)
                    continue
            if draft is None:
                break
            keep = draft.keep
            try:  # rows first: a node that is killed in between has acknowledged less than it has
                holder.commit(sync=True)
            except RowsDamaged as damaged:
                replicas.fail(damaged.code)
                yield DiskFailed(damaged)
                break
            yield keep
            at = yield WallClock()
            ack = NodeAck(
                keep.cluster_id,
                holder.node,
                incarnation,
                keep.epoch,
                keep.epoch,
                draft.reports,
                draft.rows,
                at,
                draft.tries,
                keep.state_id,
            )
            yield At("acknowledging")
            if (yield PublishAcknowledgement(ack)):
                due.sent(keep.epoch, draft.words, now)
                last = ack
        if replicas.failure() is not None:
            break
    with holder.lock:
        words = member.words(holder.state, 0)
    if last is not None:
        at = yield WallClock()
        yield PublishAcknowledgement(replace(last, reports=words, rows=0, at=at, tries=()))


def _drafted(
    holder: Holder, registers: RegisterSide, tries: Tries, member: Member, due: Due, now: Micros
) -> AcknowledgementDraft | None:
    """What to acknowledge, None if nothing is due."""
    with holder.lock:
        state = holder.state
        # Who becomes a member may hold less of the log than it acknowledged before: that stays said.
        epoch = max(due.epoch, min(state.epoch, registers.acknowledgeable()))
        reports = tuple(holder.reports[name] for name in sorted(holder.reports) if registers.received(name))
        reports = (reports + member.words(state, epoch))[:WORDS_MAX]
        failed = tries.told()
        words = (tuple(report.operation for report in reports), news_of(failed, setting(state, "stream_tries_max")))
        if not due.is_due(state, epoch, words, now):
            return None
        keep = Keep(state.cluster_id, epoch, state_id_at(state, epoch))
        return AcknowledgementDraft(keep, reports, failed, len(holder.store), words)
