"""What the validator does, as values: requests and folded entries in, effects out.

Group commit: all waiting requests are decided on the newest folded state, one after the other, by the fold itself, each
on the state that the ones before it produce, and leave as one batch of chained entries. The next batch begins when this
one's fates are final.

Invariants (each has a counterexample without it):

- Every request decided in a batch carries the number of the batch's entries that its answer was decided on (``after``).
  The answer goes out only when all of those are folded as applied; if one of them is lost, the request is decided
  again.
- No read barrier is needed where the chain itself shows that the state was the newest: an entry that is applied
  followed the head of the log, after its request came in, and so did what was decided behind it in the batch. *Applied*
  by an earlier entry and *expired* stay true. A rejection that stands before the batch's first entry has nothing to
  show that: it is decided on a state from behind a barrier (``Freshen``).
- The fates of a batch's entries come from the log alone (``ringlog.protocol.fates``), in chain order.
- A request id is answered once: a request that was rejected is never decided again, it gets the same answer under this
  instance's term, unless the history holds it or it has expired.
- Rejections make no epochs, so the history alone does not bound how many are remembered. Beyond ``answers_max`` a Noop
  of the validator's own ends the batch; once it is applied, all answers given so far are forgotten, and what was asked
  for before its epoch (``floor``) and is not in the history is refused whatever it asks: perhaps it was before. The
  floor is published behind the results that it forgets, since the next instance must know it. (A request that claims an
  epoch to come breaks the protocol; its refusal is remembered and forgotten like the others, without a floor.)
- Effects are performed in their order, and acknowledging comes last: what is not answered is delivered again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from immutables import Map

from ringlog.kernel.commands.cluster import Noop
from ringlog.kernel.encoding import command_digest
from ringlog.kernel.fold import fold
from ringlog.kernel.history import find_request
from ringlog.kernel.outcome import Entry, Folded, OutcomeKind, Rejected, Undecodable, UnknownCommand
from ringlog.kernel.settings import setting
from ringlog.kernel.state import ClusterState
from ringlog.kernel.values import Command, Epoch, Micros
from ringlog.protocol.draw import Draw
from ringlog.protocol.fates import Chain, Fate
from ringlog.protocol.limits import too_far_ahead
from ringlog.wire.commands import decode_command, encode_command
from ringlog.wire.entries import EncodedEntry, encode_entry
from ringlog.wire.errors import WireError
from ringlog.wire.ids import ENTROPY_BYTES, new_request_id, new_state_id
from ringlog.wire.records import APPLIED, EXPIRED, REJECTED, Request, Result

ROLE = "validator"
BATCH_ENTRIES_MAX = 500
BATCH_BYTES_MAX = 1_000_000
ENTRY_BYTES_MAX = 2_000_000
DETAIL_CHARS_MAX = 900
"""A rejection may quote what it refuses, at any length: what is published of it always fits into a record."""

PRUNE_EVERY_EPOCHS = 1_000
ANSWERS_MAX = 50_000
"""Rejections that are remembered: some 25 MB, and 8 MB of the results topic, which the next instance reads first."""

FORGOTTEN = "answer_forgotten"
FLOOR_MARK = "00000000-0000-0000-0000-000000000000"
"""The request id of a result that answers nobody: code ``answer_forgotten``, ``since_epoch`` is the floor."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A request that came in at ``offset`` of the requests topic; ``digest`` of the command it asks for."""

    offset: int
    request: Request
    digest: str


@dataclass(frozen=True, slots=True)
class Pending:
    """An answer that may go out when the first ``after`` entries of the batch are applied."""

    item: Waiting
    result: Result
    after: int


@dataclass(frozen=True, slots=True)
class Batch:
    """Chained entries under way, and every answer of the batch; ``forgets``: its last entry raises the floor."""

    chain: Chain
    answers: tuple[Pending, ...]
    forgets: bool = False


@dataclass(frozen=True, slots=True)
class Freshen:
    """Decide again on a state from a read barrier that begins now: nothing was decided yet."""


@dataclass(frozen=True, slots=True)
class Commit:
    """Send the chain until the fate of each of its entries is final; then ``settle``."""

    chain: Chain


@dataclass(frozen=True, slots=True)
class Publish:
    """Write these results in one transaction, under the role's transactional id."""

    results: tuple[Result, ...]


@dataclass(frozen=True, slots=True)
class Hint:
    """Write these results (all ``applied``) without waiting: the log itself is the truth."""

    results: tuple[Result, ...]


@dataclass(frozen=True, slots=True)
class Ack:
    """Acknowledge every request up to and including this offset."""

    offset: int


