"""The send schedule of requests: a single request at once, many requests in groups, none too late."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringlog.client.outbox import GROUP, HOLD, Outbox
from ringlog.client.together import ResultBatch
from ringlog.protocol.submission.submission import EncodedRequest, RequestKey, Send


def send(number: int) -> Send:
    return Send(EncodedRequest(RequestKey(f"r{number}", 0, "d"), "Noop", b"x"), alone=False)


def ids(sent: list[Send]) -> list[str]:
    return [one.request.key.request_id for one in sent]


def test_the_first_and_the_second_go_at_once_and_the_third_waits_for_an_answer() -> None:
    box = Outbox()
    for number in (1, 2):
        box.put(send(number), 0)
        assert box.is_ready()
        assert ids(box.take()) == [f"r{number}"]
    box.put(send(3), 0)
    assert not box.is_ready(), "one waits, two are in transit"
    box.ended("r1")
    assert box.is_ready()
    assert ids(box.take()) == ["r3"]
    assert not box.is_ready(), "no request waits"


def test_a_full_group_is_sent_at_once() -> None:
    box = Outbox()
    for number in range(10 * GROUP):
        box.put(send(number), 0)
    box.take()
    for number in range(GROUP - 1):
        box.put(send(1_000 + number), 0)
        assert not box.is_ready()
    box.put(send(2_000), 0)
    assert box.is_ready()


def test_while_more_follow_only_full_groups_go() -> None:
    box = Outbox()
    box.more_follow()
    for number in range(GROUP - 1):
        box.put(send(number), 0)
        assert not box.is_ready()
    box.put(send(GROUP), 0)
    assert box.is_ready()
    box.take()
    box.ended("r1")
    box.put(send(GROUP + 1), 0)
    assert not box.is_ready()
    for number in range(GROUP - 1):
        box.ended(f"r{number}")
    assert not box.is_ready(), "one is in transit, and more follow"
    box.no_more()
    assert box.is_ready()


def test_the_rest_of_many_waits_for_no_answer_to_the_others() -> None:
    box = Outbox()
    box.more_follow()
    box.more_follow()
    for number in range(GROUP):
        box.put(send(number), 0)
    box.take()
    for number in range(3):
        box.put(send(GROUP + number), 0)
    box.no_more()
    assert not box.is_ready(), "the next group is sent"
    box.no_more()
    assert box.is_ready()
    assert len(box.take()) == 3
    for number in range(3):
        box.put(send(1_000 + number), 0)
    assert not box.is_ready(), "later requests wait for their group"


def test_sent_groups_do_not_hurry_later_requests() -> None:
    box = Outbox()
    box.more_follow()
    for number in range(GROUP):
        box.put(send(number), 0)
    box.take()
    box.no_more()
    box.put(send(1_000), 0)
    assert not box.is_ready()


def test_an_old_request_is_due_despite_requests_in_transit() -> None:
    box = Outbox()
    for number in range(5):
        box.put(send(number), 0)
    box.take()
    box.put(send(10), 7)
    box.put(send(11), 7 + HOLD - 1)
    assert not box.is_overdue(7 + HOLD - 1)
    assert box.is_overdue(7 + HOLD)
    assert ids(box.take()) == ["r10", "r11"]
    assert not box.is_overdue(10 * HOLD), "no request waits"


def test_a_retry_is_in_transit_once_and_ended_requests_are_not_sent() -> None:
    box = Outbox()
    box.put(send(1), 0)
    box.take()
    box.put(send(1), 0)
    assert ids(box.take()) == ["r1"]
    box.put(send(2), 0)
    box.ended("r2")
    assert not box.is_overdue(HOLD)
    box.ended("r1")
    box.put(send(3), 0)
    box.put(send(4), 0)
    assert ids(box.take()) == ["r3", "r4"]


@given(st.lists(st.integers(1, 3), min_size=1, max_size=200), st.integers(1, 200))
def test_every_request_is_sent_if_answers_arrive(ends: list[int], writers: int) -> None:
    """Each writer waits for its answer: all requests are sent without a check of the clock."""
    box, waits, under_way, number = Outbox(), writers, [], 0
    for step in range(3 * writers + len(ends)):
        if waits:
            waits, number = waits - 1, number + 1
            box.put(send(number), 0)
        else:
            assert under_way, "all wait, and none is sent"
            for _ in range(min(ends[step % len(ends)], len(under_way))):
                box.ended(under_way.pop(0))
                waits += 1
        if box.is_ready():
            under_way += ids(box.take())


# Answers to a joint submission keep the order of their slots, whichever thread fills them, with one wait for all.


def test_answers_keep_the_order_of_slots_from_any_thread() -> None:
    together: ResultBatch[int] = ResultBatch()
    seats = [together.slot() for _ in range(200)]
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


def test_answers_before_the_last_slot_do_not_end_the_wait() -> None:
    together: ResultBatch[int] = ResultBatch()
    together.slot().set_result(1)
    last = together.slot()
    assert not together._whole.is_set()
    last.set_result(2)
    assert not together._whole.is_set(), "more answers may follow until a caller waits"
    assert together.results() == (1, 2)


def test_the_first_error_is_raised_when_all_have_an_end() -> None:
    together: ResultBatch[int] = ResultBatch()
    first, second, third = (together.slot() for _ in range(3))
    third.set_exception(KeyError("third"))
    second.set_exception(ValueError("second"))
    first.set_result(1)
    with pytest.raises(ValueError, match="second"):
        together.results()


def test_an_empty_joint_submission_is_answered_at_once() -> None:
    assert ResultBatch[int]().results() == ()
