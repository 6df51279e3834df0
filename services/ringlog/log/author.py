"""How an entry is made: the author puts into it all that folding may need, so that folding draws and reads nothing.

The state id is a time-ordered UUID strictly above its predecessor. The author's clock only fills ``at``; a clock that
lags far behind the head of the log is worth a warning and nothing more.
"""

from __future__ import annotations

from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Command, Epoch, Micros
from ringlog.protocol.effects import Draw
from ringlog.runtime.clock import Clock
from ringlog.runtime.draw import draw_uuid
from ringlog.runtime.logs import get_logger
from ringlog.wire.entries import EncodedEntry, author_entry
from ringlog.wire.ids import ENTROPY_BYTES, new_request_id, new_state_id

SKEW_WARNED_US: Micros = 10_000_000
SKEW_WARNING_EVERY_S = 60.0

log = get_logger(__name__)


class Author:
    """Makes entries for one submitter.

    ``founds``: the id of a cluster that it founds (None: a new one); ``warns``: of clocks that are far apart.
    """

    def __init__(self, submitter: str, clock: Clock, draw: Draw, founds: str | None = None, warns: bool = True) -> None:
        self.submitter = submitter
        self._founds = founds
        self._warns = warns
        self._clock = clock
        self._draw = draw
        self._warned: float | None = None

    def new_request_id(self) -> str:
        """A fresh request id."""
        return new_request_id(self._clock.now_us(), self._draw.take(ENTROPY_BYTES))

    def entry(
        self,
        state: ClusterState,
        command: Command,
        *,
        request_id: str | None = None,
        since_epoch: Epoch | None = None,
        submitter: str | None = None,
    ) -> EncodedEntry:
        """An entry that follows ``state``.

        A new request made at its epoch unless the caller says whose request it is.
        """
        now = self._clock.now_us()
        self._warn_of_skew(state, now)
        return author_entry(
            cluster_id=state.cluster_id or self._founds or draw_uuid(self._draw),
            state_id=new_state_id(state.state_id or None, now, self._draw.take(ENTROPY_BYTES)),
            prev_state_id=state.state_id or None,
            request_id=request_id if request_id is not None else self.new_request_id(),
            since_epoch=since_epoch if since_epoch is not None else state.epoch,
            submitter=submitter if submitter is not None else self.submitter,
            at=now,
            command=command,
        )

    def _warn_of_skew(self, state: ClusterState, now: Micros) -> None:
        ahead = state.time - now
        if ahead <= SKEW_WARNED_US or not self._warns:
            return
        instant = self._clock.monotonic()
        if self._warned is None or instant - self._warned >= SKEW_WARNING_EVERY_S:
            self._warned = instant
            log.warning(
                "clock_skew", head_ahead_s=round(ahead / 1e6, 1), hint="compare this machine's clock with the others'"
            )
