"""The validator at work: takes requests, performs the core's effects in their order.

After the take-over it initialises the role's transactional id (its last holder can publish no rejection any more), gets
a Noop applied (whatever the one before had under way is then final), and reads the results to their end (what was
answered is never decided again). Only then it accepts. Results that nobody needs any more are deleted then, and as the
history moves on.

The effects ``Publish``, ``Shown``, ``Ack`` and ``Stop`` of the core go to the driver as they are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from ringlog.kernel.commands.cluster.cluster import Noop
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Epoch, Micros
from ringlog.protocol import role
from ringlog.protocol.effects import (
    FOREVER,
    Append,
    Barrier,
    Draw,
    Exclusive,
    FaultPoint,
    Newest,
    Now,
    Steps,
    WallClock,
)
from ringlog.protocol.submission.commit import commit
from ringlog.protocol.submission.direct import Direct
from ringlog.protocol.submission.results import AppliedResult, is_over
from ringlog.protocol.validator.core import arrive, begin, extend, remember, settle, take_in
from ringlog.protocol.validator.values import (
    ANSWERS_MAX,
    PART_ENTRIES,
    Arrived,
    CommitChain,
    Folding,
    Freshen,
    HandOver,
    NextStep,
    Publish,
    Validator,
    WaitingRequest,
    folded,
)
from ringlog.wire.records import REJECTED, Result

OPEN: Micros = 100_000
"""How long a batch takes in what comes, since it was begun. Its entries are not sent again in that time."""
WAITING_MAX = 5_000
"""Requests that wait here before no more are read: what is above it waits in the topic."""
WAITING_BYTES_MAX = 64 << 20
"""The same for their payloads, each of which may have almost two megabytes."""


@dataclass(frozen=True, slots=True)
class ReadResults:
    """Outcome: every result that was published so far, in the order of the topic."""


@dataclass(frozen=True, slots=True)
class Requests:
    """Outcome: the records that came in since the last time.

    ``wait``: for a while, if nothing has come in. The driver raises as at ``CheckSuperseded``.
    """

    wait: bool


@dataclass(frozen=True, slots=True)
class Meanwhile:
    """Outcome: the records that came in first while a batch is under way; none once ``is_over``, or after
    ``timeout``. The driver raises as at ``CheckSuperseded``.
    """

    is_over: Callable[[ClusterState], bool]
    timeout: Micros


@dataclass(frozen=True, slots=True)
class Trim:
    """Delete the results before the first that is needed while the history begins at ``oldest``."""

    oldest: Epoch


def is_needed(result: Result, oldest: Epoch) -> bool:
    """May this answer still be asked for? Rejections only, until the history, from ``oldest`` on, calls them expired.

    Applied and expired are never read back: the log tells them.
    """
    return result.outcome == REJECTED and result.since_epoch >= oldest


def answer_requests(
    instance: str,
    term: int,
    direct: Direct,
    draw: Draw,
    folding: Folding = folded,
    answers_max: int = ANSWERS_MAX,
    part: int = PART_ENTRIES,
) -> Steps[None]:
    """Serve one term of the validator; ends by what the driver raises."""
    decision = _Decision(direct, draw, folding, part)
    yield from role.take_id()
    is_final = False
    while not is_final:
        answer = yield from direct.submit(Noop())
        yield role.CheckSuperseded()
        is_final = isinstance(answer, AppliedResult)
    oldest = (yield Newest()).history.oldest
    results: Iterable[Result] = yield ReadResults()
    validator = remember(
        Validator(instance, term, pruned=oldest, answers_max=answers_max),
        (result for result in results if is_needed(result, oldest)),
    )
    yield Trim(oldest)
    trimmed = (validator.pruned, validator.floor)
    yield role.Accept()
    while True:
        records: Sequence[Arrived] = ()
        if _has_room(validator.waiting):
            records = yield Requests(wait=not validator.waiting)
        validator = yield from decision.perform(arrive(validator, records))
        if validator.waiting:
            validator = yield Exclusive(decision.decide(validator), FOREVER)
        if (validator.pruned, validator.floor) != trimmed:
            trimmed = (validator.pruned, validator.floor)
            yield Trim(validator.pruned)


def _has_room(waiting: Sequence[WaitingRequest]) -> bool:
    return len(waiting) < WAITING_MAX and sum(len(one.request.payload) for one in waiting) < WAITING_BYTES_MAX


@dataclass(frozen=True, slots=True)
class _Decision:
    """How an instance decides what waits: see ``answer_requests``."""

    direct: Direct
    draw: Draw
    folding: Folding
    part: int

    def decide(self, validator: Validator) -> Steps[Validator]:
        """One batch, from the state that it is decided on to the last of its answers."""
        state, now = (yield Newest()), (yield WallClock())
        step = begin(validator, state, now, self.draw, self.folding, is_fresh=False, part=self.part)
        if step.effects == (Freshen(),):
            state = yield Barrier(self.direct.timeout)
            step = begin(validator, state, (yield WallClock()), self.draw, self.folding, part=self.part)
        return (yield from self.perform(step))

    def perform(self, step: NextStep) -> Steps[Validator]:
        """The effects, in their order, and those that they lead to; what is remembered then."""
        validator, effects = step.validator, deque(step.effects)
        closes = (yield Now()) + OPEN
        while effects:
            effect = effects.popleft()
            if isinstance(effect, HandOver | CommitChain):
                yield FaultPoint("decided")
                if isinstance(effect, HandOver):
                    yield Append(tuple(encoded.data for encoded in effect.entries))
                    step = extend(validator, (yield WallClock()), self.draw, self.folding)
                else:
                    step = yield from self._committed(validator, effect, closes)
                validator = step.validator
                effects.extendleft(reversed(step.effects))
                continue
            if isinstance(effect, Publish):
                yield FaultPoint("publishing")
            yield effect
        return validator

    def _committed(self, validator: Validator, effect: CommitChain, closes: Micros) -> Steps[NextStep]:
        """The batch is settled; or, while it is open, what came in is decided."""
        chain, handed = effect.chain, effect.handed
        if effect.is_open and (yield Now()) < closes:
            if handed < len(chain.entries):
                yield Append(tuple(encoded.data for encoded in chain.entries[handed:]))
            handed = len(chain.entries)
            records: Sequence[Arrived] = yield Meanwhile(partial(is_over, chain), closes - (yield Now()))
            if records:
                return take_in(validator, records, (yield WallClock()), self.draw, self.folding, self.part)
        return settle(validator, (yield from commit(chain, self.direct.timeout, handed=handed)))
