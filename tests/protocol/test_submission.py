"""One request, step by step: its retries, and the barrier that confirms each answer."""

from __future__ import annotations

from collections import deque

import pytest

from ringlog.kernel.commands.cluster.cluster import ChangeSettings, Noop
from ringlog.kernel.model.modes import Term
from ringlog.kernel.model.state import EMPTY_STATE, ClusterState
from ringlog.kernel.values import replace
from ringlog.protocol.effects import Newest, Now, Steps
from ringlog.protocol.submission.results import RejectedResult
from ringlog.protocol.submission.submission import (
    BARRIER_RETRY,
    RESEND,
    TOGETHER_BYTES_MAX,
    AwaitAnswer,
    NoAnswer,
    Send,
    TryBarrier,
    encoded_request,
    request_records,
    submit_request,
)
from ringlog.wire.errors import WireError
from ringlog.wire.records import APPLIED, REJECTED, CommandRequest, Result, encode_result
from ringlog.wire.requests import TOGETHER_MAX, decode_request, decode_requests, encode_request_batch
from tests.protocol.submission_model import Model, Rule

REQUEST = encoded_request(Noop(), "01890000-0000-7000-8000-000000000001", 0, "tester")
KEY = REQUEST.key
PATIENCE = 20 * RESEND


def state_of_term(term: int) -> ClusterState:
    return replace(EMPTY_STATE, terms=EMPTY_STATE.terms.set("validator", Term("validator", "v", term, 1)))


def rejection(term: int, digest: str = KEY.digest, outcome: str = REJECTED) -> Result:
    return Result(KEY.request_id, digest, outcome, 1, "code", "", term, "v", 0)


class Asking:
    """Performs effects without a wait; the test advances ``now``."""

    def __init__(self) -> None:
        self.steps: Steps[object] = submit_request(REQUEST, PATIENCE)
        self.now = 0

    def go(self, outcome: object = None) -> object:
        """Return the next effect that waits or sends."""
        effect = self.steps.send(outcome)
        while isinstance(effect, Now | Newest):
            effect = self.steps.send(self.now if isinstance(effect, Now) else EMPTY_STATE)
        return effect


def test_a_request_is_sent_again_until_the_deadline() -> None:
    asking = Asking()
    effect = asking.go()
    for turn, until in enumerate((1, 3, 7, 15, 20)):
        assert effect == Send(REQUEST, alone=turn > 0), "each retry is sent alone"
        assert asking.go() == AwaitAnswer(KEY, until * RESEND), "the pauses double"
        asking.now = until * RESEND
        if asking.now < PATIENCE:
            effect = asking.go([])
    with pytest.raises(NoAnswer):
        asking.go([])


def test_a_slow_validator_gets_few_retries() -> None:
    """64 clients use a validator that takes 50 ms for a record. With one retry a second each, 64 records arrived for 20
    decided ones, and later clients waited until their deadline. The cost of retries is bounded now.
    """
    clients, cost, end = 64, 50_000, 600_000_000
    queue: deque[tuple[int, int]] = deque()  # Records of the requests topic: client, number of its request.
    steps: dict[int, Steps[object]] = {}
    asked, until, answered, worst = [0] * clients, [0] * clients, [0] * clients, 0

    def go(client: int, now: int, outcome: object) -> None:
        effect = steps[client].send(outcome)
        while not isinstance(effect, AwaitAnswer):
            if isinstance(effect, Send):
                queue.append((client, asked[client]))
            known = {Now: now, Newest: EMPTY_STATE}.get(type(effect))
            effect = steps[client].send(known)
        until[client] = effect.until

    def begin(client: int, now: int) -> None:
        asked[client] += 1
        steps[client] = submit_request(REQUEST, 30 * RESEND)
        answered[client] = now
        go(client, now, None)

    for client in range(clients):
        begin(client, 0)
    for now in range(0, end, cost):
        for client in range(clients):
            if now >= until[client]:
                go(client, now, [])
        if queue:
            client, number = queue.popleft()
            if number == asked[client]:
                worst = max(worst, now - answered[client])
                begin(client, now)
    assert worst < 15 * RESEND, "far below the 30 s limit; one retry a second raised NoAnswer here"


def test_a_rejection_counts_only_behind_a_barrier_and_in_its_term() -> None:
    asking = Asking()
    assert asking.go() == Send(REQUEST, alone=False)
    assert isinstance(asking.go(), AwaitAnswer)
    assert isinstance(asking.go([rejection(1)]), TryBarrier)
    assert isinstance(asking.go(state_of_term(2)), AwaitAnswer), "another validator is active by now"
    assert isinstance(asking.go([rejection(2, "of another command"), rejection(2, outcome=APPLIED)]), TryBarrier)
    assert isinstance(asking.go(state_of_term(2)), AwaitAnswer)
    assert isinstance(asking.go([rejection(1), rejection(2)]), TryBarrier)
    with pytest.raises(StopIteration) as done:
        asking.go(state_of_term(2))
    assert done.value.value == RejectedResult(KEY.request_id, "code", "", 1)


