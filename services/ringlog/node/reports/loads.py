"""Load reports of a node's tablets: performs ``ringlog.node.protocol.lifecycle`` on Kafka.

The size of a tablet is the number of bytes that the node stores for its tokens: encoded writes of rows, and registers.
Its rates count the requests that the node served (``served``). A report also has the free disk and the end of the
certificates at the time when it is sent. Records carry a MAC (``load_with_mac``) if the node's trust file has a key.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from concurrent.futures import Future
from itertools import chain
from pathlib import Path
from typing import Any

from ringlog.client.participant.retry import Stopped
from ringlog.kernel.values import SECOND_US, replace
from ringlog.log.errors import LogError
from ringlog.log.kafka.producer import AckedProducer, Delivered
from ringlog.log.kafka.topics import LOAD, topic_name
from ringlog.node.protocol.lifecycle import AwaitLoads, MeasureTablets, PublishLoad
from ringlog.node.registers.cells import CellMap
from ringlog.node.rows.replica import RowReplica
from ringlog.protocol.balancer.load_reports import Amounts, sizes_of
from ringlog.runtime.logs import get_logger
from ringlog.runtime.trust import current
from ringlog.wire.acks import load_with_mac
from ringlog.wire.records import NodeLoad, encode_node_load

LOADS_S = 1.0
"""The interval, in seconds, between checks of the schedule."""

log = get_logger("ringlog.node")


class Loads:
    """Measures and publishes load reports of one node, for the one thread that performs the steps.

    Waits of that thread raise Stopped once ``stopping`` is set.

    Args:
        cells: Returns the registers of the node.
        folder: The folder of the node.
    """

    def __init__(
        self,
        bootstrap: str,
        cluster: str,
        row_replica: RowReplica,
        cells: Callable[[], CellMap],
        stopping: threading.Event,
        folder: Path,
    ) -> None:
        self._topic = topic_name(cluster, LOAD.suffix)
        self._bootstrap = bootstrap
        self._row_replica = row_replica
        self._cells = cells
        self._stopping = stopping
        self._folder = folder
        self._producer: AckedProducer | None = None
        self.handlers: dict[type, Callable[[Any], Any]] = {
            AwaitLoads: lambda _: self._wait(),
            MeasureTablets: self._measure,
            PublishLoad: lambda effect: self._publish(effect.load),
        }

    def _wait(self) -> None:
        if self._stopping.wait(LOADS_S):
            raise Stopped

    def _measure(self, effect: MeasureTablets) -> Amounts:
        rows, cells = self._row_replica.sizes, self._cells().sizes
        return {table: sizes_of(effect.state, table, chain(rows(table), cells(table))) for table in effect.own}

    def _publish(self, load: NodeLoad) -> None:
        """Publish a report. A failure is logged, and the next report replaces this one."""
        trust = current()
        try:
            free = shutil.disk_usage(self._folder).free
        except OSError:  # the balancer still needs the report of a node whose folder is away
            free = None
        end = trust.expires * SECOND_US or None
        value, keys = encode_node_load(replace(load, disk_free=free, certificate_end=end)), trust.ack_keys
        if keys:
            value = load_with_mac(value, keys[0])
        if self._producer is None:
            self._producer = AckedProducer(self._bootstrap, f"ringlog-load-{load.node[:8]}")
        try:
            sent = self._producer.send(self._topic, value, key=load.node.encode(), partition=0)
        except LogError as error:
            log.warning("load_not_reported", why=error.message)
        else:
            sent.add_done_callback(_say)

    def close(self) -> None:
        """Close the connections."""
        if self._producer is not None:
            self._producer.close()


def _say(sent: Future[Delivered]) -> None:
    """Log a failed delivery. Nothing waits for it: the balancer only misses one report."""
    if (error := sent.exception()) is not None:
        log.warning("load_not_reported", why=str(error))
