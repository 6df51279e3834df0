"""A clock that was ahead for a while blocks the cluster only until an operator intervenes."""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

import pytest

from ringlog.kernel.commands.cdc.clock import LowerSettledTime, WithdrawCdcGeneration
from ringlog.kernel.commands.cdc.expiry import ExpireCdcGeneration
from ringlog.kernel.commands.cdc.writers import AdvanceCdcWriter
from ringlog.log.kafka.lag import Lag
from ringlog.node.rows.watermark_requests import next_watermark_request
from ringlog.operator.errors import Refused
from ringlog.operator.rehearsal.rehearsal import Rehearsal
from ringlog.operator.views import views
from ringlog.operator.views.clocks import (
    MINUTE_US,
    clock_lines,
    left_ahead,
    lowest_horizon,
    settled_lowering,
    skews,
)
from ringlog.operator.views.words import when
from ringlog.operator.views.writer_lag import LATE_S, format_lag, format_lease, writers_behind
from ringlog.protocol.validator.limits import ENDS_AHEAD_MAX_US, WITHDRAWN_AHEAD_MIN_US, too_far_ahead
from ringlog.runtime.clock import ManualClock
from tests.cli.known_commands import unknown

YEAR_US = 365 * 86_400_000_000
LEEWAY_US = 5_000_000


class Story:
    """A rehearsal with one joined node and a second one that wants to join."""

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
        """Join a node and return the stages that it passes without intervention."""
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
        """Register a writer while its clock and the validator's clock are a year ahead."""
        self.say(command="RegisterCdcWriter", writer="w", incarnation="i1")
        advance = AdvanceCdcWriter("w", "i1", self.now + YEAR_US, self.rehearsal.state.writers["w"].low_watermark)
        assert too_far_ahead(self.rehearsal.state, advance, self.now + YEAR_US) is None
        assert self.say(command="AdvanceCdcWriter", writer="w", horizon=advance.horizon)["outcome"] == "applied"

    def settled_ahead(self) -> None:
        """Accept writes while the clocks of the node and the validator are a year ahead."""
        state, wrong = self.rehearsal.state, self.now + YEAR_US
        wanted = next_watermark_request(state, wrong, None, is_active=True, node="n1")
        assert wanted is not None
        assert too_far_ahead(state, wanted, wrong) is None
        assert self.say(command="SettleVerdicts", until=wanted.until)["outcome"] == "applied"

    def lower(self, appended: int | None) -> str:
        """Apply the commands of ``ringlog cdc lower`` and return the outcome."""
        command = settled_lowering(self.rehearsal.state, self.now, appended, None, "NTP was off")
        assert too_far_ahead(self.rehearsal.state, command, self.now) is None
        outcome: str = self.say(command="LowerSettledTime", until=command.until, reason=command.reason)["outcome"]
        return outcome

    def committed_ahead(self) -> str:
        """Commit a generation by a clock a year ahead, finish its join, and return its id."""
        right = self.now
        self.rehearsal.clock.advance(YEAR_US / 1_000_000)
        assert self.join("n2", 100)[-1] == "finished"
        self.rehearsal.clock = ManualClock(right)
        return self.rehearsal.state.generations[-1].id


@pytest.fixture
def story() -> Story:
    return Story()


def test_a_distant_lease_is_lowered_after_a_fence(story: Story) -> None:
    story.promised_ahead()
    assert story.join("n2", 100)[-1:] == ["commit_cdc_generation"]
    story.say(command="FenceCdcWriter", writer="w", positions={}, reason="its clock was ahead")
    assert story.goes_on() == [], "a fence keeps the lease"
    state = story.rehearsal.state
    lowest = lowest_horizon(state, state.writers["w"], story.now - 7)
    assert lowest == story.now - 7 + LEEWAY_US + 1
    assert lowest_horizon(state, state.writers["w"], None) == state.writers["w"].low_watermark
    story.say(command="LowerCdcWriter", writer="w", horizon=lowest, reason="nothing was appended later")
    assert story.goes_on()[-1] == "finished"
    assert story.rehearsal.state.generations[-1].timestamp < story.now + 60_000_000


