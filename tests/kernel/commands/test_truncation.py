"""The fold rules where the log may begin: what a confirmed snapshot covers and the archive holds, and nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ringlog.kernel.commands.cluster.cluster import Noop
from ringlog.kernel.commands.cluster.snapshots import TakeSnapshot
from ringlog.kernel.commands.cluster.truncation import ConfirmSnapshot, RecordArchive, TruncateLog
from ringlog.kernel.encoding.encoder import encoded_parts
from ringlog.kernel.fold import fold
from ringlog.kernel.history import allowed_begin, confirmed_snapshots, state_id_at
from ringlog.kernel.model.outcome import OutcomeKind
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Command
from tests.kernel.entries import applied, entry, founded

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
    """Marks at epochs 4 and 8, whose entries lie at offsets 13 and 27; both are confirmed."""
    made = applied(founded(), Noop(), Noop(), TakeSnapshot(), Noop(), Noop(), Noop(), TakeSnapshot())
    return applied(made, confirm(made, 4, 14), confirm(made, 8, 28))


def test_the_log_begins_with_the_entry_of_a_confirmed_snapshot(state: ClusterState) -> None:
    assert allowed_begin(state) == 0
    for below, begin in ((4, 13), (7, 13), (8, 27), (9, 27)):
        assert allowed_begin(applied(state, TruncateLog(below))) == begin
    assert allowed_begin(applied(state, TruncateLog(5), TruncateLog(8))) == 27


@pytest.mark.parametrize(("below", "code"), [(0, "bad_field"), (11, "bad_field"), (3, "truncation_uncovered")])
def test_what_no_confirmed_snapshot_covers_stays(state: ClusterState, below: int, code: str) -> None:
    assert refused(state, TruncateLog(below)) == code


def test_the_log_begins_with_no_snapshot_that_may_be_stored_no_more(state: ClusterState) -> None:
    for position in (50, 60):
        state = applied(state, TakeSnapshot())
        state = applied(state, confirm(state, state.epoch, position))
    assert [one.epoch for one in confirmed_snapshots(state)] == [4, 8, 11, 13]
    assert refused(state, TruncateLog(7)) == "truncation_uncovered"
    assert allowed_begin(applied(state, TruncateLog(8))) == 27


def test_a_mark_alone_covers_nothing() -> None:
    made = applied(founded(), TakeSnapshot(), Noop())
    assert refused(made, TruncateLog(2)) == "truncation_uncovered"


def test_a_beginning_only_rises(state: ClusterState) -> None:
    later = applied(state, TruncateLog(8))
    for below in (4, 8):
        assert refused(later, TruncateLog(below)) == "nothing_to_truncate"


def test_the_archive_goes_first(state: ClusterState) -> None:
    behind = applied(state, RecordArchive(3, 12, DIGEST))
    assert refused(behind, TruncateLog(4)) == "archive_behind"
    assert allowed_begin(applied(behind, RecordArchive(3, 13, DIGEST), TruncateLog(4))) == 13
    assert refused(applied(behind, RecordArchive(4, 14, DIGEST)), TruncateLog(8)) == "archive_behind"
    assert allowed_begin(applied(behind, RecordArchive(0, 0, ""), TruncateLog(8))) == 27, "it was given up"


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


def test_witnesses_add_up_and_do_not_contradict_each_other(state: ClusterState) -> None:
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
def test_one_reader_is_no_witness(state: ClusterState, changes: dict[str, object], code: str) -> None:
    made = applied(state, TakeSnapshot())
    assert refused(made, replace(confirm(made, made.epoch, 50), **changes)) == code  # type: ignore[arg-type]


def test_a_state_without_bounds_has_the_digest_that_it_had(state: ClusterState) -> None:
    assert "log_bounds" not in encoded_parts(state)
    given_up = applied(state, RecordArchive(3, 12, DIGEST), RecordArchive(0, 0, ""))
    assert "log_bounds" not in encoded_parts(given_up)
