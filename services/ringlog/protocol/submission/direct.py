"""Submission without a validator: decide, append, fold; after a lost race, decide again.

A request is decided on the newest folded state. An applied entry proves that this state was the head of the log. A
rejection proves nothing: it is decided again behind a read barrier, and only that decision counts.

This is for the initial entry, recovery, take-overs, and for times without a validator. Many direct authors at once
starve each other and the validator. The rules are the same, because the decision is the fold of the very entry that
would be appended. A process makes one decision at a time on one replica. ``EntryAuthor`` is a port, because clock and
random bits belong to the driver.

A rejection decided here is final for a request that was only submitted this way. Every entry that this call sent has a
final outcome. An entry that another call left open can be applied only if its predecessor is still the newest state.
But then the same command would be accepted here, too.

A request that also went to the validator may be reported as rejected only after ``withdraw``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from ringlog.kernel.commands.cluster.cluster import Noop, TakeOver
from ringlog.kernel.encoding.encoder import command_digest
from ringlog.kernel.fold import fold
from ringlog.kernel.history import find_request, is_expired
from ringlog.kernel.model.modes import Term
from ringlog.kernel.model.outcome import Folded, OutcomeKind
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Command, Epoch, Micros
from ringlog.protocol.effects import FOREVER, Barrier, Exclusive, Newest, Now
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
        """Return a new request id."""

    def entry(
        self, state: ClusterState, command: Command, *, request_id: str | None = None, since_epoch: Epoch | None = None
    ) -> EncodedEntry:
        """Return an entry that follows ``state``. By default it is a new request, made at the epoch of ``state``."""


Folding = Callable[[ClusterState, bytes], Folded]


class NoCluster(Exception):
    """The log is empty: no command can be decided before the initial entry."""


class AheadOfLog(Exception):
    """A request claims an epoch that the log has not reached."""

    def __init__(self, since_epoch: Epoch, epoch: Epoch) -> None:
        super().__init__(f"since_epoch {since_epoch} is above the epoch {epoch}")


class RoleRefused(Exception):
    """The log rejected a take-over for another reason than its term."""

    def __init__(self, role: str, code: str, detail: str) -> None:
        super().__init__(f"{role}: {code}: {detail}")
        self.code = code


def folded(state: ClusterState, data: bytes) -> Folded:
    """Return the outcome of a record of the log on a state."""
    return fold(state, decode_entry(data))


class Direct:
    """Decides and appends without a validator. ``folding``: ``folded``, or the same with a cache."""

    def __init__(self, author: EntryAuthor, folding: Folding = folded, timeout: Micros = FOREVER) -> None:
        self.timeout = timeout
        self._author = author
        self._folding = folding

    async def submit(
        self,
        command: Command,
        request_id: str | None = None,
        since_epoch: Epoch | None = None,
        timeout: Micros | None = None,
    ) -> Submitted:
        """Apply the command, or return why it was not. Raises Undecided, NoCluster, AheadOfLog."""
        asked = request_id if request_id is not None else self._author.new_request_id()
        timeout = self.timeout if timeout is None else timeout
        deadline = await Now() + timeout
        answer = await Exclusive(partial(self._submit, command, asked, since_epoch, deadline), timeout)
        return answer

    async def _submit(self, command: Command, asked: str, since: Epoch | None, deadline: Micros) -> Submitted:
        """Decide and append under the decision lock, until the answer is final."""
        state = await Newest()
        is_fresh = False
        # This replica has not folded the initial entry, or the epoch that the request was made at. It may only be
        # behind.
        if state.epoch < max(since or 0, 1):
            state, is_fresh = (await Barrier(max(deadline - await Now(), 0))), True
        since = state.epoch if since is None else since
        while True:
            encoded = self._author.entry(state, command, request_id=asked, since_epoch=since)
            answer = decided(state, encoded, self._folding)
            if answer is None:
                judged = await commit(EntryChain(state.epoch, (encoded,)), max(deadline - await Now(), 0))
                if judged[0] is CommitOutcome.APPLIED:
                    return AppliedResult(asked, state.epoch + 1)
            elif is_fresh or not isinstance(answer, RejectedResult):
                return answer
            state, is_fresh = (await Barrier(max(deadline - await Now(), 0))), True

    async def withdraw(
        self, request_id: str, since_epoch: Epoch, timeout: Micros | None = None
    ) -> WithdrawnResult | AppliedResult | ExpiredResult:
        """End a request. A Noop under its id makes every other entry with the id a duplicate.

        If the request itself is a Noop, it counts as withdrawn even if it was applied. Returns AppliedResult if the
        request's command was applied first. Raises as ``submit``.
        """
        timeout = self.timeout if timeout is None else timeout
        deadline = await Now() + timeout
        ended = await Exclusive(partial(self._withdraw, request_id, since_epoch, deadline), timeout)
        return ended

    async def _withdraw(
        self, request_id: str, since_epoch: Epoch, deadline: Micros
    ) -> WithdrawnResult | AppliedResult | ExpiredResult:
        noop = command_digest(*encode_command(Noop()))
        while True:
            state = await Barrier(max(deadline - await Now(), 0))
            if (found := find_request(state, request_id)) is not None:
                ended = WithdrawnResult if found.digest == noop else AppliedResult
                return ended(request_id, found.epoch)
            _refuse_future(state, since_epoch)
            if is_expired(state, since_epoch):
                return ExpiredResult(request_id, since_epoch)
            encoded = self._author.entry(state, Noop(), request_id=request_id, since_epoch=since_epoch)
            await commit(EntryChain(state.epoch, (encoded,)), max(deadline - await Now(), 0))

    async def take_over(self, role: str, instance: str, timeout: Micros | None = None) -> Term:
        """Make ``instance`` the active instance of ``role``: submit TakeOver with a higher term until it is applied.

        Raises RoleRefused, and as ``submit``.
        """
        deadline = await Now() + (self.timeout if timeout is None else timeout)
        while True:
            state = await Barrier(max(deadline - await Now(), 0))
            term = state.terms[role].term + 1 if role in state.terms else 1
            left = max(deadline - await Now(), 0)
            answer = await self.submit(TakeOver(role, instance, term), timeout=left)
            if isinstance(answer, AppliedResult):
                return Term(role, instance, term, answer.epoch)
            if isinstance(answer, RejectedResult) and answer.code != "stale_term":
                raise RoleRefused(role, answer.code, answer.detail)


def decided(state: ClusterState, encoded: EncodedEntry, folding: Folding = folded) -> Submitted | None:
    """Return the answer to an entry that follows ``state``, without sending it; None if it would be applied.

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
            assert found is not None, "an entry with a new state id is not a duplicate"
            if found.digest == entry.digest:
                return AppliedResult(entry.request_id, found.epoch)
            return RejectedResult(entry.request_id, "request_id_reused", outcome.detail, state.epoch)
        case OutcomeKind.EXPIRED:
            return ExpiredResult(entry.request_id, entry.since_epoch)
        # The entry follows ``state`` itself, so it is stale only on an empty log.
        case OutcomeKind.STALE:
            raise NoCluster
        case _:
            return RejectedResult(entry.request_id, outcome.code, outcome.detail, state.epoch)


def _refuse_future(state: ClusterState, since_epoch: Epoch) -> None:
    if since_epoch > state.epoch:
        raise AheadOfLog(since_epoch, state.epoch)
