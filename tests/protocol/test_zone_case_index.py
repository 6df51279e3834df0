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
    (1, "a stale event writes nothing, planned stays absent", CONDITIONS, "an_event_that_is_not_newer_writes_nothing"),
    (1, "an event that several deliver is applied once", MOVES, "the_same_event_from_several_is_applied_once"),
    (2, "data nodes and then none: no further request", MOVES, "no_data_nodes_no_move_and_new_partitions_get"),
    (2, "two events, two requests", AGENT, "each_change_of_data_nodes_is_one_request"),
    (3, "1 to 2, to 3, back to 2", MOVES, "replicas_one_two_three_and_back_end_as_asked"),
    (3, "several groups end equal", MOVES, "the_last_of_several_numbers_of_replicas_counts_for_every_partition"),
    (3, "several tables end equal; nothing pending, nothing planned", CASES, "3_every_table_of_a_zone_ends_as"),
    (4, "a spare comes, and goes when the node is back", CASES, "4_a_spare_takes_the_place_of_who_left"),
    (4, "only members have data, others refuse", CASES, "4_who_is_no_member_any_more_has_no_rows"),
    (5, "a member all the while", MOVES, "who_goes_and_comes_back_is_a_member_all_the_while"),
    (5, "with data: its replica neither stops nor starts", CASES, "5_who_goes_and_is_wanted_again_keeps_its_rows"),
    (6, "events of pending and of stable", MOVES, "a_queue_is_as_many_events_of_pending_as_it_has_steps_and_one"),
    (7, "a member, or the first one, restarts in a queue", CASES, "7_a_restart_in_the_midst_of_a_queue_loses_no_step"),
    (
        8,
        "who leads changes while who comes catches up",
        AGENT,
        "an_instance_that_dies_before_a_request_loses_and_repeats_none",
    ),
    (8, "blocked, then not", FOLLOWERS, "a_lagging_node_counts_after_it_has_caught_up"),
    (8, "five times in vain", AGENT, "a_replica_that_fails_five_times_still_joins"),
    (9, "the target did not hear of the step", CASES, "9_a_node_that_did_not_hear_of_a_step_says_nothing"),
    (9, "what was taken away by hand happens", CASES, "9_a_move_that_was_undone_by_hand_happens_when_it_is_asked"),
    (10, "a learner votes when a voter is lost", MOVES, "a_learner_votes_when_a_voter_goes_and_a_queue_is_one"),
    (10, "voters and learners of 2, 3, 4 replicas", MOVES, "voters_and_learners_follow_replicas_and_quorum"),
    (11, "five nodes, two of three replicas lost", CASES, "11_two_of_three_replicas_on_five_nodes_are_lost"),
    (11, "the same with data", SALVAGE, "by_hand_a_zone_gets_its_number_of_replicas_again"),
    (12, "a pending node has the data", MOVES, "what_a_pending_node_has_survives"),
    (12, "the same in each stage of moving data", SALVAGE, "a_majority_that_is_lost_in_any_stage_of_a_move_loses"),
    (12, "all lost, automatic: nothing written", MOVES, "an_automatic_reset_keeps_who_is_left_and_invents_nothing"),
    (12, "the same with data", SALVAGE, "what_nobody_alive_has_is_given_up_by_hand_alone"),
    (13, "old members do not start", AGENT, "a_node_removed_by_a_reset_does_not_start_after_its_return"),
    (13, "a trigger, and a second reset", MOVES, "a_trigger_or_a_second_reset_overwrites_the_second_phase"),
    (13, "a second reset with data", SALVAGE, "a_second_reset_may_overtake_the_first_one"),
    (14, "the longest log, the first name", MOVES, "the_longest_log_survives_and_of_equal_ones_the_first_name"),
    (14, "a quorum of its own", CASES, "14_a_quorum_of_its_own_decides_what_is_lost"),
    (15, "vectors of chains", CONDITIONS, "chains_remember_who_had_it_before_what_was_forced"),
    (15, "the last link; an epoch in the place of term and index", MOVES, "the_last_link_of_a_chain_is_the"),
    (16, "survivor alone, then one by one", SALVAGE, "a_highly_available_zone_goes_on_with_who_is_left_and_grows"),
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
    (19, "bounds, at once; no delay to be set", CASES, "19_bounds_of_what_waits_and_a_change_counts_at_once"),
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
