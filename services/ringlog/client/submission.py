"""What a client may believe: the pure part of submission through the validator.

*Applied* is learned from the log alone. A *rejection* comes from the results and counts only if it answers this very
command (the digest says so) and if, after a read barrier, its term is still that of the validator: a later one may
have decided otherwise. *Expired* is learned from the log: once ``since_epoch`` has left the history, nobody can tell,
and nothing can happen any more.
"""

from __future__ import annotations

from dataclasses import dataclass

from ringlog.client.results import AppliedResult, ExpiredResult, RejectedResult, Submitted
from ringlog.kernel.history import find_request, is_expired
from ringlog.kernel.state import ClusterState
from ringlog.kernel.values import Epoch
from ringlog.wire.records import REJECTED, Result

VALIDATOR = "validator"


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as it was sent; kept over all retries. ``digest``: of its command."""

    request_id: str
    since_epoch: Epoch
    digest: str


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


def answer_of_result(state: ClusterState, asked: Asked, result: Result) -> Submitted | None:
    """The answer that a result justifies, judged on a state behind a read barrier that began after the result was read.

    None: the result says nothing that may be believed (another command's, a replaced validator's, or a mere hint).
    """
    assert result.request_id == asked.request_id
    answer = answer_of_log(state, asked)
    if answer is not None:
        return answer
    if result.outcome != REJECTED or result.digest != asked.digest:
        return None
    term = state.terms.get(VALIDATOR)
    if term is None or term.term != result.term:
        return None
    return RejectedResult(asked.request_id, result.code, result.detail, result.epoch)
