"""One node alone in a scripted cluster of n1, n2, n3 (and n4, which joins): it never holds, answers or reports what it
should not."""

from __future__ import annotations

from tests.oneview.holding import Node


def play(story: str) -> None:
    Node().play(story)


# ---------------------------------------------------------------------------------------------- I gain ranges


def test_streams_and_own_reading_meet_at_the_position() -> None:
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


def test_rows_that_come_both_ways_are_one() -> None:
    """A source that is ahead sends what this node has read by itself already, or will read again."""
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


def test_a_restart_in_the_middle_of_streaming_begins_anew() -> None:
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


def test_a_join_that_begins_again_takes_nothing_of_the_first() -> None:
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


def test_who_slept_through_the_streaming_does_not_begin_it() -> None:
    """A cancelled and ended join, seen only at its end."""
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


# ---------------------------------------------------------------------------------------------- I lose ranges


def test_reads_while_ranges_move_away() -> None:
    """Answered until the new owner is read, refused from then on, and the rows go when they are nobody's here."""
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


def test_who_asks_for_a_join_that_is_over_gets_nothing() -> None:
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
