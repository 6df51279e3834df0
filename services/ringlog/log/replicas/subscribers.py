"""Followers of a replica and the reason of its halt, used by ``ringlog.log.replicas.replica``."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from ringlog.kernel.model.outcome import Entry, Outcome, UnreadableEntry
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Value
from ringlog.runtime.logs import get_logger

log = get_logger(__name__)

Follower = Callable[[ClusterState, ClusterState, Entry | UnreadableEntry, Outcome, int], None]
"""A callback with (state before, state after, record, outcome, offset)."""


class Halt(Value):
    """The reason why a replica halted, and its offset at that time."""

    code: str
    detail: str
    offset: int
    hint: str = ""


@dataclass(slots=True, eq=False)
class Registration:
    """One follower of a replica.

    ``failure`` is the exception that it raised. The replica then no longer calls it.
    """

    follower: Follower
    on_failure: Callable[[Exception], None] | None
    failure: Exception | None = None


class Subscription(Value):
    """The subscription of a follower, which receives every record from ``offset`` on.

    ``state`` is the state before that record. ``close`` ends the subscription. Long-lived followers should keep only
    ``close``, so that the state can be freed.
    """

    state: ClusterState
    offset: int
    close: Callable[[], None]
    registration: Registration

    @property
    def failure(self) -> Exception | None:
        """The exception that the follower raised, or None while it is subscribed.

        After an exception the follower was removed and has missed every later record.
        """
        return self.registration.failure


class Subscribers:
    """The followers of one replica.

    ``turn`` is the replica's lock. The replica's thread holds it while it calls the followers.
    """

    def __init__(self, name: str, turn: AbstractContextManager[Any]) -> None:
        self._name = name
        self._turn = turn
        self._registrations: tuple[Registration, ...] = ()

    def __bool__(self) -> bool:
        return bool(self._registrations)

    def add(self, follower: Follower, on_failure: Callable[[Exception], None] | None) -> Registration:
        """Add a follower. It receives every record from the next one on."""
        with self._turn:
            registration = Registration(follower, on_failure)
            self._registrations = (*self._registrations, registration)
            return registration

    def remove(self, registration: Registration) -> None:
        """Remove a follower."""
        with self._turn:
            self._registrations = tuple(one for one in self._registrations if one is not registration)

    def notify(
        self, before: ClusterState, after: ClusterState, item: Entry | UnreadableEntry, outcome: Outcome, offset: int
    ) -> None:
        """Call each follower. A follower that raises is removed and reported to its owner; the others still get the
        record.
        """
        for registration in self._registrations:
            try:
                registration.follower(before, after, item, outcome, offset)
            except Exception as error:
                self.remove(registration)
                registration.failure = error
                if registration.on_failure is not None:
                    registration.on_failure(error)
                name = getattr(registration.follower, "__qualname__", type(registration.follower).__name__)
                log.error("follower_failed", log=self._name, follower=name, offset=offset, exc_info=error)
