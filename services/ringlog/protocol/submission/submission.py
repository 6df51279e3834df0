"""Submission through the validator: send, send again, and judge possible answers.

Rules of evidence for a client:

- *Applied* comes from the log alone.
- A *rejection* comes from the results. It counts only if it answers this command, which its digest shows. Its term must
  also be the validator's term after a read barrier, because a later validator may have decided otherwise.
- *Expired* comes from the log. Once ``since_epoch`` has left the history, the result is unknown, and the request has no
  further effect.

A request is sent with the same id, ``since_epoch`` and bytes each time, until it has an answer or its deadline passes.
The first pause is ``resend``, and later pauses double. A slow validator must remove copies faster than they arrive, or
later requests would never be answered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ringlog.kernel.columns.fast_dataclass import maker_of
from ringlog.kernel.history import find_request, is_expired
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Command, Epoch, Micros
from ringlog.protocol.effects import Draw, Newest, Now, Steps, WallClock
from ringlog.protocol.submission.commit import PAUSES_MAX
from ringlog.protocol.submission.direct import Direct
from ringlog.protocol.submission.results import AppliedResult, ExpiredResult, RejectedResult, Submitted, WithdrawnResult
from ringlog.wire.commands import digest_of, encode_command
from ringlog.wire.ids import ENTROPY_BYTES, new_request_id
from ringlog.wire.records import (
    APPLIED,
    REJECTED,
    TOGETHER_MAX,
    CommandRequest,
    Result,
    encode_request,
    encode_request_batch,
)

VALIDATOR = "validator"
RESEND: Micros = 1_000_000
TOGETHER_BYTES_MAX = 256 * 1024
"""The most bytes of requests in one record. A larger request has a separate record."""
JUDGE_AGAIN: Micros = 100_000
"""How long results wait for the next try after the end of the log could not be read."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as it was sent, kept over all retries. ``digest``: of its command."""

    request_id: str
    since_epoch: Epoch
    digest: str


@dataclass(frozen=True, slots=True)
class Question:
    """A request, the kind of its command, and its bytes."""

    asked: Asked
    kind: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Send:
    """Append the request to the topic, once, when the producer is free (``parcels``).

    No outcome: the answer shows its arrival. ``alone``: in a separate record. Repeated requests are sent this way. An
    unreadable record, or one that the topic rejects as too large, delays each of its requests by one retry.
    """

    question: Question
    alone: bool


@dataclass(frozen=True, slots=True)
class Parcel:
    """One record of the requests topic, and the requests in it, in order."""

    sent: tuple[Send, ...]
    data: bytes


@dataclass(frozen=True, slots=True)
class Hear:
    """Wait for possible answers, at most until ``until``. Outcome: the results since the last call that ``may_answer``.

    The wait ends at once for such a result, or for an applied entry of this request, since the last call.
    """

    asked: Asked
    until: Micros


@dataclass(frozen=True, slots=True)
class Fresh:
    """As ``Barrier``. Outcome None: the log's end could not be read in time, or another result arrived."""

    asked: Asked
    timeout: Micros


@dataclass(frozen=True, slots=True)
class AskFor:
    """Request a command under this request id. Outcome: the final answer, or None after the driver's timeout.

    The driver raises if the process must stop.
    """

    command: Command
    request_id: str
    since_epoch: Epoch


_new_asked, _new_question, _new_request = maker_of(Asked), maker_of(Question), maker_of(CommandRequest)
_new_send, _new_hear = maker_of(Send), maker_of(Hear)


class NoAnswer(Exception):
    """The deadline passed without an answer. The request may still be applied."""

    def __init__(self, asked: Asked) -> None:
        super().__init__(f"no answer to request {asked.request_id}")
        self.asked = asked


def question(command: Command, request_id: str, since_epoch: Epoch, submitter: str) -> Question:
    """Return the command as a question. Raises WireError (a value that does not fit its field)."""
    kind, version, payload = encode_command(command)
    data = encode_request(_new_request(request_id, since_epoch, submitter, kind, version, payload))
    digest = digest_of(kind, version, payload)
    return _new_question(_new_asked(request_id, since_epoch, digest), kind, data)


