"""The coordinator's measurement of the lag of CDC writers, for its metrics.

An ended job serves no metrics, so the alert needs another process. The thread asks the broker every ``LOOK_S``, only if
metrics are served. Nothing else depends on it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from ringlog.kernel.model.state import ClusterState
from ringlog.log.kafka.lag import Lag, writer_lags
from ringlog.runtime.logs import get_logger

LOOK_S: Final = 15.0

log = get_logger(__name__)


class WriterLagThread:
    """A measurement every ``look_s`` until it is stopped.

    ``lags``: the last known lags of writers that are not fenced. An unknown lag is missing, so that no old value looks
    like a present one.
    """

    def __init__(self, bootstrap_servers: str, state: Callable[[], ClusterState], look_s: float = LOOK_S) -> None:
        self._bootstrap = bootstrap_servers
        self._state = state
        self._look_s = look_s
        self.lags: tuple[Lag, ...] = ()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="writer-lag", daemon=True)

    def start(self) -> None:
        """Start to measure."""
        self._thread.start()

    def stop(self) -> None:
        """Stop, if it runs. A measurement in progress ends with the process."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout=1.0)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                state = self._state()
                lags = writer_lags(self._bootstrap, state)
                live = {name for name, writer in state.writers.items() if writer.fenced is None}
                self.lags = tuple(one for name, one in lags.items() if name in live and isinstance(one, Lag))
            except Exception:
                self.lags = ()
                log.exception("writer_lag_unknown")
            self._stopping.wait(self._look_s)
