"""The last published epoch, from the newest committed record of ``epochs``.

Records of other writers are skipped with a warning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ringlog.kernel.changes import EpochChange
from ringlog.kernel.sections import EPOCHS
from ringlog.kernel.values import Epoch
from ringlog.log.kafka.adapter import KafkaLog
from ringlog.log.kafka.topics import TOPICS
from ringlog.log.port import LogRecord
from ringlog.log.reading import read_to_end
from ringlog.runtime.logs import RateLimitedWarnings, get_logger
from ringlog.runtime.settings import ProcessSettings
from ringlog.wire.changes import decode_change
from ringlog.wire.errors import WireError

log = get_logger(__name__)

EPOCHS_TOPIC = next(spec for spec in TOPICS if spec.suffix == EPOCHS)


class EpochsReader:
    """A reader of the committed records of ``epochs``, from its beginning. For one thread; ``close`` it.

    ``check``: called from time to time during a wait; may raise.
    """

    def __init__(self, settings: ProcessSettings, check: Callable[[], None]) -> None:
        self._check = check
        self._log = KafkaLog(settings.bootstrap_servers, settings.cluster, EPOCHS_TOPIC, isolation="read_committed")
        self._tail = self._log.tail(self._log.begin_offset())
        self._last: EpochChange | None = None
        self._warnings = RateLimitedWarnings(log)

    def newest(self) -> Epoch:
        """Return the last published epoch as far as it was read; 0 if there is none. Does not block."""
        self._take(self._tail.poll(0.0))
        return 0 if self._last is None else self._last.epoch

    def at_end(self) -> EpochChange | None:
        """Return the last record that is committed when this is called. Raises LogUnavailable."""
        self._take(read_to_end(self._log, self._tail, check=self._check))
        return self._last

    def close(self) -> None:
        """Close the connections."""
        self._tail.close()
        self._log.close()

    def _take(self, records: Iterable[LogRecord]) -> None:
        for record in records:
            try:
                change = decode_change(record.data)
            except WireError as error:
                self._warnings.warn("unreadable_epoch", offset=record.offset, why=str(error))
                continue
            if isinstance(change, EpochChange):
                self._last = change
            else:
                self._warnings.warn("no_epoch", offset=record.offset, found=type(change).__name__)
