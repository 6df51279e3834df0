"""The validator's protocol: takes requests, and performs the effects of ``validator.core`` in their order.

After its take-over an instance prepares in this order. Each step prevents an answer of the previous instance that would
contradict a later one:

1. It initialises the role's transactional id. The previous holder can publish no more rejections.
2. It gets a Noop applied. All entries of the previous instance then have a final outcome.
3. It reads the results to their end. Published answers are never decided again.

Then it accepts requests. Results that are no longer needed are deleted at that point, and whenever the history
advances.

The effects ``Publish``, ``NoteApplied``, ``Ack`` and ``StopInstance`` of the core go to the driver unchanged.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from ringlog.kernel.commands.cluster.cluster import Noop
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Epoch, Micros, Value
from ringlog.protocol import role
from ringlog.protocol.effects import (
    FOREVER,
    Append,
    Barrier,
    Draw,
    Effect,
    Exclusive,
    FaultPoint,
    Newest,
    Now,
    WallClock,
)
from ringlog.protocol.submission.commit import commit
from ringlog.protocol.submission.direct import Direct
from ringlog.protocol.submission.results import AppliedResult, is_over
from ringlog.protocol.validator.core import (
    add_rejections,
    add_requests,
    begin_batch,
    extend_batch,
    join_batch,
    settle_batch,
)
from ringlog.protocol.validator.values import (
    ANSWERS_MAX,
    PART_ENTRIES,
    Arrived,
    CommitChain,
    DecideAfterBarrier,
    Folding,
    NextStep,
    Publish,
    SendEntries,
    Validator,
    WaitingRequest,
    folded,
)
from ringlog.wire.records import REJECTED, CommandRequest, Result
from ringlog.wire.requests import SignedRequest

OPEN: Micros = 100_000
"""How long after its begin a batch takes in requests. Its entries are not sent again in that time."""
WAITING_MAX = 5_000
"""The most waiting requests before the validator stops reading. Further ones wait in the topic."""
WAITING_BYTES_MAX = 64 << 20
"""The most bytes of their payloads, names and codes. Each of these may have almost two megabytes."""


class ReadResults(Effect[Iterable[Result]], Value):
    """Outcome: all published results, in the order of the topic."""


class Requests(Effect[Sequence[Arrived]], Value):
    """Outcome: the records that arrived since the last call.

    ``wait``: wait for a while if there are none. The driver raises as for ``CheckSuperseded``.
    """

    wait: bool


class RequestsDuringCommit(Effect[Sequence[Arrived]], Value):
    """Outcome: the first records that arrive while a batch is in progress; none once ``is_over``, or after ``timeout``.

    The driver raises as for ``CheckSuperseded``.
    """

    is_over: Callable[[ClusterState], bool]
    timeout: Micros


class Trim(Effect[None], Value):
    """Delete the results before the first one that is needed while the history begins at ``oldest``."""

    oldest: Epoch


def is_needed(result: Result, oldest: Epoch) -> bool:
    """Return whether a repeated request may still need this answer.

    Only rejections do, until the history, which begins at ``oldest``, makes them expire. *Applied* and *expired* follow
    from the log.
    """
    return result.outcome == REJECTED and result.since_epoch >= oldest


async def answer_requests(
    instance: str,
    term: int,
    direct: Direct,
    draw: Draw,
    folding: Folding = folded,
    answers_max: int = ANSWERS_MAX,
    part: int = PART_ENTRIES,
) -> None:
    """Serve one term of the validator. Only an exception of the driver ends it."""
    decision = _Decision(direct, draw, folding, part)
    await role.take_id()
    # A rejected or expired Noop proves nothing. Only an applied one follows the entries of the previous instance.
    is_final = False
    while not is_final:
        answer = await direct.submit(Noop())
        await role.CheckSuperseded()
        is_final = isinstance(answer, AppliedResult)
    oldest = (await Newest()).history.oldest
    results = await ReadResults()
    validator = add_rejections(
        Validator(instance, term, pruned=oldest, answers_max=answers_max),
        (result for result in results if is_needed(result, oldest)),
    )
    await Trim(oldest)
    trimmed = (validator.pruned, validator.floor)
    await role.StartServing()
    while True:
        records: Sequence[Arrived] = ()
        # Requests above the limit stay in the topic, so a burst of them does not grow this process.
        if _has_room(validator.waiting):
            records = await Requests(wait=not validator.waiting)
        validator = await decision.perform(add_requests(validator, records))
        if validator.waiting:
            # Direct submissions of this process decide on the same replica, so they take turns.
            validator = await Exclusive(partial(decision.decide, validator), FOREVER)
        if (validator.pruned, validator.floor) != trimmed:
            trimmed = (validator.pruned, validator.floor)
            await Trim(validator.pruned)


def _has_room(waiting: Sequence[WaitingRequest]) -> bool:
    return len(waiting) < WAITING_MAX and sum(memory_of(one.request) for one in waiting) < WAITING_BYTES_MAX


def memory_of(request: CommandRequest) -> int:
    """Return about the bytes of a request in memory. Its sender chooses all of them, even with an invalid code."""
    size = len(request.payload) + len(request.submitter) + len(request.kind)
    if isinstance(request, SignedRequest):
        size += len(request.coded.request) + len(request.coded.principal) + len(request.coded.code)
    return size


class _Decision(Value):
    """The parameters of an instance's decisions: see ``answer_requests``."""

    direct: Direct
    draw: Draw
    folding: Folding
    part: int

    async def decide(self, validator: Validator) -> Validator:
        """Decide one batch, from its first request to the last of its answers."""
        state, now = await Newest(), await WallClock()
        step = begin_batch(validator, state, now, self.draw, self.folding, is_fresh=False, part=self.part)
        if step.effects == (DecideAfterBarrier(),):
            state = await Barrier(self.direct.timeout)
            step = begin_batch(validator, state, await WallClock(), self.draw, self.folding, part=self.part)
        return await self.perform(step)

    async def perform(self, step: NextStep) -> Validator:
        """Perform the effects in order, with those that they lead to. Return the validator afterwards."""
        validator, effects = step.validator, deque(step.effects)
        closes = await Now() + OPEN
        while effects:
            effect = effects.popleft()
            if isinstance(effect, SendEntries | CommitChain):
                await FaultPoint("decided")
                if isinstance(effect, SendEntries):
                    await Append(tuple(encoded.data for encoded in effect.entries))
                    step = extend_batch(validator, await WallClock(), self.draw, self.folding)
                else:
                    step = await self._committed(validator, effect, closes)
                validator = step.validator
                # The effects of the next step come first, in their order.
                effects.extendleft(reversed(step.effects))
                continue
            assert not isinstance(effect, DecideAfterBarrier), "only the first decision of a batch waits for a barrier"
            if isinstance(effect, Publish):
                await FaultPoint("publishing")
            await effect
        return validator

    async def _committed(self, validator: Validator, effect: CommitChain, closes: Micros) -> NextStep:
        """Settle the batch; or, while it is open, decide requests that arrived meanwhile."""
        chain, already_sent = effect.chain, effect.already_sent
        if effect.accepts_more and await Now() < closes:
            if already_sent < len(chain.entries):
                await Append(tuple(encoded.data for encoded in chain.entries[already_sent:]))
            already_sent = len(chain.entries)
            records = await RequestsDuringCommit(partial(is_over, chain), closes - await Now())
            if records:
                return join_batch(validator, records, await WallClock(), self.draw, self.folding, self.part)
        return settle_batch(validator, await commit(chain, self.direct.timeout, already_sent=already_sent))
