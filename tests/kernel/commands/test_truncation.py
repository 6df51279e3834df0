"""Valid positions for the beginning of a log: a confirmed snapshot covers them, and the archive has the rest."""

from __future__ import annotations

import random

import pytest

from ringlog.kernel.commands.cluster.cluster import ChangeSettings, Noop
from ringlog.kernel.commands.cluster.snapshots import SNAPSHOTS_KEPT_MAX, TakeSnapshot, is_due, last_snapshot
from ringlog.kernel.commands.cluster.truncation import ConfirmSnapshot, RecordArchive, TruncateLog
from ringlog.kernel.encoding.decoder import StateUndecodable, decode_parts
from ringlog.kernel.encoding.encoder import combined_digest, digest, digests_of, encode, encoded_parts
from ringlog.kernel.fold import fold
from ringlog.kernel.history import STORED_MAX, allowed_begin, confirmed_snapshots, state_id_at
from ringlog.kernel.model.outcome import OutcomeKind
from ringlog.kernel.model.state import EMPTY_STATE, ClusterState
from ringlog.kernel.values import Command, replace
from ringlog.protocol.coordinator.core import CoordinatorView, propose
from tests.kernel.entries import applied, entry, founded, random_history

DIGEST = "ab" * 32
ROLES = ("coordinator", "keeper")


def confirm(state: ClusterState, epoch: int, position: int, roles: tuple[str, ...] = ROLES) -> ConfirmSnapshot:
    return ConfirmSnapshot(epoch, state_id_at(state, epoch), position, DIGEST, roles)


def refused(state: ClusterState, command: Command) -> str:
    folded = fold(state, entry(state, command))
    assert folded.outcome.kind is OutcomeKind.REFUSED, folded.outcome
    assert folded.state is state
    return folded.outcome.code


@pytest.fixture
def state() -> ClusterState:
    """Snapshot marks at epochs 4 and 8, with their entries at offsets 13 and 27. Both are confirmed."""
    made = applied(founded(), Noop(), Noop(), TakeSnapshot(), Noop(), Noop(), Noop(), TakeSnapshot())
    return applied(made, confirm(made, 4, 14), confirm(made, 8, 28))


def test_the_log_begins_with_the_entry_of_a_confirmed_snapshot(state: ClusterState) -> None:
    assert allowed_begin(state) == 0
    for below, begin in ((4, 13), (7, 13), (8, 27), (9, 27)):
        assert allowed_begin(applied(state, TruncateLog(below))) == begin
    assert allowed_begin(applied(state, TruncateLog(5), TruncateLog(8))) == 27


@pytest.mark.parametrize(("below", "code"), [(0, "bad_field"), (11, "bad_field"), (3, "truncation_uncovered")])
def test_uncovered_entries_cannot_be_truncated(state: ClusterState, below: int, code: str) -> None:
    assert refused(state, TruncateLog(below)) == code


def test_the_log_cannot_begin_with_an_expired_snapshot(state: ClusterState) -> None:
    for position in (50, 60):
        state = applied(state, TakeSnapshot())
        state = applied(state, confirm(state, state.epoch, position))
    assert [one.epoch for one in confirmed_snapshots(state)] == [4, 8, 11, 13]
    assert refused(state, TruncateLog(7)) == "truncation_uncovered"
    assert allowed_begin(applied(state, TruncateLog(8))) == 27


def test_an_unconfirmed_mark_does_not_permit_truncation() -> None:
    made = applied(founded(), TakeSnapshot(), Noop())
    assert refused(made, TruncateLog(2)) == "truncation_uncovered"


def test_the_log_beginning_only_rises(state: ClusterState) -> None:
    later = applied(state, TruncateLog(8))
    for below in (4, 8):
        assert refused(later, TruncateLog(below)) == "nothing_to_truncate"


def test_truncation_needs_the_archive(state: ClusterState) -> None:
    behind = applied(state, RecordArchive(3, 12, DIGEST))
    assert refused(behind, TruncateLog(4)) == "archive_behind"
    assert allowed_begin(applied(behind, RecordArchive(3, 13, DIGEST), TruncateLog(4))) == 13
    assert refused(applied(behind, RecordArchive(4, 14, DIGEST)), TruncateLog(8)) == "archive_behind"
    assert allowed_begin(applied(behind, RecordArchive(0, 0, ""), TruncateLog(8))) == 27, "the archive was disabled"


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (RecordArchive(2, 14, DIGEST), "archive_shrank"),
        (RecordArchive(5, 11, DIGEST), "archive_shrank"),
        (RecordArchive(12, 40, DIGEST), "bad_field"),
        (RecordArchive(5, 0, DIGEST), "bad_field"),
        (RecordArchive(5, 20, "AB" * 32), "bad_field"),
        (RecordArchive(0, 3, ""), "bad_field"),
    ],
)
def test_an_archive_grows(state: ClusterState, command: Command, code: str) -> None:
    assert refused(applied(state, RecordArchive(3, 12, DIGEST)), command) == code


