"""The part of a client that keeps at it: performs ``ringlog.protocol.submission.submission`` for all requests that are
under way.

Each request is a protocol of its own that stands at one of its waits. It is taken on, one step at a time and by one
thread at a time, by whatever ends that wait:

- the *follower*, in the replica's thread, at an applied entry of the request;
- the *listener*, a thread that reads the results from their end at the start, makes one read barrier for all requests
  whose results are to be judged, and looks at the times.

What is to be sent goes out when the ``Outbox`` says so, in one record as far as that is allowed, by the thread that put
the last of it there or that brings the answer to what was under way: no thread is woken for it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

from ringlog.client.errors import ClientBroken, InvalidSubmission, SubmissionTimedOut
from ringlog.client.outbox import GROUP, Outbox
from ringlog.client.together import ResultBatch, ResultSlot
from ringlog.kernel.model.outcome import Entry, Outcome, OutcomeKind, UnreadableEntry
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Micros
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
    Asked,
    Fresh,
    Hear,
    NoAnswer,
    Parcel,
    Question,
    Send,
    ask,
    may_answer,
    parcels,
)
from ringlog.runtime.logs import Seldom, get_logger
from ringlog.wire.errors import WireError
from ringlog.wire.records import Result, decode_result

RESEND_S = RESEND / 1e6
LISTEN_S = 0.1
GROUP_MAX = 4 * GROUP
"""Of many at once the first group is soon decided; each record costs as much as some requests in it, so few follow."""
BARRIER_S = 5.0

RefusedHere = InvalidSubmission | WireError
"""Why a command is not sent: its values do not fit, or it is too large."""

log = get_logger(__name__)


class _Pending:
    """A question without an answer. ``waits``: the effect that it stands at; ``until``: when that ends by itself.

    ``results_seen``: results that came in; ``noted``: an entry of it was applied; ``place``: where the answer goes.
    """

    __slots__ = ("noted", "place", "question", "results_seen", "started", "steps", "until", "waits")

    def __init__(
        self, question: Question, timeout: Micros, resend: Micros, place: Future[Submitted] | ResultSlot[Submitted]
    ) -> None:
        self.question = question
        self.steps = ask(question, timeout, resend)
        self.place = place
        self.results_seen: list[Result] = []
        self.noted = False
        self.waits: Hear | Fresh | None = None
        self.until: Micros = 0
        self.started = _now()


class Engine:
    """Carries requests to an answer. Safe from threads; ``start`` once, ``stop`` once."""

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
        self._seldom = Seldom(log)
        self._stopping = threading.Event()
        self._listener: threading.Thread | None = None
        self._unsubscribe: Callable[[], None] | None = None
        self._broken: ClientBroken | None = None

    def start(self) -> None:
        """Place the reader at the end of the results, then begin. Raises LogUnavailable, TopicMissing."""
        tail = self._results.tail(self._results.end_offset())
        self._unsubscribe = self._replica.subscribe(self._follow, self._replica.halt_on_defect).close
        self._listener = threading.Thread(
            target=self._guard, args=(self._listen, tail), name="client-listener", daemon=True
        )
        self._listener.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        """Stop; requests without an answer end with SubmissionTimedOut: their fate is open."""
        self._stopping.set()
        if self._listener is not None:
            self._listener.join(timeout_s)
        if self._unsubscribe is not None:
            self._unsubscribe()
        for pending in self._all():
            self._fail(pending, _timed_out(pending, "an answer, until the client was closed"))

    def submit(self, question: Question, timeout_s: float) -> Future[Submitted]:
        """Ask; the future gives the answer or raises SubmissionTimedOut, ReplicaHalted.

        The same request twice is one request. Raises InvalidSubmission if its id is busy with another command,
        ClientBroken if a thread of the client has failed.
        """
        asked = question.asked
        with self._lock:
            busy = self._pending.get(asked.request_id)
            if busy is not None and self._broken is None:
                if busy.question.asked != asked or isinstance(busy.place, ResultSlot):
                    raise InvalidSubmission(f"request id {asked.request_id} is in use", "take another one")
                return busy.place
            future: Future[Submitted] = Future()
            future.set_running_or_notify_cancel()
            settle = self._begin(question, micros(timeout_s), future)
        self._end(settle)
        return future

    def submit_together(self, questions: Iterable[Question | RefusedHere], timeout_s: float) -> tuple[Submitted, ...]:
        """Ask them all, under fresh request ids, and wait for all answers. Raises as ``submit`` does, and its future;
        and what is in the place of a question, once the others have their answers.

        They go out in groups that double, the first ones while the last are still made; and the rest at the end.
        """
        together: ResultBatch[Submitted] = ResultBatch()
        timeout, coming, size = micros(timeout_s), iter(questions), GROUP
        with self._lock:
            self._outbox.more_follow()
        try:
            while group := list(islice(coming, size)):
                size = min(2 * size, GROUP_MAX)
                with self._lock:
                    settles = [self._begin_in_slot(question, timeout, together.slot()) for question in group]
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
        self, question: Question | RefusedHere, timeout: Micros, slot: ResultSlot[Submitted]
    ) -> Callable[[], None]:
        """As ``_begin``; what cannot be asked has that for its answer."""
        if isinstance(question, Question):
            return self._begin(question, timeout, slot)
        return partial(slot.set_exception, question)

    def _begin(
        self, question: Question, timeout: Micros, place: Future[Submitted] | ResultSlot[Submitted]
    ) -> Callable[[], None]:
        """Take on a question, under the lock; as ``_advance``. Raises ClientBroken."""
        if self._broken is not None:
            raise self._broken
        pending = _Pending(question, timeout, self._resend, place)
        if self._stopping.is_set():  # nobody looks at the times any more
            error = _timed_out(pending, "an answer, of a client that is closed")
            return lambda: place.set_exception(error)
        if not self._pending:
            self._replica.pace.begin_hurry()
        self._pending[question.asked.request_id] = pending
        return self._advance(pending, None)

    # -------------------------------------------------------------------------------------- one question

    def _advance(self, pending: _Pending, outcome: Any) -> Callable[[], None]:
        """Perform the protocol up to its next wait, or its end, under the lock; returns what is to be done without it.

        The holder of the future may do anything in its callbacks.
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
                    case Hear() if pending.results_seen or pending.noted:
                        outcome = self._is_taken(pending)
                    case _:
                        pending.waits = effect
                        pending.until = effect.until if isinstance(effect, Hear) else _now() + effect.timeout
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
        """It has its end."""
        request_id = pending.question.asked.request_id
        del self._pending[request_id]
        if not self._pending:
            self._replica.pace.end_hurry()
        self._outbox.ended(request_id)

    @staticmethod
    def _is_taken(pending: _Pending) -> list[Result]:
        results_seen, pending.results_seen, pending.noted = pending.results_seen, [], False
        return results_seen

    def _wake(self, pending: _Pending) -> None:
        """Something has come in for the question, or its time has come."""
        with self._lock:
            if pending.waits is None:
                return
            awaits_result = isinstance(pending.waits, Hear)
            settle = self._advance(pending, self._is_taken(pending) if awaits_result else None)
        self._end(settle)

    def _end(self, settle: Callable[[], None]) -> None:
        """What a step leaves to be done without the lock."""
        settle()
        if self._outbox.is_ready():
            self._guard(self._send)

    def _fail(self, pending: _Pending, error: LogError) -> None:
        with self._lock:
            if self._pending.get(pending.question.asked.request_id) is not pending:
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
        """A thread that fails leaves nobody waiting: there would be no answers and no deadlines any more."""
        try:
            work(*arguments)
        except Exception as error:
            with self._lock:
                self._broken = ClientBroken(f"{type(error).__name__}: {error}")
            for pending in self._all():
                self._fail(pending, self._broken)
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
        """Hand over what waits, if it is time for that."""
        with self._lock:
            is_time = self._outbox.is_ready() or self._outbox.is_overdue(_now())
            waiting = self._outbox.take() if is_time and not self._stopping.is_set() else []
            if waiting:
                made = parcels(waiting)
                sent = self._requests.hand_over([parcel.data for parcel in made])
        if waiting:
            sent.add_done_callback(lambda answer: self._guard(self._sent, made, answer))

    def _sent(self, made: Sequence[Parcel], answer: Future[None]) -> None:
        """The requests' topic has answered."""
        error = answer.exception()
        if isinstance(error, RecordTooLarge):
            self._split([parcel for parcel in made if len(parcel.data) >= error.size], error)
        elif isinstance(error, LogUnavailable):
            count = sum(len(parcel.sent) for parcel in made)
            self._seldom.warn("requests_unanswered", requests=count, error=error.message)
        elif error is not None:
            raise error

    def _split(self, refused: Sequence[Parcel], error: RecordTooLarge) -> None:
        """What the topic does not take in one record goes out in several; what is alone already never gets there."""
        for parcel in refused:
            if len(parcel.sent) > 1:
                with self._lock:
                    for send in parcel.sent:
                        self._outbox.put(replace(send, alone=True), _now())
                continue
            pending = self._pending.get(parcel.sent[0].question.asked.request_id)
            if pending is not None:
                self._fail(pending, error)

    def _listen(self, tail: LogTail) -> None:
        while not self._stopping.is_set():
            try:
                self._hear(tail.poll(LISTEN_S))
                self._send_overdue()
                self._judge()
                self._check_deadlines()
            except LogDamaged as error:
                log.warning("results_lost", error=error.message)
                tail = self._from_the_end(tail)
            except LogError as error:
                for pending in self._all():
                    self._fail(pending, error)
        tail.close()

    def _from_the_end(self, tail: LogTail) -> LogTail:
        """A new reader at the results' present end; the old one, to be tried again, if nobody knows where that is."""
        try:
            fresh = self._results.tail(self._results.end_offset())
        except (LogUnavailable, TopicMissing):
            self._stopping.wait(LISTEN_S)
            return tail
        tail.close()
        return fresh

    def _hear(self, records: Sequence[LogRecord]) -> None:
        for record in records:
            try:
                result = decode_result(record.data)
            except WireError as error:
                self._seldom.warn("result_unreadable", offset=record.offset, error=str(error))
                continue
            pending = self._pending.get(result.request_id)
            if pending is not None and may_answer(result):
                with self._lock:
                    pending.results_seen.append(result)
                    settle = (
                        self._advance(pending, self._is_taken(pending)) if isinstance(pending.waits, Hear) else _nothing
                    )
                self._end(settle)

    def _judge(self) -> None:
        """One read barrier for all questions that ask for one."""
        with self._lock:
            asking = [pending for pending in self._pending.values() if isinstance(pending.waits, Fresh)]
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
                settle = self._advance(pending, state) if isinstance(pending.waits, Fresh) else _nothing
            self._end(settle)

    def _barrier(self, wait_s: float) -> ClusterState:
        """As ``LogReplica.read_barrier``; while the replica is behind, what has waited for long enough goes out."""
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
    """The question goes on waiting."""


def _timed_out(pending: _Pending, waited_for: str) -> SubmissionTimedOut:
    asked: Asked = pending.question.asked
    waited_s = (_now() - pending.started) / 1e6
    return SubmissionTimedOut(asked.request_id, asked.since_epoch, waited_s, waited_for)
