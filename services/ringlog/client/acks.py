"""What the nodes have acknowledged, as the compacted acks topic says: the newest word of each node.

Who has the master of their codes (``ack.master``) is shown what the coordinator believes; others what is there.
"""

from __future__ import annotations

from ringlog.log.kafka import KafkaLog
from ringlog.log.port import LogRecord
from ringlog.log.reading import read_to_end
from ringlog.log.topics import ACKS
from ringlog.runtime.trust import current
from ringlog.wire.ack_codes import believed_ack
from ringlog.wire.errors import WireError
from ringlog.wire.incarnations import Heard, believed
from ringlog.wire.records import NodeAck


class AcksReader:
    """Follows the acks topic from its beginning. For one thread; ``close`` it."""

    def __init__(self, bootstrap_servers: str, cluster: str) -> None:
        self._log = KafkaLog(bootstrap_servers, cluster, ACKS)
        self._tail = self._log.tail(self._log.begin_offset())
        self._heard: dict[str, Heard] = {}
        self._masters: tuple[str, ...] = ()
        self.latest: dict[str, NodeAck] = {}
        """Node id to its newest acknowledgement read so far."""

    def refresh(self) -> dict[str, NodeAck]:
        """Read to the end that the topic has now; returns ``latest``. Raises LogUnavailable."""
        masters = current().ack_masters
        if masters != self._masters and self._heard:  # what was believed before counts no more
            self._heard, self.latest = {}, {}
            self._tail.close()
            self._tail = self._log.tail(self._log.begin_offset())
        self._masters = masters
        for record in read_to_end(self._log, self._tail):
            self._take(record)
        return self.latest

    def _take(self, record: LogRecord) -> None:
        try:
            ack = believed_ack(record.data, self._masters)
        except WireError:
            return
        self._heard[ack.node] = believed(self._heard.get(ack.node), (record.offset, ack))
        self.latest[ack.node] = self._heard[ack.node][1]

    def close(self) -> None:
        """Let go of the connections."""
        self._tail.close()
        self._log.close()
