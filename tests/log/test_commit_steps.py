"""The steps of a commit without threads: when it sends entries again, and when it gives up.

Time passes only in the waits of the steps: no test depends on the load of the machine.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from ringlog.kernel.fold import fold
from ringlog.kernel.model.state import ClusterState
from ringlog.log.replicas.replica import LogReplica
from ringlog.protocol.effects import Append, Newest, Now, Until, run_steps
from ringlog.protocol.submission.commit import PAUSES_MAX, Undecided, commit
from ringlog.protocol.submission.results import CommitOutcome, EntryChain
from tests.log.conftest import ChainMaker

RESEND = 100


@dataclass
class ByHand:
    """A log that shows none of its records, except ``then`` at its first append."""

    state: ClusterState
    then: ClusterState | None = None
    now: int = 0
    sent: list[tuple[int, int]] = field(default_factory=list)
    """(time, number of entries) of each append."""

    def perform(self, effect: Any) -> Any:
        match effect:
            case Now():
                return self.now
            case Newest():
                return self.state
            case Append(records):
                self.sent.append((self.now, len(records)))
                self.state = self.then or self.state
                return None
            case Until(found, timeout):
                value = found(self.state)
                self.now += timeout if value is None else 0
                return value
        raise AssertionError(effect)


def _after(state: ClusterState, chain: EntryChain) -> ClusterState:
    for encoded in chain.entries:
        state = fold(state, encoded.entry).state
    return state


def test_open_entries_are_sent_after_pauses_that_double_to_a_bound(replica: LogReplica, chain_of: ChainMaker) -> None:
    log = ByHand(replica.state)
    with pytest.raises(Undecided, match="3 entries after epoch 1") as caught:
        run_steps(commit(chain_of(log.state), 3000, RESEND), log.perform)
    assert log.sent == [(0, 3), (100, 3), (300, 3), (700, 3), (1500, 3), (2300, 3)]
    assert PAUSES_MAX * RESEND == 2300 - 1500
    assert log.now == 3000, "the last pause ends at the time limit, not after it"
    assert caught.value.judged == (CommitOutcome.OPEN,) * 3


def test_without_a_time_limit_entries_are_sent_once(replica: LogReplica, chain_of: ChainMaker) -> None:
    log = ByHand(replica.state)
    with pytest.raises(Undecided):
        run_steps(commit(chain_of(log.state), 0, RESEND), log.perform)
    assert (log.sent, log.now) == ([(0, 3)], 0)


def test_a_commit_first_waits_for_entries_in_transit(replica: LogReplica, chain_of: ChainMaker) -> None:
    chain = chain_of(replica.state)
    log = ByHand(replica.state, then=_after(replica.state, chain))
    assert run_steps(commit(chain, resend=RESEND, already_sent=3), log.perform) == (CommitOutcome.APPLIED,) * 3
    assert log.sent == [(RESEND, 3)]


def test_final_entries_are_not_sent(replica: LogReplica, chain_of: ChainMaker) -> None:
    chain = chain_of(replica.state)
    log = ByHand(_after(replica.state, chain))
    assert run_steps(commit(chain, 0, RESEND), log.perform) == (CommitOutcome.APPLIED,) * 3
    assert log.sent == []
