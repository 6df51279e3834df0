"""What a replica gives to those who follow it, and why it stops, for ``ringlog.log.replicas.replica``."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from ringlog.kernel.model.outcome import Entry, Outcome, UnreadableEntry
from ringlog.kernel.model.state import ClusterState
from ringlog.runtime.logs import get_logger

log = get_logger(__name__)

Follower = Callable[[ClusterState, ClusterState, Entry | UnreadableEntry, Outcome, int], None]
"""Called with (state before, state after, record, verdict, offset)."""


@dataclass(frozen=True, slots=True)
class Halt:
    """Why the replica stopped, and the offset before which it stands."""

    code: str
    detail: str
    offset: int
    hint: str = ""


@dataclass(slots=True, eq=False)
class Following:
    """One follower of a replica, and what it raised; then it is called no more."""

    follower: Follower
    on_failure: Callable[[Exception], None] | None
    failure: Exception | None = None


@dataclass(frozen=True, slots=True)
class Subscription:
    """A follower hears of every record from ``offset`` on.

    ``state`` is the state before that one. ``close`` ends it; who follows for long keeps that, and not the state.
    """

    state: ClusterState
    offset: int
    close: Callable[[], None]
    following: Following

    @property
    def failure(self) -> Exception | None:
        """What the follower raised: it was removed then, and has missed every record since. None: it follows."""
        return self.following.failure


class Subscribers:
    """The followers of one replica. ``turn``: its lock, which its thread holds while it calls them."""

    def __init__(self, name: str, turn: AbstractContextManager[Any]) -> None:
        self._name = name
        self._turn = turn
        self._following: tuple[Following, ...] = ()

    def __bool__(self) -> bool:
        return bool(self._following)

    def add(self, follower: Follower, on_failure: Callable[[Exception], None] | None) -> Following:
        """Call it from the next record on."""
        with self._turn:
            following = Following(follower, on_failure)
            self._following = (*self._following, following)
            return following

    def remove(self, following: Following) -> None:
        """Call it no more."""
        with self._turn:
            self._following = tuple(one for one in self._following if one is not following)

    def tell(
        self, before: ClusterState, after: ClusterState, item: Entry | UnreadableEntry, outcome: Outcome, offset: int
    ) -> None:
        """Call each. One that raises is removed and reported to its owner; the others do not notice."""
        for following in self._following:
            try:
                following.follower(before, after, item, outcome, offset)
            except Exception as error:
                self.remove(following)
                following.failure = error
                if following.on_failure is not None:
                    following.on_failure(error)
                name = getattr(following.follower, "__qualname__", type(following.follower).__name__)
                log.error("follower_failed", log=self._name, follower=name, offset=offset, exc_info=error)
