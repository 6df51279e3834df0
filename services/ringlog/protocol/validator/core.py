"""The decisions of the validator, as values: requests and folded entries in, effects out.

Group commit: the validator decides all waiting requests on the newest folded state, with the fold itself. Each is
decided on the state that the ones before it produce, and all of them become one batch of chained entries. The first
entries are sent while later ones are decided. Requests that arrive meanwhile join the batch (``join_batch``). The next
batch begins when the outcomes of this one are final.

Invariants (each has a counterexample without it):

- An answer carries the number of the batch's entries that it was decided on (``after``). It is sent only when all of
  these are folded as applied. If one of them is lost, the request is decided again.
- An entry that is applied shows that its state was the newest: it followed the head of the log after its request had
  arrived. The same holds for each decision behind it in the batch. *Applied* by an earlier entry and *expired* remain
  true. These answers need no read barrier.
- A rejection before the first entry of a batch has no such evidence. It needs a state from behind a read barrier
  (``DecideAfterBarrier``), in the next batch if entries of this one are sent already. The same holds for a request that
  arrived during the batch, if no entry was sent since.
- A batch with an answer other than *applied* takes in no further requests. So the answer does not wait for them.
- The outcomes of a batch's entries come from the log alone (``ringlog.protocol.submission.results``), in chain order.
- A request id is answered once. A rejected request is never decided again. It gets the same answer under this
  instance's term, unless the history contains it or it has expired.
- Rejections make no epochs, so the history does not bound the number of remembered ones. Beyond ``answers_max``, a Noop
  of the validator ends the batch. Once it is applied, all answers so far are forgotten, and its epoch is the ``floor``.
  An older request that is not in the history may have been rejected before, so it is rejected without a decision. The
  floor is published behind the results that it forgets, because the next instance must know it. (A request that claims
  a future epoch breaks the protocol. Its rejection is remembered and forgotten like the others, without a floor.)
- Effects are performed in order, and acknowledgement is the last one. So an unanswered request is delivered again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from immutables import Map

from ringlog.kernel.model.settings import setting
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Epoch, Micros, replace
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
    DecideAfterBarrier,
    Folding,
    NextStep,
    NoteApplied,
    PendingAnswer,
    Publish,
    SendEntries,
    StopInstance,
    Validator,
    ValidatorEffect,
    WaitingRequest,
    folded,
)
from ringlog.wire.commands import digest_of
from ringlog.wire.records import APPLIED, REJECTED, Result


def add_rejections(validator: Validator, results: Iterable[Result]) -> Validator:
    """Return the validator with these published rejections, in their order. The first one of a request id counts."""
    answers, floor = validator.answers.mutate(), validator.floor
    for result in results:
        if is_floor_mark(result):
            answers, floor = Map[str, Result]().mutate(), max(floor, result.since_epoch)
        elif result.outcome == REJECTED and result.request_id not in answers:
            answers[result.request_id] = result
    return replace(validator, answers=answers.finish(), floor=floor)


def is_floor_mark(result: Result) -> bool:
    """Return whether a result is the mark that all answers before it are forgotten, and not an answer."""
    return result.request_id == FLOOR_MARK and result.code == FORGOTTEN


def add_requests(validator: Validator, records: Sequence[Arrived]) -> NextStep:
    """Add the requests of new records. A record is acknowledged when each of its requests has an answer.

    Records that are open already are ignored. All others are decided, even below earlier offsets: after a rebalance,
    records of the earlier assignment may come first, and older ones without an answer after them.
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
        waiting += [WaitingRequest(offset, one, digest_of(one.kind, one.version, one.payload)) for one in requests]
    return _acknowledge(replace(validator, waiting=tuple(waiting), arrived=arrived, acked=acked))


def begin_batch(
    validator: Validator,
    state: ClusterState,
    now: Micros,
    draw: Draw,
    folding: Folding = folded,
    is_fresh: bool = True,
    part: int = PART_ENTRIES,
) -> NextStep:
    """Decide the waiting requests on ``state``: all of them, or the first part of a batch.

    Args:
        now: this instance's wall clock in microseconds, for the entries' ``at`` and the limits on timestamps.
        folding: ``folded``, or the same with a cache.
        is_fresh: whether the state is from a read barrier made after the requests arrived. If not, the effect may be
            DecideAfterBarrier.
        part: the number of entries of the first part.
    """
    assert validator.batch is None, "a batch begins after the outcomes of the previous batch are final"
    term = state.terms.get(ROLE)
    if term is not None and term.term > validator.term:
        return NextStep(validator, (StopInstance(f"term {term.term} was taken by instance {term.instance}"),))
    begun = Batch(EntryChain(state.epoch, ()), (), state, is_fresh)
    return _decide(_prune(validator, state), begun, now, draw, folding, part) or NextStep(
        validator, (DecideAfterBarrier(),)
    )


def extend_batch(validator: Validator, now: Micros, draw: Draw, folding: Folding = folded, part: int = 0) -> NextStep:
    """Decide the next part of the batch in progress, on the state of its entries. As ``begin_batch``.

    The part has as many entries as the batch has already, or ``part`` if that is more.
    """
    batch = validator.batch
    assert batch is not None, "a batch is under way"
    assert batch.chain.entries, "the published chain has entries"
    step = _decide(validator, batch, now, draw, folding, max(part, len(batch.chain.entries)))
    assert step is not None, "entries in flight are not decided again"
    return step


