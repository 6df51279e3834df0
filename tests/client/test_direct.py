"""Direct submission: the fold decides it, a lost race repeats it, and a Noop with the same id ends it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ringlog.client.direct import DirectAuthor
from ringlog.client.errors import ClusterNotCreated, InvalidSubmission, SubmissionTimedOut, TakeOverRefused
from ringlog.kernel.commands.cluster.cluster import ChangeSettings, Noop, TakeOver
from ringlog.kernel.commands.schema.keyspaces import DropKeyspace
from ringlog.kernel.history import find_request
from ringlog.kernel.model.outcome import OutcomeKind
from ringlog.log.author import Author
from ringlog.log.memory import MemoryLog
from ringlog.log.replicas.replica import LogReplica
from ringlog.protocol.submission.results import AppliedResult, ExpiredResult, RejectedResult, WithdrawnResult
from ringlog.runtime.clock import SystemClock
from ringlog.runtime.draw import SystemDraw
from tests.log.faulty_log import Fault, FaultyLog
from tests.waiting import at_once

OTHER = Author("other", SystemClock(), SystemDraw())
ID = "01890000-0000-7000-8000-000000000001"
SETTINGS = ChangeSettings((("history_entries", 200),))


@pytest.fixture
def replica(metadata: FaultyLog) -> Iterator[LogReplica]:
    with LogReplica(metadata) as replica:
        yield replica


@pytest.fixture
def direct(metadata: FaultyLog, replica: LogReplica) -> DirectAuthor:
    return DirectAuthor(metadata, replica, "me")


def test_applied_and_rejected(direct: DirectAuthor, replica: LogReplica, metadata: FaultyLog) -> None:
    answer = direct.submit(SETTINGS, request_id=ID)
    assert answer == AppliedResult(ID, 2)
    assert replica.state.settings["history_entries"] == 200
    refused = direct.submit(DropKeyspace("nowhere"))
    assert isinstance(refused, RejectedResult)
    assert (refused.code, refused.epoch) == ("unknown_keyspace", 2)
    assert len(metadata.appends) == 1, "rejections append no entry"


def test_the_same_request_again_has_no_second_effect(direct: DirectAuthor, metadata: FaultyLog) -> None:
    first = direct.submit(SETTINGS, request_id=ID, since_epoch=1)
    assert direct.submit(SETTINGS, request_id=ID, since_epoch=1) == first
    assert len(metadata.appends) == 1
    reused = direct.submit(Noop(), request_id=ID, since_epoch=1)
    assert isinstance(reused, RejectedResult)
    assert reused.code == "request_id_reused"


def test_a_lost_race_is_decided_again(direct: DirectAuthor, replica: LogReplica, metadata: FaultyLog) -> None:
    rival = OTHER.entry(replica.read_barrier(), TakeOver("coordinator", "x", 1))
    metadata.plan(Fault(before={0: rival.data}))
    answer = direct.submit(TakeOver("coordinator", "me", 1))
    assert isinstance(answer, RejectedResult)
    assert answer.code == "stale_term", "the decision uses the state after the competing entry"
    assert replica.counts[OutcomeKind.STALE] > 0


def test_taking_over_retries_with_a_higher_term(direct: DirectAuthor, replica: LogReplica, metadata: FaultyLog) -> None:
    rival = OTHER.entry(replica.read_barrier(), TakeOver("publisher", "x", 7))
    metadata.plan(Fault(before={0: rival.data}))
    term = direct.take_over("publisher", "me")
    assert (term.term, term.instance, term.since) == (8, "me", 3)
    assert replica.state.terms["publisher"] == term
    with pytest.raises(TakeOverRefused, match="bad_field"):
        direct.take_over("no role!", "me")


def test_a_lost_answer_and_a_lost_record(direct: DirectAuthor, metadata: FaultyLog) -> None:
    metadata.plan(Fault(answer_lost=True), Fault(lost=frozenset({0})))
    assert isinstance(direct.submit(Noop()), AppliedResult)
    answer = direct.submit(Noop())
    assert isinstance(answer, AppliedResult)
    assert answer.epoch == 3
    assert metadata.appends[1] == metadata.appends[2], "the identical entry"


def test_a_withdrawn_entry_is_a_late_duplicate(direct: DirectAuthor, replica: LogReplica, metadata: FaultyLog) -> None:
    metadata.plan(Fault(late=frozenset({0})))
    with pytest.raises(SubmissionTimedOut, match="withdraw") as caught:
        direct.submit(SETTINGS, timeout_s=0.05)
    request_id, since = caught.value.request_id, caught.value.since_epoch
    assert direct.withdraw(request_id, since) == WithdrawnResult(request_id, 2)
    assert direct.withdraw(request_id, since) == WithdrawnResult(request_id, 2)
    replica.read_barrier()
    before = replica.counts[OutcomeKind.DUPLICATE]
    metadata.release()
    state = replica.read_barrier()
    assert (state.epoch, state.settings["history_entries"]) == (2, 100)
    assert replica.counts[OutcomeKind.DUPLICATE] == before + 1


def test_a_late_withdrawal_reports_the_applied_command(direct: DirectAuthor) -> None:
    direct.submit(SETTINGS, request_id=ID)
    assert direct.withdraw(ID, 1) == AppliedResult(ID, 2)


def test_an_expired_request_is_unknown_and_final(direct: DirectAuthor, replica: LogReplica) -> None:
    direct.submit(SETTINGS, request_id=ID, since_epoch=1)
    for _ in range(250):
        direct.submit(Noop())
    assert find_request(replica.state, ID) is None
    assert direct.submit(SETTINGS, request_id=ID, since_epoch=1) == ExpiredResult(ID, 1)
    assert direct.withdraw(ID, 1) == ExpiredResult(ID, 1)
    with pytest.raises(InvalidSubmission, match="above the epoch"):
        direct.submit(Noop(), request_id=ID, since_epoch=9_999)


def test_only_an_initial_entry_fits_an_empty_log() -> None:
    log = MemoryLog()
    with LogReplica(log) as replica, pytest.raises(ClusterNotCreated):
        DirectAuthor(log, replica, "me").submit(Noop())


def test_concurrent_authors_are_each_applied_once(metadata: FaultyLog) -> None:
    answers: list[AppliedResult] = []

    def work(name: str) -> None:
        with LogReplica(metadata) as replica:
            author = DirectAuthor(metadata, replica, name)
            for _ in range(15):
                answer = author.submit(Noop())
                assert isinstance(answer, AppliedResult)
                answers.append(answer)

    at_once(work, [f"author-{number}" for number in range(3)])
    assert sorted(answer.epoch for answer in answers) == list(range(2, 47))
    with LogReplica(metadata) as replica:
        state = replica.read_barrier()
        assert state.epoch == 46
        for answer in answers:
            made = find_request(state, answer.request_id)
            assert made is not None
            assert made.epoch == answer.epoch