def test_a_lease_is_not_lowered_below_writes_of_a_wider_window(story: Story) -> None:
    story.say(command="SettleVerdicts", until=story.now + 1)
    for leeway in (4 * LEEWAY_US, LEEWAY_US // 5):  # the wide one belongs to no generation
        story.say(command="ChangeSettings", settings={"cdc_leeway_us": leeway})
        story.say(command="SettleVerdicts", until=story.rehearsal.state.settled.until + 1)
    story.promised_ahead()
    state = story.rehearsal.state
    assert lowest_horizon(state, state.writers["w"], story.now) == story.now + 4 * LEEWAY_US + 1


def test_a_distant_generation_is_withdrawn(story: Story) -> None:
    far = story.committed_ahead()
    assert story.join("n3", 200)[-1:] == ["commit_cdc_generation"]
    assert (
        story.say(command="WithdrawCdcGeneration", generation=far, reason="a clock was ahead")["outcome"] == "applied"
    )
    assert story.goes_on()[-1] == "finished"
    assert story.rehearsal.state.generations[-1].timestamp < story.now + 60_000_000


def test_a_distant_watermark_is_lowered(story: Story) -> None:
    story.settled_ahead()
    story.say(command="CreateKeyspace", name="ks", replication={"strategy": "simple", "factor": 1})
    columns = [{"name": "k", "type": "int"}]
    story.say(command="CreateTable", keyspace="ks", name="t", columns=columns, partition_key=["k"])
    assert story.join("n2", 100)[-1:] == ["commit_cdc_generation"]
    (life,) = story.rehearsal.state.table_lives["ks.t"]
    assert life.versions[0].since > story.now + YEAR_US - MINUTE_US, "its writes are refused for that year"
    (left,) = left_ahead(story.rehearsal.state, story.now)
    assert left.ways_out == ("ringlog cdc lower --reason …",)
    told, *ways = clock_lines(story.rehearsal.state, story.now, story.now)
    assert "the validation watermark is" in told
    assert [unknown(shlex.split(one)) for one in left.ways_out] == [None]
    assert any(left.ways_out[0] in one for one in ways)
    (view,) = [one for one in views.operations(story.rehearsal.state, {}, story.now) if one["node"] == "n2"]
    assert "the validation watermark is" in view["waits_for"]

    assert story.lower(story.now) == "applied"
    near = story.now + 2 * MINUTE_US
    assert story.rehearsal.state.table_lives["ks.t"][0].versions[0].since < near
    assert story.goes_on()[-1] == "finished"
    assert story.rehearsal.state.generations[-1].timestamp < near
    assert left_ahead(story.rehearsal.state, story.now) == ()


def test_a_lease_and_then_the_watermark_are_lowered(story: Story) -> None:
    story.settled_ahead()
    story.promised_ahead()
    assert story.join("n2", 100)[-1:] == ["commit_cdc_generation"]
    with pytest.raises(Refused, match="w has a write lease"):
        story.lower(story.now)
    state = story.rehearsal.state
    story.say(command="FenceCdcWriter", writer="w", positions={}, reason="its clock was ahead")
    lowest = lowest_horizon(state, state.writers["w"], story.now)
    story.say(command="LowerCdcWriter", writer="w", horizon=lowest, reason="nothing was appended later")
    assert story.goes_on() == [], "the watermark reaches the writer's lease"
    assert story.lower(story.now) == "applied"
    assert story.goes_on()[-1] == "finished"


def test_decisions_below_the_watermark_stay(story: Story) -> None:
    with pytest.raises(Refused, match="not far ahead"):
        story.lower(None)
    story.settled_ahead()
    with pytest.raises(Refused, match="writes were appended until"):
        story.lower(story.now + YEAR_US)
    state = story.rehearsal.state
    with pytest.raises(Refused, match="too low"):
        settled_lowering(state, story.now, None, story.now + MINUTE_US, "why not")
    refused = too_far_ahead(state, LowerSettledTime(story.now + LEEWAY_US, "why not"), story.now)
    assert refused is not None
    assert refused.code == "settled_too_near", "an entry appended before it is in the log may be validated there"


@pytest.mark.parametrize("what", ["promised", "committed"])
def test_an_operator_lets_a_generation_start_above_used_times(story: Story, what: str) -> None:
    if what == "promised":
        story.promised_ahead()
    else:
        story.committed_ahead()
    assert story.join("n3", 200)[-1:] == ["commit_cdc_generation"]
    told = story.say(command="ChangeSettings", settings={"cdc_timestamp_ahead_max_us": 2 * YEAR_US})
    assert told["outcome"] == "applied"
    assert story.goes_on()[-1] == "finished"
    assert story.rehearsal.state.generations[-1].timestamp > story.now + YEAR_US - 60_000_000


def test_the_wait_names_the_clock_and_existing_commands(story: Story) -> None:
    assert left_ahead(story.rehearsal.state, story.now) == ()
    assert clock_lines(story.rehearsal.state, story.now, story.now) == []
    far = story.committed_ahead()
    story.promised_ahead()
    story.join("n3", 200)
    state = story.rehearsal.state
    (view,) = [one for one in views.operations(state, {}, story.now) if one["stage"] == "commit_cdc_generation"]
    assert f"{far} starts at" in view["waits_for"]
    assert "CDC writer w has a write lease until" in view["waits_for"]
    shown = [found for way in view["ways_out"] for found in re.findall(r"ringlog (?:cdc|operation) [^,;]*", way)]
    assert [one.split()[2] for one in shown] == ["fence", "lower", "withdraw", "cancel"]
    assert [unknown(shlex.split(one)) for one in shown] == [None] * len(shown)
    (raised,) = [found for way in view["ways_out"] for found in re.findall(r"ringlog cluster [^,;]*", way)]
    assert raised.endswith(" cdc_timestamp_ahead_max_us=…")
    assert unknown(shlex.split(raised)) is None
    assert any("clock_was_ahead" in line for line in clock_lines(state, story.now, None))
    without_clock = [one for one in views.operations(state, {}) if one["stage"] == "commit_cdc_generation"]
    assert without_clock[0]["ways_out"] == []


def test_clocks_that_differ_by_ten_seconds_are_reported(story: Story) -> None:
    state, now = story.rehearsal.state, story.rehearsal.state.time
    assert skews(state, now - 10_000_000, now) == []
    (author,) = skews(state, now - 11_000_000, None)
    assert "11 s ahead of this one" in author
    (broker,) = skews(state, now, now + 3_600_000_000)
    assert "a broker has appended a write 3600 s ahead" in broker


def test_the_validator_protects_active_generations_and_kept_rows(story: Story) -> None:
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
    assert refused is not None, "a limit raised for new generations removes no rows"


def test_a_writer_that_leaves_old_mutations_waiting_is_named(story: Story) -> None:
    story.say(command="RegisterCdcWriter", writer="w", incarnation="i1", source="shop.mutations")
    state = story.rehearsal.state
    for lag in (Lag(0, 0.0, 0), Lag(9, LATE_S, 0), "the broker does not answer"):
        assert writers_behind(state, {"w": lag}) == []
    assert writers_behind(state, {"w": Lag(9, LATE_S + 61, 0)}) == [
        "CDC writer w is behind: at most 9 mutations, up to 2 min old. Is its job running?"
    ]
    assert writers_behind(state, {"w": Lag(9, None, 0)}) == [
        "CDC writer w is behind: at most 9 mutations, of unknown age. Is its job running?"
    ]
    assert format_lag(Lag(1, 0.0, 0)) == "at most 1 mutation, up to 0 s old"
    end = state.writers["w"].horizon
    assert [format_lease(state.writers["w"], now) for now in (end, end + 42_000_000)] == [
        when(end),
        f"{when(end)}, ended 42 s ago",
    ]
    story.say(command="FenceCdcWriter", writer="w", incarnation="i1", positions=[], reason="gone")
    state = story.rehearsal.state
    assert writers_behind(state, {"w": Lag(9, LATE_S + 61, 0)}) == []
    assert format_lease(state.writers["w"], end + 42_000_000) == when(state.writers["w"].horizon)
