"""Submission through the validator: ask, ask again, judge what may be an answer.

What a client may believe: *applied* is learned from the log alone. A *rejection* comes from the results and counts only
if it answers this very command (the digest says so) and if, after a read barrier, its term is still that of the
validator: a later one may have decided otherwise. *Expired* is learned from the log: once ``since_epoch`` has left the
history, nobody can tell, and nothing can happen any more.

A request goes out with the same id, ``since_epoch`` and bytes every time, until it has an answer or its deadline comes:
after ``resend``, then after pauses that double. A validator that is slow must get rid of copies faster than they come,
or nobody who came later is ever answered.
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
"""Of the requests in one record; a larger one travels alone."""
JUDGE_AGAIN: Micros = 100_000
"""How long results wait for another try when the end of the log could not be learned."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as it was sent; kept over all retries. ``digest``: of its command."""

    request_id: str
    since_epoch: Epoch
    digest: str


@dataclass(frozen=True, slots=True)
class Question:
    """A request, the kind of its command, and the bytes that travel."""

    asked: Asked
    kind: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Send:
    """Append the question to the requests, once, when the producer is free: see ``parcels``. No outcome: whether it
    arrived is learned from its answer.

    ``alone``: in a record of its own. Requests that are sent again travel so: an unreadable record, or one that the
    topic refuses as too large, delays each of its requests by one retry.
    """

    question: Question
    alone: bool


@dataclass(frozen=True, slots=True)
class Parcel:
    """One record of the requests topic, and what it carries, in order."""

    sent: tuple[Send, ...]
    data: bytes


@dataclass(frozen=True, slots=True)
class Hear:
    """Wait for what may be an answer, at most until ``until``; outcome: its results since the last time, but for mere
    hints: see ``may_answer``.

    The wait ends at once if such a result, or an applied entry of this request, has come in since the last time.
    """

    asked: Asked
    until: Micros


@dataclass(frozen=True, slots=True)
class Fresh:
    """As ``Barrier``; the outcome is None if the log's end was not learned in time, or something else came in."""

    asked: Asked
    timeout: Micros


@dataclass(frozen=True, slots=True)
class AskFor:
    """Ask for a command under this request id. Outcome: the final answer, None if there was none in time.

    The driver raises if the process is to stop.
    """

    command: Command
    request_id: str
    since_epoch: Epoch


_new_asked, _new_question, _new_request = maker_of(Asked), maker_of(Question), maker_of(CommandRequest)
_new_send, _new_hear = maker_of(Send), maker_of(Hear)


class NoAnswer(Exception):
    """The deadline came without an answer: the request may still be applied."""

    def __init__(self, asked: Asked) -> None:
        super().__init__(f"no answer to request {asked.request_id}")
        self.asked = asked


def question(command: Command, request_id: str, since_epoch: Epoch, submitter: str) -> Question:
    """The command as a question. Raises WireError (a value that does not fit its field)."""
    kind, version, payload = encode_command(command)
    data = encode_request(_new_request(request_id, since_epoch, submitter, kind, version, payload))
    digest = digest_of(kind, version, payload)
    return _new_question(_new_asked(request_id, since_epoch, digest), kind, data)


def ask(question: Question, timeout: Micros, resend: Micros = RESEND) -> Steps[Submitted]:
    """The final answer. Raises NoAnswer."""
    asked = question.asked
    again = yield Now()
    deadline = again + timeout
    is_sent, pause = False, resend
    results: tuple[Result, ...] = ()
    while True:
        answer = answer_of_log((yield Newest()), asked)
        if answer is None and results:
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
    """The command under a new request id, as of the newest state."""
    request_id = new_request_id((yield WallClock()), draw.take(ENTROPY_BYTES))
    return AskFor(command, request_id, (yield Newest()).epoch)


def insist(command: Command, draw: Draw) -> Steps[Submitted]:
    """The final answer, asked for as long as that takes, each time under the same id: it is applied at most once."""
    request = yield from request_for(command, draw)
    answer: Submitted | None = None
    while answer is None:
        answer = yield request
    return answer


def parcels(waiting: Sequence[Send]) -> tuple[Parcel, ...]:
    """What waits for the producer, as records: in order, together where that is allowed and not too large."""
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
    """Decide here what the validator did not answer; a rejection counts only once the request is withdrawn.

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
    """False for a hint that a command was applied: the log says so itself, and no barrier is made for it."""
    return result.outcome != APPLIED


def answer_of_log(state: ClusterState, asked: Asked) -> Submitted | None:
    """The answer that the log gives at ``state``, or None while it gives none.

    ``state`` has reached ``asked.since_epoch``: the epoch was taken from it, or from an earlier one.
    """
    found = find_request(state, asked.request_id)
    if found is not None:
        if found.digest == asked.digest:
            return AppliedResult(asked.request_id, found.epoch)
        detail = f"epoch {found.epoch} has another command under this request id"
        return RejectedResult(asked.request_id, "request_id_reused", detail, state.epoch)
    return ExpiredResult(asked.request_id, asked.since_epoch) if is_expired(state, asked.since_epoch) else None


def answer_of_results(state: ClusterState, asked: Asked, results: Sequence[Result]) -> Submitted | None:
    """The answer that the first believable of the results justifies, judged on a state behind a read barrier that began
    after they were read.

    None: they say nothing that may be believed (another command's, a replaced validator's, or a mere hint).
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
