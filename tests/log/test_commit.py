"""Group commit on a log that loses, delays and repeats records and loses answers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future

import pytest

from ringlog.kernel.commands.cluster.cluster import Noop
from ringlog.kernel.fold import fold
from ringlog.kernel.model.outcome import OutcomeKind
from ringlog.log.author import Author
from ringlog.log.errors import LogUnavailable, WaitTimedOut
from ringlog.log.replicas.replica import LogReplica
from ringlog.protocol.submission.results import CommitOutcome, EntryChain
from tests.log.commit_driver import FateOpen, commit, settle
from tests.log.faulty_log import Fault, FaultyLog

ChainMaker = Callable[..., EntryChain]

QUICK_S = 0.02
APPLIED, LOST = CommitOutcome.APPLIED, CommitOutcome.LOST


def test_a_chain_is_applied_in_one_append(log: FaultyLog, replica: LogReplica, chain_of: ChainMaker) -> None:
    done = commit(log, replica, chain_of(replica.state))
    assert done.commit_outcomes == (APPLIED,) * 3
    assert replica.state.epoch == 4
    assert [len(records) for records in log.appends] == [3]


def test_a_lost_entry_is_sent_with_its_successors(log: FaultyLog, replica: LogReplica, chain_of: ChainMaker) -> None:
    log.plan(Fault(lost=frozenset({1})))
    chain = chain_of(replica.state)
    assert commit(log, replica, chain, resend_s=QUICK_S).commit_outcomes == (APPLIED,) * 3
    sent = tuple(encoded.data for encoded in chain.entries)
    assert log.appends[0] == sent
    assert all(records == sent[-len(records) :] for records in log.appends), (
        "the same entries in the same order, as often as necessary"
    )
    assert replica.counts[OutcomeKind.STALE] == 1, "the third arrived before the second"


def test_only_open_entries_are_sent_again(log: FaultyLog, replica: LogReplica, chain_of: ChainMaker) -> None:
    log.plan(Fault(lost=frozenset({1})))
    chain = chain_of(replica.state)
    with pytest.raises(FateOpen):
        commit(log, replica, chain, timeout_s=0.0)
    assert replica.read_barrier().epoch == chain.base + 1
    assert commit(log, replica, chain, resend_s=60.0).commit_outcomes == (APPLIED,) * 3
    sent = tuple(encoded.data for encoded in chain.entries)
    assert log.appends == [sent, sent[1:]]


def test_an_entry_that_is_late_has_no_second_effect(log: FaultyLog, replica: LogReplica, chain_of: ChainMaker) -> None:
    log.plan(Fault(late=frozenset({0, 1})))
    assert commit(log, replica, chain_of(replica.state), resend_s=QUICK_S).commit_outcomes == (APPLIED,) * 3
    before = replica.read_barrier()
    assert log.release() == 2
    assert replica.read_barrier() is before
    again = sum(len(records) for records in log.appends[2:])
    assert replica.counts[OutcomeKind.DUPLICATE] == 2 + again, "no second effect, unless this process was paused"


def test_a_late_entry_may_win_over_its_copy(log: FaultyLog, replica: LogReplica, chain_of: ChainMaker) -> None:
    """The late records arrive while the author waits, so it sends nothing again."""
    log.plan(Fault(late=frozenset({0, 1, 2})))
    chain = chain_of(replica.state)
    with pytest.raises(FateOpen) as caught:
        commit(log, replica, chain, timeout_s=0.0, resend_s=QUICK_S)
    assert caught.value.judged == (CommitOutcome.OPEN,) * 3
    log.release()
    replica.read_barrier()
    assert commit(log, replica, chain).commit_outcomes == (APPLIED,) * 3
    assert len(log.appends) == 1


def test_a_lost_answer_creates_no_second_entry(log: FaultyLog, replica: LogReplica, chain_of: ChainMaker) -> None:
    log.plan(Fault(answer_lost=True))
    assert commit(log, replica, chain_of(replica.state), resend_s=30).commit_outcomes == (APPLIED,) * 3
    assert len(log.appends) == 1, "the log itself gave the answer"


def unanswered(log: FaultyLog, monkeypatch: pytest.MonkeyPatch, *, arrive: bool) -> list[Future[None]]:
    """Make the broker answer only on command; the next records ``arrive`` anyway, or are lost."""
    answers: list[Future[None]] = []

    def append_async(records: Sequence[bytes]) -> Future[None]:
        if arrive or answers:
            log.append(records)
        answers.append(Future())
        return answers[-1]

    monkeypatch.setattr(log, "append_async", append_async)
    return answers


def test_no_author_waits_for_an_answer_that_the_log_has_given(
    log: FaultyLog, replica: LogReplica, chain_of: ChainMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = unanswered(log, monkeypatch, arrive=True)
    assert commit(log, replica, chain_of(replica.state)).commit_outcomes == (APPLIED,) * 3
    assert [answer.done() for answer in answers] == [False]


def test_nothing_is_sent_again_before_there_is_an_answer(
    log: FaultyLog, replica: LogReplica, chain_of: ChainMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = unanswered(log, monkeypatch, arrive=False)
    chain = chain_of(replica.state)
    author = threading.Thread(target=lambda: commit(log, replica, chain, resend_s=QUICK_S))
    author.start()
    with pytest.raises(WaitTimedOut):
        replica.wait_for(lambda _: len(answers) > 1, 10 * QUICK_S, "a second append")
    answers[0].set_exception(LogUnavailable("no answer in time"))
    author.join(60)
    assert replica.read_barrier().epoch == chain.base + 3
    assert len(answers) == 2, "the author waited for the slow answer and then sent again"


def test_repeated_records_are_duplicates(log: FaultyLog, replica: LogReplica, chain_of: ChainMaker) -> None:
    log.plan(Fault(twice=frozenset({0, 2})))
    assert commit(log, replica, chain_of(replica.state)).commit_outcomes == (APPLIED,) * 3
    replica.read_barrier()
    assert replica.counts[OutcomeKind.DUPLICATE] == 2


def test_a_foreign_append_ends_the_remaining_chain(
    log: FaultyLog, replica: LogReplica, chain_of: ChainMaker, author: Author
) -> None:
    chain = chain_of(replica.state)
    first = chain.entries[0].entry
    middle = author.entry(fold(replica.state, first).state, Noop())
    assert middle.entry.prev_state_id == first.state_id
    log.plan(Fault(before={1: middle.data}))
    assert commit(log, replica, chain).commit_outcomes == (APPLIED, LOST, LOST)
    assert replica.state.state_id == middle.entry.state_id


def test_a_competing_entry_ends_a_batch(
    log: FaultyLog, replica: LogReplica, chain_of: ChainMaker, author: Author
) -> None:
    log.plan(Fault(before={0: author.entry(replica.state, Noop()).data}))
    assert commit(log, replica, chain_of(replica.state)).commit_outcomes == (LOST,) * 3
    assert replica.state.epoch == 2


def test_settling_voids_late_entries(log: FaultyLog, replica: LogReplica, chain_of: ChainMaker, author: Author) -> None:
    log.plan(Fault(late=frozenset({1, 2})))
    chain = chain_of(replica.state)
    with pytest.raises(FateOpen):
        commit(log, replica, chain, timeout_s=0.0)
    replica.read_barrier()
    assert settle(log, replica, author, chain).commit_outcomes == (APPLIED, LOST, LOST)
    settled = replica.state
    log.release()
    assert replica.read_barrier() is settled


def test_settling_finds_late_entries(log: FaultyLog, replica: LogReplica, chain_of: ChainMaker, author: Author) -> None:
    log.plan(Fault(late=frozenset({0, 1, 2})))
    chain = chain_of(replica.state)
    with pytest.raises(FateOpen):
        commit(log, replica, chain, timeout_s=0.0)
    log.release()
    assert settle(log, replica, author, chain).commit_outcomes == (APPLIED,) * 3
    assert replica.state.epoch == 4


def test_the_deadline_reports_open_entries(log: FaultyLog, replica: LogReplica, chain_of: ChainMaker) -> None:
    """``tests/log/test_commit_steps.py`` checks the number of attempts before the deadline, without a running clock."""
    log.plan(Fault(lost=frozenset({0, 1, 2})))
    with pytest.raises(FateOpen, match="fate of 3 entries after epoch 1"):
        commit(log, replica, chain_of(replica.state), timeout_s=0.0, resend_s=QUICK_S)
