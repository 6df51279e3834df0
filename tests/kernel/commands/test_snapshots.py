"""``TakeSnapshot`` marks an epoch; the marks are bounded, and say when the next one is due."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from ringlog.kernel.commands.cluster.cluster import ChangeSettings, Noop
from ringlog.kernel.commands.cluster.snapshots import SNAPSHOTS_KEPT_MAX, TakeSnapshot, is_due, last_snapshot
from ringlog.kernel.commands.cluster.truncation import ConfirmSnapshot, TruncateLog
from ringlog.kernel.encoding.decoder import StateUndecodable, decode_parts
from ringlog.kernel.encoding.encoder import combined_digest, digest, digests_of, encode, encoded_parts
from ringlog.kernel.history import STORED_MAX, confirmed_snapshots
from ringlog.kernel.model.state import EMPTY_STATE, ClusterState
from ringlog.protocol.coordinator.core import CoordinatorView, propose
from tests.kernel.entries import applied, founded, random_history


def asked(state: ClusterState, unstored: int = 0) -> list[str]:
    known = CoordinatorView(state, {}, 0, 0, unstored=unstored)
    return [type(one.command).__name__ for one in propose(known)]


def test_a_mark_is_the_epoch_of_its_entry() -> None:
    state = applied(founded(), Noop(), TakeSnapshot())
    assert last_snapshot(state) == state.epoch
    assert state.snapshots[str(state.epoch)].at == state.time


def test_only_the_last_marks_are_remembered() -> None:
    state = applied(founded(), *[TakeSnapshot()] * (SNAPSHOTS_KEPT_MAX + 3))
    epochs = sorted(one.epoch for one in state.snapshots.values())
    assert epochs == list(range(state.epoch - SNAPSHOTS_KEPT_MAX + 1, state.epoch + 1))
    assert set(state.snapshots) == set(map(str, epochs))


def test_confirmed_marks_stay_however_many_unconfirmed_ones_follow() -> None:
    state, confirmed = founded(), list[int]()
    for position in (10, 20, 30, 40):
        state = applied(state, TakeSnapshot())
        confirmed.append(state.epoch)
        said = ConfirmSnapshot(state.epoch, state.state_id, position, "ab" * 32, ("keeper", "publisher"))
        state = applied(state, said)
        if position == 20:
            state = applied(state, TruncateLog(confirmed[0]))
    state = applied(state, *[TakeSnapshot()] * (2 * SNAPSHOTS_KEPT_MAX))
    assert [one.epoch for one in confirmed_snapshots(state)] == confirmed
    later = applied(state, TruncateLog(confirmed[-1]), TakeSnapshot())
    assert [one.epoch for one in confirmed_snapshots(later)] == confirmed[1:], "the log no longer begins with the first"
    assert len(later.snapshots) == SNAPSHOTS_KEPT_MAX + STORED_MAX


def test_the_coordinator_asks_for_one_when_so_many_entries_were_applied() -> None:
    state = applied(founded(), *[Noop()] * 20)
    assert not is_due(state)
    assert is_due(replace(state, epoch=10_000)), "a new cluster takes them by itself"
    assert is_due(state, 50_000_000)
    never = applied(state, ChangeSettings((("snapshot_bytes", 0), ("snapshot_entries", 0))))
    assert not is_due(replace(never, epoch=10**7), 10**12), "by hand only, if an operator wants it so"
    state = applied(state, ChangeSettings((("snapshot_entries", 10),)))
    assert asked(state) == ["TakeSnapshot"]
    state = applied(state, TakeSnapshot())
    assert asked(state) == []
    state = applied(state, *[Noop()] * 9)
    assert asked(state) == []
    assert asked(applied(state, Noop())) == ["TakeSnapshot"]


def test_or_when_entries_of_that_size_were() -> None:
    state = applied(founded(), ChangeSettings((("snapshot_bytes", 1_000),)), *[Noop()] * 20)
    assert (asked(state, 999), asked(state, 1_000)) == ([], ["TakeSnapshot"])
    state = applied(state, TakeSnapshot(), *[Noop()] * 3)
    assert not is_due(state, 10**9), "a snapshot makes entries of its own, which ask for no other"
    assert is_due(applied(state, Noop(), Noop()), 10**9)
    both = applied(state, ChangeSettings((("snapshot_entries", 30),)), *[Noop()] * 3)
    assert is_due(both, 1_000)
    assert not is_due(both, 999)
    assert is_due(applied(both, *[Noop()] * 30), 0)


def test_a_state_without_marks_has_the_digest_that_it_had() -> None:
    assert "snapshots" not in encoded_parts(founded())
    assert "snapshots" in encoded_parts(applied(founded(), TakeSnapshot()))


@pytest.mark.parametrize("seed", range(8))
def test_states_come_back_from_the_bytes_of_their_parts(seed: int) -> None:
    state = random_history(random.Random(seed), 40 * seed)
    parts = encoded_parts(state)
    found = decode_parts(parts)
    assert found == state
    assert encode(found) == encode(state)
    assert combined_digest(digests_of(parts)) == digest(state)


def test_parts_that_no_state_has_are_refused() -> None:
    parts = encoded_parts(random_history(random.Random(1), 50))
    strange = {"nobody": parts["name"]}, {"name": parts["name"] + b"N0:"}, {"pauses": encode(EMPTY_STATE.pauses)}
    for change in (*strange, {"epoch": b"I1:7"}, {"history": b""}, {"nodes": parts["name"]}):
        with pytest.raises(StateUndecodable):
            decode_parts(parts | change)
