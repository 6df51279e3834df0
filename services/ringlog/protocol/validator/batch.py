"""One batch of the validator: an answer for each request, decided on the state that the requests before it produce.

The first source with an answer decides:

1. The history of applied requests.
2. An answer to the same request id in this batch.
3. Expiry: ``since_epoch`` has left the history.
4. An earlier rejection of the same request id.
5. The limits of ``since_epoch``: not above the log, not below the floor of forgotten answers.
6. The sender: its code, its key, and the roles that the command needs.
7. The command, decided by the fold itself.
"""

from __future__ import annotations

from ringlog.kernel.authorization import authorize
from ringlog.kernel.commands.cluster.cluster import Noop
from ringlog.kernel.encoding.encoder import command_digest
from ringlog.kernel.history import find_request
from ringlog.kernel.model.outcome import Entry, OutcomeKind, Rejected, Undecodable, UnknownCommand
from ringlog.kernel.model.principals import SENDER_CODES
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Command, Micros
from ringlog.protocol.effects import Draw
from ringlog.protocol.validator.authentication import sender_of
from ringlog.protocol.validator.limits import too_far_ahead
from ringlog.protocol.validator.values import (
    DETAIL_CHARS_MAX,
    ENTRY_BYTES_MAX,
    FORGOTTEN,
    Batch,
    Folding,
    PendingAnswer,
    Validator,
    WaitingRequest,
)
from ringlog.wire.commands import cached_command, encode_command
from ringlog.wire.entries import EncodedEntry, encoded
from ringlog.wire.errors import WireError
from ringlog.wire.ids import ENTROPY_BYTES, new_request_id, new_state_id
from ringlog.wire.records import APPLIED, EXPIRED, REJECTED, CommandRequest, Result
from ringlog.wire.senders import bounded


