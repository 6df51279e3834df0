"""Founding: the first valid entry wins, everybody learns whose it was."""

from __future__ import annotations

import threading

import pytest

from ringlog.client.founding import Founding, FoundingRefused, found
from ringlog.log.memory import MemoryLog
from ringlog.log.replica import LogReplica
from tests.log.faulty import Fault, FaultyLog


def test_a_second_founding_tells_who_was_first() -> None:
    log = MemoryLog()
    with LogReplica(log) as replica:
        first = found(log, replica, "orders", {"history_entries": 500}, submitter="anna")
        written = log.end_offset()  # one record, or more where the machine stood still
        second = found(log, replica, "orders", submitter="bert")
    assert first.here
    assert not second.here
    assert second == Founding(first.cluster_id, "orders", "anna", first.at, False)
    assert replica.state.settings["history_entries"] == 500
    assert log.end_offset() == written


def test_of_several_at_once_exactly_one_founds() -> None:
    log = MemoryLog()
    foundings: list[Founding] = []
    together = threading.Barrier(4)

    def work(name: str) -> None:
        with LogReplica(log) as replica:
            together.wait(60)
            foundings.append(found(log, replica, "orders", submitter=name))

    threads = [threading.Thread(target=work, args=(f"founder-{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [founding.here for founding in foundings].count(True) == 1
    winner = next(founding for founding in foundings if founding.here)
    assert {founding.cluster_id for founding in foundings} == {winner.cluster_id}
    assert {founding.submitter for founding in foundings} == {winner.submitter}


def test_a_founding_that_comes_second_is_foreign_and_harmless() -> None:
    log = FaultyLog(MemoryLog(), [Fault(late=frozenset({0}), answer_lost=True)])
    with LogReplica(log) as slow, LogReplica(log) as quick:
        waiting: list[Founding] = []
        thread = threading.Thread(target=lambda: waiting.append(found(log, slow, "orders", submitter="slow")))
        thread.start()
        other = found(log, quick, "orders", submitter="quick")
        thread.join(60)
        log.release()
        assert slow.read_barrier().epoch == quick.read_barrier().epoch == 1
        assert waiting[0].cluster_id == other.cluster_id
        assert waiting[0].here != other.here


def test_settings_against_the_rules_are_refused_before_anything_is_written() -> None:
    log = MemoryLog()
    with LogReplica(log) as replica, pytest.raises(FoundingRefused) as caught:
        found(log, replica, "orders", {"history_entries": -1})
    assert caught.value.code == "bad_setting"
    assert log.end_offset() == 0
