"""Authors: ascending state ids whatever the clock does, whose request it is, and a warning about skewed clocks."""

from __future__ import annotations

from structlog.testing import capture_logs

from ringlog.kernel.commands.cluster import InitializeCluster, Noop
from ringlog.kernel.fold import fold
from ringlog.kernel.outcome import OutcomeKind
from ringlog.kernel.state import EMPTY_STATE
from ringlog.log.author import Author
from ringlog.runtime.clock import ManualClock
from ringlog.runtime.draw import SeededDraw

START_US = 1_700_000_000_000_000


def test_a_slow_clock_still_gives_ascending_state_ids() -> None:
    fast = Author("fast", ManualClock(START_US + 3_600_000_000), SeededDraw(b"f"))
    slow = Author("slow", ManualClock(START_US), SeededDraw(b"s"))
    state = fold(EMPTY_STATE, fast.entry(EMPTY_STATE, InitializeCluster("c")).entry).state
    encoded = slow.entry(state, Noop())
    assert encoded.entry.state_id > state.state_id
    after = fold(state, encoded.entry)
    assert after.outcome.kind is OutcomeKind.APPLIED
    assert after.state.time == state.time, "state time does not go back"


def test_skew_is_warned_of_once_a_minute() -> None:
    clock = ManualClock(START_US)
    ahead = Author("ahead", ManualClock(START_US + 11_000_000), SeededDraw(b"a"))
    author = Author("me", clock, SeededDraw(b"b"))
    state = fold(EMPTY_STATE, ahead.entry(EMPTY_STATE, InitializeCluster("c")).entry).state
    with capture_logs() as logs:
        author.entry(state, Noop())
        author.entry(state, Noop())
        clock.advance(0.5)
        author.entry(state, Noop())
    assert [(event["event"], event["head_ahead_s"]) for event in logs] == [("clock_skew", 11.0)]
    with capture_logs() as logs:
        clock.advance(2)
        author.entry(state, Noop())
    assert logs == [], "9 s are no skew"


def test_an_entry_keeps_whose_request_it_is() -> None:
    author = Author("validator", ManualClock(START_US), SeededDraw(b"v"))
    state = fold(EMPTY_STATE, author.entry(EMPTY_STATE, InitializeCluster("c")).entry).state
    asked = author.new_request_id()
    entry = author.entry(state, Noop(), request_id=asked, since_epoch=0, submitter="client").entry
    assert (entry.request_id, entry.since_epoch, entry.submitter) == (asked, 0, "client")
    own = author.entry(state, Noop()).entry
    assert (own.since_epoch, own.submitter) == (1, "validator")
    assert own.request_id != asked
