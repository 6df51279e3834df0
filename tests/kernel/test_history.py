"""The bound of the history and the edge at which a request is too old to be told from a repetition."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ringlog.kernel import history
from ringlog.kernel.commands.cluster import ChangeSettings, Noop
from ringlog.kernel.fold import fold
from ringlog.kernel.outcome import OutcomeKind
from ringlog.kernel.state import EMPTY_HISTORY, Applied, History
from tests.kernel.entries import applied, entry, founded, uuid


def remembered(bounds: list[int]) -> History:
    """The history after one entry for each bound in force."""
    known = EMPTY_HISTORY
    for epoch, bound in enumerate(bounds, start=1):
        known = history.remember(known, Applied(epoch, f"s{epoch}", f"r{epoch}", "d"), bound)
    return known


@given(st.lists(st.integers(1, 12), max_size=60))
def test_it_holds_the_epochs_from_oldest_on_and_oldest_never_goes_back(bounds: list[int]) -> None:
    oldest = 0
    for count in range(1, len(bounds) + 1):
        known = remembered(bounds[:count])
        assert known.oldest >= oldest
        oldest = known.oldest
        epochs = list(range(max(oldest, 1), count + 1))
        assert len(epochs) <= bounds[count - 1]
        assert sorted(known.entries) == epochs
        assert {epoch: f"r{epoch}" for epoch in epochs} == {epoch: name for name, epoch in known.requests.items()}
        assert {epoch: f"s{epoch}" for epoch in epochs} == {epoch: name for name, epoch in known.states.items()}


def test_oldest_is_zero_until_the_bound_is_reached() -> None:
    assert [remembered([3] * count).oldest for count in range(6)] == [0, 0, 0, 1, 2, 3]


def test_a_request_expires_with_the_epoch_it_was_made_at() -> None:
    state = applied(founded(history_entries=100), *[Noop()] * 149)
    assert (state.epoch, state.history.oldest, len(state.history.entries)) == (150, 51, 100)
    for since_epoch, expired in ((0, True), (50, True), (51, False), (150, False), (151, True)):
        assert history.is_expired(state, since_epoch) is expired
        kind = fold(state, entry(state, Noop(), since_epoch=since_epoch)).outcome.kind
        assert kind is (OutcomeKind.EXPIRED if expired else OutcomeKind.APPLIED)


def test_a_forgotten_request_cannot_come_back() -> None:
    """Its own since_epoch has left the history by the time its id has."""
    state = founded(history_entries=100)
    request = entry(state, Noop())
    while history.find_request(state, request.request_id) is not None or state.epoch == 1:
        state = applied(state, Noop()) if state.epoch > 1 else fold(state, request).state
    again = entry(state, Noop(), request_id=request.request_id, since_epoch=request.since_epoch)
    assert fold(state, again).outcome.kind is OutcomeKind.EXPIRED


def test_a_smaller_bound_drops_at_once_and_a_larger_one_brings_nothing_back() -> None:
    state = applied(founded(), *[Noop()] * 199)
    state = applied(state, ChangeSettings((("history_entries", 100),)))
    assert (state.epoch, state.history.oldest, len(state.history.entries)) == (201, 102, 100)
    state = applied(state, ChangeSettings((("history_entries", 10_000),)), Noop())
    assert (state.epoch, state.history.oldest, len(state.history.entries)) == (203, 102, 102)


def test_lookups() -> None:
    state = applied(founded(history_entries=100), *[Noop()] * 149)
    found = history.find_request(state, uuid(70, space=1))
    assert found is not None
    assert found.epoch == 70
    assert history.find_state(state, uuid(70)) == found
    assert history.find_request(state, uuid(50, space=1)) is None
    assert history.find_state(state, uuid(50)) is None
