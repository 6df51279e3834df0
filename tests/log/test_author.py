"""Authors: ascending state ids on any clock, the request of each entry, and a warning about skewed clocks."""

from __future__ import annotations

from structlog.testing import capture_logs

from ringlog.kernel.commands.cluster.cluster import ChangeSettings, InitializeCluster, Noop
from ringlog.kernel.fold import fold
from ringlog.kernel.model.outcome import OutcomeKind
from ringlog.kernel.model.state import EMPTY_STATE
from ringlog.kernel.values import Command
from ringlog.log.author import Author
from ringlog.log.folding import READ_AHEAD_MAX, ReadAhead, follow
from ringlog.log.port import LogRecord
from ringlog.runtime.clock import ManualClock
from ringlog.runtime.draw import SeededDraw
from ringlog.wire.entries import EncodedEntry
from tests.agents.world import World

START_US = 1_700_000_000_000_000


def test_a_slow_clock_still_gives_ascending_state_ids() -> None:
    fast = Author("fast", ManualClock(START_US + 3_600_000_000), SeededDraw(b"f"))
    slow = Author("slow", ManualClock(START_US), SeededDraw(b"s"))
    state = fold(EMPTY_STATE, fast.entry(EMPTY_STATE, InitializeCluster("c")).entry).state
    encoded = slow.entry(state, Noop())
    assert encoded.entry.state_id > state.state_id
    after = fold(state, encoded.entry)
    assert after.outcome.kind is OutcomeKind.APPLIED
    assert after.state.time == state.time, "state time does not decrease"


def test_clock_skew_is_logged_once_a_minute() -> None:
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
    assert logs == [], "9 s are within the tolerance"


def test_an_entry_keeps_its_request() -> None:
    author = Author("validator", ManualClock(START_US), SeededDraw(b"v"))
    state = fold(EMPTY_STATE, author.entry(EMPTY_STATE, InitializeCluster("c")).entry).state
    asked = author.new_request_id()
    entry = author.entry(state, Noop(), request_id=asked, since_epoch=0, submitter="client").entry
    assert (entry.request_id, entry.since_epoch, entry.submitter) == (asked, 0, "client")
    own = author.entry(state, Noop()).entry
    assert (own.since_epoch, own.submitter) == (1, "validator")
    assert own.request_id != asked


# A log confirms the state that an author predicted for its entries; only then is it used.


def sent(world: World, foreseen: ReadAhead, *commands: Command) -> list[EncodedEntry]:
    """Return a chain of decided entries that the log of ``world`` does not contain yet."""
    head, chain = world.state, []
    for command in commands:
        encoded = world.entry(command)
        chain.append(encoded)
        world.state = foreseen.fold(world.state, encoded).state
    world.state = head
    return chain


def records(chain: list[EncodedEntry]) -> list[LogRecord]:
    return [LogRecord(offset, encoded.data) for offset, encoded in enumerate(chain)]


def test_a_predicted_entry_is_not_folded_again() -> None:
    world, foreseen = World(), ReadAhead()
    chain = sent(world, foreseen, Noop(), ChangeSettings((("history_entries", 5_000),)), Noop())
    plain = list(follow(records(chain), world.state))
    quick = list(follow(records(chain), world.state, foreseen.judge))
    assert plain == quick
    assert [made.item for made in quick] == [encoded.entry for encoded in chain]
    assert all(quick[0].item is not made.item for made in plain)
    assert quick[0].item is chain[0].entry, "the entry was not decoded"
    assert foreseen.take(world.state, chain[0].data) is None, "the prediction is dropped"


def test_a_foreign_entry_between_predicted_ones_is_folded() -> None:
    """The first entry of the chain loses to another author's entry: the whole chain is stale, despite the
    predictions.
    """
    world, foreseen = World(), ReadAhead()
    chain = sent(world, foreseen, Noop(), Noop())
    other = world.entry(ChangeSettings((("history_entries", 5_000),)))
    log = records([other, *chain])
    quick = list(follow(log, world.state, foreseen.judge))
    assert quick == list(follow(log, world.state))
    assert [made.outcome.kind.value for made in quick] == ["applied", "stale", "stale"]


def test_an_equal_state_that_is_another_object_is_folded() -> None:
    world, foreseen = World(), ReadAhead()
    chain = sent(world, foreseen, Noop())
    first = next(follow(records(chain), World().state, foreseen.judge))
    assert first.item is not chain[0].entry


def test_predictions_of_lost_entries_are_dropped() -> None:
    world, foreseen = World(), ReadAhead()
    for _ in range(READ_AHEAD_MAX):
        foreseen.fold(world.state, world.entry(Noop()))
    late = world.entry(Noop())
    foreseen.fold(world.state, late)
    assert len(foreseen._made) == 1
    assert foreseen.take(world.state, late.data) is not None
