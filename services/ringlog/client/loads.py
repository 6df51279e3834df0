"""What nodes said of their load: the topic ``load``, with the times at which the broker took it.

Who has the master of their codes (``ack.master``) believes no report without the right one; others take what is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ringlog.log.kafka import KafkaLog
from ringlog.log.port import LogRecord
from ringlog.log.reading import read_to_end
from ringlog.log.topics import LOAD
from ringlog.protocol.load_book import NOT_BELIEVED, UNREADABLE, Heard
from ringlog.runtime.logs import Seldom, get_logger
from ringlog.runtime.trust import current
from ringlog.wire.ack_codes import NOT_BELIEVED_ENDS, WRONG_CODE, believed_load
from ringlog.wire.errors import WireError

log = get_logger(__name__)


class LoadsReader:
    """Reads ``load`` from its beginning. For use by one thread; ``close`` it. ``look``: called now and then while it
    waits; may raise.
    """

    def __init__(self, bootstrap_servers: str, cluster: str, look: Callable[[], None] = lambda: None) -> None:
        self._look = look
        self._seldom = Seldom(log)
        self._log = KafkaLog(bootstrap_servers, cluster, LOAD)
        self._tail = self._log.tail(self._log.begin_offset())

    def at_end(self) -> tuple[Heard, ...]:
        """All that is there when this is called and was not given yet. Raises LogUnavailable."""
        return heard(read_to_end(self._log, self._tail, look=self._look), self._seldom)

    def new(self) -> tuple[Heard, ...]:
        """What has come. Does not wait."""
        return heard(self._tail.poll(0.0), self._seldom)

    def close(self) -> None:
        """Let go of the connections."""
        self._tail.close()
        self._log.close()


def heard(records: Iterable[LogRecord], seldom: Seldom) -> tuple[Heard, ...]:
    """What records of the topic say. ``seldom``: hears of those that say nothing, or are not believed."""
    found, masters = [], current().ack_masters
    for record in records:
        if not record.data:
            continue
        try:
            found.append(Heard(believed_load(record.data, masters), record.at))
        except WireError as error:
            is_forged = error.code == WRONG_CODE
            event, ends = (NOT_BELIEVED, {"ends": NOT_BELIEVED_ENDS}) if is_forged else ("unreadable_load", {})
            seldom.warn(event, offset=record.offset, why=str(error), **ends)
            found.append(Heard(None, record.at, NOT_BELIEVED if is_forged else UNREADABLE))
    return tuple(found)
