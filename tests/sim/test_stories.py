"""Planted bugs outside the simulator's reach; an existing test finds each of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ringlog.kernel.values import replace
from ringlog_sim.mutants.plant import bugs_of, planted
from tests.client import test_row_reads as reads
from tests.kernel.commands import test_features as features
from tests.kernel.commands import test_service as services
from tests.kernel.verdicts import test_pruning as forgettings
from tests.log import test_agreement as agreement
from tests.node import test_compaction as compactions
from tests.node import test_disk_rows as disks
from tests.node import test_joining as joins
from tests.node import test_log_copy as copies
from tests.node import test_recreated_streams as streams
from tests.protocol import test_pruning as prunings
from tests.protocol import test_zone_changes as zones
from tests.wire import test_ack_codes as codes

Story = Callable[[Path], None]


def _told(story: Callable[[], None]) -> Story:
    return lambda _: story()


def _agreed(story: Callable[..., None], **more: str) -> Story:
    def told(folder: Path) -> None:
        story(agreement.cluster.__wrapped__(), folder, **more)  # type: ignore[attr-defined]

    return told


def _copied(folder: Path) -> None:
    """Run the test of a copy with the values of its fixtures."""
    cluster = copies.cluster.__wrapped__()  # type: ignore[attr-defined]
    made = copies.copy.__wrapped__(folder, cluster)  # type: ignore[attr-defined]
    copies.test_a_copy_restarts_if_the_log_starts_later(folder, cluster, next(made))


def _pruned(story: Callable[..., None], *more: object) -> Story:
    """Return a story on the state of that module's fixture."""
    return lambda _: story(prunings.altered.__wrapped__(), *more)  # type: ignore[attr-defined]


_behind = _pruned(prunings.test_every_member_must_have_validated_the_deleted_records, {})


def _stayed(_: Path) -> None:
    compactions.test_versions_that_another_schema_reads_differently_stay(
        replace(compactions.SHAPE, columns=("s", "v", "m", "e", "u")), "w"
    )


CLAIMED = agreement.test_a_digest_only_claimed_in_the_log_halts_no_reader
STORIES: dict[str, Story] = {
    "quarantine_never": _agreed(agreement.test_one_reader_against_two_is_quarantined_and_keeps_its_evidence),
    "quarantine_by_the_logs_word": _agreed(CLAIMED, stored="nothing"),
    "quarantine_by_one_alone": _agreed(CLAIMED, stored="by one alone"),
    "quarantine_evidence_replaced": _agreed(agreement.test_a_restarted_reader_continues_and_keeps_its_first_evidence),
    "quarantine_marks_kept": _agreed(agreement.test_unconfirmed_marks_are_dropped),
    "code_of_any_node": _told(codes.test_a_node_key_signs_its_own_acknowledgements_only),
    "code_not_asked_for": _told(codes.test_a_node_key_signs_its_own_acknowledgements_only),
    "code_of_the_first_master_only": _told(codes.test_keys_rotate_while_all_nodes_run),
    "code_of_nothing": _told(codes.test_a_changed_byte_invalidates_the_code),
    "feature_before_all_have_it": _told(features.test_a_feature_is_enabled_when_every_member_supports_it),
    "feature_held_up_by_who_left": _told(features.test_a_node_that_is_not_a_member_does_not_block_a_feature),
    "feature_not_asked_of_newcomers": _told(features.test_a_node_without_the_feature_cannot_register),
    "feature_enabled_again": _told(features.test_enabling_a_feature_again_changes_nothing),
    "feature_enabled_because_it_is_required": _told(features.test_a_required_feature_is_enabled_later),
    "feature_requirement_withdrawn_when_enabled": _told(features.test_a_requirement_is_withdrawn_until_it_is_enabled),
    "feature_not_asked_of_who_returns": _told(features.test_a_required_feature_keeps_out_nodes_without_it),
    "feature_not_asked_at_the_start": _told(joins.test_a_member_does_not_start_without_a_required_feature),
    "members_never_exchanged": _told(services.test_members_are_spread_evenly),
    "recovery_waits_for_a_quorum": _told(services.test_a_recovery_needs_the_node_but_no_quorum),
    "copy_of_a_log_that_was_cut": _copied,
    "stream_of_a_source_that_is_behind": _told(streams.test_rows_of_a_dropped_table_do_not_enter_the_recreated_one),
    "next_table_in_the_same_tablets": _told(
        streams.test_registers_of_a_dropped_table_do_not_enter_the_recreated_one_in_the_same_tablets
    ),
    "grown_value_removed": _stayed,
    "rows_called_lost": lambda _: reads.test_replicas_that_removed_redundant_writes_at_different_times_agree(
        reads.Replicas()
    ),
    "zone_restart_swallows_a_change": _told(zones.test_a_change_before_a_restart_is_acted_on_after_it),
    "zone_reset_swallows_a_change": _told(zones.test_a_change_before_an_automatic_reset_is_acted_on_after_it),
    "zone_mode_is_no_change": _told(zones.test_capacity_and_mode_are_changes_of_a_zone),
    "pruned_before_a_node_validated": _behind,
    "pruned_while_records_are_there": _pruned(prunings.test_versions_of_existing_records_are_kept),
    "pruned_before_the_first_writer": _told(forgettings.test_pruning_waits_for_the_first_writer),
    "pruned_before_a_successor": _told(forgettings.test_pruning_waits_for_the_successor_of_a_fenced_writer),
    "pruned_before_a_writer": _told(forgettings.test_pruning_waits_for_the_successor_of_a_fenced_writer),
    "log_of_another_file": disks.test_an_old_file_with_a_newer_log_is_rejected,
}


def test_each_bug_has_a_story() -> None:
    assert STORIES.keys() == {bug.name for bug in bugs_of("stories")}


@pytest.mark.parametrize("name", STORIES)
def test_a_planted_bug_is_found(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The story passes without the bug, and fails or raises with it."""
    (bug,) = (one for one in bugs_of("stories") if one.name == name)
    for folder in ("right", "wrong"):
        (tmp_path / folder).mkdir()
    STORIES[name](tmp_path / "right")
    monkeypatch.setattr(agreement, "LONG_S", 1.0)  # the timeout for events that the bug prevents
    with planted(bug), pytest.raises((Exception, pytest.fail.Exception)):
        STORIES[name](tmp_path / "wrong")
