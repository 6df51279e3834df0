"""A question, step by step: what goes out when, and what is believed after which barrier."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ringlog.kernel.commands.cluster import Noop
from ringlog.kernel.state import EMPTY_STATE, ClusterState, Term
from ringlog.protocol.answers import RejectedResult
from ringlog.protocol.effects import Newest, Now, Steps
from ringlog.protocol.submission import JUDGE_AGAIN, RESEND, Fresh, Hear, NoAnswer, Send, ask, question
from ringlog.wire.records import APPLIED, REJECTED, Result

QUESTION = question(Noop(), "01890000-0000-7000-8000-000000000001", 0, "tester")
ASKED = QUESTION.asked
PATIENCE = 5 * RESEND


def state_of_term(term: int) -> ClusterState:
    return replace(EMPTY_STATE, terms=EMPTY_STATE.terms.set("validator", Term("validator", "v", term, 1)))


def rejection(term: int, digest: str = ASKED.digest, outcome: str = REJECTED) -> Result:
    return Result(ASKED.request_id, digest, outcome, 1, "code", "", term, "v", 0)


class Asking:
    """Performs what needs no wait; ``now`` goes on as the test says."""

    def __init__(self) -> None:
        self.steps: Steps[object] = ask(QUESTION, PATIENCE)
        self.now = 0

    def go(self, outcome: object = None) -> object:
        """The next effect that waits for something, or sends."""
        effect = self.steps.send(outcome)
        while isinstance(effect, Now | Newest):
            effect = self.steps.send(self.now if isinstance(effect, Now) else EMPTY_STATE)
        return effect


def test_a_question_goes_out_again_until_the_deadline() -> None:
    asking = Asking()
    effect = asking.go()
    for turn in range(1, 6):
        assert effect == Send(QUESTION)
        effect = asking.go()
        assert effect == Hear(ASKED, turn * RESEND)
        asking.now = turn * RESEND
        if turn < 5:
            effect = asking.go([])
    with pytest.raises(NoAnswer):
        asking.go([])
    assert asking.now == PATIENCE


def test_a_rejection_is_believed_behind_a_barrier_and_in_its_term_only() -> None:
    asking = Asking()
    assert asking.go() == Send(QUESTION)
    assert isinstance(asking.go(), Hear)
    assert isinstance(asking.go([rejection(1)]), Fresh)
    assert isinstance(asking.go(state_of_term(2)), Hear), "another validator acts by now"
    assert isinstance(asking.go([rejection(2, "of another command"), rejection(2, outcome=APPLIED)]), Fresh)
    assert isinstance(asking.go(state_of_term(2)), Hear)
    assert isinstance(asking.go([rejection(1), rejection(2)]), Fresh)
    with pytest.raises(StopIteration) as done:
        asking.go(state_of_term(2))
    assert done.value.value == RejectedResult(ASKED.request_id, "code", "", 1)


def test_what_could_not_be_judged_is_judged_later() -> None:
    asking = Asking()
    asking.go()
    asking.go()
    assert isinstance(asking.go([rejection(1)]), Fresh)
    assert asking.go(None) == Hear(ASKED, JUDGE_AGAIN), "the end of the log was not learned"
    assert isinstance(asking.go([]), Fresh)
    with pytest.raises(StopIteration):
        asking.go(state_of_term(1))
