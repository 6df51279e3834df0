"""One coordinator with scripted nodes: the events that advance a join, and those that must not."""

from __future__ import annotations

import pytest

from tests.oneview.coordinator_script import Coordinator

CLUSTER = """
    n1 and n2 are normal, with a keyspace of factor 2
    n3 registers
"""

STAGES = (
    "requested",
    "prepared",
    "commit_cdc_generation",
    "publish_cdc_generation",
    "write_both_read_old",
    "write_both_read_new",
)


def play(story: str) -> Coordinator:
    coordinator = Coordinator()
    coordinator.play(CLUSTER + story)
    return coordinator


def test_a_join_waits_in_each_stage_for_its_acknowledgements() -> None:
    play("""
        it asks for nothing
        n3 asks to join
        it asks for prepared                   # a request has no barrier
        that is applied
        it asks for nothing
        n1 and n2 acknowledge
        it asks for nothing                    # the gaining node must acknowledge
        n3 acknowledges
        it asks for commit_cdc_generation
        that is applied
        it asks for PutCdcGenerationData
        that is applied
        it asks for CommitCdcGeneration        # without a writer there is no lease to wait for
        that is applied
        it asks for publish_cdc_generation
        that is applied
        it asks for nothing                    # the topics do not contain the generation yet
        the change topics are up to date
        it asks for PublishCdcGeneration
        that is applied
        it asks for write_both_read_old
        that is applied
        n1, n2 and n3 acknowledge
        it asks for nothing                    # all nodes acknowledge, but the rows are missing
        n3 reports its stream
        it asks for write_both_read_new
        that is applied
        it asks for nothing
        n3 acknowledges
        it asks for nothing                    # n3 alone is not a quorum of a group of two
        n1 acknowledges
        it asks for nothing                    # the group of n2 and n3 has a quorum
        n2 acknowledges
        it asks for finished
        that is applied
        n3 is normal
        it asks for nothing
    """)


def test_invalid_acknowledgements_are_ignored() -> None:
    play("""
        n3 asks to join
        it asks for prepared
        that is applied
        n1 and n3 acknowledge
        n2 acknowledges the epoch before this stage
        it asks for nothing
        n2 has applied this stage, but not the writes before it
        it asks for nothing
        n2 of another cluster acknowledges
        it asks for nothing
        an unknown node acknowledges
        it asks for nothing
        n2 acknowledges an epoch beyond the log
        it asks for nothing
        n2 of another history acknowledges
        it asks for nothing
        n2 acknowledges
        it asks for commit_cdc_generation
        it forwards no acknowledgement beyond its own epoch
        that is applied
    """)


def test_an_acknowledgement_counts_for_one_stage_only() -> None:
    play("""
        n3 asks to join
        it advances to write_both_read_old with all acknowledgements
        n3 reports its stream
        it asks for nothing                    # n1 and n2 have acknowledged an earlier epoch
        n1 acknowledges the epoch before this stage
        n2 acknowledges the epoch before this stage
        it asks for nothing
        n1 and n2 acknowledge
        it asks for write_both_read_new
    """)


def test_invalid_stream_reports_are_ignored() -> None:
    play("""
        n3 asks to join
        it advances to write_both_read_old with all acknowledgements
        n1, n2 and n3 acknowledge
        n3 reports the stream of join-1
        it asks for nothing
        n1 reports its stream                  # it gains no ranges
        it asks for nothing
        n1 reports the stream in the name of n3
        it asks for nothing
        n3 reports the stream in the name of n1
        it asks for nothing
        n3 of another cluster reports its stream
        it asks for nothing
        n3 reports its stream
        it asks for write_both_read_new
        that is applied
    """)


@pytest.mark.parametrize("stage", STAGES)
def test_a_new_coordinator_proposes_the_same_step(stage: str) -> None:
    """A new instance proposes the same step, whether or not the proposal of the previous instance arrived."""
    coordinator = play(f"""
        n3 asks to join
        it advances to {stage} with all acknowledgements
        n1, n2 and n3 acknowledge
        n3 reports its stream
        the change topics are up to date
    """)
    coordinator.asked = coordinator.look()
    coordinator.play("""
        it asks for the same with the same ids
        another instance takes over with the log and the acknowledgements
        it asks for the same with the same ids
        that is applied
        that was applied before    # the request of the first instance arrived late
    """)


def test_a_proposal_with_a_lost_answer_applies_once() -> None:
    play("""
        n3 asks to join
        it asks for prepared
        it stops reading the log
        that is applied
        it asks for the same with the same ids
        that was applied before
        it asks for the same with the same ids
        it reads the log again
        it asks for nothing
    """)


def test_a_proposal_is_renewed_after_a_rejection_or_another_entry() -> None:
    play("""
        n3 asks to join
        it asks for prepared
        it asks for the same with the same ids
        another process appends a Noop
        it asks for it again with another id
        that is applied
    """)


def test_a_coordinator_that_misses_a_cancel_has_no_effect() -> None:
    play("""
        n3 asks to join
        it advances to write_both_read_old with all acknowledgements
        n1, n2 and n3 acknowledge
        n3 reports its stream
        it asks for write_both_read_new
        it stops reading the log
        an operator cancels the join
        it asks for the same with the same ids
        that is rejected
        the join ended as cancelled
        it reads the log again
        it asks for nothing
        n3 is not a member
    """)


def test_acknowledgements_ahead_of_the_coordinator_are_ignored() -> None:
    """Nodes may be ahead of a coordinator without new entries, or they may follow a different log."""
    play("""
        n3 asks to join
        it asks for prepared
        that is applied
        it stops reading the log
        another process appends a Noop
        another process appends a Noop
        n1, n2 and n3 acknowledge
        it asks for nothing
        it reads the log again
        it asks for commit_cdc_generation
        it forwards no acknowledgement beyond its own epoch
        that is applied
    """)


def test_acknowledgements_of_a_join_do_not_count_for_the_next_join() -> None:
    play("""
        n3 asks to join
        it advances to write_both_read_old with all acknowledgements
        n1, n2 and n3 acknowledge
        n3 reports its stream
        it asks for write_both_read_new
        an operator cancels the join
        it asks for nothing
        n3 asks to join
        it advances to write_both_read_old with all acknowledgements
        n1, n2 and n3 acknowledge              # n3's acknowledgement still carries the report of the cancelled join
        it asks for nothing
        n3 reports its stream
        it asks for write_both_read_new
        that is applied
    """)
