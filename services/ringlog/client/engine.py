"""The request engine of a client: runs ``ringlog.protocol.submission.submission`` for all pending requests.

Each request is a protocol instance suspended at one of its waits. One thread at a time advances it when its wait ends:

- The *follower* runs in the replica's thread. It advances a request when one of its entries is applied.

- The *listener* is a separate thread. It reads the results topic from the end that the topic had at the start, runs one
  read barrier for all requests whose results need validation, and checks deadlines.

The ``Outbox`` decides when waiting requests are sent; they share a record if their size allows it. The send runs in the
thread that added the last request or received the answer that made the outbox ready. So no thread has to be woken.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from copy import copy
from functools import partial
from itertools import islice
from typing import Any

from ringlog.client.errors import ClientBroken, ClientClosed, InvalidSubmission, SubmissionTimedOut
from ringlog.client.outbox import GROUP, Outbox
from ringlog.client.together import ResultBatch, ResultSlot
from ringlog.kernel.model.outcome import Entry, Outcome, OutcomeKind, UnreadableEntry
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Command, Epoch, Micros, replace
from ringlog.log.errors import (
    LogDamaged,
    LogError,
    LogUnavailable,
    RecordTooLarge,
    ReplicaHalted,
    TopicMissing,
    WaitTimedOut,
)
from ringlog.log.port import LogRecord, LogTail, MetadataLog
from ringlog.log.replicas.driver import micros
from ringlog.log.replicas.replica import LogReplica
from ringlog.protocol.effects import Newest, Now
from ringlog.protocol.submission.results import Submitted
from ringlog.protocol.submission.submission import (
    RESEND,
    AwaitAnswer,
    EncodedRequest,
    NoAnswer,
    RequestKey,
    RequestRecord,
    Send,
    TryBarrier,
    may_answer,
    request_records,
    submit_request,
)
from ringlog.runtime.logs import RateLimitedWarnings, get_logger
from ringlog.wire.errors import WireError
from ringlog.wire.records import Result, decode_result

RESEND_S = RESEND / 1e6
LISTEN_S = 0.1
GROUP_MAX = 4 * GROUP
"""The largest group of a bulk submission. The first group is small so that its decision starts early. Later groups
grow, because each record costs as much as about ten requests.
"""
BARRIER_S = 5.0

log = get_logger(__name__)


class Submission(Future[Submitted]):
    """A request that was sent, and its answer.

    ``request_id`` and ``since_epoch`` identify it before there is an answer. ``command`` is the submitted one.
    ``cancel`` returns False: a sent request cannot be recalled. Call ``Client.withdraw`` with both values to end it.
    """

    def __init__(self, request_id: str, since_epoch: Epoch, command: Command | None) -> None:
        super().__init__()
        self.request_id = request_id
        self.since_epoch = since_epoch
        self.command = command
        self.set_running_or_notify_cancel()

    def set_exception(self, exception: BaseException | None) -> None:
        if isinstance(exception, SubmissionTimedOut):
            exception.command = self.command
        super().set_exception(exception)


class _Pending:
    """A request without an answer.

    ``waits``: the effect it is suspended at. ``until``: the time when that wait ends without an event.
    ``results_seen``: results that arrived. ``noted``: whether an entry of the request was applied. ``place``: the
    future or slot that gets the answer.
    """

    __slots__ = ("noted", "place", "request", "results_seen", "started", "steps", "until", "waits")

    def __init__(
        self, request: EncodedRequest, timeout: Micros, resend: Micros, place: Submission | ResultSlot[Submitted]
    ) -> None:
        self.request = request
        self.steps = submit_request(request, timeout, resend)
        self.place = place
        self.results_seen: list[Result] = []
        self.noted = False
        self.waits: AwaitAnswer | TryBarrier | None = None
        self.until: Micros = 0
        self.started = _now()


class Engine:
    """The set of pending requests and the threads that advance them. Thread-safe; call ``start`` once and ``stop``
    once.
    """

    def __init__(
        self, replica: LogReplica, requests: MetadataLog, results: MetadataLog, *, resend_s: float = RESEND_S
    ) -> None:
        self._replica = replica
        self._requests = requests
        self._results = results
        self._resend = micros(resend_s)
        self._lock = threading.Lock()
        self._pending: dict[str, _Pending] = {}
        self._outbox = Outbox()
        self._warnings = RateLimitedWarnings(log)
        self._stopping = threading.Event()
        self._listener: threading.Thread | None = None
        self._unsubscribe: Callable[[], None] | None = None
        self._broken: ClientBroken | None = None

    def start(self) -> None:
        """Position the reader at the end of the results and start. Raises LogUnavailable, TopicMissing."""
        # Before any request is sent: a rejection exists only in the results.
        tail = self._results.tail(self._results.end_offset())
        self._unsubscribe = self._replica.subscribe(self._follow, self._replica.halt_on_defect).close
        self._listener = threading.Thread(
            target=self._guard, args=(self._listen, tail), name="client-listener", daemon=True
        )
        self._listener.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        """Stop. Unanswered requests end with SubmissionTimedOut: their outcome is unknown."""
        self._stopping.set()
        if self._listener is not None:
            self._listener.join(timeout_s)
        if self._unsubscribe is not None:
            self._unsubscribe()
        for pending in self._all():
            self._fail(pending, _timed_out(pending, "an answer until the client was closed"))

    def submit(self, request: EncodedRequest, timeout_s: float, command: Command | None = None) -> Submission:
        """Send a request. The future returns the answer or raises SubmissionTimedOut, ReplicaHalted.

        A second submission of the same pending request returns the same future. Raises InvalidSubmission if the id is
        in use by another command, ClientBroken if a thread of the client failed.
        """
        key = request.key
        with self._lock:
            busy = self._pending.get(key.request_id)
            if busy is not None and self._broken is None:
                if busy.request.key != key or isinstance(busy.place, ResultSlot):
                    raise InvalidSubmission(f"request id {key.request_id} is in use", "pass another request id")
                return busy.place
            future = Submission(key.request_id, key.since_epoch, command)
            settle = self._begin(request, micros(timeout_s), future)
        self._end(settle)
        return future

    def submit_together(
        self, requests: Iterable[EncodedRequest | InvalidSubmission], timeout_s: float
    ) -> tuple[Submitted, ...]:
        """Send requests with new ids and wait for all answers. Raises as ``submit`` and its future.

        A refused command in ``requests`` is raised after the others have their answers. Requests are created in groups
        that double in size, so that the validator starts on the first while the last are still created.
        """
        together: ResultBatch[Submitted] = ResultBatch()
        timeout, coming, size = micros(timeout_s), iter(requests), GROUP
        with self._lock:
            self._outbox.more_follow()
        try:
            while group := list(islice(coming, size)):
                size = min(2 * size, GROUP_MAX)
                with self._lock:
                    settles = [self._begin_in_slot(request, timeout, together.slot()) for request in group]
                for settle in settles:
                    settle()
                if self._outbox.is_ready():
                    self._guard(self._send)
        finally:
            with self._lock:
                self._outbox.no_more()
            if self._outbox.is_ready():
                self._guard(self._send)
        return together.results()

    def _begin_in_slot(
        self, request: EncodedRequest | InvalidSubmission, timeout: Micros, slot: ResultSlot[Submitted]
    ) -> Callable[[], None]:
        """Begin a request, or return a callback that sets the refusal as its answer."""
        if isinstance(request, EncodedRequest):
            return self._begin(request, timeout, slot)
        return partial(slot.set_exception, request)

    def _begin(
        self, request: EncodedRequest, timeout: Micros, place: Submission | ResultSlot[Submitted]
    ) -> Callable[[], None]:
        """Add a request and advance it to its first wait. The caller holds the lock; see ``_advance``. Raises
        ClientBroken.
        """
        if self._broken is not None:
            raise copy(self._broken)
        pending = _Pending(request, timeout, self._resend, place)
        # The listener has stopped, so no deadline would end this request.
        if self._stopping.is_set():
            pending.steps.close()
            return lambda: place.set_exception(ClientClosed())
        if not self._pending:
            # A pending request needs the replica to poll without delay.
            self._replica.poll_policy.begin_urgent()
        self._pending[request.key.request_id] = pending
        return self._advance(pending, None)

    # --------------------------------------------------------------------------------------- one request

    def _advance(self, pending: _Pending, outcome: Any) -> Callable[[], None]:
        """Run the protocol to its next wait or its end. The caller holds the lock.

        Returns the action to run after the lock is released: it sets the answer, and callbacks of the future may run
        any code.
        """
        pending.waits = None
        try:
            while True:
                effect = pending.steps.send(outcome)
                match effect:
                    case Newest():
                        outcome = self._replica.state
                    case Now():
                        outcome = _now()
                    case Send():
                        outcome = None
                        self._outbox.put(effect, _now())
                    # An event arrived before this wait began, so the wait ends at once.
                    case AwaitAnswer() if pending.results_seen or pending.noted:
                        outcome = self._is_taken(pending)
                    case _:
                        pending.waits = effect
                        pending.until = effect.until if isinstance(effect, AwaitAnswer) else _now() + effect.timeout
                        return _nothing
        except StopIteration as done:
            answer: Submitted = done.value
            self._forget(pending)
            return lambda: pending.place.set_result(answer)
        except NoAnswer:
            self._forget(pending)
            error = _timed_out(pending, "the validator's answer")
            return lambda: pending.place.set_exception(error)

    def _forget(self, pending: _Pending) -> None:
        """Remove a request that has ended."""
        request_id = pending.request.key.request_id
        del self._pending[request_id]
        if not self._pending:
            self._replica.poll_policy.end_urgent()
        self._outbox.ended(request_id)

    @staticmethod
    def _is_taken(pending: _Pending) -> list[Result]:
        results_seen, pending.results_seen, pending.noted = pending.results_seen, [], False
        return results_seen

    def _wake(self, pending: _Pending) -> None:
        """Advance a request after an event or at its deadline."""
        with self._lock:
            if pending.waits is None:
                return
            awaits_result = isinstance(pending.waits, AwaitAnswer)
            settle = self._advance(pending, self._is_taken(pending) if awaits_result else None)
        self._end(settle)

    def _end(self, settle: Callable[[], None]) -> None:
        """Run the action of ``_advance`` without the lock, then send if the outbox is ready."""
        settle()
        if self._outbox.is_ready():
            self._guard(self._send)

    def _fail(self, pending: _Pending, error: LogError) -> None:
        with self._lock:
            if self._pending.get(pending.request.key.request_id) is not pending:
                return
            self._forget(pending)
            pending.waits = None
            pending.steps.close()
        pending.place.set_exception(error)

    def _all(self) -> list[_Pending]:
        with self._lock:
            return list(self._pending.values())

    # ------------------------------------------------------------------------------------------- threads

    def _guard(self, work: Callable[..., None], *arguments: object) -> None:
        """Run ``work`` and fail all pending requests if it raises: after that no thread would answer them or check
        deadlines.
        """
        try:
            work(*arguments)
        except Exception as error:
            with self._lock:
                self._broken = ClientBroken(f"{type(error).__name__}: {error}")
            for pending in self._all():
                self._fail(pending, copy(self._broken))
            log.exception("client_failed", work=work.__name__)

    def _follow(
        self, _: ClusterState, _after: ClusterState, item: Entry | UnreadableEntry, outcome: Outcome, _offset: int
    ) -> None:
        if outcome.kind is OutcomeKind.APPLIED and isinstance(item, Entry):
            pending = self._pending.get(item.request_id)
            if pending is not None:
                pending.noted = True
                self._wake(pending)

    # ----------------------------------------------------------------------------------------------- sending

    def _send(self) -> None:
        """Send the waiting requests if they are ready or overdue."""
        with self._lock:
            is_time = self._outbox.is_ready() or self._outbox.is_overdue(_now())
            waiting = self._outbox.take() if is_time and not self._stopping.is_set() else []
            if waiting:
                made = request_records(waiting)
                sent = self._requests.append_async([record.data for record in made])
        if waiting:
            sent.add_done_callback(lambda answer: self._guard(self._sent, made, answer))

    def _sent(self, made: Sequence[RequestRecord], answer: Future[None]) -> None:
        """Handle the acknowledgement or the error of a send."""
        error = answer.exception()
        if isinstance(error, RecordTooLarge):
            self._split([record for record in made if len(record.data) >= error.size], error)
        # No request fails here: its protocol sends it again, and its deadline ends the attempts.
        elif isinstance(error, LogUnavailable):
            count = sum(len(record.sent) for record in made)
            self._warnings.warn("requests_unanswered", requests=count, error=error.message)
        elif error is not None:
            raise error

    def _split(self, refused: Sequence[RequestRecord], error: RecordTooLarge) -> None:
        """Send the requests of a record that was too large one by one. Fail a request that is too large alone."""
        for record in refused:
            if len(record.sent) > 1:
                with self._lock:
                    for send in record.sent:
                        self._outbox.put(replace(send, alone=True), _now())
                continue
            pending = self._pending.get(record.sent[0].request.key.request_id)
            if pending is not None:
                self._fail(pending, error)

    def _listen(self, tail: LogTail) -> None:
        while not self._stopping.is_set():
            try:
                self._add_results(tail.poll(LISTEN_S))
                self._send_overdue()
                self._judge()
                self._check_deadlines()
            except LogDamaged as error:
                log.warning("results_lost", error=error.message)
                tail = self._from_the_end(tail)
            except LogError as error:
                for pending in self._all():
                    self._fail(pending, copy(error))
        tail.close()

    def _from_the_end(self, tail: LogTail) -> LogTail:
        """Return a new reader at the current end of the results, or the old one if the end is unknown.

        Results may be lost in between. Each request is sent again, and the validator repeats a rejection.
        """
        try:
            fresh = self._results.tail(self._results.end_offset())
        except (LogUnavailable, TopicMissing):
            self._stopping.wait(LISTEN_S)
            return tail
        tail.close()
        return fresh

    def _add_results(self, records: Sequence[LogRecord]) -> None:
        for record in records:
            try:
                result = decode_result(record.data)
            except WireError as error:
                self._warnings.warn("result_unreadable", offset=record.offset, error=str(error))
                continue
            pending = self._pending.get(result.request_id)
            if pending is not None and may_answer(result):
                with self._lock:
                    pending.results_seen.append(result)
                    settle = (
                        self._advance(pending, self._is_taken(pending))
                        if isinstance(pending.waits, AwaitAnswer)
                        else _nothing
                    )
                self._end(settle)

    def _judge(self) -> None:
        """Run one read barrier for all requests that wait for a fresh state."""
        with self._lock:
            asking = [pending for pending in self._pending.values() if isinstance(pending.waits, TryBarrier)]
            nearest = min((pending.until for pending in self._pending.values()), default=0)
        if not asking:
            return
        nearest_s = (nearest - _now()) / 1e6
        state: ClusterState | None = None
        try:
            state = self._barrier(min(BARRIER_S, max(nearest_s, LISTEN_S)))
        except (LogUnavailable, TopicMissing, WaitTimedOut) as error:
            log.debug("answers_not_judged_yet", error=error.message)
        for pending in asking:
            with self._lock:
                # The request may have advanced or ended during the barrier.
                settle = self._advance(pending, state) if isinstance(pending.waits, TryBarrier) else _nothing
            self._end(settle)

    def _barrier(self, wait_s: float) -> ClusterState:
        """Wait like ``LogReplica.read_barrier``, and send overdue requests meanwhile."""
        until = time.monotonic() + wait_s
        replica, end = self._replica, self._replica.end_offset(wait_s)
        while True:
            left_s = max(until - time.monotonic(), 0.0)
            try:
                return replica.wait_for(
                    lambda state: state if replica.position >= end else None,
                    min(left_s, LISTEN_S),
                    f"the log to be read up to offset {end}",
                )
            except WaitTimedOut:
                if left_s <= LISTEN_S or self._stopping.is_set():
                    raise
            self._send_overdue()

    def _check_deadlines(self) -> None:
        halt = self._replica.halted
        now = _now()
        for pending in self._all():
            if halt is not None:
                self._fail(pending, ReplicaHalted(halt.code, halt.detail, halt.offset, halt.hint))
            elif now >= pending.until:
                self._wake(pending)
        self._send_overdue()

    def _send_overdue(self) -> None:
        if self._outbox.is_overdue(_now()):
            self._send()


def _now() -> Micros:
    return time.monotonic_ns() // 1_000


def _nothing() -> None:
    """The request stays suspended."""


def _timed_out(pending: _Pending, waited_for: str) -> SubmissionTimedOut:
    key: RequestKey = pending.request.key
    waited_s = (_now() - pending.started) / 1e6
    return SubmissionTimedOut(key.request_id, key.since_epoch, waited_s, waited_for)
