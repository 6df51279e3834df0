"""Submission without a validator: decide, append, fold; after a lost race, decide again.

A request is decided on the newest folded state. An applied entry shows by itself that this was the head of the log. A
rejection does not: it is decided again behind a read barrier, and only that decision counts.

This is for the initial entry, recovery, take-overs, and for times without a validator: many direct authors at once
starve each other and the validator. The rules are the same, because the decision is the fold of the very entry that
would be appended. A process makes one decision at a time on one replica. ``EntryAuthor`` is a port, because clock and
random bits belong to the driver.

A rejection decided here is final for a request that went only this way: every entry sent for it before has a final
outcome, and one that another call left open has the same state as predecessor only if the same command would still be
accepted there. A request that also went to the validator may be reported as rejected only after ``withdraw``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ringlog.kernel.commands.cluster.cluster import Noop, TakeOver
from ringlog.kernel.encoding.encoder import command_digest
from ringlog.kernel.fold import fold
from ringlog.kernel.history import find_request, is_expired
from ringlog.kernel.model.modes import Term
from ringlog.kernel.model.outcome import Folded, OutcomeKind
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Command, Epoch, Micros
from ringlog.protocol.effects import FOREVER, Barrier, Exclusive, Newest, Now, Steps
from ringlog.protocol.submission.commit import commit
from ringlog.protocol.submission.results import (
    AppliedResult,
    CommitOutcome,
    EntryChain,
    ExpiredResult,
    RejectedResult,
    Submitted,
    WithdrawnResult,
)
from ringlog.wire.commands import encode_command
from ringlog.wire.entries import EncodedEntry, decode_entry


class EntryAuthor(Protocol):
    """Makes entries and request ids for one submitter (``ringlog.log.author``)."""

    def new_request_id(self) -> str:
        """A fresh request id."""

    def entry(
        self, state: ClusterState, command: Command, *, request_id: str | None = None, since_epoch: Epoch | None = None
    ) -> EncodedEntry:
        """An entry that follows ``state``: a new request made at its epoch, unless the caller says whose it is."""


Folding = Callable[[ClusterState, bytes], Folded]


class NoCluster(Exception):
    """The log is empty: nothing can be decided before it has been founded."""


class AheadOfLog(Exception):
    """A request claims to have been made at an epoch that the log has not reached."""

    def __init__(self, since_epoch: Epoch, epoch: Epoch) -> None:
        super().__init__(f"since_epoch {since_epoch} is above the epoch {epoch}")


class RoleRefused(Exception):
    """A take-over breaks another rule than that of the terms."""

    def __init__(self, role: str, code: str, detail: str) -> None:
        super().__init__(f"{role}: {code}: {detail}")
        self.code = code


def folded(state: ClusterState, data: bytes) -> Folded:
    """What a record of the log makes of a state."""
    return fold(state, decode_entry(data))


class Direct:
    """Decides and appends by itself. ``folding``: ``folded``, or the same with a memory. ``timeout``: if no other is
    given.
    """

    def __init__(self, author: EntryAuthor, folding: Folding = folded, timeout: Micros = FOREVER) -> None:
        self.timeout = timeout
        self._author = author
        self._folding = folding

    def submit(
        self,
        command: Command,
        request_id: str | None = None,
        since_epoch: Epoch | None = None,
        timeout: Micros | None = None,
    ) -> Steps[Submitted]:
        """Apply the command or say why not. Raises Undecided, NoCluster, AheadOfLog."""
        asked = request_id if request_id is not None else self._author.new_request_id()
        timeout = self.timeout if timeout is None else timeout
        deadline = (yield Now()) + timeout
        answer: Submitted = yield Exclusive(self._submit(command, asked, since_epoch, deadline), timeout)
        return answer

    def _submit(self, command: Command, asked: str, since: Epoch | None, deadline: Micros) -> Steps[Submitted]:
        state: ClusterState = yield Newest()
        is_fresh = False
        if state.epoch < max(since or 0, 1):
            state, is_fresh = (yield Barrier(max(deadline - (yield Now()), 0))), True
        since = state.epoch if since is None else since
        while True:
            encoded = self._author.entry(state, command, request_id=asked, since_epoch=since)
            answer = decided(state, encoded, self._folding)
            if answer is None:
                judged = yield from commit(EntryChain(state.epoch, (encoded,)), max(deadline - (yield Now()), 0))
                if judged[0] is CommitOutcome.APPLIED:
                    return AppliedResult(asked, state.epoch + 1)
            elif is_fresh or not isinstance(answer, RejectedResult):
                return answer
            state, is_fresh = (yield Barrier(max(deadline - (yield Now()), 0))), True

    def withdraw(
        self, request_id: str, since_epoch: Epoch, timeout: Micros | None = None
    ) -> Steps[WithdrawnResult | AppliedResult | ExpiredResult]:
        """End a request: a Noop under its id makes everything else that carries it a duplicate.

        A request for a Noop counts as withdrawn also if it was applied: that is the same. AppliedResult if its command
        got there first. Raises as ``submit``.
        """
        timeout = self.timeout if timeout is None else timeout
        deadline = (yield Now()) + timeout
        ended: WithdrawnResult | AppliedResult | ExpiredResult = yield Exclusive(
            self._withdraw(request_id, since_epoch, deadline), timeout
        )
        return ended

    def _withdraw(
        self, request_id: str, since_epoch: Epoch, deadline: Micros
    ) -> Steps[WithdrawnResult | AppliedResult | ExpiredResult]:
        noop = command_digest(*encode_command(Noop()))
        while True:
            state = yield Barrier(max(deadline - (yield Now()), 0))
            if (found := find_request(state, request_id)) is not None:
                ended = WithdrawnResult if found.digest == noop else AppliedResult
                return ended(request_id, found.epoch)
            _refuse_future(state, since_epoch)
            if is_expired(state, since_epoch):
                return ExpiredResult(request_id, since_epoch)
            encoded = self._author.entry(state, Noop(), request_id=request_id, since_epoch=since_epoch)
            yield from commit(EntryChain(state.epoch, (encoded,)), max(deadline - (yield Now()), 0))

    def take_over(self, role: str, instance: str, timeout: Micros | None = None) -> Steps[Term]:
        """Become the instance that acts in ``role``: TakeOver with a higher term, again until applied.

        Raises RoleRefused, and as ``submit``.
        """
        deadline = (yield Now()) + (self.timeout if timeout is None else timeout)
        while True:
            state = yield Barrier(max(deadline - (yield Now()), 0))
            term = state.terms[role].term + 1 if role in state.terms else 1
            left = max(deadline - (yield Now()), 0)
            answer = yield from self.submit(TakeOver(role, instance, term), timeout=left)
            if isinstance(answer, AppliedResult):
                return Term(role, instance, term, answer.epoch)
            if isinstance(answer, RejectedResult) and answer.code != "stale_term":
                raise RoleRefused(role, answer.code, answer.detail)


def decided(state: ClusterState, encoded: EncodedEntry, folding: Folding = folded) -> Submitted | None:
    """The answer to an entry that follows ``state`` before it is sent; None if it would be applied.

    Raises NoCluster, AheadOfLog.
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
            raise NoCluster
        case _:
            return RejectedResult(entry.request_id, outcome.code, outcome.detail, state.epoch)


def _refuse_future(state: ClusterState, since_epoch: Epoch) -> None:
    if since_epoch > state.epoch:
        raise AheadOfLog(since_epoch, state.epoch)