@dataclass(frozen=True, slots=True)
class Stop:
    """This instance has been taken over and does nothing any more."""

    detail: str


Effect = Freshen | Commit | Publish | Hint | Ack | Stop


@dataclass(frozen=True, slots=True)
class Validator:
    """All that an instance remembers. ``arrived``: greatest offset seen; ``answers``: rejections by request id.

    ``floor``: of requests made before this epoch no rejection is remembered.
    """

    instance: str
    term: int
    answers: Map[str, Result] = field(default_factory=Map)
    waiting: tuple[Waiting, ...] = ()
    batch: Batch | None = None
    arrived: int = -1
    acked: int = -1
    pruned: int = 0
    floor: Epoch = 0
    answers_max: int = ANSWERS_MAX


@dataclass(frozen=True, slots=True)
class Step:
    """The next memory and what to do, in this order."""

    validator: Validator
    effects: tuple[Effect, ...] = ()


def remember(validator: Validator, results: Iterable[Result]) -> Validator:
    """Take in the rejections that were published, in their order; the first one of a request id counts."""
    answers, floor = validator.answers.mutate(), validator.floor
    for result in results:
        if is_floor_mark(result):
            answers, floor = Map[str, Result]().mutate(), max(floor, result.since_epoch)
        elif result.outcome == REJECTED and result.request_id not in answers:
            answers[result.request_id] = result
    return replace(validator, answers=answers.finish(), floor=floor)


def is_floor_mark(result: Result) -> bool:
    """Is it no answer, but the mark that all answers before it are forgotten?"""
    return result.request_id == FLOOR_MARK and result.code == FORGOTTEN


Arrived = tuple[int, tuple[Request, ...]]
"""A record of the requests topic: its offset and the requests in it, in order; none if its bytes are no request."""


def arrive(validator: Validator, records: Sequence[Arrived]) -> Step:
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
        waiting += [Waiting(offset, one, command_digest(one.kind, one.version, one.payload)) for one in requests]
    return _acknowledge(replace(validator, waiting=tuple(waiting), arrived=arrived, acked=acked))


def folded(state: ClusterState, encoded: EncodedEntry) -> Folded:
    """What an entry makes of a state."""
    return fold(state, encoded.entry)


Folding = Callable[[ClusterState, EncodedEntry], Folded]


