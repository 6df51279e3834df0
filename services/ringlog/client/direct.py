"""Submission without a validator: read barrier, decide, append, folded; on a lost race, decide again.

For founding, recovery, take-overs, and when no validator answers: many direct authors at once starve each other and
the validator. The rules are the same, since the decision is the fold of the very entry that would be appended. A
process makes one decision at a time on one replica.

A rejection decided here is final for a request that went only this way: every entry sent for it before has a final
fate, and one that another call left open has the same state as predecessor only if the same command would still be
accepted there. A request that also went to the validator may be reported as rejected only after ``withdraw``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ringlog.client.errors import InvalidSubmission, NotFounded, SubmissionTimedOut, TakeOverRefused
from ringlog.client.results import AppliedResult, ExpiredResult, RejectedResult, Submitted, WithdrawnResult
from ringlog.kernel.commands.model import Command, Noop, TakeOver
from ringlog.kernel.encoding import command_digest
from ringlog.kernel.fold import fold
from ringlog.kernel.history import find_request, is_expired
from ringlog.kernel.outcome import Folded, OutcomeKind
from ringlog.kernel.state import ClusterState, Term
from ringlog.kernel.values import Epoch
from ringlog.log.author import Author
from ringlog.log.commit import FateOpen, commit
from ringlog.log.errors import WaitTimedOut
from ringlog.log.fates import Chain, Fate
from ringlog.log.port import MetadataLog
from ringlog.log.replica import Replica
from ringlog.runtime.clock import Clock, SystemClock
from ringlog.runtime.draw import Draw, SystemDraw
from ringlog.wire.commands import encode_command
from ringlog.wire.entries import EncodedEntry, decode_entry

TIMEOUT_S = 30.0


class DirectAuthor:
    """Decides and appends by itself. Safe from threads: they wait for one another."""

    def __init__(
        self,
        metadata: MetadataLog,
        replica: Replica,
        submitter: str,
        clock: Clock | None = None,
        draw: Draw | None = None,
    ) -> None:
        self._log = metadata
        self._replica = replica
        self._author = Author(submitter, clock or SystemClock(), draw or SystemDraw())

    def submit(
        self,
        command: Command,
        *,
        timeout_s: float = TIMEOUT_S,
        request_id: str | None = None,
        since_epoch: Epoch | None = None,
    ) -> Submitted:
        """Apply the command or say why not.

        Raises SubmissionTimedOut (fate open), NotFounded, InvalidSubmission, LogError.
        """
        asked = request_id if request_id is not None else self._author.new_request_id()
        deadline = time.monotonic() + timeout_s
        with self._turn(deadline):
            since = since_epoch
            while True:
                state = self._replica.read_barrier(_left(deadline))
                since = state.epoch if since is None else since
                encoded = self._author.entry(state, command, request_id=asked, since_epoch=since)
                answer = decided(state, encoded, self._log.name)
                if answer is not None:
                    return answer
                if self._commit(state, encoded, deadline, timeout_s) is Fate.APPLIED:
                    return AppliedResult(asked, state.epoch + 1)

    def withdraw(
        self, request_id: str, since_epoch: Epoch, *, timeout_s: float = TIMEOUT_S
    ) -> WithdrawnResult | AppliedResult | ExpiredResult:
        """End a request: a Noop under its id makes everything else that carries it a duplicate.

        A request for a Noop counts as withdrawn also if it was applied: that is the same.
        AppliedResult if its command got there first. Raises SubmissionTimedOut (still open), LogError.
        """
        deadline = time.monotonic() + timeout_s
        noop = command_digest(*encode_command(Noop()))
        with self._turn(deadline):
            while True:
                state = self._replica.read_barrier(_left(deadline))
                if (found := find_request(state, request_id)) is not None:
                    ended = WithdrawnResult if found.digest == noop else AppliedResult
                    return ended(request_id, found.epoch)
                _refuse_future(state, since_epoch)
                if is_expired(state, since_epoch):
                    return ExpiredResult(request_id, since_epoch)
                encoded = self._author.entry(state, Noop(), request_id=request_id, since_epoch=since_epoch)
                self._commit(state, encoded, deadline, timeout_s)

    def take_over(self, role: str, instance: str, *, timeout_s: float = TIMEOUT_S) -> Term:
        """Become the instance that acts in ``role``: TakeOver with a higher term, again until applied.

        Raises TakeOverRefused where a rule other than the term's is broken, SubmissionTimedOut, LogError.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            state = self._replica.read_barrier(_left(deadline))
            term = state.terms[role].term + 1 if role in state.terms else 1
            answer = self.submit(TakeOver(role, instance, term), timeout_s=_left(deadline))
            if isinstance(answer, AppliedResult):
                return Term(role, instance, term, answer.epoch)
            if isinstance(answer, RejectedResult) and answer.code != "stale_term":
                raise TakeOverRefused(f"{role}: {answer.code}: {answer.detail}")

    def _commit(self, state: ClusterState, encoded: EncodedEntry, deadline: float, timeout_s: float) -> Fate:
        try:
            judged = commit(self._log, self._replica, Chain(state.epoch, (encoded,)), timeout_s=_left(deadline))
        except FateOpen as error:
            entry = encoded.entry
            waited = timeout_s - _left(deadline)
            raise SubmissionTimedOut(entry.request_id, entry.since_epoch, waited, "its entry's fate") from error
        return judged.fates[0]

    @contextmanager
    def _turn(self, deadline: float) -> Iterator[None]:
        started = time.monotonic()
        if not self._replica.decisions.acquire(timeout=_left(deadline)):
            raise WaitTimedOut("another decision of this process", time.monotonic() - started, "nothing was sent")
        try:
            yield
        finally:
            self._replica.decisions.release()


def folded(state: ClusterState, data: bytes) -> Folded:
    """What a record of the log makes of a state."""
    return fold(state, decode_entry(data))


def decided(
    state: ClusterState,
    encoded: EncodedEntry,
    name: str,
    folding: Callable[[ClusterState, bytes], Folded] = folded,
) -> Submitted | None:
    """The answer to an entry that follows ``state`` before it is sent; None if it would be applied.

    ``name``: the log's; ``folding``: ``folded``, or the same with a memory. Raises NotFounded, InvalidSubmission.
    """
    entry = encoded.entry
    _refuse_future(state, entry.since_epoch)
    outcome = folding(state, encoded.data).outcome
    match outcome.kind:
        case OutcomeKind.APPLIED:
            return None
        case OutcomeKind.DUPLICATE:
            found = find_request(state, entry.request_id)
            assert found is not None, "a new state id is no duplicate"
            if found.digest == entry.digest:
                return AppliedResult(entry.request_id, found.epoch)
            return RejectedResult(entry.request_id, "request_id_reused", outcome.detail, state.epoch)
        case OutcomeKind.EXPIRED:
            return ExpiredResult(entry.request_id, entry.since_epoch)
        case OutcomeKind.STALE:
            raise NotFounded(name)
        case _:
            return RejectedResult(entry.request_id, outcome.code, outcome.detail, state.epoch)


def _refuse_future(state: ClusterState, since_epoch: Epoch) -> None:
    if since_epoch > state.epoch:
        raise InvalidSubmission(
            f"since_epoch {since_epoch} is above the epoch {state.epoch}", "use an epoch that was seen"
        )


def _left(deadline: float) -> float:
    return max(deadline - time.monotonic(), 0.0)
