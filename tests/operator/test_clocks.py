"""A clock that was ahead for a while blocks nothing for longer than an operator needs to say so."""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

import pytest

from ringlog.kernel.commands.cdc_clock import WithdrawCdcGeneration
from ringlog.kernel.commands.cdc_expiry import ExpireCdcGeneration
from ringlog.kernel.commands.cdc_writers import AdvanceCdcWriter
from ringlog.operator import views
from ringlog.operator.clocks import clock_lines, left_ahead, lowest_horizon, skews
from ringlog.operator.rehearsal import Rehearsal
from ringlog.protocol.limits import ENDS_AHEAD_MAX_US, WITHDRAWN_AHEAD_MIN_US, too_far_ahead
from ringlog.runtime.clock import ManualClock
from tests.cli.test_docs import unknown

YEAR_US = 365 * 86_400_000_000
LEEWAY_US = 5_000_000


class Story:
    """A rehearsal of one node that has joined, and a second one that wants to."""

    def __init__(self) -> None:
        self.rehearsal = Rehearsal()
        self.lines = 0
        self.say(command="RegisterNode", name="n1")
        self.say(command="Join", node="n1", tokens=[0])
        self.say(do="finish")

    def say(self, **line: Any) -> dict[str, Any]:
        self.lines += 1
        answer: dict[str, Any] = self.rehearsal.line(json.dumps(line), self.lines)
        return answer

    def join(self, name: str, token: int) -> list[str]:
        """The stages that a join comes through by itself."""
        self.say(command="RegisterNode", name=name)
        self.say(command="Join", node=name, tokens=[token])
        return self.goes_on()

    def goes_on(self) -> list[str]:
        stages: list[str] = self.say(do="finish")["stages"]
        return stages

    @property
    def now(self) -> int:
        return self.rehearsal.clock.now_us()

    def promised_ahead(self) -> None:
        """A writer, and a validator on its machine, had a clock that was a year ahead."""
        self.say(command="RegisterCdcWriter", writer="w", incarnation="i1")
        advance = AdvanceCdcWriter("w", "i1", self.now + YEAR_US, self.rehearsal.state.writers["w"].low_watermark)
        assert too_far_ahead(self.rehearsal.state, advance, self.now + YEAR_US) is None
        assert self.say(command="AdvanceCdcWriter", writer="w", horizon=advance.horizon)["outcome"] == "applied"

    def committed_ahead(self) -> str:
        """A generation was committed by a clock that was a year ahead; its join has ended."""
        right = self.now
        self.rehearsal.clock.advance(YEAR_US / 1_000_000)
        assert self.join("n2", 100)[-1] == "finished"
        self.rehearsal.clock = ManualClock(right)
        return self.rehearsal.state.generations[-1].id


def test_a_promise_of_a_far_future_is_lowered_once_its_writer_is_fenced() -> None:
    story = Story()
    story.promised_ahead()
    assert story.join("n2", 100)[-1:] == ["commit_cdc_generation"]
    story.say(command="FenceCdcWriter", writer="w", positions={}, reason="its clock was ahead")
    assert story.goes_on() == [], "a fence keeps the horizon"
    state = story.rehearsal.state
    lowest = lowest_horizon(state, state.writers["w"], story.now - 7)
    assert lowest == story.now - 7 + LEEWAY_US + 1
    assert lowest_horizon(state, state.writers["w"], None) == state.writers["w"].low_watermark
    story.say(command="LowerCdcWriter", writer="w", horizon=lowest, reason="nothing was appended later")
    assert story.goes_on()[-1] == "finished"
    assert story.rehearsal.state.generations[-1].timestamp < story.now + 60_000_000


def test_a_generation_of_a_far_future_is_withdrawn() -> None:
    story = Story()
    far = story.committed_ahead()
    assert story.join("n3", 200)[-1:] == ["commit_cdc_generation"]
    assert (
        story.say(command="WithdrawCdcGeneration", generation=far, reason="a clock was ahead")["outcome"] == "applied"
    )
    assert story.goes_on()[-1] == "finished"
    assert story.rehearsal.state.generations[-1].timestamp < story.now + 60_000_000


@pytest.mark.parametrize("what", ["promised", "committed"])
def test_what_was_used_is_passed_by_a_generation_that_an_operator_lets_start_far_ahead(what: str) -> None:
    story = Story()
    if what == "promised":
        story.promised_ahead()
    else:
        story.committed_ahead()
    assert story.join("n3", 200)[-1:] == ["commit_cdc_generation"]
    told = story.say(command="ChangeSettings", settings={"cdc_timestamp_ahead_max_us": 2 * YEAR_US})
    assert told["outcome"] == "applied"
    assert story.goes_on()[-1] == "finished"
    assert story.rehearsal.state.generations[-1].timestamp > story.now + YEAR_US - 60_000_000


def test_the_wait_names_the_clock_and_commands_that_there_are() -> None:
    story = Story()
    assert left_ahead(story.rehearsal.state, story.now) == ()
    assert clock_lines(story.rehearsal.state, story.now, story.now) == []
    far = story.committed_ahead()
    story.promised_ahead()
    story.join("n3", 200)
    state = story.rehearsal.state
    (view,) = [one for one in views.operations(state, {}, story.now) if one["stage"] == "commit_cdc_generation"]
    assert f"{far} starts at" in view["waits_for"]
    assert "CDC writer w has promised up to" in view["waits_for"]
    shown = [found for way in view["ways_out"] for found in re.findall(r"ringlog (?:cdc|operation) [^,;]*", way)]
    assert [one.split()[2] for one in shown] == ["fence", "lower", "withdraw", "cancel"]
    assert [unknown(shlex.split(one)) for one in shown] == [None] * len(shown)
    (raised,) = [way.partition("'")[2].rstrip("'") for way in view["ways_out"] if "ChangeSettings" in way]
    assert json.loads(raised.replace("…", "1"))["settings"] == {"cdc_timestamp_ahead_max_us": 1}
    assert any("clock_was_ahead" in line for line in clock_lines(state, story.now, None))
    without_clock = [one for one in views.operations(state, {}) if one["stage"] == "commit_cdc_generation"]
    assert without_clock[0]["ways_out"] == []


def test_clocks_that_differ_by_more_than_ten_seconds_are_told() -> None:
    story = Story()
    state, now = story.rehearsal.state, story.rehearsal.state.time
    assert skews(state, now - 10_000_000, now) == []
    (author,) = skews(state, now - 11_000_000, None)
    assert "11 s ahead of this one" in author
    (broker,) = skews(state, now, now + 3_600_000_000)
    assert "a broker has appended a write 3600 s ahead" in broker


def test_a_validator_lets_nobody_take_back_what_operates_or_end_what_is_kept() -> None:
    story = Story()
    state = story.rehearsal.state
    found = state.generations[-1]
    command = WithdrawCdcGeneration(found.id, bytes(16), "why not")
    refused = too_far_ahead(state, command, found.timestamp - WITHDRAWN_AHEAD_MIN_US)
    assert refused is not None
    assert refused.code == "generation_operates"
    assert too_far_ahead(state, command, found.timestamp - WITHDRAWN_AHEAD_MIN_US - 1) is None
    story.say(command="ChangeSettings", settings={"cdc_timestamp_ahead_max_us": 2 * YEAR_US})
    expiry = ExpireCdcGeneration(found.id, story.now + ENDS_AHEAD_MAX_US + 1)
    refused = too_far_ahead(story.rehearsal.state, expiry, story.now)
    assert refused is not None, "a limit that is lifted for generations to start takes no rows away"
