"""The coordinator at work: knows the newest acknowledgement of every node, looks at each change, asks the validator for
what the core proposes.

After its take-over it reads the compacted acks topic from the beginning; then it hears what comes in. Both may bring
the same record, and in any order: which one counts, ``ringlog.protocol.coordinator.ack_book`` says.

Of a request it asks until there is an answer, always under the same id, and goes on once it has folded the answer's
epoch: proposals that follow must know of it. A round in which something was refused is followed by a pause.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Epoch, GenerationId, Micros, NodeId
from ringlog.protocol.coordinator.ack_book import AckBook
from ringlog.protocol.coordinator.core import (
    CoordinatorView,
    Proposal,
    Refusal,
    awaits_publication,
    prepared_in_full,
    propose,
    refusals,
)
from ringlog.protocol.effects import FOREVER, FaultPoint, Newest, Steps, Until, WallClock
from ringlog.protocol.role import Accept, CheckSuperseded
from ringlog.protocol.submission.results import AppliedResult, RejectedResult, Submitted
from ringlog.wire.acks import ReceivedAck


@dataclass(frozen=True, slots=True)
class ReadAcks:
    """Outcome: (offset, acknowledgement) of all that is in the topic."""


class Wait(Enum):
    """For what a coordinator waits between two rounds. Of a publication nobody wakes it, so it looks soon; after a
    refusal it lets a while go by that no news shortens.
    """

    NOTHING = "nothing"
    NEWS = "news"
    PUBLICATION = "publication"
    PAUSE = "pause"


@dataclass(frozen=True, slots=True)
class NewAcks:
    """Wait; outcome: (offset, acknowledgement) since the last time; None: all that was heard counts no more, since
    others are believed from now on. An acknowledgement or an epoch is news.
    """

    wait: Wait


@dataclass(frozen=True, slots=True)
class Forget:
    """Take what these nodes have said out of the topic: they left, and node ids are never used again."""

    nodes: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class PublishedEpoch:
    """Outcome: the last epoch that is published as far as is known here, 0 if none. Does not wait."""


@dataclass(frozen=True, slots=True)
class UnstoredBytes:
    """Outcome: bytes of the entries that were applied since the newest mark of a snapshot. Does not wait."""


@dataclass(frozen=True, slots=True)
class Submit:
    """Ask the validator. Outcome: its final answer, None if there was none in time."""

    proposal: Proposal


@dataclass(frozen=True, slots=True)
class ReportRejections:
    """Publish the commands that the log would reject, for operators to see."""

    found: tuple[Refusal, ...]


def coordinate() -> Steps[None]:
    """Serve one term of the coordinator; ends by what the driver raises."""
    complete: tuple[GenerationId | None, Micros] = (None, 0)
    acks = yield from read_acks()
    yield Forget(_left(acks, (yield Newest())))
    yield Accept()
    wait = Wait.NOTHING
    while True:
        acks = yield from update_acks(acks, wait)
        yield CheckSuperseded()
        published: Epoch = yield PublishedEpoch()
        state: ClusterState = yield Newest()
        unstored: int = yield UnstoredBytes()
        now: Micros = yield WallClock()
        generation = prepared_in_full(state)
        if generation != complete[0]:
            complete = (generation, now)
        view = CoordinatorView(state, acks.newest(state), published, now, complete[1], acks.said(), unstored)
        refused = []
        for proposal in propose(view):
            yield FaultPoint("proposing")
            refusal = yield from ask(proposal)
            if refusal is not None:
                refused.append(refusal)
        yield ReportRejections((*refusals(view), *refused))
        wait = Wait.PUBLICATION if awaits_publication((yield Newest())) else Wait.NEWS
        if refused:
            wait = Wait.PAUSE


def ask(proposal: Proposal) -> Steps[Refusal | None]:
    """Ask until there is an answer; None if it was applied."""
    kind = type(proposal.command).__name__
    answer: Submitted | None = None
    while answer is None:
        yield CheckSuperseded()
        answer = yield Submit(proposal)
    if isinstance(answer, AppliedResult):
        epoch = answer.epoch
        yield Until(lambda state: state.epoch >= epoch or None, FOREVER, f"epoch {epoch}")
        return None
    if isinstance(answer, RejectedResult):
        return Refusal(proposal.subject, kind, answer.code, answer.detail)
    return Refusal(proposal.subject, kind, "request_expired", "what became of it is looked up in the log")


def read_acks() -> Steps[AckBook]:
    """All that is in the topic."""
    acks = AckBook()
    _take(acks, (yield ReadAcks()))
    return acks


def update_acks(acks: AckBook, wait: Wait) -> Steps[AckBook]:
    """The book with what came in while it waited; begun anew where others are believed now."""
    records: Iterable[ReceivedAck] | None = yield NewAcks(wait)
    if records is None:
        return (yield from read_acks())
    _take(acks, records)
    return acks


def _take(acks: AckBook, records: Iterable[ReceivedAck]) -> None:
    for offset, ack in records:
        acks.take(offset, ack)


def _left(acks: AckBook, state: ClusterState) -> tuple[NodeId, ...]:
    return tuple(node for node in acks.nodes() if node in state.nodes and state.nodes[node].state == "left")