def begin(
    validator: Validator,
    state: ClusterState,
    now: Micros,
    draw: Draw,
    folding: Folding = folded,
    is_fresh: bool = True,
) -> Step:
    """Decide what waits, on ``state``.

    ``is_fresh``: it comes from a read barrier made after those requests came in; if not, the step may be to Freshen.
    ``now``: this instance's wall clock in microseconds, used for the entries' ``at`` and for the limits on timestamps;
    ``folding``: ``folded``, or the same with a memory.
    """
    assert validator.batch is None, "a batch begins when the fates of the one before are final"
    term = state.terms.get(ROLE)
    if term is not None and term.term > validator.term:
        return Step(validator, (Stop(f"term {term.term} was taken by instance {term.instance}"),))
    before, validator = validator, _prune(validator, state)
    bound = min(BATCH_ENTRIES_MAX, setting(state, "history_entries") // 4)
    plan = _Plan(validator, state, now, draw, folding)
    taken = 0
    for item in validator.waiting:
        if len(plan.sent) >= bound or plan.bytes >= BATCH_BYTES_MAX:
            break
        plan.decide(item)
        taken += 1
        if not is_fresh and is_unproven(plan.answers[-1]):
            return Step(before, (Freshen(),))
    forgets = len(validator.answers) >= validator.answers_max and plan.end_with_noop()
    batch = Batch(Chain(state.epoch, tuple(plan.sent)), tuple(plan.answers), forgets)
    validator = replace(validator, waiting=validator.waiting[taken:], batch=batch)
    if batch.chain.entries:
        return Step(validator, (Commit(batch.chain),))
    return _release(validator, batch, 0)


def is_unproven(pending: Pending) -> bool:
    """True if only a read barrier shows that the log had the state of this answer after its request came in."""
    return pending.result.outcome == REJECTED and pending.after == 0


def settle(validator: Validator, fates: Sequence[Fate]) -> Step:
    """The final fates of the batch under way: answers go out, lost requests wait again.

    A forgotten fate (its epoch has left the history) counts as lost here: deciding the request again finds that it has
    expired, or finds its entry in the history.
    """
    batch = validator.batch
    assert batch is not None, "a batch is under way"
    assert Fate.OPEN not in fates, "fates are final"
    applied = next((count for count, fate in enumerate(fates) if fate is not Fate.APPLIED), len(fates))
    return _release(validator, batch, applied)


def _release(validator: Validator, batch: Batch, applied: int) -> Step:
    """Answers that were decided on the first ``applied`` entries go out, the rest waits again, first in line."""
    good = tuple(pending for pending in batch.answers if pending.after <= applied)
    again = tuple(pending.item for pending in batch.answers if pending.after > applied)
    hints = tuple(pending.result for pending in good if pending.result.outcome == APPLIED)
    results = tuple(pending.result for pending in good if pending.result.outcome != APPLIED)
    validator = remember(validator, results)
    if batch.forgets and applied == len(batch.chain.entries):
        mark = _floor_mark(validator, batch.chain.base + applied)
        validator = remember(validator, (mark,))
        results += (mark,)
    step = _acknowledge(replace(validator, batch=None, waiting=again + validator.waiting))
    effects: tuple[Effect, ...] = ()
    if results:
        effects += (Publish(results),)
    if hints:
        effects += (Hint(hints),)
    return Step(step.validator, effects + step.effects)


def _floor_mark(validator: Validator, floor: Epoch) -> Result:
    """What tells the next instance that rejections of requests made before ``floor`` are remembered by nobody."""
    return Result(FLOOR_MARK, "", REJECTED, floor, FORGOTTEN, "", validator.term, validator.instance, floor)


def _open_offsets(validator: Validator) -> list[int]:
    """The offsets of all requests that have no answer yet."""
    offsets = [item.offset for item in validator.waiting]
    if validator.batch is not None:
        offsets += [pending.item.offset for pending in validator.batch.answers]
    return offsets


def _acknowledge(validator: Validator) -> Step:
    """Everything below the first open request may be acknowledged."""
    open_offsets = _open_offsets(validator)
    upto = min(open_offsets) - 1 if open_offsets else validator.arrived
    if upto <= validator.acked:
        return Step(validator)
    return Step(replace(validator, acked=upto), (Ack(upto),))


def _prune(validator: Validator, state: ClusterState) -> Validator:
    """Forget answers whose request has left the history: asked again they have expired."""
    oldest = state.history.oldest
    if oldest < validator.pruned + PRUNE_EVERY_EPOCHS:
        return validator
    answers = Map({key: result for key, result in validator.answers.items() if result.since_epoch >= oldest})
    return replace(validator, answers=answers, pruned=oldest)


class _Plan:
    """One batch in the making: the speculative state and what was decided on the way to it."""

    def __init__(self, validator: Validator, state: ClusterState, now: Micros, draw: Draw, folding: Folding) -> None:
        self.validator = validator
        self.base = state
        self.state = state
        self.now = now
        self.draw = draw
        self.folding = folding
        self.sent: list[EncodedEntry] = []
        self.answers: list[Pending] = []
        self.decided: dict[str, Pending] = {}
        self.bytes = 0

    def decide(self, item: Waiting) -> None:
        """Find the one answer of this request, adding an entry if its command applies."""
        request = item.request
        twin = self.decided.get(request.request_id)
        known = find_request(self.state, request.request_id)
        answered = self.validator.answers.get(request.request_id)
        if known is not None:
            after = max(0, known.epoch - self.base.epoch)
            if known.digest == item.digest:
                self._answer(item, after, APPLIED, epoch=known.epoch)
            else:
                self._reject(item, after, _REUSED)
        elif twin is not None and answered is None:
            self._repeat(item, twin)
        elif request.since_epoch < self.state.history.oldest:
            detail = (
                f"since_epoch {request.since_epoch} has left the history, which begins at {self.state.history.oldest}"
            )
            self._answer(item, len(self.sent), EXPIRED, code="request_expired", detail=detail)
        elif answered is not None and answered.digest == item.digest:
            self._answer(item, 0, REJECTED, epoch=answered.epoch, code=answered.code, detail=answered.detail)
        elif answered is not None:
            self._reject(item, 0, _REUSED)
        elif request.since_epoch > self.base.epoch:
            detail = f"since_epoch {request.since_epoch} is above the log's epoch {self.base.epoch}"
            self._reject(item, 0, Rejected("request_expired", detail))
        elif request.since_epoch < (floor := min(self.validator.floor, self.base.epoch)):
            # The floor is above the log only if that lost its end since: then the newest requests are decided.
            detail = (
                f"since_epoch {request.since_epoch} is below {floor}: so many were rejected that "
                "answers before it are forgotten; ask again under a new request id"
            )
            self._reject(item, 0, Rejected(FORGOTTEN, detail))
        else:
            self._decide_command(item)

    def end_with_noop(self) -> bool:
        """Add an entry of the validator's own to the batch: False if no state id can be made for it now."""
        kind, version, payload = encode_command(Noop())
        request_id = new_request_id(self.now, self.draw.take(ENTROPY_BYTES))
        request = Request(request_id, self.state.epoch, self.validator.instance, kind, version, payload)
        try:
            state_id = new_state_id(self.state.state_id, self.now, self.draw.take(ENTROPY_BYTES))
        except WireError:
            return False
        item = Waiting(self.validator.arrived, request, command_digest(kind, version, payload))
        encoded = _entry(self.state, state_id, item, Noop(), self.now)
        folded = self.folding(self.state, encoded)
        assert folded.outcome.kind is OutcomeKind.APPLIED, "a Noop that follows the head is applied"
        self.state = folded.state
        self.sent.append(encoded)
        return True

    def _repeat(self, item: Waiting, twin: Pending) -> None:
        """A refused request id again in one batch: it shares the first one's decision, never gets one of its own.

        Only if no batch before answered the id: that answer stands, and the first of this batch may have been a
        stranger that used the id for another command.
        """
        if twin.result.digest == item.digest:
            self.answers.append(Pending(item, twin.result, twin.after))
        else:
            self._reject(item, twin.after, _REUSED)

    def _decide_command(self, item: Waiting) -> None:
        request = item.request
        command = decode_command(request.kind, request.version, request.payload)
        if isinstance(command, UnknownCommand):
            detail = f"kind {command.kind} version {command.version} is not known to this release"
            self._reject(item, 0, Rejected("unknown_command", detail))
            return
        if isinstance(command, Undecodable):
            self._reject(item, 0, Rejected("undecodable", command.detail))
            return
        refused = too_far_ahead(self.state, command, self.now)
        if refused is not None:
            self._reject(item, len(self.sent), refused)
            return
        try:
            state_id = new_state_id(self.state.state_id, self.now, self.draw.take(ENTROPY_BYTES))
        except WireError as error:
            self._reject(item, len(self.sent), Rejected("state_id_not_above", str(error)))
            return
        encoded = _entry(self.state, state_id, item, command, self.now)
        if len(encoded.data) > ENTRY_BYTES_MAX:
            detail = f"command: its entry of {len(encoded.data)} bytes is above {ENTRY_BYTES_MAX}; send it in parts"
            self._reject(item, len(self.sent), Rejected("bad_field", detail))
            return
        folded = self.folding(self.state, encoded)
        if folded.outcome.kind is OutcomeKind.APPLIED:
            self.state = folded.state
            self.sent.append(encoded)
            self.bytes += len(encoded.data)
            self._answer(item, len(self.sent), APPLIED, epoch=folded.outcome.epoch)
        else:
            self._reject(item, len(self.sent), Rejected(folded.outcome.code, folded.outcome.detail))

    def _reject(self, item: Waiting, after: int, why: Rejected) -> None:
        self._answer(item, after, REJECTED, code=why.code, detail=why.detail)

    def _answer(
        self, item: Waiting, after: int, outcome: str, epoch: int | None = None, code: str = "", detail: str = ""
    ) -> None:
        result = Result(
            request_id=item.request.request_id,
            digest=item.digest,
            outcome=outcome,
            epoch=self.state.epoch if epoch is None else epoch,
            code=code,
            detail=detail if len(detail) <= DETAIL_CHARS_MAX else f"{detail[: DETAIL_CHARS_MAX - 3]}...",
            term=self.validator.term,
            instance=self.validator.instance,
            since_epoch=item.request.since_epoch,
        )
        pending = Pending(item, result, after)
        self.answers.append(pending)
        self.decided.setdefault(item.request.request_id, pending)


def _entry(state: ClusterState, state_id: str, item: Waiting, command: Command, at: Micros) -> EncodedEntry:
    """The entry of a request, with its payload as it came: whatever its author encoded is what the digest covers."""
    request = item.request
    entry = Entry(
        cluster_id=state.cluster_id,
        state_id=state_id,
        prev_state_id=state.state_id,
        request_id=request.request_id,
        since_epoch=request.since_epoch,
        submitter=request.submitter,
        at=at,
        kind=request.kind,
        version=request.version,
        digest=item.digest,
        command=command,
    )
    return EncodedEntry(entry, encode_entry(entry, request.payload))


_REUSED = Rejected("request_id_reused", "this request id belongs to another command; use a new id")
