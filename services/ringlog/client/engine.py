"""The part of a client that keeps at it: sends requests, sends them again, and takes the answers from log and results.

Two threads and a follower. The *sender* takes everything that waits and appends it at once, so submissions that come
together travel together. The *listener* reads the results from their end at the start, judges answers behind a read
barrier, and looks at deadlines. The *follower* hears of every applied entry from the replica and answers at once,
without waiting for results.

A request goes out with the same id, ``since_epoch`` and bytes every time, until it has an answer or its deadline comes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import structlog

from ringlog.client.errors import ClientBroken, InvalidSubmission, SubmissionTimedOut
from ringlog.client.results import Submitted
from ringlog.client.submission import Asked, answer_of_log, answer_of_result
from ringlog.kernel.outcome import Entry, Outcome, OutcomeKind, Unreadable
from ringlog.kernel.state import ClusterState
from ringlog.log.errors import (
    LogDamaged,
    LogError,
    LogUnavailable,
    RecordTooLarge,
    ReplicaHalted,
    TopicMissing,
    WaitTimedOut,
)
from ringlog.log.port import LogRecord, MetadataLog, Tail
from ringlog.log.replica import Replica, Subscription
from ringlog.wire.errors import WireError
from ringlog.wire.records import Result, decode_result

RESEND_S = 1.0
LISTEN_S = 0.1
BARRIER_S = 5.0

log = structlog.get_logger(__name__)


@dataclass(slots=True, eq=False)
class Pending:
    """A request without an answer. Times are of the monotonic clock, in seconds."""

    asked: Asked
    data: bytes
    started: float
    deadline: float
    send_again: float
    queued: bool
    future: Future[Submitted]


class Engine:
    """Carries requests to an answer. Safe from threads; ``start`` once, ``stop`` once."""

    def __init__(
        self, replica: Replica, requests: MetadataLog, results: MetadataLog, *, resend_s: float = RESEND_S
    ) -> None:
        self._replica = replica
        self._requests = requests
        self._results = results
        self._resend_s = resend_s
        self._lock = threading.Lock()
        self._wake = threading.Condition(self._lock)
        self._pending: dict[str, Pending] = {}
        self._queue: list[Pending] = []
        self._stopping = threading.Event()
        self._threads: tuple[threading.Thread, ...] = ()
        self._subscription: Subscription | None = None
        self._broken: ClientBroken | None = None

    def start(self) -> None:
        """Place the reader at the end of the results, then begin. Raises LogUnavailable, TopicMissing."""
        tail = self._results.tail(self._results.end_offset())
        self._subscription = self._replica.subscribe(self._follow)
        self._threads = (
            threading.Thread(target=self._guard, args=(self._send,), name="client-sender", daemon=True),
            threading.Thread(target=self._guard, args=(self._listen, tail), name="client-listener", daemon=True),
        )
        for thread in self._threads:
            thread.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        """Stop; requests without an answer end with SubmissionTimedOut: their fate is open."""
        self._stopping.set()
        with self._wake:
            self._wake.notify_all()
        for thread in self._threads:
            thread.join(timeout_s)
        if self._subscription is not None:
            self._subscription.close()
        for pending in self._all():
            self._fail(pending, self._timed_out(pending, "an answer, until the client was closed"))

    def submit(self, asked: Asked, data: bytes, timeout_s: float) -> Future[Submitted]:
        """Send a request; the future gives its answer or raises SubmissionTimedOut, ReplicaHalted.

        The same request twice is one request. Raises InvalidSubmission if its id is busy with another command,
        ClientBroken if a thread of the client has failed.
        """
        now = time.monotonic()
        with self._wake:
            if self._broken is not None:
                raise self._broken
            busy = self._pending.get(asked.request_id)
            if busy is not None:
                if busy.asked != asked:
                    raise InvalidSubmission(f"request id {asked.request_id} is in use", "take another one")
                return busy.future
            pending = Pending(asked, data, now, now + timeout_s, now + self._resend_s, True, Future())
            pending.future.set_running_or_notify_cancel()
            self._pending[asked.request_id] = pending
            self._queue.append(pending)
            self._wake.notify_all()
        self._answer_from_log(self._replica.state, pending)
        return pending.future

    # ------------------------------------------------------------------------------------------- threads

    def _guard(self, work: Callable[..., None], *arguments: object) -> None:
        """A thread that fails leaves nobody waiting: there would be no answers and no deadlines any more."""
        try:
            work(*arguments)
        except Exception as error:
            log.exception("client_failed", work=work.__name__)
            with self._lock:
                self._broken = ClientBroken(f"{type(error).__name__}: {error}")
            for pending in self._all():
                self._fail(pending, self._broken)

    def _send(self) -> None:
        while not self._stopping.is_set():
            with self._wake:
                while not self._queue and not self._stopping.is_set():
                    self._wake.wait()
                batch, self._queue = self._queue, []
            waiting = [pending for pending in batch if not pending.future.done()]
            try:
                if waiting:
                    self._requests.append([pending.data for pending in waiting])
            except RecordTooLarge as error:
                for pending in waiting:
                    if len(pending.data) >= error.size:
                        self._fail(pending, error)
            except LogUnavailable as error:
                log.warning("requests_unanswered", requests=len(waiting), error=error.message)
            with self._lock:
                for pending in batch:
                    pending.queued = False
                    pending.send_again = time.monotonic() + self._resend_s

    def _listen(self, tail: Tail) -> None:
        unjudged: list[Result] = []
        while not self._stopping.is_set():
            try:
                unjudged.extend(self._relevant(tail.poll(LISTEN_S)))
                if unjudged:
                    unjudged = self._judge(unjudged)
                self._look_at_times()
            except LogDamaged as error:
                log.warning("results_lost", error=error.message)
                tail = self._from_the_end(tail)
            except LogError as error:
                for pending in self._all():
                    self._fail(pending, error)
        tail.close()

    def _from_the_end(self, tail: Tail) -> Tail:
        """A new reader at the results' present end; the old one, to be tried again, if nobody knows where that is."""
        try:
            fresh = self._results.tail(self._results.end_offset())
        except (LogUnavailable, TopicMissing):
            self._stopping.wait(LISTEN_S)
            return tail
        tail.close()
        return fresh

    def _follow(
        self, _: ClusterState, after: ClusterState, item: Entry | Unreadable, outcome: Outcome, _offset: int
    ) -> None:
        if outcome.kind is OutcomeKind.APPLIED and isinstance(item, Entry):
            pending = self._pending.get(item.request_id)
            if pending is not None:
                self._answer_from_log(after, pending)

    # ------------------------------------------------------------------------------------------- answers

    def _relevant(self, records: Sequence[LogRecord]) -> list[Result]:
        found = []
        for record in records:
            try:
                result = decode_result(record.data)
            except WireError as error:
                log.warning("result_unreadable", offset=record.offset, error=str(error))
                continue
            if result.request_id in self._pending:
                found.append(result)
        return found

    def _judge(self, results: list[Result]) -> list[Result]:
        """Answer what the results justify; returns those that could not be judged yet."""
        waiting = [result for result in results if result.request_id in self._pending]
        if not waiting:
            return []
        nearest_s = min((pending.deadline for pending in self._all()), default=0.0) - time.monotonic()
        try:
            state = self._replica.read_barrier(min(BARRIER_S, max(nearest_s, LISTEN_S)))
        except (LogUnavailable, TopicMissing, WaitTimedOut):
            return waiting
        for result in waiting:
            pending = self._pending.get(result.request_id)
            if pending is not None:
                answer = answer_of_result(state, pending.asked, result)
                if answer is not None:
                    self._succeed(pending, answer)
        return []

    def _look_at_times(self) -> None:
        halted = self._replica.halted
        now = time.monotonic()
        for pending in self._all():
            if halted is not None:
                self._fail(pending, ReplicaHalted(halted.code, halted.detail, halted.offset, halted.hint))
            elif self._answer_from_log(self._replica.state, pending):
                continue
            elif now >= pending.deadline:
                self._fail(pending, self._timed_out(pending, "the validator's answer"))
            elif now >= pending.send_again and not pending.queued:
                with self._wake:
                    pending.queued = True
                    self._queue.append(pending)
                    self._wake.notify_all()

    def _answer_from_log(self, state: ClusterState, pending: Pending) -> bool:
        answer = answer_of_log(state, pending.asked)
        if answer is not None:
            self._succeed(pending, answer)
        return answer is not None

    def _succeed(self, pending: Pending, answer: Submitted) -> None:
        if self._take(pending):
            pending.future.set_result(answer)

    def _fail(self, pending: Pending, error: LogError) -> None:
        if self._take(pending):
            pending.future.set_exception(error)

    def _take(self, pending: Pending) -> bool:
        with self._lock:
            return self._pending.pop(pending.asked.request_id, None) is not None

    def _all(self) -> list[Pending]:
        with self._lock:
            return list(self._pending.values())

    @staticmethod
    def _timed_out(pending: Pending, waited_for: str) -> SubmissionTimedOut:
        waited = time.monotonic() - pending.started
        return SubmissionTimedOut(pending.asked.request_id, pending.asked.since_epoch, waited, waited_for)
