"""Answers to what was submitted together: in the order of the seats, whoever fills them, one wait for all."""

from __future__ import annotations

import threading

import pytest

from ringlog.client.together import Together


def test_answers_come_in_the_order_of_the_seats_from_any_thread() -> None:
    together: Together[int] = Together()
    seats = [together.seat() for _ in range(200)]
    found: list[tuple[int, ...]] = []
    waits = threading.Thread(target=lambda: found.append(together.results()))
    waits.start()
    fill = [
        threading.Thread(target=lambda own=own: [seats[at].set_result(at) for at in reversed(range(own, 200, 4))])
        for own in range(4)
    ]
    for thread in fill:
        thread.start()
    for thread in (*fill, waits):
        thread.join(60)
    assert found == [tuple(range(200))]


def test_answers_that_come_before_the_last_seat_end_no_wait() -> None:
    together: Together[int] = Together()
    together.seat().set_result(1)
    last = together.seat()
    assert not together._whole.is_set()
    last.set_result(2)
    assert not together._whole.is_set(), "more may follow, until somebody waits"
    assert together.results() == (1, 2)


def test_the_first_error_is_raised_when_all_have_an_end() -> None:
    together: Together[int] = Together()
    first, second, third = (together.seat() for _ in range(3))
    third.set_exception(KeyError("third"))
    second.set_exception(ValueError("second"))
    first.set_result(1)
    with pytest.raises(ValueError, match="second"):
        together.results()


def test_nothing_together_is_answered_at_once() -> None:
    assert Together[int]().results() == ()
