"""The registered CDC writer. It performs ``ringlog_cdc.protocol.writer`` in a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from ringlog.log.errors import LogError, LogUnavailable
from ringlog.log.replicas.driver import LogDriver, micros
from ringlog.log.replicas.replica import LogReplica
from ringlog.protocol.effects import Steps
from ringlog.protocol.submission.results import AppliedResult, Submitted
from ringlog.protocol.submission.submission import SubmitCommand
from ringlog.runtime.draw import SystemDraw
from ringlog.runtime.logs import get_logger
from ringlog_cdc.errors import CdcError, StopRequested
from ringlog_cdc.plan.store import PlanStore
from ringlog_cdc.protocol.effects import AppendPlan, EndsOf, FirstSince, Locked, OfChain, Wake, Woken
from ringlog_cdc.protocol.writer import Promises, WriterTimes
from ringlog_cdc.topics.source import Offsets

LOOK_S = 0.25
"""Longest wait between two checks, seconds."""
TIMES = WriterTimes(look=micros(LOOK_S), close_look=micros(1.0), clock_margin=micros(5.0), timeout=micros(30.0))
SUBMIT_S = 10.0
"""Timeout of one attempt to submit a promise, seconds."""

REPORT_S = 5.0
"""Wait of a stop for its last report, seconds."""

log = get_logger(__name__)
Submit = Callable[..., Submitted]
T = TypeVar("T")


class Writer:
    """One incarnation of a CDC writer.

    Call ``use``, register, then ``start``. ``stop`` ends its thread, but revokes no promise.

    Attributes:
        promises: The protocol and its state.
        driver: Performs its effects.
        lock: Held by ``Locked`` steps and by users of the chain.
        failure: The error that ended the thread.
    """

    def __init__(
        self, replica: LogReplica, submit: Submit, name: str, offsets: Offsets, source: str, sink: str
    ) -> None:
        self.promises = Promises(name, source, sink, SystemDraw(), TIMES)
        self.lock = threading.RLock()
        self.failure: BaseException | None = None
        self._replica = replica
        self._submit = submit
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._stops: tuple[threading.Event, ...] = (self._stopping,)
        self._thread = threading.Thread(target=self._run, name=f"cdc-writer-{name}", daemon=True)
        self.driver = LogDriver(replica.log, replica, check=self._check, check_s=LOOK_S)
        self.driver.handlers |= {
            SubmitCommand: self._submit_command,
            Woken: self._woken,
            Wake: lambda _: self._wake.set(),
            Locked: self._locked,
            EndsOf: lambda effect: self._answer(offsets.ends, effect.topic),
            # Brokers count append times in milliseconds. Round up.
            FirstSince: lambda effect: self._answer(offsets.later, effect.topic, -(-effect.limit // 1000)),
        }

    def use(self, store: PlanStore) -> None:
        """Set the plan chain."""
        self.driver.handlers |= {
            OfChain: lambda effect: self._of(store, effect),
            AppendPlan: lambda effect: store.append(effect.entry),
        }

    def run_steps(self, steps: Steps[T], stopping: threading.Event) -> T:
        """Perform a protocol in the calling thread. Waits end once ``stopping`` is set.

        Raises:
            CdcError, LogError: The protocol failed.
        """
        self._stops = (self._stopping, stopping)
        try:
            return self.driver.run_steps(steps)
        finally:
            self._stops = (self._stopping,)

    def start(self) -> None:
        """Start to keep the promises."""
        self._wake.set()
        self._thread.start()

    def stop(self, timeout_s: float = 15.0) -> None:
        """Stop the thread. Promises stay in the log."""
        self._stopping.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def report(self, timeout_s: float = REPORT_S) -> None:
        """Stop, then report the durable positions, so that the log shows the remaining lag.

        A failure leaves earlier positions in the log, and is not an error.
        """
        self.stop()
        over = threading.Event()
        timer = threading.Timer(timeout_s, over.set)
        timer.start()
        self._stops = (over,)
        try:
            self.driver.run_steps(self.promises.report())
        except (CdcError, LogError) as error:
            log.info("positions_not_reported", writer=self.promises.name, error=str(error))
        finally:
            timer.cancel()

    def check(self) -> None:
        """Raise the error that ended the thread, if any."""
        if self.failure is not None:
            raise self.failure

    # -------------------------------------------------------------------------------------------- thread

    def _run(self) -> None:
        """Keep the promises until stopped. Each new epoch wakes the protocol."""
        unsubscribe = self._replica.subscribe(lambda *_: self._wake.set()).close
        try:
            self.driver.run_steps(self.promises.keep())
        except StopRequested:
            pass
        except BaseException as error:
            self.failure = error
            log.error(
                "cdc_writer_stopped", writer=self.promises.name, incarnation=self.promises.incarnation, error=str(error)
            )
        finally:
            unsubscribe()

    def _check(self) -> None:
        """Raise StopRequested if a stop was requested."""
        if any(stop.is_set() for stop in self._stops):
            raise StopRequested

    def _submit_command(self, effect: SubmitCommand) -> Submitted | None:
        """Submit a promise once. Return None if its outcome is open: the protocol then repeats it with the same id."""
        self._check()
        kind = type(effect.command).__name__
        try:
            answer = self._submit(
                effect.command, timeout_s=SUBMIT_S, request_id=effect.request_id, since_epoch=effect.since_epoch
            )
        except LogError as error:
            if self._replica.halted is not None:
                raise
            log.warning("promise_open", writer=self.promises.name, command=kind, error=str(error))
            self._stopping.wait(LOOK_S)
            return None
        if not isinstance(answer, AppliedResult):
            log.info("promise_not_applied", writer=self.promises.name, command=kind, answer=str(answer))
        return answer

    def _woken(self, effect: Woken) -> None:
        self._wake.wait(effect.timeout / 1e6)
        self._wake.clear()
        self._check()

    def _locked(self, effect: Locked[T]) -> T:
        with self.lock:
            return self.driver.run_steps(effect.start())

    def _of(self, store: PlanStore, effect: OfChain[T]) -> T:
        with self.lock:
            return effect.read(store)

    def _answer(self, ask: Callable[..., dict[int, Any]], *about: Any) -> dict[int, Any] | None:
        """Ask the broker. Return None if it does not answer."""
        try:
            return ask(*about)
        except LogUnavailable as error:
            log.warning("offsets_unknown", writer=self.promises.name, error=str(error))
            return None
