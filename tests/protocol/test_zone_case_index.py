"""Index of tests for each black-box case of Apache Ignite 3's rebalance: its groups by number, row by row.

Group 17 does not exist. If a case concerns a feature that does not exist here, the row names its replacement.
"""

from __future__ import annotations

import re

import pytest

from tests.tidy.files import ROOT

CONDITIONS, MOVES, DATA = (f"tests/kernel/zones/test_{name}.py" for name in ("conditions", "moves", "data"))
SALVAGE, SPREAD = "tests/kernel/zones/test_salvage.py", "tests/kernel/zones/test_distribution.py"
AGENT, CASES, NODES = (f"tests/protocol/test_{name}.py" for name in ("rebalancer", "zone_cases", "data_nodes"))
FOLLOWERS, COMMANDS = "tests/node/test_followers.py", "tests/cli/test_zone.py"

ROWS = (
    (1, "the truth table of a trigger", CONDITIONS, "the_truth_table_of_a_trigger"),
    (1, "a stale event writes nothing, planned stays absent", CONDITIONS, "an_old_event_changes_nothing"),
    (1, "an event that several deliver is applied once", MOVES, "a_repeated_event_applies_once"),
    (2, "data nodes and then none: no further request", MOVES, "new_partitions_get_their_first_nodes"),
    (2, "two events, two requests", AGENT, "each_change_of_data_nodes_is_one_request"),
    (3, "1 to 2, to 3, back to 2", MOVES, "replica_changes_end_at_the_target"),
    (3, "several groups end equal", MOVES, "the_last_replica_count_applies_to_each_partition"),
    (
        3,
        "several tables end equal; nothing pending, nothing planned",
        CASES,
        "3_every_table_of_a_zone_gets_the_last_number_of_replicas",
    ),
    (
        4,
        "a spare comes, and goes when the node is back",
        CASES,
        "4_a_spare_replaces_a_lost_node_and_only_members_answer",
    ),
    (4, "only members have data, others refuse", CASES, "4_a_former_member_has_no_rows"),
    (5, "a member all the while", MOVES, "a_returning_node_stays_a_member"),
    (5, "with data: its replica neither stops nor starts", CASES, "5_a_removed_and_readded_node_keeps_its_rows"),
    (6, "events of pending and of stable", MOVES, "a_queue_has_a_pending_event_for_each_step"),
    (7, "a member, or the first one, restarts in a queue", CASES, "7_a_restart_in_a_queue_loses_no_step"),
    (
        8,
        "who leads changes while who comes catches up",
        AGENT,
        "an_instance_that_dies_before_a_request_loses_and_repeats_none",
    ),
    (8, "blocked, then not", FOLLOWERS, "a_lagging_node_counts_after_it_has_caught_up"),
    (8, "five times in vain", AGENT, "a_replica_that_fails_five_times_still_joins"),
    (
        9,
        "the target did not hear of the step",
        CASES,
        "9_a_node_that_missed_a_step_reports_nothing_and_gets_its_replica_later",
    ),
    (9, "what was taken away by hand happens", CASES, "9_a_manually_undone_move_happens_on_a_new_request"),
    (10, "a learner votes when a voter is lost", MOVES, "a_learner_replaces_a_departed_voter"),
    (10, "voters and learners of 2, 3, 4 replicas", MOVES, "voters_and_learners_follow_replicas_and_quorum"),
    (11, "five nodes, two of three replicas lost", CASES, "11_two_of_three_replicas_on_five_nodes_are_lost"),
    (11, "the same with data", SALVAGE, "a_manual_reset_restores_the_replica_count"),
    (12, "a pending node has the data", MOVES, "data_of_a_pending_node_survives"),
    (12, "the same in each stage of moving data", SALVAGE, "a_lost_majority_in_each_stage_keeps_the_live_rows"),
    (12, "all lost, automatic: nothing written", MOVES, "an_automatic_reset_keeps_the_live_replicas"),
    (12, "the same with data", SALVAGE, "only_a_manual_reset_abandons_lost_data"),
    (13, "old members do not start", AGENT, "a_node_removed_by_a_reset_does_not_start_after_its_return"),
    (13, "a trigger, and a second reset", MOVES, "a_trigger_or_reset_replaces_the_second_phase"),
    (13, "a second reset with data", SALVAGE, "a_second_reset_replaces_the_first"),
    (14, "the longest log, the first name", MOVES, "the_replica_with_the_longest_log_survives"),
    (14, "a quorum of its own", CASES, "14_a_separate_quorum_decides_which_data_is_lost"),
    (15, "vectors of chains", CONDITIONS, "chains_contain_the_nodes_before_a_reset"),
    (15, "the last link; an epoch in the place of term and index", MOVES, "the_last_link_of_a_chain_is_the"),
    (16, "survivor alone, then one by one", SALVAGE, "a_highly_available_zone_continues_with_the_live_nodes"),
    (16, "a minority is no reason", AGENT, "a_lost_minority_causes_no_reset"),
    (
        16,
        "together one request, one after the other two",
        AGENT,
        "nodes_lost_together_cause_one_reset_and_nodes_lost_in_turn_two",
    ),
    (16, "a strong zone never", AGENT, "a_lost_majority_is_reset_in_highly_available_zones"),
    (18, "two that come are one step", NODES, "a_second_new_node_restarts_the_wait_of_both"),
    (18, "another wait, none, never", NODES, "another_value_of_the_wait_counts_at_once"),
    (18, "another filter", NODES, "another_filter_ends_both_timers"),
    (18, "who takes over", NODES, "a_take_over_loses_no_timer"),
    (18, "what they were before", NODES, "the_log_contains_past_data_nodes"),
    (18, "other attributes", NODES, "other_values_of_a_node_count_too"),
    (19, "bounds, at once; no delay to be set", CASES, "19_waits_are_bounded_and_a_change_counts_at_once"),
    (20, "sizes", SPREAD, "sizes"),
    (20, "spread", SPREAD, "shares_are_even_within_a_fifth"),
    (20, "more voters than replicas", MOVES, "bad_input_is_refused_and_changes_nothing"),
)


@pytest.mark.parametrize(("group", "case", "file", "name"), ROWS)
def test_a_case_has_its_test(group: int, case: str, file: str, name: str) -> None:
    found = re.findall(rf"^def test_{name}\w*\(", (ROOT / file).read_text(), re.MULTILINE)
    assert len(found) == 1, f"group {group}, {case}: {file} has {found}"


def test_each_group_has_some() -> None:
    assert {row[0] for row in ROWS} == set(range(1, 21)) - {17}
