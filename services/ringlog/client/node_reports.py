"""Reports of nodes: acknowledgements, load, and the rows that they streamed.

The readers follow the topics ``acks`` and ``load`` from their beginning, with the broker's times. A reader that has the
master of the nodes' codes (``ack.master``) drops reports without the right code, as the coordinator does. Others take
all of them.

``RowsSum`` is for stores of other authors. A source sums up the rows that it sends, a gaining node those that it gets.
When the two sums agree, the gaining node puts the report into its acknowledgement. The sum is that of the rows'
SHA-256 as numbers, modulo 2**256. Order and pages make no difference; a row that arrives twice counts twice. Both sides
must use the same bytes for a row.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable

from ringlog.kernel.operations.gates import broken_report
from ringlog.kernel.values import StreamReport
from ringlog.log.kafka.adapter import KafkaLog
from ringlog.log.kafka.topics import ACKS, LOAD
from ringlog.log.port import LogRecord
from ringlog.log.reading import read_to_end
from ringlog.protocol.balancer.load_book import REJECTED, UNREADABLE, Heard
from ringlog.runtime.logs import Seldom, get_logger
from ringlog.runtime.trust import current
from ringlog.wire.acks import REJECTED_ACK_REMEDY, WRONG_CODE, ReceivedAck, newest_ack, verified_ack, verified_load
from ringlog.wire.errors import WireError
from ringlog.wire.records import NodeAck

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
        return load_reports(read_to_end(self._log, self._tail, look=self._look), self._seldom)

    def new(self) -> tuple[Heard, ...]:
        """What has come. Does not wait."""
        return load_reports(self._tail.poll(0.0), self._seldom)

    def close(self) -> None:
        """Let go of the connections."""
        self._tail.close()
        self._log.close()


def load_reports(records: Iterable[LogRecord], seldom: Seldom) -> tuple[Heard, ...]:
    """What records of the topic say. ``seldom``: hears of those that say nothing, or are not believed."""
    found, masters = [], current().ack_masters
    for record in records:
        if not record.data:
            continue
        try:
            found.append(Heard(verified_load(record.data, masters), record.at))
        except WireError as error:
            is_forged = error.code == WRONG_CODE
            event, ends = (REJECTED, {"ends": REJECTED_ACK_REMEDY}) if is_forged else ("unreadable_load", {})
            seldom.warn(event, offset=record.offset, why=str(error), **ends)
            found.append(Heard(None, record.at, REJECTED if is_forged else UNREADABLE))
    return tuple(found)


class AcksReader:
    """Follows the acks topic from its beginning. For one thread; ``close`` it."""

    def __init__(self, bootstrap_servers: str, cluster: str) -> None:
        self._log = KafkaLog(bootstrap_servers, cluster, ACKS)
        self._tail = self._log.tail(self._log.begin_offset())
        self._newest: dict[str, ReceivedAck] = {}
        self._masters: tuple[str, ...] = ()
        self.latest: dict[str, NodeAck] = {}
        """Node id to its newest acknowledgement read so far."""

    def refresh(self) -> dict[str, NodeAck]:
        """Read to the end that the topic has now; returns ``latest``. Raises LogUnavailable."""
        masters = current().ack_masters
        if masters != self._masters and self._newest:  # what was believed before counts no more
            self._newest, self.latest = {}, {}
            self._tail.close()
            self._tail = self._log.tail(self._log.begin_offset())
        self._masters = masters
        for record in read_to_end(self._log, self._tail):
            self._take(record)
        return self.latest

    def _take(self, record: LogRecord) -> None:
        try:
            ack = verified_ack(record.data, self._masters)
        except WireError:
            return
        self._newest[ack.node] = newest_ack(self._newest.get(ack.node), (record.offset, ack))
        self.latest[ack.node] = self._newest[ack.node][1]

    def close(self) -> None:
        """Let go of the connections."""
        self._tail.close()
        self._log.close()


_MODULUS = 2**256
_DIGITS = 64


class RowsSum:
    """Counts rows and sums them up. Not for several threads at once."""

    def __init__(self) -> None:
        self.rows = 0
        self._sum = 0

    def add(self, row: bytes) -> None:
        """One row, as the bytes that both sides make of it."""
        self.rows += 1
        self._sum = (self._sum + int.from_bytes(hashlib.sha256(row).digest(), "big")) % _MODULUS

    @property
    def checksum(self) -> str:
        """The sum so far: 64 hex digits, all zero without rows."""
        return f"{self._sum:0{_DIGITS}x}"

    def report(self, node_id: str, operation: str) -> StreamReport:
        """The report of the node with this id (not its name) on an operation."""
        return checked(StreamReport(node_id, operation, self.rows, self.checksum))


def checked(report: StreamReport) -> StreamReport:
    """The report, if the log takes it; for a store with a sum of its own. Raises ValueError, naming field and rule."""
    broken = broken_report(report)
    if broken is not None:
        raise ValueError(f"report of {report.node} on {report.operation}: {broken}")
    return report
