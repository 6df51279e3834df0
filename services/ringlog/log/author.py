"""Authoring of log entries.

The author puts everything that the fold needs into the entry, so the fold draws no random bits and reads nothing else.

Invariant: a state id is a time-ordered UUID that is strictly greater than the id of its predecessor. The author's clock
only fills ``at``. A clock that is far behind the head of the log causes a warning and nothing else.
"""

from __future__ import annotations

import platform

from ringlog import __version__
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Command, Epoch, Micros
from ringlog.protocol.effects import Draw
from ringlog.runtime.clock import Clock
from ringlog.runtime.draw import draw_uuid
from ringlog.runtime.logs import get_logger
from ringlog.wire.entries import EncodedEntry, author_entry
from ringlog.wire.ids import ENTROPY_BYTES, new_request_id, new_state_id
from ringlog.wire.senders import EntrySender, bounded

SKEW_WARNED_US: Micros = 10_000_000
"""The author warns if its clock is further behind the head of the log than this."""
SKEW_WARNING_EVERY_S = 60.0
"""Minimum time between two warnings."""

log = get_logger(__name__)


def this_sender(name: str, on_behalf: str = "") -> str:
    """Return the text that names a sender in this process: the machine, the release, and the person it acts for."""
    host = "-".join(platform.node().split())
    return bounded(str(EntrySender(name, host, f"ringlog/{__version__}", on_behalf)))


class Author:
    """An author of entries for one submitter.

    Args:
        founds: Id of the cluster that this author creates. None: draw a new id.
        warns: Log a warning if this machine's clock is far behind the head of the log.
    """

    def __init__(self, submitter: str, clock: Clock, draw: Draw, founds: str | None = None, warns: bool = True) -> None:
        self.submitter = submitter
        self._founds = founds
        self._warns = warns
        self._clock = clock
        self._draw = draw
        self._warned: float | None = None

    def new_request_id(self) -> str:
        """Return a new request id."""
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
        """Make an entry that follows ``state``.

        By default the entry is a new request of this submitter, made at the epoch of ``state``. To author an entry for
        a request of someone else, pass its ``request_id``, ``since_epoch`` and ``submitter``.
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
                "clock_skew",
                head_ahead_s=round(ahead / 1e6, 1),
                hint="compare the clock of this machine with the clocks of other machines",
            )
