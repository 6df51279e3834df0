"""What a replica gives to those who follow it, and why it stops: values, for ``ringlog.log.replica``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ringlog.kernel.outcome import Entry, Outcome, UnreadableEntry
from ringlog.kernel.state import ClusterState

Follower = Callable[[ClusterState, ClusterState, Entry | UnreadableEntry, Outcome, int], None]
"""Called with (state before, state after, record, verdict, offset)."""


@dataclass(frozen=True, slots=True)
class Halt:
    """Why the replica stopped, and the offset before which it stands."""

    code: str
    detail: str
    offset: int
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Subscription:
    """A follower hears of every record from ``offset`` on.

    ``state`` is the state before that one. ``close`` ends it; who follows for long keeps that, and not the state.
    """

    state: ClusterState
    offset: int
    close: Callable[[], None]
