"""One node in a scripted cluster of n1, n2, n3 and the joining n4. It never stores, returns or reports rows outside its
ranges.
"""

from __future__ import annotations

from tests.oneview.row_replica_script import Node


def play(story: str) -> None:
    Node().play(story)


# The node gains ranges


def test_streamed_and_read_rows_meet_at_the_position() -> None:
    play("""
        I am n4
        60 writes are made
        n4 asks to join
        I apply the log
        I read writes up to 40
        I have no rows                         # no range is assigned yet
        the join reaches write_both_read_old
        20 writes are made
        I apply the log
        I need streams up to my position
        I read all writes
        I report nothing
        each source streams its rows below my position
        I report all rows
        I have each write of my ranges once
    """)


def test_rows_received_twice_are_stored_once() -> None:
    """A source ahead of this node sends rows that the node has read already, or reads again later."""
    play("""
        I am n4
        60 writes are made
        n4 asks to join
        the join reaches write_both_read_old
        I read writes up to 20
        I apply the log
        I read writes up to 30
        each source streams all of its rows
        I read all writes
        I have each write of my ranges once
    """)


def test_a_restart_repeats_the_streaming() -> None:
    play("""
        I am n4
        40 writes are made
        n4 asks to join
        I read all writes
        the join reaches write_both_read_old
        I apply the log
        only one source streams
        I report nothing
        I restart
        I have no rows
        streams of an earlier request arrive and are rejected
        I answer no read yet
        I request the streams again
        streams of an earlier request arrive and are rejected
        I need streams up to my position
        each source streams its rows below my position
        I report 0 rows                        # all writes are after the position, which is the beginning
        I read all writes
        I have each write of my ranges once
    """)


def test_a_repeated_join_keeps_no_rows_of_the_first_join() -> None:
    play("""
        I am n4
        40 writes are made
        I read all writes
        n4 asks to join
        the join reaches write_both_read_old
        I apply the log
        only one source streams
        I have rows
        the join is cancelled
        I apply the log
        I have no rows
        the streams arrive again and are rejected
        n4 asks to join
        the join reaches write_both_read_old
        I apply the log as it was in prepared
        I have no rows
        I request the streams again
        streams of an earlier request arrive and are rejected
        each source streams its rows below my position
        I report all rows
        I have each write of my ranges once
    """)


def test_a_node_does_not_stream_for_a_join_that_has_ended() -> None:
    """The node sees a cancelled join only after its end."""
    play("""
        I am n4
        40 writes are made
        I read all writes
        n4 asks to join
        I apply the log
        the join reaches write_both_read_old
        the join is cancelled
        I apply the log
        I need no streams
        I report nothing
        I apply the log as it was in write_both_read_old      # an older state arrives late
        I need no streams
        I have no rows
    """)


# The node loses ranges


def test_reads_during_the_loss_of_a_range() -> None:
    """The node answers reads until the new owner reads, then rejects them, and drops the rows at the end."""
    play("""
        I am n1
        60 writes are made
        I read all writes
        I have read the topic again
        n4 asks to join
        the join reaches write_both_read_old
        I apply the log
        I answer complete reads of exactly the keys that I am a read replica of
        I have each write of my ranges once
        the join reaches write_both_read_new
        I answer complete reads of exactly the keys that I am a read replica of   # in the placements of its epoch
        I apply the log
        I answer complete reads of exactly the keys that I am a read replica of
        20 writes are made
        I read all writes
        I have each write of my ranges once  # it still gets the writes of the ranges that it loses
        the join reaches finished
        I apply the log
        I have each write of my ranges once
        I answer complete reads of exactly the keys that I am a read replica of
    """)


def test_a_source_gives_its_rows_only_while_the_operation_streams() -> None:
    play("""
        I am n1
        60 writes are made
        n4 asks to join
        the join reaches prepared
        I apply the log
        I read writes up to 50
        n4 asks me for its rows below 30 and has to wait
        the join reaches write_both_read_old
        n4 asks me for its rows below 30 and has to wait
        I apply the log
        n4 asks me for its rows below 30 and gets all of them
        n4 asks me for its rows below 55 and has to wait
        I read all writes
        n4 asks me for its rows below 55 and gets all of them
        the join reaches write_both_read_new
        I apply the log
        n4 asks me for its rows below 30 and has to wait
    """)


def test_a_source_that_restarts_reads_first() -> None:
    play("""
        I am n1
        60 writes are made
        I read all writes
        n4 asks to join
        the join reaches write_both_read_old
        I apply the log
        I restart
        n4 asks me for its rows below 30 and has to wait   # it has not applied the operation
        I apply the log
        n4 asks me for its rows below 30 and has to wait   # it has no rows
        I read all writes
        n4 asks me for its rows below 30 and gets all of them
    """)


def test_a_source_rejects_requests_of_an_ended_join() -> None:
    play("""
        I am n1
        60 writes are made
        I read all writes
        n4 asks to join
        the join reaches write_both_read_new
        the join reaches finished
        I apply the log
        n4 asks me for rows of an ended operation and has to wait
        I need no streams
    """)
