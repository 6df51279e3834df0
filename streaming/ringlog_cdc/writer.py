"""The registered CDC writer: registers an incarnation, keeps its horizon ahead of use, claims its low-watermark.

The promises are in the metadata log, so the switch of generations needs no clock. Rows are routed only below the
*folded* horizon, and below a lowering from the moment it is submitted until its fate is final. ``lock`` is held while
a plan is checked against the horizon and stored, and while a lowering is begun: a lowering never goes below what a
stored plan has used.

One thread does the asking; it sends one promise at a time and waits until its fate is final.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Mapping

import structlog

from ringlog.client.results import AppliedResult, RejectedResult, Submitted
from ringlog.kernel.commands.cdc_writers import AdvanceCdcWriter, RegisterCdcWriter
from ringlog.kernel.settings import leeway_at, setting
from ringlog.kernel.state import CdcWriter, ClusterState
from ringlog.kernel.values import Command, Position
from ringlog.log.errors import LogError, LogUnavailable
from ringlog.log.replica import Replica
from ringlog_cdc.errors import CdcError, StopRequested, WriterReplaced, source_in_use
from ringlog_cdc.known import has_said, withdrawn
from ringlog_cdc.plan import close_entry
from ringlog_cdc.plan_store import PlanStore
from ringlog_cdc.promises import (
    Claim,
    Standing,
    binding,
    closed_before,
    closes_before_nothing,
    is_replaced,
    next_claim,
    next_closing,
    next_horizon,
)
from ringlog_cdc.source import Offsets

LOOK_S = 0.25
"""How often it looks again when nothing wakes it."""
CLOSE_LOOK_S = 1.0
"""How often it asks the broker whether a generation can be closed."""
CLOCK_MARGIN_US = 5_000_000
"""How far the clock must be past a time before no broker is believed to append below it any more."""
SUBMIT_S = 10.0
FOLD_S = 30.0

log = structlog.get_logger(__name__)
Submit = Callable[..., Submitted]


class Writer:
    """One incarnation of a CDC writer. ``register``, then ``start``; ``stop`` ends its thread, not its promises.

    ``tried``: the incarnations that it asked to register, the one that it is at the end.
    """

    def __init__(
        self, replica: Replica, submit: Submit, name: str, store: PlanStore, offsets: Offsets, source: str, sink: str
    ) -> None:
        self.name = name
        self.incarnation = uuid.uuid4().hex
        self.tried: list[str] = []
        self.lock = threading.RLock()
        self.failure: BaseException | None = None
        self._replica = replica
        self._submit = submit
        self._store = store
        self._offsets = offsets
        self._source, self._sink = source, sink
        self._bound: int | None = None
        self._held = False
        self._active_until = 0.0
        self._is_asked = False
        self._close_at = 0.0
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"cdc-writer-{name}", daemon=True)

    # ---------------------------------------------------------------------------------------------- life

    def register(self, stopping: threading.Event | None = None) -> int:
        """Register this incarnation and fold at least to it; returns the epoch.

        Once ``stopping`` is set it waits no longer. Raises CdcError, LogError.
        """
        while True:
            self.tried.append(self.incarnation)
            answer = self._settle(RegisterCdcWriter(self.name, self.incarnation, self._source), stopping)
            if isinstance(answer, RejectedResult) and answer.code == "source_in_use":
                raise source_in_use(answer.detail)
            if isinstance(answer, RejectedResult):
                raise CdcError("not_registered", f"{answer.code}: {answer.detail}")
            if isinstance(answer, AppliedResult):
                self.mine(self._folded(answer.epoch))
                return answer.epoch
            # Whether the expired request had an effect is unknown; a new incarnation ends the old one in both cases.
            self.incarnation = uuid.uuid4().hex

    def start(self) -> None:
        """Begin to keep the horizon; the first extension is asked for at once, while the query is still starting."""
        self.note_need(held=False)
        self._wake.set()
        self._thread.start()

    def stop(self, timeout_s: float = 15.0) -> None:
        """Stop asking. What was promised stays in the log."""
        self._stopping.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    # ----------------------------------------------------------------------------------------- for plans

    def mine(self, state: ClusterState) -> CdcWriter:
        """This writer in ``state``; raises WriterReplaced if the incarnation is not the current one."""
        found = state.writers.get(self.name)
        if found is None or found.incarnation != self.incarnation or found.fenced is not None:
            raise WriterReplaced(self.name, self.incarnation, found.incarnation if found else "")
        return found

    def horizon(self, state: ClusterState) -> int:
        """The horizon that binds under ``state``: the folded one, or a lowering that is on its way."""
        return binding(self.mine(state).horizon, self._bound)

    def check(self) -> None:
        """Raise what stopped the thread, if it stopped."""
        if self.failure is not None:
            raise self.failure

    def note_need(self, held: bool) -> None:
        """Rows are being planned now; ``held`` ones wait for a higher horizon."""
        self._held = held
        self._active_until = time.monotonic() + self._lead_us() / 1e6
        if held:
            self._wake.set()

    def has_said(self, state: ClusterState) -> bool:
        """True if the log of ``state`` has all that is decided; if not, it will be said."""
        with self.lock:
            durable = self._store.durable_positions()
        if has_said(self.mine(state), durable):
            return True
        self._is_asked = True
        self._wake.set()
        return False

    # -------------------------------------------------------------------------------------------- thread

    def _run(self) -> None:
        follower = self._replica.subscribe(lambda *_: self._wake.set())
        try:
            while not self._stopping.is_set():
                self._wake.wait(LOOK_S)
                self._wake.clear()
                if not self._stopping.is_set():
                    self._step()
        except StopRequested:
            pass
        except BaseException as error:
            self.failure = error
            log.error("cdc_writer_stopped", writer=self.name, incarnation=self.incarnation, error=str(error))
        finally:
            follower.close()

    def _step(self) -> None:
        state = self._replica.state
        mine = self.mine(state)
        now = time.time_ns() // 1000
        with self.lock:
            standing = Standing(
                horizon=mine.horizon,
                floor=mine.floor,
                low_watermark=mine.low_watermark,
                used=self._store.head.used,
                prepared=state.prepared is not None,
                active=time.monotonic() < self._active_until,
                held=self._held,
            )
            horizon = next_horizon(standing, now, self._lead_us())
            if horizon is not None and horizon < mine.horizon:
                self._bound = horizon
        if horizon is not None or self._is_asked:
            self._is_asked = False
            self._advance(mine.horizon if horizon is None else horizon, mine.low_watermark, ())
        if time.monotonic() >= self._close_at:
            self._close_at = time.monotonic() + CLOSE_LOOK_S
            state = self._replica.state
            self._claim(state, self.mine(state), now)

    def _claim(self, state: ClusterState, mine: CdcWriter, now: int) -> None:
        """Close what can be closed, and claim the low-watermark that the chain allows."""
        with self.lock:
            claimed = self._store.head.low_watermark
            durable = self._store.durable_positions()
        if closes_before_nothing(state.generations, claimed, mine.low_watermark):
            raise withdrawn(self.name, claimed)
        following = next_closing(state.generations, max(claimed, mine.low_watermark))
        if following is not None and self._is_passed(following.timestamp + leeway_at(state, following), durable, now):
            with self.lock:
                claimed = following.timestamp
                closed = closed_before(state.generations, claimed)
                self._store.append(
                    close_entry(
                        self._store.head,
                        generations=closed,
                        low_watermark=claimed,
                        epoch=state.epoch,
                        incarnation=self.incarnation,
                    )
                )
        with self.lock:
            is_durable = self._store.is_closing_durable()
        claim = next_claim(mine, claimed, is_durable)
        if claim is Claim.RAISE_HORIZON:
            self.note_need(held=self._held)
        if claim is Claim.SUBMIT:
            self._advance(mine.horizon, claimed, places(self._offsets.ends(self._sink)))

    def _is_passed(self, limit: int, durable: Mapping[int, int], now: int) -> bool:
        try:
            return self._offsets.passed(self._source, durable, limit, now > limit + CLOCK_MARGIN_US)
        except LogUnavailable as error:
            log.warning("offsets_unknown", writer=self.name, error=str(error))
            return False

    def _advance(self, horizon: int, low_watermark: int, positions: tuple[Position, ...]) -> None:
        """Submit one promise and wait until its fate is final and folded; until then a lowering binds."""
        with self.lock:
            decided = places(self._store.durable_positions())
        command = AdvanceCdcWriter(self.name, self.incarnation, horizon, low_watermark, positions, decided)
        answer = self._settle(command)
        if isinstance(answer, AppliedResult):
            self._folded(answer.epoch)
        elif is_replaced(answer):
            raise WriterReplaced(self.name, self.incarnation, "")
        else:
            log.info("promise_not_applied", writer=self.name, horizon=horizon, answer=str(answer))
            self._replica.read_barrier(FOLD_S)
        with self.lock:
            self._bound = None

    def _folded(self, epoch: int) -> ClusterState:
        return self._replica.wait_for(
            lambda state: state if state.epoch >= epoch else None, FOLD_S, f"epoch {epoch} to be folded"
        )

    def _settle(self, command: Command, stopping: threading.Event | None = None) -> Submitted:
        """The final answer to a command: the same request is sent again until there is one. Raises StopRequested."""
        request_id, since_epoch = str(uuid.uuid4()), self._replica.state.epoch
        while not self._stopping.is_set() and not (stopping is not None and stopping.is_set()):
            try:
                return self._submit(command, timeout_s=SUBMIT_S, request_id=request_id, since_epoch=since_epoch)
            except LogError as error:
                if self._replica.halted is not None:
                    raise
                log.warning("promise_open", writer=self.name, command=type(command).__name__, error=str(error))
                self._stopping.wait(LOOK_S)
        raise StopRequested

    def _lead_us(self) -> int:
        return setting(self._replica.state, "cdc_horizon_lead_us")


def places(offsets: Mapping[int, int]) -> tuple[Position, ...]:
    """Partition to offset as the log has it."""
    return tuple(Position(partition, offset) for partition, offset in sorted(offsets.items()))
