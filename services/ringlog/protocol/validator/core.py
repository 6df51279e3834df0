"""What the validator does, as values: requests and folded entries in, effects out.

Group commit: all waiting requests are decided on the newest folded state, one after the other, by the fold itself, each
on the state that the ones before it produce, and leave as one batch of chained entries. Its first entries are handed
over while those behind them are decided; what comes in while they are under way joins the batch (``take_in``). The next
one begins when this one's fates are final.

Invariants (each has a counterexample without it):

- Every request decided in a batch carries the number of the batch's entries that its answer was decided on (``after``).
  The answer goes out only when all of those are folded as applied; if one of them is lost, the request is decided
  again.
- No read barrier is needed where the chain itself shows that the state was the newest: an entry that is applied
  followed the head of the log, after its request came in, and so did what was decided behind it in the batch. *Applied*
  by an earlier entry and *expired* stay true. A rejection that stands before the batch's first entry has nothing to
  show that: it is decided on a state from behind a barrier (``Freshen``), in the next batch where entries of this one
  are on their way. So is one that came in while the batch was under way, if no entry was sent since.
- A batch in which something is refused is not extended by what comes in: its answers do not wait for that. - The fates
of a batch's entries come from the log alone (``ringlog.protocol.submission.results``), in chain order. - A
request id is answered once: a request that was rejected is never decided again, it gets the same answer under this
  instance's term, unless the history holds it or it has expired.
- Rejections make no epochs, so the history alone does not bound how many are remembered. Beyond ``answers_max`` a Noop
  of the validator's own ends the batch; once it is applied, all answers given so far are forgotten, and what was asked
  for before its epoch (``floor``) and is not in the history is refused whatever it asks: perhaps it was before. The
  floor is published behind the results that it forgets, since the next instance must know it. (A request that claims an
  epoch to come breaks the protocol; its refusal is remembered and forgotten like the others, without a floor.)
- Effects are performed in their order, and acknowledging comes last: what is not answered is delivered again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from immutables import Map

from ringlog.kernel.columns.fast_dataclass import maker_of, replaced
from ringlog.kernel.model.settings import setting
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Epoch, Micros
from ringlog.protocol.effects import Draw
from ringlog.protocol.submission.results import CommitOutcome, EntryChain
from ringlog.protocol.validator.batch import BatchPlan
from ringlog.protocol.validator.values import (
    BATCH_BYTES_MAX,
    BATCH_ENTRIES_MAX,
    FLOOR_MARK,
    FORGOTTEN,
    PART_ENTRIES,
    PRUNE_EVERY_EPOCHS,
    ROLE,
    Ack,
    Arrived,
    Batch,
    CommitChain,
    Effect,
    Folding,
    Freshen,
    HandOver,
    NextStep,
    PendingAnswer,
    Publish,
    Shown,
    StopInstance,
    Validator,
    WaitingRequest,
    folded,
)
from ringlog.wire.commands import digest_of
from ringlog.wire.records import APPLIED, REJECTED, Result

_new_waiting = maker_of(WaitingRequest)


def remember(validator: Validator, results: Iterable[Result]) -> Validator:
    """Take in the rejections that were published, in their order; the first one of a request id counts."""
    answers, floor = validator.answers.mutate(), validator.floor
    for result in results:
        if is_floor_mark(result):
            answers, floor = Map[str, Result]().mutate(), max(floor, result.since_epoch)
        elif result.outcome == REJECTED and result.request_id not in answers:
            answers[result.request_id] = result
    return replaced(validator, answers=answers.finish(), floor=floor)


def is_floor_mark(result: Result) -> bool:
    """Is it no answer, but the mark that all answers before it are forgotten?"""
    return result.request_id == FLOOR_MARK and result.code == FORGOTTEN


def arrive(validator: Validator, records: Sequence[Arrived]) -> NextStep:
    """Requests came in. A record is acknowledged when each of its requests has its answer.

    What is open already stays as it is. Anything else is decided, also below what came before: after a rebalance
    records of the assignment before may come first, and those that were never answered after them.
    """
    open_offsets = set(_open_offsets(validator))
    waiting = list(validator.waiting)
    arrived, acked = validator.arrived, validator.acked
    for offset, requests in records:
        if offset in open_offsets:
            continue
        open_offsets.add(offset)
        arrived = max(arrived, offset)
        acked = min(acked, offset - 1)
        waiting += [_new_waiting(offset, one, digest_of(one.kind, one.version, one.payload)) for one in requests]
    return _acknowledge(replaced(validator, waiting=tuple(waiting), arrived=arrived, acked=acked))


def begin(
    validator: Validator,
    state: ClusterState,
    now: Micros,
    draw: Draw,
    folding: Folding = folded,
    is_fresh: bool = True,
    part: int = PART_ENTRIES,
) -> NextStep:
    """Decide what waits, on ``state``: all of it, or the first part of a batch.

    ``is_fresh``: it comes from a read barrier made after those requests came in; if not, the step may be to Freshen.
    ``now``: this instance's wall clock in microseconds, used for the entries' ``at`` and for the limits on timestamps;
    ``folding``: ``folded``, or the same with a memory; ``part``: entries of the first part.
    """
    assert validator.batch is None, "a batch begins when the fates of the one before are final"
    term = state.terms.get(ROLE)
    if term is not None and term.term > validator.term:
        return NextStep(validator, (StopInstance(f"term {term.term} was taken by instance {term.instance}"),))
    begun = Batch(EntryChain(state.epoch, ()), (), state, is_fresh)
    return _decide(_prune(validator, state), begun, now, draw, folding, part) or NextStep(validator, (Freshen(),))


def extend(validator: Validator, now: Micros, draw: Draw, folding: Folding = folded, part: int = 0) -> NextStep:
    """Decide the next part of the batch under way, on the state that its entries make: as many entries again as it has,
    or ``part``. As ``begin``.
    """
    batch = validator.batch
    assert batch is not None, "a batch is under way"
    assert batch.chain.entries, "what was handed over"
    step = _decide(validator, batch, now, draw, folding, max(part, len(batch.chain.entries)))
    assert step is not None, "entries that are on their way are not decided again"
    return step


def take_in(
    validator: Validator,
    records: Sequence[Arrived],
    now: Micros,
    draw: Draw,
    folding: Folding = folded,
    part: int = PART_ENTRIES,
) -> NextStep:
    """Requests came in while an open batch is under way: they are decided on the state that its entries make.

    None of those shows what the log had after these requests came in: only entries that are sent from now on do.
    """
    step = arrive(validator, records)
    batch = step.validator.batch
    assert batch is not None, "a batch is under way"
    batch = replaced(batch, is_fresh=False, before=len(batch.chain.entries))
    extended = extend(replaced(step.validator, batch=batch), now, draw, folding, part)
    return NextStep(extended.validator, step.effects + extended.effects)


def _decide(
    validator: Validator, batch: Batch, now: Micros, draw: Draw, folding: Folding, part: int
) -> NextStep | None:
    """Decide up to ``part`` more entries of a batch; None if a barrier is needed before its first one."""
    bound = min(BATCH_ENTRIES_MAX, setting(batch.state, "history_entries") // 4)
    plan = BatchPlan(validator, batch, now, draw, folding)
    handed = len(plan.sent)
    taken, is_full = 0, False
    for item in validator.waiting:
        is_full = len(plan.sent) >= bound or plan.bytes >= BATCH_BYTES_MAX
        if is_full or len(plan.sent) >= handed + part:
            break
        plan.decide(item)
        if not batch.is_fresh and is_unproven(plan.answers[-1], batch.before):
            if not handed:
                return None
            plan.take_back()
            is_full = True
            break
        taken += 1
    waiting = validator.waiting[taken:]
    is_part = bool(waiting) and not is_full
    forgets = not is_part and len(validator.answers) >= validator.answers_max and plan.end_with_noop()
    refuses = batch.refuses or any(one.result.outcome != APPLIED for one in plan.answers[len(batch.answers) :])
    chain = EntryChain(batch.chain.base, tuple(plan.sent))
    batch = Batch(chain, tuple(plan.answers), plan.state, batch.is_fresh, forgets, refuses, batch.before)
    validator = replaced(validator, waiting=waiting, batch=batch)
    if is_part:
        return NextStep(validator, (HandOver(batch.chain.entries[handed:]),))
    if batch.chain.entries:
        is_open = not (is_full or forgets or refuses)
        return NextStep(validator, (CommitChain(batch.chain, handed, is_open),))
    return _release(validator, batch, 0)


def is_unproven(pending: PendingAnswer, before: int) -> bool:
    """True if only a read barrier shows that the log had the state of this answer after its request came in.

    ``before``: entries of the batch that were sent before that.
    """
    return pending.result.outcome == REJECTED and pending.after <= before


def settle(validator: Validator, commit_outcomes: Sequence[CommitOutcome]) -> NextStep:
    """The final fates of the batch under way: answers go out, lost requests wait again.

    A forgotten fate (its epoch has left the history) counts as lost here: deciding the request again finds that it has
    expired, or finds its entry in the history.
    """
    batch = validator.batch
    assert batch is not None, "a batch is under way"
    assert CommitOutcome.OPEN not in commit_outcomes, "fates are final"
    applied = next(
        (count for count, outcome in enumerate(commit_outcomes) if outcome is not CommitOutcome.APPLIED),
        len(commit_outcomes),
    )
    return _release(validator, batch, applied)


def _release(validator: Validator, batch: Batch, applied: int) -> NextStep:
    """Answers that were decided on the first ``applied`` entries go out, the rest waits again, first in line."""
    good = tuple(pending for pending in batch.answers if pending.after <= applied)
    again = tuple(pending.item for pending in batch.answers if pending.after > applied)
    shown = tuple(pending.result for pending in good if pending.result.outcome == APPLIED)
    results = tuple(pending.result for pending in good if pending.result.outcome != APPLIED)
    validator = remember(validator, results)
    if batch.forgets and applied == len(batch.chain.entries):
        mark = _floor_mark(validator, batch.chain.base + applied)
        validator = remember(validator, (mark,))
        results += (mark,)
    step = _acknowledge(replaced(validator, batch=None, waiting=again + validator.waiting))
    effects: tuple[Effect, ...] = ()
    if results:
        effects += (Publish(results),)
    if shown:
        effects += (Shown(shown),)
    return NextStep(step.validator, effects + step.effects)


def _floor_mark(validator: Validator, floor: Epoch) -> Result:
    """What tells the next instance that rejections of requests made before ``floor`` are remembered by nobody."""
    return Result(FLOOR_MARK, "", REJECTED, floor, FORGOTTEN, "", validator.term, validator.instance, floor)


def _open_offsets(validator: Validator) -> list[int]:
    """The offsets of all requests that have no answer yet."""
    offsets = [item.offset for item in validator.waiting]
    if validator.batch is not None:
        offsets += [pending.item.offset for pending in validator.batch.answers]
    return offsets


def _acknowledge(validator: Validator) -> NextStep:
    """Everything below the first open request may be acknowledged."""
    open_offsets = _open_offsets(validator)
    upto = min(open_offsets) - 1 if open_offsets else validator.arrived
    if upto <= validator.acked:
        return NextStep(validator)
    return NextStep(replaced(validator, acked=upto), (Ack(upto),))


def _prune(validator: Validator, state: ClusterState) -> Validator:
    """Forget answers whose request has left the history: asked again they have expired."""
    oldest = state.history.oldest
    if oldest < validator.pruned + PRUNE_EVERY_EPOCHS:
        return validator
    answers = Map({key: result for key, result in validator.answers.items() if result.since_epoch >= oldest})
    return replaced(validator, answers=answers, pruned=oldest)
