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

from collections.abc import Callable, Iterable, Sequence

from ringlog.kernel.history import find_request, is_expired
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Command, Epoch, Micros, Value
from ringlog.protocol.effects import Draw, Effect, Newest, Now, WallClock
from ringlog.protocol.submission.commit import PAUSES_MAX
from ringlog.protocol.submission.direct import Direct
from ringlog.protocol.submission.results import AppliedResult, ExpiredResult, RejectedResult, Submitted, WithdrawnResult
from ringlog.wire.commands import digest_of, encode_command
from ringlog.wire.ids import ENTROPY_BYTES, new_request_id
from ringlog.wire.records import APPLIED, REJECTED, CommandRequest, Result, encode_request
from ringlog.wire.requests import TOGETHER_MAX, encode_request_batch

VALIDATOR = "validator"
RESEND: Micros = 1_000_000
TOGETHER_BYTES_MAX = 256 * 1024
"""The most bytes of requests in one record. A larger request has a separate record."""
BARRIER_RETRY: Micros = 100_000
"""How long results wait for the next try after the end of the log could not be read."""


class RequestKey(Value):
    """The identity of a request, equal in all retries. ``digest``: of its command."""

    request_id: str
    since_epoch: Epoch
    digest: str


class EncodedRequest(Value):
    """A request as bytes, with its identity and the kind of its command."""

    key: RequestKey
    kind: str
    data: bytes


class Send(Effect[None], Value):
    """Append the request to the topic, once, when the producer is free (``request_records``).

    No outcome: the answer shows its arrival. ``alone``: in a separate record. Repeated requests are sent this way. An
    unreadable record, or one that the topic rejects as too large, delays each of its requests by one retry.
    """

    request: EncodedRequest
    alone: bool


class RequestRecord(Value):
    """One record of the requests topic, and the requests in it, in order."""

    sent: tuple[Send, ...]
    data: bytes


class AwaitAnswer(Effect[Iterable[Result]], Value):
    """Wait for possible answers, at most until ``until``. Outcome: the results since the last call that ``may_answer``.

    The wait ends at once for such a result, or for an applied entry of this request, since the last call.
    """

    key: RequestKey
    until: Micros


class TryBarrier(Effect[ClusterState | None], Value):
    """As ``Barrier``. Outcome None: the log's end could not be read in time, or another result arrived."""

    key: RequestKey
    timeout: Micros


class SubmitCommand(Effect[Submitted | None], Value):
    """Request a command under this request id. Outcome: the final answer, or None after the driver's timeout.

    The driver raises if the process must stop.
    """

    command: Command
    request_id: str
    since_epoch: Epoch


class NoAnswer(Exception):
    """The deadline passed without an answer. The request may still be applied."""

    def __init__(self, key: RequestKey) -> None:
        super().__init__(f"no answer to request {key.request_id}")
        self.key = key


def encoded_request(
    command: Command,
    request_id: str,
    since_epoch: Epoch,
    submitter: str,
    answer_applied: bool = False,
    sign: Callable[[bytes], bytes] = bytes,
) -> EncodedRequest:
    """Return the encoded request for a command. Raises WireError (a value that does not fit its field).

    ``sign``: returns the record of a request with the code of its sender; by default without one.
    """
    kind, version, payload = encode_command(command)
    made = CommandRequest(request_id, since_epoch, submitter, kind, version, payload, answer_applied)
    data = sign(encode_request(made))
    digest = digest_of(kind, version, payload)
    return EncodedRequest(RequestKey(request_id, since_epoch, digest), kind, data)


async def submit_request(request: EncodedRequest, timeout: Micros, resend: Micros = RESEND) -> Submitted:
    """Return the final answer. Raises NoAnswer."""
    key = request.key
    again = await Now()
    deadline = again + timeout
    is_sent, pause = False, resend
    results: tuple[Result, ...] = ()
    while True:
        answer = answer_of_log(await Newest(), key)
        if answer is None and results:
            # A later validator may have decided otherwise, so results are judged only on a state that is newer than
            # they are.
            state = await TryBarrier(key, max(deadline - await Now(), 0))
            if state is not None:
                answer, results = answer_of_results(state, key, results), ()
        if answer is not None:
            return answer
        now = await Now()
        if now >= deadline:
            raise NoAnswer(key)
        if now >= again:
            again = now + pause
            await Send(request, is_sent)
            is_sent, pause = True, min(2 * pause, PAUSES_MAX * resend)
        until = min(again, deadline)
        results += tuple(await AwaitAnswer(key, min(until, now + BARRIER_RETRY) if results else until))