def test_confirmations_must_agree(state: ClusterState) -> None:
    more = applied(state, confirm(state, 8, 28, ("keeper", "publisher")))
    assert confirmed_snapshots(more)[-1].witnesses == ("coordinator", "keeper", "publisher")
    same = confirm(state, 8, 28)
    for changes in ({"position": 29}, {"digest": "cd" * 32}, {"state_id": state_id_at(state, 7)}):
        assert refused(state, replace(same, **changes)) == "snapshot_contradicted"


@pytest.mark.parametrize("position", [13, 14, 3])
def test_positions_ascend_with_epochs(position: int) -> None:
    made = applied(founded(), TakeSnapshot(), TakeSnapshot())
    first = applied(made, confirm(made, 2, 14))
    assert refused(first, confirm(first, 3, position)) == "snapshot_contradicted"
    last = applied(made, confirm(made, 3, position))
    assert refused(last, confirm(last, 2, 14)) == "snapshot_contradicted"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"epoch": 5}, "snapshot_unknown"),
        ({"witnesses": ("keeper", "keeper")}, "bad_field"),
        ({"witnesses": ("", "keeper")}, "bad_field"),
        ({"witnesses": tuple("abcdefghi")}, "bad_field"),
        ({"position": 0}, "bad_field"),
        ({"digest": "no"}, "bad_field"),
    ],
)
def test_one_reader_cannot_confirm_a_snapshot(state: ClusterState, changes: dict[str, object], code: str) -> None:
    made = applied(state, TakeSnapshot())
    assert refused(made, replace(confirm(made, made.epoch, 50), **changes)) == code  # type: ignore[arg-type]


def test_a_state_without_bounds_keeps_its_digest(state: ClusterState) -> None:
    assert "log_bounds" not in encoded_parts(state)
    given_up = applied(state, RecordArchive(3, 12, DIGEST), RecordArchive(0, 0, ""))
    assert "log_bounds" not in encoded_parts(given_up)


def asked(state: ClusterState, unstored: int = 0) -> list[str]:
    known = CoordinatorView(state, {}, 0, 0, unstored=unstored)
    return [type(one.command).__name__ for one in propose(known)]


def test_a_mark_is_the_epoch_of_its_entry() -> None:
    state = applied(founded(), Noop(), TakeSnapshot())
    assert last_snapshot(state) == state.epoch
    assert state.snapshots[str(state.epoch)].at == state.time


def test_only_the_last_marks_are_stored() -> None:
    state = applied(founded(), *[TakeSnapshot()] * (SNAPSHOTS_KEPT_MAX + 3))
    epochs = sorted(one.epoch for one in state.snapshots.values())
    assert epochs == list(range(state.epoch - SNAPSHOTS_KEPT_MAX + 1, state.epoch + 1))
    assert set(state.snapshots) == set(map(str, epochs))


def test_confirmed_marks_survive_unconfirmed_ones() -> None:
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


def test_the_coordinator_takes_a_snapshot_by_entry_count() -> None:
    state = applied(founded(), *[Noop()] * 20)
    assert not is_due(state)
    assert is_due(replace(state, epoch=10_000)), "a new cluster takes snapshots automatically"
    assert is_due(state, 50_000_000)
    never = applied(state, ChangeSettings((("snapshot_bytes", 0), ("snapshot_entries", 0))))
    assert not is_due(replace(never, epoch=10**7), 10**12), "only manually, if an operator sets it so"
    state = applied(state, ChangeSettings((("snapshot_entries", 10),)))
    assert asked(state) == ["TakeSnapshot"]
    state = applied(state, TakeSnapshot())
    assert asked(state) == []
    state = applied(state, *[Noop()] * 9)
    assert asked(state) == []
    assert asked(applied(state, Noop())) == ["TakeSnapshot"]


def test_the_coordinator_takes_a_snapshot_by_entry_size() -> None:
    state = applied(founded(), ChangeSettings((("snapshot_bytes", 1_000),)), *[Noop()] * 20)
    assert (asked(state, 999), asked(state, 1_000)) == ([], ["TakeSnapshot"])
    state = applied(state, TakeSnapshot(), *[Noop()] * 3)
    assert not is_due(state, 10**9), "the entries of a snapshot do not trigger another one"
    assert is_due(applied(state, Noop(), Noop()), 10**9)
    both = applied(state, ChangeSettings((("snapshot_entries", 30),)), *[Noop()] * 3)
    assert is_due(both, 1_000)
    assert not is_due(both, 999)
    assert is_due(applied(both, *[Noop()] * 30), 0)


def test_a_state_without_marks_keeps_its_digest() -> None:
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


def test_invalid_state_sections_are_rejected() -> None:
    parts = encoded_parts(random_history(random.Random(1), 50))
    strange = {"nobody": parts["name"]}, {"name": parts["name"] + b"N0:"}, {"pauses": encode(EMPTY_STATE.pauses)}
    for change in (*strange, {"epoch": b"I1:7"}, {"history": b""}, {"nodes": parts["name"]}):
        with pytest.raises(StateUndecodable):
            decode_parts(parts | change)
