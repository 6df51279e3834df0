"""Tries that were in vain: counted from where the operation is, told when it is news, bounded."""

from __future__ import annotations

import pytest

from ringlog.kernel.commands.cluster import ChangeSettings
from ringlog.kernel.commands.movements import Join
from ringlog.kernel.commands.operations import FailOperation, RetryOperation
from ringlog.kernel.operations.failures import counts_from
from ringlog.node.tries import AGAIN_MOST_S, AGAIN_S, Tries, news_of
from tests.kernel.movements.clusters import placed, simple
from tests.kernel.operations.drive import SEED, applied, begun, driven

TWO = {"n1": ("dc1/r1", (100,)), "n2": ("dc1/r1", (200,)), "x": ("dc1/r1", ())}


def test_a_stream_is_asked_for_so_often_and_again_after_a_decision() -> None:
    state = applied(placed(TWO, simple(1)), ChangeSettings((("stream_tries_max", 3),)))
    state, operation = begun(state, Join("x", (150,), SEED))
    state = driven(state, operation, "write_both_read_old")
    tries = Tries()
    waits = []
    while tries.may_try("stream", operation, state):
        waits.append(tries.failed("stream", operation, "n2", state, f"refused {len(waits)}", 7 + len(waits)))
    assert waits == [AGAIN_S, 2 * AGAIN_S, 4 * AGAIN_S]
    (told,) = tries.told()
    since = counts_from(state.operations[operation])
    assert (told.operation, told.source, told.count, told.since, told.at) == (operation, "n2", 3, since, 7)
    assert told.reason == "refused 2"

    state = applied(state, FailOperation(operation, told.reason, "x", told.count, told.since))
    assert not tries.may_try("stream", operation, state)
    state = applied(state, RetryOperation(operation, "n2 is back"))
    assert tries.may_try("stream", operation, state)
    tries.failed("stream", operation, "n2", state, "refused again", 99)
    (told,) = tries.told()
    assert (told.count, told.since, told.at) == (1, state.epoch, 99)
    tries.over("stream")
    assert tries.told() == ()


def test_the_streams_of_a_session_are_asked_for_so_often() -> None:
    state = applied(placed(TWO, simple(1)), ChangeSettings((("stream_tries_max", 2),)))
    tries, session = Tries(), "ks.t/0@9"
    for _ in range(2):
        assert tries.may_try("stream", session, state)
        tries.failed("stream", session, "n2", state, "away", 0)
    assert not tries.may_try("stream", session, state)
    assert tries.may_try("that of the next session", "ks.t/0@12", state)


def test_news_are_few_and_the_last_one_is_among_them() -> None:
    state = placed(TWO, simple(1))
    tries, news = Tries(), set()
    for _ in range(200):
        assert tries.failed("stream", "join-1", "n2", state, "away", 0) <= AGAIN_MOST_S
        news.add(news_of(tries.told(), 200))
    assert len(news) == 9
    assert len(news_of(tries.told(), 200)) == 2


def test_of_many_streams_those_are_told_that_were_tried_most_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are the next to be decided about; an acknowledgement with all of them might be too large for its topic."""
    monkeypatch.setattr("ringlog.node.tries.TOLD_MAX", 2)
    state, tries = placed(TWO, simple(1)), Tries()
    for number in range(4):
        for _ in range(1 + number % 3):
            tries.failed(number, f"ks.t/{number}@9", "n2", state, "away", 0)
    assert [(one.operation, one.count) for one in tries.told()] == [("ks.t/1@9", 2), ("ks.t/2@9", 3)]