async def request_for(command: Command, draw: Draw) -> SubmitCommand:
    """Return the request for a command, with a new request id and the newest epoch."""
    request_id = new_request_id(await WallClock(), draw.take(ENTROPY_BYTES))
    return SubmitCommand(command, request_id, (await Newest()).epoch)


async def submit_until_answered(command: Command, draw: Draw) -> Submitted:
    """Return the final answer, after any number of retries under the same id. The command is applied at most once."""
    request = await request_for(command, draw)
    answer: Submitted | None = None
    while answer is None:
        answer = await request
    return answer


def request_records(waiting: Sequence[Send]) -> tuple[RequestRecord, ...]:
    """Return the waiting requests as records, in order. Requests share a record if allowed and not too large."""
    found: list[RequestRecord] = []
    group: list[Send] = []
    size = 0
    for send in waiting:
        bytes_of = len(send.request.data)
        if group and (send.alone or len(group) >= TOGETHER_MAX or size + bytes_of > TOGETHER_BYTES_MAX):
            found.append(_request_record(group))
            group, size = [], 0
        group.append(send)
        size += TOGETHER_BYTES_MAX if send.alone else bytes_of
    return (*found, _request_record(group)) if group else tuple(found)


def _request_record(group: Sequence[Send]) -> RequestRecord:
    parts = [send.request.data for send in group]
    return RequestRecord(tuple(group), parts[0] if len(parts) == 1 else encode_request_batch(parts))


async def fall_back_to_direct(
    direct: Direct, command: Command, request_id: str, since_epoch: Epoch, timeout: Micros
) -> Submitted:
    """Decide a request that the validator did not answer. A rejection counts only after the request is withdrawn.

    Raises as ``Direct.submit``.
    """
    deadline = await Now() + timeout
    answer = await direct.submit(command, request_id, since_epoch, timeout)
    if not isinstance(answer, RejectedResult) or answer.code == "request_id_reused":
        return answer
    left = max(deadline - await Now(), 0)
    ended = await direct.withdraw(request_id, since_epoch, left)
    return answer if isinstance(ended, WithdrawnResult) else ended


def may_answer(result: Result) -> bool:
    """Return False for a hint that a command was applied. The log shows that itself, so it needs no read barrier."""
    return result.outcome != APPLIED


def answer_of_log(state: ClusterState, key: RequestKey) -> Submitted | None:
    """Return the answer that the log gives at ``state``, or None if it gives none.

    Args:
        state: a state at or after ``asked.since_epoch``.
    """
    found = find_request(state, key.request_id)
    if found is not None:
        if found.digest == key.digest:
            return AppliedResult(key.request_id, found.epoch)
        detail = f"epoch {found.epoch} has another command under this request id"
        return RejectedResult(key.request_id, "request_id_reused", detail, state.epoch)
    return ExpiredResult(key.request_id, key.since_epoch) if is_expired(state, key.since_epoch) else None


def answer_of_results(state: ClusterState, key: RequestKey, results: Sequence[Result]) -> Submitted | None:
    """Return the answer from the first usable result, or None.

    A result is not usable if it answers another command, comes from a replaced validator, or is only a hint.

    Args:
        state: a state from a read barrier that began after the results were read.
    """
    assert all(result.request_id == key.request_id for result in results)
    answer = answer_of_log(state, key)
    if answer is not None:
        return answer
    for result in results:
        if result.outcome != REJECTED or result.digest != key.digest:
            continue
        term = state.terms.get(VALIDATOR)
        if term is not None and term.term == result.term:
            return RejectedResult(key.request_id, result.code, result.detail, result.epoch)
    return None
