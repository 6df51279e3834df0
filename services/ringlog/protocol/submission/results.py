"""Results of requests, and outcomes of the entries that were sent for them.

A request has exactly one result, which is final. An entry is applied, lost, or still open.

An author sends a *chain* of entries. Each names the one before it as its predecessor, the first one a state of the log.
The outcome of an entry is final when

- the entry is applied,
- another entry with the same predecessor is applied, or
- the outcome of its predecessor is final without effect.

An entry that was *seen* as stale may still be open: a copy of it may be under way, and its predecessor may still
arrive.

The predecessor fixes the epoch: entry i of a chain on epoch b makes epoch b + 1 + i or nothing, as does every other
entry with that predecessor. So outcomes are read from the history at that epoch, in chain order, independent of the
order of arrival. An epoch that has left the history gives ``FORGOTTEN``: final, but unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Epoch, Value
from ringlog.wire.entries import EncodedEntry


class CommitOutcome(Enum):
    """The outcome of an entry that was sent."""

    OPEN = "open"
    APPLIED = "applied"
    LOST = "lost"
    FORGOTTEN = "forgotten"


class EntryChain(Value):
    """Entries that are sent together. ``base``: the epoch of the state that the first one follows; 0: initial entry."""

    base: Epoch
    entries: tuple[EncodedEntry, ...]

    def __post_init__(self) -> None:
        for before, after in zip(self.entries, self.entries[1:], strict=False):
            assert after.entry.prev_state_id == before.entry.state_id, "entries of a chain are consecutive"


def commit_outcomes(state: ClusterState, chain: EntryChain) -> tuple[CommitOutcome, ...]:
    """Return the outcome of each entry of the chain in the log that leads to ``state``."""
    judged: list[CommitOutcome] = []
    before = CommitOutcome.APPLIED
    for epoch, encoded in enumerate(chain.entries, start=chain.base + 1):
        before = _commit_outcome(state, epoch, encoded.entry.state_id, before)
        judged.append(before)
    return tuple(judged)


def _commit_outcome(state: ClusterState, epoch: Epoch, state_id: str, before: CommitOutcome) -> CommitOutcome:
    if before is CommitOutcome.LOST:
        return CommitOutcome.LOST
    if epoch > state.epoch:
        return CommitOutcome.OPEN
    applied = state.history.at(epoch)
    if applied is None:
        return CommitOutcome.FORGOTTEN
    return CommitOutcome.APPLIED if applied.state_id == state_id else CommitOutcome.LOST


def all_final(judged: Sequence[CommitOutcome]) -> bool:
    """Return whether no later event can change these outcomes."""
    return CommitOutcome.OPEN not in judged


def is_over(chain: EntryChain, state: ClusterState) -> bool:
    """Return whether all outcomes are final, by the newest epoch alone.

    They are not if the newest epoch is an entry of the chain other than its last.
    """
    behind = state.epoch - chain.base
    if not 0 < behind < len(chain.entries):
        return behind > 0
    return state.state_id != chain.entries[behind - 1].entry.state_id


def open_entries(chain: EntryChain, judged: Sequence[CommitOutcome], behind: int = 0) -> tuple[EncodedEntry, ...]:
    """Return the entries to send again, identically and in chain order, without the first ``behind`` ones."""
    both = zip(chain.entries[behind:], judged[behind:], strict=True)
    return tuple(encoded for encoded, outcome in both if outcome is CommitOutcome.OPEN)


class AppliedResult(Value):
    """The command is in the log, and made ``epoch``."""

    request_id: str
    epoch: Epoch


class RejectedResult(Value):
    """The command was decided on the state of ``epoch`` and rejected. It never has an effect."""

    request_id: str
    code: str
    detail: str
    epoch: Epoch


class ExpiredResult(Value):
    """The result is unknown, and is final.

    The request has no effect from now on, but may have had one. Look in the log since ``since_epoch``.
    """

    request_id: str
    since_epoch: Epoch


class WithdrawnResult(Value):
    """A Noop used the request's id at ``epoch``. Every other entry with the id is a duplicate."""

    request_id: str
    epoch: Epoch


Submitted = AppliedResult | RejectedResult | ExpiredResult


def describe(answer: Submitted) -> str:
    """Return an answer as a text for logs and errors."""
    match answer:
        case AppliedResult():
            return f"applied at epoch {answer.epoch}"
        case RejectedResult():
            return f"{answer.code}: {answer.detail}"
        case _:
            return f"request_expired: the outcome is unknown and final; search the log since epoch {answer.since_epoch}"
