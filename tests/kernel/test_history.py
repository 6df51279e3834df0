"""The bound of the history, and requests near the limit of its detection of repetitions."""

from __future__ import annotations

import hashlib

from hypothesis import given
from hypothesis import strategies as st

from ringlog.kernel import history
from ringlog.kernel.commands.cluster.cluster import ChangeSettings, Noop
from ringlog.kernel.encoding.encoder import digest
from ringlog.kernel.fold import fold
from ringlog.kernel.model.applied_history import BLOCK, EMPTY_HISTORY, Applied, History, history_of
from ringlog.kernel.model.outcome import OutcomeKind
from ringlog.kernel.model.state import EMPTY_STATE
from tests.kernel.entries import applied, entry, founded, uuid


def history_after(bounds: list[int]) -> History:
    """Return the history after one entry for each bound."""
    known = EMPTY_HISTORY
    for epoch, bound in enumerate(bounds, start=1):
        known = known.with_(Applied(epoch, f"s{epoch:04}", f"r{epoch:04}", "d"), bound)
    return known


def test_the_chain_covers_the_bytes_of_each_applied_entry() -> None:
    """An auditor needs only SHA-256 and the records to compute it."""
    state = founded()
    chain = state.chain
    for data in (b"one", b"two"):
        state = fold(state, entry(state, Noop(), data=data)).state
        chain = hashlib.sha256(chain + data).digest()
        assert state.chain == chain
    assert EMPTY_STATE.chain == b""
    assert fold(state, entry(state, Noop(), prev_state_id=uuid(1), data=b"stale")).state.chain == chain
    forged = fold(founded(), entry(founded(), Noop(), data=b"One")).state
    assert digest(forged) != digest(fold(founded(), entry(founded(), Noop(), data=b"one")).state)


@given(st.lists(st.integers(1, 12), max_size=60))
def test_the_oldest_epoch_never_decreases(bounds: list[int]) -> None:
    oldest = 0
    for count in range(1, len(bounds) + 1):
        known = history_after(bounds[:count])
        assert known.oldest >= oldest
        oldest = known.oldest
        epochs = list(range(max(oldest, 1), count + 1))
        assert len(epochs) <= bounds[count - 1]
        assert [one.epoch for one in known] == epochs
        assert len(known) == len(epochs)


@given(st.lists(st.integers(1, 400), min_size=1, max_size=6), st.integers(1, 3 * BLOCK))
def test_the_history_equals_a_plain_list(bounds: list[int], each: int) -> None:
    """Each id is looked up, over several blocks, with changes of the bound."""
    known, plain = EMPTY_HISTORY, []
    for number, bound in enumerate(bounds):
        for epoch in range(number * each + 1, (number + 1) * each + 1):
            known = known.with_(one := Applied(epoch, f"s{epoch:04}", f"r{epoch:04}", "d"), bound)
            plain.append(one)
        kept = [one for one in plain if one.epoch >= known.first]
        assert list(known) == kept
        assert len(known) == len(kept) <= bound
        assert known == history_of(known.oldest, kept)
        assert hash(known) == hash(history_of(known.oldest, kept))
        for one in plain:
            expected = one if one.epoch >= known.first else None
            assert known.at(one.epoch) is expected
            assert known.of_request(one.request_id) is expected
            assert known.of_state(one.state_id) is expected
        for unknown in ("", "s0001x", "z"):
            assert known.of_state(unknown) is known.of_request(unknown) is None
        assert known.at(0) is known.at(plain[-1].epoch + 1) is None


@given(st.integers(1, 3 * BLOCK))
def test_a_removed_id_can_apply_again(between: int) -> None:
    known = EMPTY_HISTORY.with_(Applied(1, "s0001", "again", "d"), 1)
    for epoch in range(2, 6 * BLOCK):
        name = "again" if epoch == 1 + between else f"r{epoch:04}"
        known = known.with_(Applied(epoch, f"s{epoch:04}", name, "d"), between)
        found = known.of_request("again")
        first, second = known.first == 1, 1 + between if known.first <= 1 + between <= epoch else None
        assert (found and found.epoch) == (second or (1 if first else None))


def test_oldest_is_zero_until_the_bound_is_reached() -> None:
    assert [history_after([3] * count).oldest for count in range(6)] == [0, 0, 0, 1, 2, 3]


def test_a_request_expires_with_its_since_epoch() -> None:
    state = applied(founded(history_entries=100), *[Noop()] * 149)
    assert (state.epoch, state.history.oldest, len(state.history)) == (150, 51, 100)
    for since_epoch, expired in ((0, True), (50, True), (51, False), (150, False), (151, True)):
        assert history.is_expired(state, since_epoch) is expired
        kind = fold(state, entry(state, Noop(), since_epoch=since_epoch)).outcome.kind
        assert kind is (OutcomeKind.EXPIRED if expired else OutcomeKind.APPLIED)


def test_an_expired_request_cannot_apply_again() -> None:
    """When an id has left the history, its since_epoch has left it too."""
    state = founded(history_entries=100)
    request = entry(state, Noop())
    while history.find_request(state, request.request_id) is not None or state.epoch == 1:
        state = applied(state, Noop()) if state.epoch > 1 else fold(state, request).state
    again = entry(state, Noop(), request_id=request.request_id, since_epoch=request.since_epoch)
    assert fold(state, again).outcome.kind is OutcomeKind.EXPIRED


def test_a_smaller_bound_drops_ids_immediately() -> None:
    state = applied(founded(), *[Noop()] * 199)
    state = applied(state, ChangeSettings((("history_entries", 100),)))
    assert (state.epoch, state.history.oldest, len(state.history)) == (201, 102, 100)
    state = applied(state, ChangeSettings((("history_entries", 10_000),)), Noop())
    assert (state.epoch, state.history.oldest, len(state.history)) == (203, 102, 102)


def test_lookups() -> None:
    state = applied(founded(history_entries=100), *[Noop()] * 149)
    found = history.find_request(state, uuid(70, space=1))
    assert found is not None
    assert found.epoch == 70
    assert history.find_state(state, uuid(70)) == found
    assert history.find_request(state, uuid(50, space=1)) is None
    assert history.find_state(state, uuid(50)) is None
