"""Planted bugs that the simulator cannot reach: a test that is there anyhow finds each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ringlog.log.memory import MemoryLog
from ringlog.sim.mutants.plant import planted
from ringlog.sim.mutants.reading import bugs_of
from tests.kernel.commands import test_features as features
from tests.kernel.commands import test_service as services
from tests.log import test_agreement as agreement
from tests.node import test_joining as joins
from tests.node import test_log_copy as copies
from tests.node import test_rivals as rivals
from tests.wire import test_ack_codes as codes

Story = Callable[[Path], None]


def _told(story: Callable[[], None]) -> Story:
    return lambda _: story()


def _agreed(story: Callable[..., None], **more: str) -> Story:
    def told(folder: Path) -> None:
        story(agreement.cluster.__wrapped__(), folder, **more)  # type: ignore[attr-defined]

    return told


def _copied(folder: Path) -> None:
    """As the fixtures of that module would make it."""
    cluster = copies.cluster.__wrapped__()  # type: ignore[attr-defined]
    made = copies.copy.__wrapped__(folder, cluster)  # type: ignore[attr-defined]
    copies.test_where_the_log_begins_later_it_begins_anew(folder, cluster, next(made))


def _upgraded(folder: Path) -> None:
    rivals.test_a_folder_of_0_1_0_has_no_acknowledgement_and_is_no_copy(folder, MemoryLog("shop.acks"))


CLAIMED = agreement.test_a_digest_that_somebody_only_claims_in_the_log_halts_nobody
STORIES: dict[str, Story] = {
    "quarantine_never": _agreed(agreement.test_one_against_two_is_quarantined_and_keeps_its_evidence),
    "quarantine_by_the_logs_word": _agreed(CLAIMED, stored="nothing"),
    "quarantine_by_one_alone": _agreed(CLAIMED, stored="by one alone"),
    "quarantine_evidence_replaced": _agreed(agreement.test_who_is_started_again_goes_on_and_its_first_evidence_stays),
    "quarantine_marks_kept": _agreed(agreement.test_marks_that_nobody_confirms_are_not_kept_for_ever),
    "code_of_any_node": _told(codes.test_a_node_is_believed_for_itself_only),
    "code_not_asked_for": _told(codes.test_a_node_is_believed_for_itself_only),
    "code_of_the_first_master_only": _told(codes.test_keys_change_while_all_run),
    "code_of_nothing": _told(codes.test_no_byte_of_what_was_said_can_be_another_one),
    "feature_before_all_have_it": _told(features.test_a_feature_is_enabled_when_every_member_supports_it),
    "feature_held_up_by_who_left": _told(features.test_a_node_that_is_no_member_holds_nothing_up),
    "feature_not_asked_of_newcomers": _told(features.test_who_lacks_it_cannot_register),
    "feature_enabled_again": _told(features.test_to_enable_it_again_changes_nothing),
    "members_never_exchanged": _told(services.test_members_are_spread_as_evenly_as_the_nodes_allow),
    "recovery_waits_for_a_quorum": _told(services.test_in_a_recovery_no_quorum_is_needed_and_the_node_itself_is),
    "copy_of_a_log_that_was_cut": _copied,
    "upgrade_older_validator_ends_the_node": _told(joins.test_a_validator_that_knows_no_such_command_holds_nothing_up),
    "upgrade_said_to_one_validator_only": _told(joins.test_the_next_validator_is_told_and_nobody_in_between),
    "upgrade_insisted_on": _told(joins.test_the_next_validator_is_told_and_nobody_in_between),
    "upgrade_folder_taken_for_a_copy": _upgraded,
    "upgrade_copies_of_its_folder_run": _upgraded,
}


def test_each_bug_has_a_story() -> None:
    assert STORIES.keys() == {bug.name for bug in bugs_of("stories")}


@pytest.mark.parametrize("name", STORIES)
def test_a_planted_bug_is_found(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The story is true without the bug, and with it something in it is not as the story says, or raises."""
    (bug,) = (one for one in bugs_of("stories") if one.name == name)
    for folder in ("right", "wrong"):
        (tmp_path / folder).mkdir()
    STORIES[name](tmp_path / "right")
    monkeypatch.setattr(agreement, "LONG_S", 1.0)  # so long it waits for what the bug keeps from coming
    with planted(bug), pytest.raises((Exception, pytest.fail.Exception)):
        STORIES[name](tmp_path / "wrong")
