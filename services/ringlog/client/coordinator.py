"""Reads and writes of registers on the reference nodes: every program can be its own coordinator.

    with Client("127.0.0.1:9092", "shop") as client, Coordinator(client.replica) as coordinator:
        coordinator.write("ks", b"seat-12A", b"taken", timestamp=1_700_000_000_000_000)
        print(coordinator.read("ks", b"seat-12A").cell)

Each request is planned on the newest state that the replica of the log has, carried out (``ringlog.client.attempt``),
and judged again on the newest state before it counts as a success; where the plan cannot succeed any more, a new one is
made, within the deadline. A read at a quorum level makes sure, before it answers, that what it found is where a write
at that level would be: where it is not, it is written there first. So reads never go back.

A read asks one replica for the cell and the others for digests; if they differ, all are asked for their cells.

``Told`` has what a checker needs to verify a success: the plan with its needs, the epoch at which it was judged, and
each answer that counted with its own epoch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from threading import Lock

from ringlog.client import plans
from ringlog.client.attempt import Ask, Attempt, Found, Judged
from ringlog.client.errors import RequestImpossible, RequestTimedOut, TooLarge
from ringlog.client.peers import Find, Peers, StatusPages
from ringlog.client.plans import Access, Answer, Failed, Level, Plan, Replan, Request, Satisfied, Waiting
from ringlog.kernel.outcome import Entry, Outcome, Unreadable
from ringlog.kernel.state import ClusterState
from ringlog.kernel.values import Epoch, NodeId
from ringlog.log.errors import LogUnavailable, WaitTimedOut
from ringlog.log.replica import Replica
from ringlog.wire.cells import Cell, Key, digest_of, key_of, rank
from ringlog.wire.data import KEY_BYTES_MAX, VALUE_BYTES_MAX

TIMEOUT_S = 10.0
BACKOFF_S = 0.05


@dataclass(frozen=True, slots=True)
class Told:
    """A success. ``cell``: what was written, or found (None: nothing is there; one that is ``deleted``: a tombstone).

    ``plan``: the one that succeeded; ``epoch``: at which its answers were judged; ``answers``: those that counted;
    ``attempts``: plans that were tried; ``repair``: the plan of the write that a read did before it answered.
    """

    key: Key
    cell: Cell | None
    plan: Plan
    epoch: Epoch
    answers: tuple[Answer, ...]
    attempts: int
    repair: Plan | None = None


@dataclass(frozen=True, slots=True)
class _Success:
    judged: Judged
    counted: tuple[NodeId, ...]
    attempts: int

    def good(self) -> tuple[Found, ...]:
        """The answers that count."""
        now = plans.plan(self.judged.state, self.judged.made.request)
        assert isinstance(now, Plan), "what is satisfied can be planned"
        return tuple(found for found in self.judged.found if plans.counts(now, found.answer))


class Coordinator:
    """Coordinates requests of one program. Safe from threads.

    ``replica`` has been started. ``datacenter``: the program's own, for LOCAL_QUORUM. ``find``: where a node's data
    side listens, if not as its status page says.
    """

    def __init__(
        self,
        replica: Replica,
        datacenter: str = "",
        find: Find | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._replica = replica
        self._datacenter = datacenter
        self._clock = clock
        self._peers = Peers(find or StatusPages(lambda: replica.state))
        self._lock = Lock()
        self._attempts: set[Attempt] = set()
        self._subscription = replica.subscribe(self._hear)

    def close(self) -> None:
        """End; requests under way time out."""
        self._subscription.close()
        self._peers.close()

    def __enter__(self) -> Coordinator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------------------------------------ requests

    def write(
        self,
        keyspace: str,
        name: bytes,
        value: bytes | None,
        *,
        timestamp: int,
        level: Level = Level.QUORUM,
        timeout_s: float = TIMEOUT_S,
    ) -> Told:
        """Write a value, or None for a delete. ``timestamp``: microseconds; the greatest one wins, whoever comes last.

        Raises RequestTimedOut (nobody knows whether it will be seen), RequestImpossible, TooLarge, ReplicaHalted.
        """
        if len(name) > KEY_BYTES_MAX or len(value or b"") > VALUE_BYTES_MAX:
            rule = f"a key has up to {KEY_BYTES_MAX} bytes, a value up to {VALUE_BYTES_MAX}"
            raise TooLarge(rule, "store large values elsewhere")
        key = key_of(keyspace, name)
        cell = Cell(timestamp, value or b"", value is None)
        ask = Ask(self._request(key, Access.WRITE, level), key, "Write", cell)
        done = self._carry_out(ask, self._clock() + timeout_s, timeout_s)
        return self._told(key, cell, done)

    def read(self, keyspace: str, name: bytes, *, level: Level = Level.QUORUM, timeout_s: float = TIMEOUT_S) -> Told:
        """Read a register. Raises RequestTimedOut, RequestImpossible, ReplicaHalted."""
        key = key_of(keyspace, name)
        deadline = self._clock() + timeout_s
        ask = Ask(self._request(key, Access.READ, level), key, "Read", is_lean=True)
        done = self._carry_out(ask, deadline, timeout_s)
        if _differ(done.good()):
            lean = done.attempts
            done = self._carry_out(replace(ask, is_lean=False), deadline, timeout_s)
            done = replace(done, attempts=done.attempts + lean)
        good = done.good()
        best = max(
            (found.cell for found in good if found.cell is not None and not found.digest), key=rank, default=None
        )
        if best is None:
            return self._told(key, None, done)
        holders = [found for found in good if _same(found, best)]
        repair = plans.repair(done.judged.made, [found.answer for found in holders], done.judged.state)
        if isinstance(repair, Failed):
            raise RequestImpossible(f"repair of {key.keyspace}", repair.code, repair.detail)
        if repair is not None:
            write = Ask(repair.request, key, "Repair", best)
            self._carry_out(write, deadline, timeout_s, [Found(found.answer) for found in holders])
        return replace(self._told(key, best, done), repair=repair)

    def _request(self, key: Key, access: Access, level: Level) -> Request:
        return Request(key.keyspace, key.token, access, level, self._datacenter)

    def _told(self, key: Key, cell: Cell | None, done: _Success) -> Told:
        answers = tuple(found.answer for found in done.good())
        return Told(key, cell, done.judged.made, done.judged.state.epoch, answers, done.attempts)

    # ------------------------------------------------------------------------------------------ the recipe

    def _carry_out(self, ask: Ask, deadline: float, timeout_s: float, kept: Sequence[Found] = ()) -> _Success:
        """Plan and ask until it is a success, or the deadline comes."""
        what = f"{ask.method.lower()} of {ask.key.keyspace} {ask.key.name[:40]!r} at {ask.request.level}"
        attempts, has_looked = 0, False
        waited_for: tuple[str, ...] = ()
        refused: tuple[str, ...] = ()
        while True:
            state = self._replica.state
            made = plans.plan(state, ask.request)
            if isinstance(made, Plan):
                attempts += 1
                judged = self._attempt(ask, made, kept, deadline)
                outcome, refused = judged.outcome, _refusals(judged) or refused
                if isinstance(outcome, Satisfied):
                    return _Success(judged, outcome.counted, attempts)
                if isinstance(outcome, Replan):
                    kept = [found for found in judged.found if found.answer in outcome.kept]
                if isinstance(outcome, Waiting):
                    waited_for = tuple(_name(judged.state, node) for node in outcome.nodes)
            elif has_looked:
                raise RequestImpossible(what, made.code, made.detail)
            else:
                has_looked = self._look(deadline)
                waited_for = () if has_looked else ("the metadata log",)
            if self._clock() >= deadline:
                raise RequestTimedOut(what, timeout_s, waited_for, self._replica.state.epoch, refused)
            self._pause(state, deadline)

    def _attempt(self, ask: Ask, made: Plan, kept: Sequence[Found], deadline: float) -> Judged:
        attempt = Attempt(ask, made, kept, self._peers, lambda: self._replica.state)
        with self._lock:
            self._attempts.add(attempt)
        try:
            return attempt.run(self._clock, deadline)
        finally:
            with self._lock:
                self._attempts.discard(attempt)

    def _look(self, deadline: float) -> bool:
        """Nobody may say that something is impossible who has not looked for the newest state. Was it possible?"""
        try:
            self._replica.read_barrier(max(deadline - self._clock(), 0.1))
        except (LogUnavailable, WaitTimedOut):
            return False
        return True

    def _pause(self, known: ClusterState, deadline: float) -> None:
        """A moment, or less if there is a newer state."""
        left_s = min(BACKOFF_S, max(deadline - self._clock(), 0.001))
        try:
            self._replica.wait_for(lambda state: state.epoch > known.epoch or None, left_s, "a newer epoch")
        except WaitTimedOut:
            return

    def _hear(self, before: ClusterState, after: ClusterState, _: Entry | Unreadable, __: Outcome, ___: int) -> None:
        if after is before:
            return
        with self._lock:
            attempts = tuple(self._attempts)
        for attempt in attempts:
            attempt.wake()


def _refusals(judged: Judged) -> tuple[str, ...]:
    """Who refused, and with which code."""
    answers = [found.answer for found in judged.found if found.answer.refused]
    return tuple(sorted({f"{_name(judged.state, answer.node)} {answer.refused}" for answer in answers}))


def _name(state: ClusterState, node: NodeId) -> str:
    found = state.nodes.get(node)
    return node if found is None else found.name


def _digest(found: Found) -> bytes:
    return found.digest or digest_of(found.cell)


def _same(found: Found, cell: Cell) -> bool:
    return _digest(found) == digest_of(cell)


def _differ(good: Sequence[Found]) -> bool:
    """True unless all answers tell the same cell, and one of them the whole of it."""
    digests = {_digest(found) for found in good}
    if len(digests) > 1:
        return True
    return all(found.digest for found in good)
