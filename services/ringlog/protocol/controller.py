"""The loop of every role that submits commands: coordinator, balancer, rebalancer.

A controller reads its sources, plans, submits each proposal until it is answered, reports the rejections, and waits for
news. The loop belongs to this module; the plan belongs to the role.

Invariants:

- A plan is a function of the folded state and of records that were read. A mistaken proposal is rejected by the fold.
- Request ids are a function of role, subject, step, epoch and command. An instance that takes over therefore submits
  the same requests under the same ids. After a rejection, the same step is requested under the id of a later epoch.
- The next proposal is submitted after this instance has folded the answer to the previous one.
- The loop pauses after a rejection, so a request that is always rejected does not fill the log.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum
from typing import Final

from ringlog.kernel.commands.topology.operations import AdvanceOperation
from ringlog.kernel.encoding.encoder import command_digest
from ringlog.kernel.fold import decide
from ringlog.kernel.model.outcome import Accepted, Decision, EntryContext
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Command, Epoch, Value
from ringlog.protocol.effects import FOREVER, Effect, FaultPoint, Until
from ringlog.protocol.role import CheckSuperseded, StartServing
from ringlog.protocol.submission.results import AppliedResult, RejectedResult, Submitted
from ringlog.wire.commands import encode_command
from ringlog.wire.ids import derived_request_id

TABLETS: Final = "tablets"
"""The subject of proposals about many tablets."""

_GREATEST_ID: Final = "ffffffff-ffff-7fff-bfff-ffffffffffff"


class Proposal(Value):
    """A command to submit under ``request_id`` until it is answered. ``subject``: the operation, generation or table
    that it advances.
    """

    command: Command
    request_id: str
    since_epoch: Epoch
    subject: str = ""


class Rejection(Value):
    """The reason why ``subject`` does not advance by a command of this ``kind``. Waiting does not end it."""

    subject: str
    kind: str
    code: str
    detail: str


class RoundPlan(Value):
    """The proposals to submit now, in order, and the rejections that are known without submitting anything."""

    proposals: tuple[Proposal, ...]
    rejections: tuple[Rejection, ...]


class Wait(Enum):
    """The event that ends the wait between two rounds.

    ``NEWS``: a record or an epoch. ``PUBLICATION``: a published epoch; no record announces it, so the driver polls.
    ``PAUSE``: a fixed time after a rejection, which no news shortens.
    """

    NOTHING = "nothing"
    NEWS = "news"
    PUBLICATION = "publication"
    PAUSE = "pause"


class Submit(Effect[Submitted | None], Value):
    """Submit to the validator. Outcome: its final answer, or None if none arrived in time."""

    proposal: Proposal


class ReportRejections(Effect[None], Value):
    """Publish the rejections for operators."""

    found: tuple[Rejection, ...]


class Controller(ABC):
    """One term of a role: its sources and its planner.

    ``fault_point``: the name of the fault-injection point before each submission.
    """

    fault_point: str

    @abstractmethod
    async def start(self) -> None:
        """Read the sources from their beginning."""

    @abstractmethod
    async def update(self, wait: Wait) -> None:
        """Wait, and read new records of the sources."""

    @abstractmethod
    async def plan(self) -> RoundPlan | None:
        """Return the plan for the newest state; None if the inputs equal those of the previous plan."""

    @abstractmethod
    def forget_inputs(self) -> None:
        """Forget the inputs of the previous plan, so that equal inputs are planned again."""

    async def next_wait(self, plan: RoundPlan, /) -> Wait:
        """Return the wait after a plan without rejections: none if the plan had proposals, because more may follow."""
        return Wait.NOTHING if plan.proposals else Wait.NEWS


async def control(controller: Controller) -> None:
    """Serve one term. Only an exception of the driver ends it."""
    await controller.start()
    await StartServing()
    wait = Wait.NOTHING
    while True:
        await controller.update(wait)
        await CheckSuperseded()
        plan = await controller.plan()
        if plan is None:
            wait = Wait.NEWS
            continue
        rejected = []
        for proposal in plan.proposals:
            await FaultPoint(controller.fault_point)
            rejection = await submit(proposal)
            if rejection is not None:
                rejected.append(rejection)
        await ReportRejections((*plan.rejections, *rejected))
        wait = await controller.next_wait(plan)
        if rejected:
            controller.forget_inputs()
            wait = Wait.PAUSE


async def submit(proposal: Proposal) -> Rejection | None:
    """Submit until there is an answer. Return None once the command is applied here."""
    kind = type(proposal.command).__name__
    answer: Submitted | None = None
    while answer is None:
        await CheckSuperseded()
        answer = await Submit(proposal)
    if isinstance(answer, AppliedResult):
        epoch = answer.epoch
        await Until(lambda state: state.epoch >= epoch or None, FOREVER, f"epoch {epoch}")
        return None
    if isinstance(answer, RejectedResult):
        return Rejection(proposal.subject, kind, answer.code, answer.detail)
    return Rejection(proposal.subject, kind, "request_expired", "the outcome is looked up in the log")


def proposal_of(role: str, state: ClusterState, subject: str, command: Command) -> Proposal:
    """Return the proposal that each instance of ``role`` makes on this state."""
    kind, version, payload = encode_command(command)
    step = command.to if isinstance(command, AdvanceOperation) else kind
    digest = command_digest(kind, version, payload)
    return Proposal(command, derived_request_id(role, subject, step, state.epoch, digest), state.epoch, subject)


def decided_now(state: ClusterState, command: Command) -> Decision:
    """Return the decision that the log would make about the command on this state."""
    return decide(state, command, EntryContext(state.epoch + 1, _GREATEST_ID, state.time))


def is_accepted(state: ClusterState, command: Command) -> bool:
    """Return whether the log would accept the command on this state."""
    return isinstance(decided_now(state, command), Accepted)