class BatchPlan:
    """A batch in progress: its speculative state, its entries and its answers."""

    def __init__(self, validator: Validator, batch: Batch, now: Micros, draw: Draw, folding: Folding) -> None:
        self.validator = validator
        self.base = batch.chain.base
        self.state = batch.state
        self.now = now
        self.draw = draw
        self.folding = folding
        self.sent = list(batch.chain.entries)
        self.answers = list(batch.answers)
        self.decided: dict[str, PendingAnswer] = {}
        for pending in batch.answers:
            self.decided.setdefault(pending.item.request.request_id, pending)
        self.bytes = sum(len(one.data) for one in self.sent)

    def decide(self, item: WaitingRequest) -> None:
        """Add the answer of this request, and an entry if its command applies."""
        request = item.request
        twin = self.decided.get(request.request_id)
        known = find_request(self.state, request.request_id)
        answered = self.validator.answers.get(request.request_id)
        if known is not None:
            after = max(0, known.epoch - self.base)
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
        elif request.since_epoch > self.state.epoch:
            detail = f"since_epoch {request.since_epoch} is above the log's epoch {self.state.epoch}"
            self._reject(item, 0, Rejected("request_expired", detail))
        elif request.since_epoch < (floor := min(self.validator.floor, self.base)):
            # The floor is above ``base`` only if the log has lost its end since. Then the newest requests are decided.
            detail = (
                f"since_epoch {request.since_epoch} is below {floor}: too many requests were rejected, and "
                "earlier answers are pruned; submit again with a new request id"
            )
            self._reject(item, 0, Rejected(FORGOTTEN, detail))
        else:
            self._decide_command(item)

    def remove_last(self) -> None:
        """Remove the last answer, which has no entry. Its request waits again."""
        pending = self.answers.pop()
        request_id = pending.item.request.request_id
        if self.decided.get(request_id) is pending:
            del self.decided[request_id]

    def end_with_noop(self) -> bool:
        """Add an entry of the validator itself to the batch. Return False if no state id can be made for it now."""
        kind, version, payload = encode_command(Noop())
        request_id = new_request_id(self.now, self.draw.take(ENTROPY_BYTES))
        request = CommandRequest(request_id, self.state.epoch, self.validator.instance, kind, version, payload)
        try:
            state_id = new_state_id(self.state.state_id, self.now, self.draw.take(ENTROPY_BYTES))
        except WireError:
            return False
        item = WaitingRequest(self.validator.arrived, request, command_digest(kind, version, payload))
        made = _entry(self.state, state_id, item, Noop(), self.now)
        folded = self.folding(self.state, made)
        assert folded.outcome.kind is OutcomeKind.APPLIED, "a Noop that follows the head is applied"
        self.state = folded.state
        self.sent.append(made)
        return True

    def _repeat(self, item: WaitingRequest, twin: PendingAnswer) -> None:
        """Answer a request id that occurs again in one batch with the decision about its first occurrence.

        This is only for ids without an answer from an earlier batch. An earlier answer has precedence: the first
        occurrence in this batch may be of another client that used the id for another command.
        """
        if twin.result.digest == item.digest:
            self.answers.append(PendingAnswer(item, twin.result, twin.after))
        else:
            self._reject(item, twin.after, _REUSED)

    def _decide_command(self, item: WaitingRequest) -> None:
        """Decide the command of a request on the speculative state. Add its entry if it applies."""
        request = item.request
        sender = sender_of(self.state, request)
        if isinstance(sender, Rejected):
            self._reject(item, len(self.sent), _with_claims(sender, request))
            return
        _, command = cached_command(request.kind, request.version, request.payload)
        if isinstance(command, UnknownCommand):
            detail = f"kind {command.kind} version {command.version} is not known to this release"
            self._reject(item, 0, Rejected("unknown_command", detail))
            return
        if isinstance(command, Undecodable):
            self._reject(item, 0, Rejected("undecodable", command.detail))
            return
        # Checked before the fold, which has neither senders nor a clock.
        refused = authorize(self.state, sender, command) or too_far_ahead(self.state, command, self.now)
        if refused is not None:
            self._reject(item, len(self.sent), _with_claims(refused, request))
            return
        try:
            state_id = new_state_id(self.state.state_id, self.now, self.draw.take(ENTROPY_BYTES))
        except WireError as error:
            self._reject(item, len(self.sent), Rejected("state_id_not_above", str(error)))
            return
        made = _entry(self.state, state_id, item, command, self.now)
        if len(made.data) > ENTRY_BYTES_MAX:
            detail = f"command: its entry of {len(made.data)} bytes is above {ENTRY_BYTES_MAX}; send it in parts"
            self._reject(item, len(self.sent), Rejected("bad_field", detail))
            return
        folded = self.folding(self.state, made)
        if folded.outcome.kind is OutcomeKind.APPLIED:
            self.state = folded.state
            self.sent.append(made)
            self.bytes += len(made.data)
            self._answer(item, len(self.sent), APPLIED, epoch=folded.outcome.epoch)
        else:
            self._reject(item, len(self.sent), Rejected(folded.outcome.code, folded.outcome.detail))

    def _reject(self, item: WaitingRequest, after: int, why: Rejected) -> None:
        self._answer(item, after, REJECTED, code=why.code, detail=why.detail)

    def _answer(
        self, item: WaitingRequest, after: int, outcome: str, epoch: int | None = None, code: str = "", detail: str = ""
    ) -> None:
        request = item.request
        result = Result(
            request.request_id,
            item.digest,
            outcome,
            self.state.epoch if epoch is None else epoch,
            code,
            detail if len(detail) <= DETAIL_CHARS_MAX else f"{detail[: DETAIL_CHARS_MAX - 3]}...",
            self.validator.term,
            self.validator.instance,
            request.since_epoch,
        )
        pending = PendingAnswer(item, result, after)
        self.answers.append(pending)
        self.decided.setdefault(request.request_id, pending)


def _entry(state: ClusterState, state_id: str, item: WaitingRequest, command: Command, at: Micros) -> EncodedEntry:
    """Return the entry of a request. It has the payload as received, because the digest covers the author's bytes."""
    request = item.request
    entry = Entry(
        state.cluster_id,
        state_id,
        state.state_id,
        request.request_id,
        request.since_epoch,
        bounded(request.submitter),
        at,
        request.kind,
        request.version,
        item.digest,
        command,
        b"",
    )
    return encoded(entry, request.payload)


def _with_claims(why: Rejected, request: CommandRequest) -> Rejected:
    """Add the claims of a request about its sender to its refusal. Kafka does not tell the address of a sender."""
    if why.code not in SENDER_CODES or not request.submitter:
        return why
    return Rejected(why.code, f"{why.detail}; the request says: {bounded(request.submitter)}")


_REUSED = Rejected("request_id_reused", "this request id belongs to another command; use a new id")