def join_batch(
    validator: Validator,
    records: Sequence[Arrived],
    now: Micros,
    draw: Draw,
    folding: Folding = folded,
    part: int = PART_ENTRIES,
) -> NextStep:
    """Decide requests that arrived while an open batch is in progress, on the state of its entries.

    The entries sent so far show nothing about the log after these requests arrived. Only later ones do.
    """
    step = add_requests(validator, records)
    batch = step.validator.batch
    assert batch is not None, "a batch is under way"
    batch = replace(batch, is_fresh=False, before=len(batch.chain.entries))
    extended = extend_batch(replace(step.validator, batch=batch), now, draw, folding, part)
    return NextStep(extended.validator, step.effects + extended.effects)


def _decide(
    validator: Validator, batch: Batch, now: Micros, draw: Draw, folding: Folding, part: int
) -> NextStep | None:
    """Decide up to ``part`` more entries of a batch. Return None if its first decision needs a read barrier."""
    bound = min(BATCH_ENTRIES_MAX, setting(batch.state, "history_entries") // 4)
    plan = BatchPlan(validator, batch, now, draw, folding)
    already_sent = len(plan.sent)
    taken, is_full = 0, False
    for item in validator.waiting:
        is_full = len(plan.sent) >= bound or plan.bytes >= BATCH_BYTES_MAX
        if is_full or len(plan.sent) >= already_sent + part:
            break
        plan.decide(item)
        # With entries sent already, the batch must be settled first. The request stays first in line for the next one.
        if not batch.is_fresh and needs_barrier(plan.answers[-1], batch.before):
            if not already_sent:
                return None
            plan.remove_last()
            is_full = True
            break
        taken += 1
    waiting = validator.waiting[taken:]
    is_part = bool(waiting) and not is_full
    forgets = not is_part and len(validator.answers) >= validator.answers_max and plan.end_with_noop()
    refuses = batch.refuses or any(one.result.outcome != APPLIED for one in plan.answers[len(batch.answers) :])
    chain = EntryChain(batch.chain.base, tuple(plan.sent))
    batch = Batch(chain, tuple(plan.answers), plan.state, batch.is_fresh, forgets, refuses, batch.before)
    validator = replace(validator, waiting=waiting, batch=batch)
    if is_part:
        return NextStep(validator, (SendEntries(batch.chain.entries[already_sent:]),))
    if batch.chain.entries:
        accepts_more = not (is_full or forgets or refuses)
        return NextStep(validator, (CommitChain(batch.chain, already_sent, accepts_more),))
    return _release_answers(validator, batch, 0)


def needs_barrier(pending: PendingAnswer, before: int) -> bool:
    """Return whether only a read barrier shows that the log had the state of this answer after its request arrived.

    Args:
        before: the number of the batch's entries that were sent before the request arrived.
    """
    return pending.result.outcome == REJECTED and pending.after <= before


def settle_batch(validator: Validator, commit_outcomes: Sequence[CommitOutcome]) -> NextStep:
    """Send the answers that the final outcomes allow. The requests of lost entries wait again.

    A forgotten outcome (its epoch has left the history) counts as lost. Deciding the request again finds that it has
    expired, or finds its entry in the history.
    """
    batch = validator.batch
    assert batch is not None, "a batch is under way"
    assert CommitOutcome.OPEN not in commit_outcomes, "commit outcomes are final"
    applied = next(
        (count for count, outcome in enumerate(commit_outcomes) if outcome is not CommitOutcome.APPLIED),
        len(commit_outcomes),
    )
    return _release_answers(validator, batch, applied)


def _release_answers(validator: Validator, batch: Batch, applied: int) -> NextStep:
    """Release the answers that depend on at most the first ``applied`` entries. Other requests wait, first in line."""
    good = tuple(pending for pending in batch.answers if pending.after <= applied)
    again = tuple(pending.item for pending in batch.answers if pending.after > applied)
    shown = tuple(pending.result for pending in good if not is_published(pending))
    results = tuple(pending.result for pending in good if is_published(pending))
    validator = add_rejections(validator, results)
    if batch.forgets and applied == len(batch.chain.entries):
        mark = _floor_mark(validator, batch.chain.base + applied)
        validator = add_rejections(validator, (mark,))
        results += (mark,)
    step = _acknowledge(replace(validator, batch=None, waiting=again + validator.waiting))
    effects: tuple[ValidatorEffect, ...] = ()
    if results:
        effects += (Publish(results),)
    if shown:
        effects += (NoteApplied(shown),)
    return NextStep(step.validator, effects + step.effects)


def is_published(pending: PendingAnswer) -> bool:
    """Return whether an answer goes to the results topic. The log shows applied commands to most clients."""
    return pending.result.outcome != APPLIED or pending.item.request.answer_applied


def _floor_mark(validator: Validator, floor: Epoch) -> Result:
    """Return the mark for the next instance: rejections of requests from before ``floor`` are forgotten."""
    return Result(FLOOR_MARK, "", REJECTED, floor, FORGOTTEN, "", validator.term, validator.instance, floor)


def _open_offsets(validator: Validator) -> list[int]:
    """Return the offsets of all requests without an answer."""
    offsets = [item.offset for item in validator.waiting]
    if validator.batch is not None:
        offsets += [pending.item.offset for pending in validator.batch.answers]
    return offsets


def _acknowledge(validator: Validator) -> NextStep:
    """Acknowledge all records below the first open request."""
    open_offsets = _open_offsets(validator)
    upto = min(open_offsets) - 1 if open_offsets else validator.arrived
    if upto <= validator.acked:
        return NextStep(validator)
    return NextStep(replace(validator, acked=upto), (Ack(upto),))


def _prune(validator: Validator, state: ClusterState) -> Validator:
    """Forget answers whose request has left the history. If such a request is repeated, it has expired."""
    oldest = state.history.oldest
    if oldest < validator.pruned + PRUNE_EVERY_EPOCHS:
        return validator
    answers = Map({key: result for key, result in validator.answers.items() if result.since_epoch >= oldest})
    return replace(validator, answers=answers, pruned=oldest)
