"""What nodes said of their load: the topic ``load``, with the times at which the broker took it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ringlog.log.kafka import KafkaLog
from ringlog.log.port import LogRecord
from ringlog.log.reading import read_to_end
from ringlog.log.topics import LOAD
from ringlog.protocol.load_book import Heard
from ringlog.runtime.logs import get_logger
from ringlog.wire.errors import WireError
from ringlog.wire.records import decode_node_load

log = get_logger(__name__)


class LoadsReader:
    """Reads ``load`` from its beginning. For use by one thread; ``close`` it. ``look``: called now and then while it
    waits; may raise.
    """

    def __init__(self, bootstrap_servers: str, cluster: str, look: Callable[[], None] = lambda: None) -> None:
        self._look = look
        self._log = KafkaLog(bootstrap_servers, cluster, LOAD)
        self._tail = self._log.tail(self._log.begin_offset())

    def at_end(self) -> tuple[Heard, ...]:
        """All that is there when this is called and was not given yet. Raises LogUnavailable."""
        return _heard(read_to_end(self._log, self._tail, look=self._look))

    def new(self) -> tuple[Heard, ...]:
        """What has come. Does not wait."""
        return _heard(self._tail.poll(0.0))

    def close(self) -> None:
        """Let go of the connections."""
        self._tail.close()
        self._log.close()


def _heard(records: Iterable[LogRecord]) -> tuple[Heard, ...]:
    found = []
    for record in records:
        if not record.data:
            continue
        try:
            found.append(Heard(decode_node_load(record.data), record.at))
        except WireError as error:
            log.warning("unreadable_load", offset=record.offset, why=str(error))
            found.append(Heard(None, record.at))
    return tuple(found)