def test_an_unchecked_rejection_is_checked_later() -> None:
    asking = Asking()
    asking.go()
    asking.go()
    assert isinstance(asking.go([rejection(1)]), TryBarrier)
    assert asking.go(None) == AwaitAnswer(KEY, BARRIER_RETRY), "the end of the log is unknown"
    assert isinstance(asking.go([]), TryBarrier)
    with pytest.raises(StopIteration):
        asking.go(state_of_term(1))


def sends(count: int, alone: bool = False, size: int = 0) -> list[Send]:
    command = ChangeSettings((("x" * size, 1),)) if size else Noop()
    ids = [f"01890000-0000-7000-8000-{number:012d}" for number in range(count)]
    return [Send(encoded_request(command, one, 0, "tester"), alone) for one in ids]


def test_queued_requests_are_sent_together_in_order() -> None:
    waiting = sends(TOGETHER_MAX + 2)
    made = request_records(waiting)
    assert [len(record.sent) for record in made] == [TOGETHER_MAX, 2]
    found = [request for record in made for request in decode_requests(record.data)]
    assert found == [decode_request(send.request.data) for send in waiting]


def test_a_single_request_keeps_its_old_format() -> None:
    assert [record.data for record in request_records(sends(1))] == [sends(1)[0].request.data]
    assert request_records([]) == ()


def test_retries_and_large_requests_are_sent_alone() -> None:
    again, large = sends(1, alone=True), sends(3, size=TOGETHER_BYTES_MAX // 2)
    made = request_records([*sends(2), *again, *sends(2), *again, *again, *large])
    assert [len(record.sent) for record in made] == [2, 1, 2, 1, 1, 1, 1, 1]
    assert len({record.sent[0].request.key.request_id for record in made[-3:]}) == 3


def test_an_invalid_part_does_not_affect_others() -> None:
    good = sends(1)[0].request.data
    found = decode_requests(encode_request_batch([b"junk", good, b""]))
    assert [isinstance(request, CommandRequest) for request in found] == [False, True, False]
    assert decode_requests(good) == found[1:2]


def test_a_record_with_too_many_parts_is_invalid() -> None:
    with pytest.raises(WireError, match="too_many_requests"):
        decode_requests(encode_request_batch([b""] * (TOGETHER_MAX + 1)))
    with pytest.raises(WireError, match="wrong_record"):
        decode_requests(encode_result(rejection(1)))


# Decisions without a read barrier are correct if the chain protects them; each clause of the rule is necessary.


@pytest.mark.parametrize(("together", "part"), [(True, 2), (False, 2), (True, 1)])
@pytest.mark.parametrize("rule", [Rule(), Rule(always=True)], ids=["where the chain protects: none", "always one"])
def test_no_order_of_events_breaks_a_rule(rule: Rule, together: bool, part: int) -> None:
    seen, story = Model(rule, together, part).explore()
    assert story == ()
    assert seen > 100


@pytest.mark.parametrize("part", [1, 2])
def test_new_requests_may_join_a_running_batch(part: int) -> None:
    seen, story = Model(Rule(), together=True, part=part, late=True).explore()
    assert story == ()
    assert seen > 1_000
    _, story = Model(Rule(trusts=True), together=True, part=part, late=True).explore()
    assert "on a state of before" in story[-1], "an entry that was sent before the request arrived proves nothing"


@pytest.mark.parametrize(
    ("rule", "together", "broken"),
    [
        (Rule(never=True), False, "on a state of before"),
        (Rule(stays=True), False, "on a state of before"),
        (Rule(early=True), True, "not applied"),
    ],
    ids=["a rejection without a barrier", "what was decided before the barrier stands", "answers before the fates"],
)
@pytest.mark.parametrize("part", [1, 2])
def test_each_omitted_clause_has_a_counterexample(rule: Rule, together: bool, broken: str, part: int) -> None:
    _, story = Model(rule, together, part).explore()
    assert broken in story[-1]


def test_a_rejection_behind_an_applied_entry_of_its_batch_needs_no_barrier() -> None:
    """Other tests do decide without a barrier: for these the chain alone is enough."""
    for part in (1, 2):
        seen, story = Model(Rule(never=True), together=True, part=part).explore()
        assert story == ()
        assert seen > 100
