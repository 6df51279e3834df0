"""The results topic as the validator keeps it: the rejections that may still be asked for, and no more than needed.

Which answers are needed, ``ringlog.protocol.validator.validator`` says. Nothing before the last floor mark
(``ringlog.protocol.validator.core``) is needed, however young: rejections in such numbers that they had to be
forgotten are no reason to read them at the next start.
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
from ringlog.runtime.logs import Seldom, get_logger
from ringlog.runtime.settings import ProcessSettings
from ringlog.wire.errors import WireError
from ringlog.wire.records import Result, decode_result

log = get_logger(__name__)


class ResultsLog:
    """Reads committed results from the oldest kept one on, and lets go of what nobody needs. For use by one thread.

    ``look``: called now and then while it waits; may raise.
    """

    def __init__(self, settings: ProcessSettings, look: Callable[[], None]) -> None:
        self._log = KafkaLog(settings.bootstrap_servers, settings.cluster, RESULTS, isolation="read_committed")
        self._look = look
        self._seldom = Seldom(log)

    def close(self) -> None:
        """Let go of the connections."""
        self._log.close()

    def published(self) -> Iterator[Result]:
        """All that is there now."""
        return (result for _, result in self._all())

    def trim(self, oldest: Epoch) -> None:
        """Delete what lies before the first needed rejection. What fails now is done the next time."""
        try:
            end = self._log.end_offset()
            needed = ((offset, result) for offset, result in self._all() if is_needed(result, oldest))
            self._log.delete_before(first_needed(needed, end))
        except LogUnavailable as error:
            log.warning("results_not_trimmed", why=error.message)

    def _all(self) -> Iterator[tuple[int, Result]]:
        tail = self._log.tail(self._log.begin_offset())
        try:
            for record in read_to_end(self._log, tail, look=self._look):
                try:
                    result = decode_result(record.data)
                except WireError as error:
                    self._seldom.warn("unreadable_result", offset=record.offset, why=str(error))
                    continue
                yield record.offset, result
        finally:
            tail.close()


def first_needed(rejections: Iterable[tuple[int, Result]], end: int) -> int:
    """The offset before which nothing is needed: of the last floor mark, else of the first rejection, else the end."""
    first = end
    for offset, result in rejections:
        if first == end or is_floor_mark(result):
            first = offset
    return first
