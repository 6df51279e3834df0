"""One replica reads a log with delayed delivery. It falls behind but never reaches a wrong state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.oneview.replica_script import Reader

Play = Callable[[str], None]


@pytest.fixture
def play(tmp_path: Path) -> Iterator[Play]:
    reader = Reader(tmp_path)
    yield reader.play
    reader.end()


def test_delayed_entries_give_the_same_state(play: Play) -> None:
    play("""
        others append 2 entries
        my barrier shows the end of the log
        the entry of epoch 5 is held
        others append 4 entries
        I wait before epoch 5
        my barrier waits
        others append 3 entries
        my barrier waits
        epoch 5 is released
        my barrier shows the end of the log
        I am at epoch 10
        my followers got each record once, in order
    """)


def test_two_held_entries_are_released_in_order(play: Play) -> None:
    play("""
        the entry of epoch 3 is held
        the entry of epoch 5 is held
        others append 6 entries
        I wait before epoch 3
        epoch 3 is released
        I wait before epoch 5
        my barrier waits
        epoch 5 is released
        my barrier shows the end of the log
        I am at epoch 7
    """)


def test_a_delay_ends_after_its_time(play: Play) -> None:
    play("""
        the entry of epoch 3 is delayed by 60 s
        others append 4 entries
        I wait before epoch 3
        59 s pass
        my barrier waits
        1 s pass
        my barrier shows the end of the log
    """)


def test_delayed_invalid_entries_have_the_usual_outcome(play: Play) -> None:
    play("""
        others append 1 entry
        the entry of epoch 4 is held
        others append 1 entry
        two entries race for the next epoch     # the first of them becomes epoch 4
        the last entry is repeated              # the stale entry
        an entry of another cluster arrives
        an unreadable record arrives
        others append 1 entry
        the last entry is repeated
        I wait before epoch 4
        I have counted 0 as stale
        epoch 4 is released
        my barrier shows the end of the log
        I am at epoch 5
        I have counted 5 as applied
        I have counted 2 as stale
        I have counted 1 as foreign
        I have counted 1 as unreadable
        I have counted 1 as duplicate
        my followers got each record once, in order
    """)


def test_a_delayed_entry_halts_the_replica_on_delivery(play: Play) -> None:
    play("""
        the entry of epoch 3 is held
        others append 2 entries
        an entry of a later release arrives
        I wait before epoch 3
        I am not halted
        epoch 3 is released
        I halt: unknown_command
        I am at epoch 3
    """)


def test_a_delayed_replica_detects_a_replaced_log(play: Play) -> None:
    play("""
        the entry of epoch 3 is held
        others append 4 entries
        I wait before epoch 3
        another topic replaces the log
        I halt: log_replaced
        I am at epoch 2
    """)


def test_a_delayed_replica_detects_a_truncated_log(play: Play) -> None:
    play("""
        the entry of epoch 4 is held
        others append 4 entries
        I wait before epoch 4
        the log is truncated after 1 records
        I halt: log_truncated
        I am at epoch 3
    """)


def test_a_restart_before_a_held_entry_keeps_the_recorded_position(play: Play) -> None:
    """The replica reads from the beginning up to the same entry. Its recorded position does not decrease."""
    play("""
        others append 4 entries
        my barrier shows the end of the log
        the entry of epoch 3 is held
        I restart
        I wait before epoch 3
        my recorded position is offset 5
        my barrier waits
        epoch 3 is released
        my barrier shows the end of the log
        my followers got each record once, in order
        others append 1 entry
        my barrier shows the end of the log
        I restart
        my recorded position is offset 6
        my barrier shows the end of the log
    """)
