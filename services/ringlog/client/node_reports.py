"""Reports of nodes: acknowledgements, load, and checksums of streamed rows.

The readers follow the topics ``acks`` and ``load`` from their beginning and use the broker's timestamps. A reader that
has the master key of the nodes' authentication codes (``ack.master``) drops reports with a missing or wrong code, as
the coordinator does. Without that key it accepts all reports.

``RowsSum`` is for stores of other authors. A source sums the rows that it sends, a gaining node the rows that it
receives. If the two sums agree, the gaining node adds the report to its acknowledgement. The sum adds the SHA-256
hashes of the rows as numbers, modulo 2**256. It does not depend on the order of the rows or on pages; a row that
arrives twice counts twice. Both sides must encode a row as the same bytes.
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
from ringlog.protocol.balancer.load_book import REJECTED, UNREADABLE, ReceivedLoad
from ringlog.runtime.logs import RateLimitedWarnings, get_logger
from ringlog.runtime.trust import current
from ringlog.wire.acks import REJECTED_ACK_REMEDY, WRONG_CODE, ReceivedAck, newest_ack, verified_ack, verified_load
from ringlog.wire.errors import WireError
from ringlog.wire.records import NodeAck

log = get_logger(__name__)


class LoadsReader:
    """A reader of ``load`` from its beginning. Not thread-safe; ``close`` it. ``check``: called periodically while it
    waits; may raise.
    """

    def __init__(self, bootstrap_servers: str, cluster: str, check: Callable[[], None] = lambda: None) -> None:
        self._check = check
        self._warnings = RateLimitedWarnings(log)
        self._log = KafkaLog(bootstrap_servers, cluster, LOAD)
        self._tail = self._log.tail(self._log.begin_offset())

    def at_end(self) -> tuple[ReceivedLoad, ...]:
        """Return the unread reports up to the end that the topic has when this is called. Raises LogUnavailable."""
        return load_reports(read_to_end(self._log, self._tail, check=self._check), self._warnings)

    def new(self) -> tuple[ReceivedLoad, ...]:
        """Return the reports that have arrived. Does not wait."""
        return load_reports(self._tail.poll(0.0), self._warnings)

    def close(self) -> None:
        """Close the connections."""
        self._tail.close()
        self._log.close()


def load_reports(records: Iterable[LogRecord], warnings: RateLimitedWarnings) -> tuple[ReceivedLoad, ...]:
    """Decode reports of the topic. ``warnings`` logs reports that are unreadable or rejected."""
    found, masters = [], current().ack_masters
    for record in records:
        if not record.data:
            continue
        try:
            found.append(ReceivedLoad(verified_load(record.data, masters), record.at))
        except WireError as error:
            is_forged = error.code == WRONG_CODE
            event, ends = (REJECTED, {"ends": REJECTED_ACK_REMEDY}) if is_forged else ("unreadable_load", {})
            warnings.warn(event, offset=record.offset, why=str(error), **ends)
            found.append(ReceivedLoad(None, record.at, REJECTED if is_forged else UNREADABLE))
    return tuple(found)


class AcksReader:
    """A reader of ``acks`` from its beginning. Not thread-safe; ``close`` it."""

    def __init__(self, bootstrap_servers: str, cluster: str) -> None:
        self._log = KafkaLog(bootstrap_servers, cluster, ACKS)
        self._tail = self._log.tail(self._log.begin_offset())
        self._newest: dict[str, ReceivedAck] = {}
        self._masters: tuple[str, ...] = ()
        self.latest: dict[str, NodeAck] = {}
        """Node id to its newest acknowledgement read so far."""

    def refresh(self) -> dict[str, NodeAck]:
        """Read to the current end of the topic and return ``latest``. Raises LogUnavailable."""
        masters = current().ack_masters
        # Acknowledgements were verified with the old keys. Read the topic again and verify all of them with the new
        # ones.
        if masters != self._masters and self._newest:
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
        """Close the connections."""
        self._tail.close()
        self._log.close()


_MODULUS = 2**256
_DIGITS = 64


class RowsSum:
    """A counter and an order-independent checksum of rows. Not thread-safe."""

    def __init__(self) -> None:
        self.rows = 0
        self._sum = 0

    @staticmethod
    def of(sums: Iterable[RowsSum]) -> RowsSum:
        """Return the sum of all rows of these sums."""
        found = RowsSum()
        for one in sums:
            found.rows += one.rows
            found._sum = (found._sum + one._sum) % _MODULUS
        return found

    def add(self, row: bytes) -> None:
        """Add one row, encoded as both sides encode it."""
        self.rows += 1
        self._sum = (self._sum + int.from_bytes(hashlib.sha256(row).digest(), "big")) % _MODULUS

    @property
    def checksum(self) -> str:
        """The current sum: 64 hex digits, all zero without rows."""
        return f"{self._sum:0{_DIGITS}x}"

    def report(self, node_id: str, operation: str) -> StreamReport:
        """Return the report of a node (by id, not name) on an operation."""
        return checked(StreamReport(node_id, operation, self.rows, self.checksum))


def checked(report: StreamReport) -> StreamReport:
    """Return the report if it satisfies the rules of the log; for stores that compute their own checksum.

    Raises ValueError with the field and the rule.
    """
    broken = broken_report(report)
    if broken is not None:
        raise ValueError(f"report of {report.node} on {report.operation}: {broken}")
    return report