def ask(question: Question, timeout: Micros, resend: Micros = RESEND) -> Steps[Submitted]:
    """Return the final answer. Raises NoAnswer."""
    asked = question.asked
    again = yield Now()
    deadline = again + timeout
    is_sent, pause = False, resend
    results: tuple[Result, ...] = ()
    while True:
        answer = answer_of_log((yield Newest()), asked)
        if answer is None and results:
            # A later validator may have decided otherwise, so results are judged only on a state that is newer than
            # they are.
            state = yield Fresh(asked, max(deadline - (yield Now()), 0))
            if state is not None:
                answer, results = answer_of_results(state, asked, results), ()
        if answer is not None:
            return answer
        now = yield Now()
        if now >= deadline:
            raise NoAnswer(asked)
        if now >= again:
            again = now + pause
            yield _new_send(question, is_sent)
            is_sent, pause = True, min(2 * pause, PAUSES_MAX * resend)
        until = min(again, deadline)
        results += tuple((yield _new_hear(asked, min(until, now + JUDGE_AGAIN) if results else until)))


def request_for(command: Command, draw: Draw) -> Steps[AskFor]:
    """Return the request for a command, with a new request id and the newest epoch."""
    request_id = new_request_id((yield WallClock()), draw.take(ENTROPY_BYTES))
    return AskFor(command, request_id, (yield Newest()).epoch)


def insist(command: Command, draw: Draw) -> Steps[Submitted]:
    """Return the final answer, after any number of retries under the same id. The command is applied at most once."""
    request = yield from request_for(command, draw)
    answer: Submitted | None = None
    while answer is None:
        answer = yield request
    return answer


def parcels(waiting: Sequence[Send]) -> tuple[Parcel, ...]:
    """Return the waiting requests as records, in order. Requests share a record if allowed and not too large."""
    found: list[Parcel] = []
    group: list[Send] = []
    size = 0
    for send in waiting:
        bytes_of = len(send.question.data)
        if group and (send.alone or len(group) >= TOGETHER_MAX or size + bytes_of > TOGETHER_BYTES_MAX):
            found.append(_parcel(group))
            group, size = [], 0
        group.append(send)
        size += TOGETHER_BYTES_MAX if send.alone else bytes_of
    return (*found, _parcel(group)) if group else tuple(found)


def _parcel(group: Sequence[Send]) -> Parcel:
    parts = [send.question.data for send in group]
    return Parcel(tuple(group), parts[0] if len(parts) == 1 else encode_request_batch(parts))


def change_way(
    direct: Direct, command: Command, request_id: str, since_epoch: Epoch, timeout: Micros
) -> Steps[Submitted]:
    """Decide a request that the validator did not answer. A rejection counts only after the request is withdrawn.

    Raises as ``Direct.submit``.
    """
    deadline = (yield Now()) + timeout
    answer = yield from direct.submit(command, request_id, since_epoch, timeout)
    if not isinstance(answer, RejectedResult) or answer.code == "request_id_reused":
        return answer
    left = max(deadline - (yield Now()), 0)
    ended = yield from direct.withdraw(request_id, since_epoch, left)
    return answer if isinstance(ended, WithdrawnResult) else ended


def may_answer(result: Result) -> bool:
    """Return False for a hint that a command was applied. The log shows that itself, so it needs no read barrier."""
    return result.outcome != APPLIED


def answer_of_log(state: ClusterState, asked: Asked) -> Submitted | None:
    """Return the answer that the log gives at ``state``, or None if it gives none.

    Args:
        state: a state at or after ``asked.since_epoch``.
    """
    found = find_request(state, asked.request_id)
    if found is not None:
        if found.digest == asked.digest:
            return AppliedResult(asked.request_id, found.epoch)
        detail = f"epoch {found.epoch} has another command under this request id"
        return RejectedResult(asked.request_id, "request_id_reused", detail, state.epoch)
    return ExpiredResult(asked.request_id, asked.since_epoch) if is_expired(state, asked.since_epoch) else None


def answer_of_results(state: ClusterState, asked: Asked, results: Sequence[Result]) -> Submitted | None:
    """Return the answer from the first usable result, or None.

    A result is not usable if it answers another command, comes from a replaced validator, or is only a hint.

    Args:
        state: a state from a read barrier that began after the results were read.
    """
    assert all(result.request_id == asked.request_id for result in results)
    answer = answer_of_log(state, asked)
    if answer is not None:
        return answer
    for result in results:
        if result.outcome != REJECTED or result.digest != asked.digest:
            continue
        term = state.terms.get(VALIDATOR)
        if term is not None and term.term == result.term:
            return RejectedResult(asked.request_id, result.code, result.detail, result.epoch)
    return None
