"""The results topic from the validator's side: reads it, and deletes results that are no longer needed.

``ringlog.protocol.validator.validator`` decides which answers are needed. No result before the last floor mark is
needed (``ringlog.protocol.validator.core``), even if it is recent. These rejections were forgotten because there were
too many, so the next instance must not read them either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from ringlog.kernel.values import Epoch
from ringlog.log.errors import LogUnavailable
from ringlog.log.kafka.adapter import KafkaLog
from ringlog.log.kafka.topics import RESULTS
from ringlog.log.reading import read_to_end
from ringlog.protocol.validator.core import is_floor_mark
from ringlog.protocol.validator.validator import is_needed
from ringlog.runtime.logs import RateLimitedWarnings, get_logger
from ringlog.runtime.settings import ProcessSettings
from ringlog.wire.errors import WireError
from ringlog.wire.records import Result, decode_result

log = get_logger(__name__)


class ResultsLog:
    """A reader of committed results from the oldest one, which also deletes old ones. For one thread.

    ``check``: called from time to time during a wait; may raise.
    """

    def __init__(self, settings: ProcessSettings, check: Callable[[], None]) -> None:
        self._log = KafkaLog(settings.bootstrap_servers, settings.cluster, RESULTS, isolation="read_committed")
        self._check = check
        self._warnings = RateLimitedWarnings(log)

    def close(self) -> None:
        """Close the connections."""
        self._log.close()

    def published(self) -> Iterator[Result]:
        """Return all present results."""
        return (result for _, result in self._all())

    def trim(self, oldest: Epoch) -> None:
        """Delete the results before the first needed rejection. After a failure, the next call deletes them."""
        try:
            end = self._log.end_offset()
            needed = ((offset, result) for offset, result in self._all() if is_needed(result, oldest))
            self._log.delete_before(first_needed(needed, end))
        except LogUnavailable as error:
            log.warning("results_not_trimmed", why=error.message)

    def _all(self) -> Iterator[tuple[int, Result]]:
        tail = self._log.tail(self._log.begin_offset())
        try:
            for record in read_to_end(self._log, tail, check=self._check):
                try:
                    result = decode_result(record.data)
                except WireError as error:
                    self._warnings.warn("unreadable_result", offset=record.offset, why=str(error))
                    continue
                yield record.offset, result
        finally:
            tail.close()


def first_needed(rejections: Iterable[tuple[int, Result]], end: int) -> int:
    """Return the first needed offset: of the last floor mark, else of the first rejection, else the end."""
    first = end
    for offset, result in rejections:
        if first == end or is_floor_mark(result):
            first = offset
    return first
