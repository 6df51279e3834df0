"""One node in a scripted cluster of n1, n2, n3 and the joining n4. It never stores, returns or reports rows outside its
ranges.
"""

from __future__ import annotations

from tests.oneview.holding import Node


def play(story: str) -> None:
    Node().play(story)


# The node gains ranges


def test_streamed_and_read_rows_meet_at_the_position() -> None:
    play("""
        I am n4
        60 writes are made
        n4 asks to join
        I hear of it
        I read writes up to 40
        I hold nothing                         # no range is mine yet
        the join reaches write_both_read_old
        20 writes are made
        I hear of it
        I need streams that reach up to my position
        I read all writes
        I report nothing
        every source streams what lies below my position
        I report all rows
        I hold every write of my ranges, once
    """)


def test_rows_received_twice_are_stored_once() -> None:
    """A source ahead of this node sends rows that the node has read already, or reads again later."""
    play("""
        I am n4
        60 writes are made
        n4 asks to join
        the join reaches write_both_read_old
        I read writes up to 20
        I hear of it
        I read writes up to 30
        every source streams all that it has by now
        I read all writes
        I hold every write of my ranges, once
    """)


def test_a_restart_repeats_the_streaming() -> None:
    play("""
        I am n4
        40 writes are made
        n4 asks to join
        I read all writes
        the join reaches write_both_read_old
        I hear of it
        one source streams, and the others do not
        I report nothing
        I restart
        I hold nothing
        streams that I asked for before come, and are refused
        I answer no read yet
        I ask for the streams anew
        streams that I asked for before come, and are refused
        I need streams that reach up to my position
        every source streams what lies below my position
        I report 0 rows                        # all of it lies behind the position, which is the beginning
        I read all writes
        I hold every write of my ranges, once
    """)


def test_a_repeated_join_keeps_no_rows_of_the_first_join() -> None:
    play("""
        I am n4
        40 writes are made
        I read all writes
        n4 asks to join
        the join reaches write_both_read_old
        I hear of it
        one source streams, and the others do not
        I hold rows
        the join is cancelled
        I hear of it
        I hold nothing
        the streams come again, and are refused
        n4 asks to join
        the join reaches write_both_read_old
        I hear of it as it was in prepared
        I hold nothing
        I ask for the streams anew
        streams that I asked for before come, and are refused
        every source streams what lies below my position
        I report all rows
        I hold every write of my ranges, once
    """)


def test_a_node_does_not_stream_for_a_join_that_has_ended() -> None:
    """The node sees a cancelled join only after its end."""
    play("""
        I am n4
        40 writes are made
        I read all writes
        n4 asks to join
        I hear of it
        the join reaches write_both_read_old
        the join is cancelled
        I hear of it
        I need no streams
        I report nothing
        I hear of it as it was in write_both_read_old      # older news come late
        I need no streams
        I hold nothing
    """)


# The node loses ranges


def test_reads_during_the_loss_of_a_range() -> None:
    """The node answers reads until the new owner reads, then rejects them, and drops the rows at the end."""
    play("""
        I am n1
        60 writes are made
        I read all writes
        I know again what I knew
        n4 asks to join
        the join reaches write_both_read_old
        I hear of it
        I answer reads of every key that I am a read replica of, whole, and no other
        I hold every write of my ranges, once
        the join reaches write_both_read_new
        I answer reads of every key that I am a read replica of, whole, and no other   # as it knows it
        I hear of it
        I answer reads of every key that I am a read replica of, whole, and no other
        20 writes are made
        I read all writes
        I hold every write of my ranges, once  # it still takes the writes of what it gives away
        the join reaches finished
        I hear of it
        I hold every write of my ranges, once
        I answer reads of every key that I am a read replica of, whole, and no other
    """)


def test_a_source_gives_its_rows_only_while_the_operation_streams() -> None:
    play("""
        I am n1
        60 writes are made
        n4 asks to join
        the join reaches prepared
        I hear of it
        I read writes up to 50
        n4 asks me for its rows below 30, and has to wait
        the join reaches write_both_read_old
        n4 asks me for its rows below 30, and has to wait
        I hear of it
        n4 asks me for its rows below 30, and gets all of them
        n4 asks me for its rows below 55, and has to wait
        I read all writes
        n4 asks me for its rows below 55, and gets all of them
        the join reaches write_both_read_new
        I hear of it
        n4 asks me for its rows below 30, and has to wait
    """)


def test_a_source_that_restarts_reads_first() -> None:
    play("""
        I am n1
        60 writes are made
        I read all writes
        n4 asks to join
        the join reaches write_both_read_old
        I hear of it
        I restart
        n4 asks me for its rows below 30, and has to wait   # it knows of no operation
        I hear of it
        n4 asks me for its rows below 30, and has to wait   # it has no rows
        I read all writes
        n4 asks me for its rows below 30, and gets all of them
    """)


def test_a_source_rejects_requests_of_an_ended_join() -> None:
    play("""
        I am n1
        60 writes are made
        I read all writes
        n4 asks to join
        the join reaches write_both_read_new
        the join reaches finished
        I hear of it
        n4 asks me in the name of an operation that is over, and has to wait
        I need no streams
    """)
