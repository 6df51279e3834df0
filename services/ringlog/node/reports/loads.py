"""Measures and publishes a node's reports of its tablets' load: performs ``ringlog.node.protocol.lifecycle`` on Kafka.

What a tablet holds is what the node has of its tokens: bytes of encoded writes of rows, and of registers. How often it
is read and written is what the node served (``served``). Reports have a code by the node's key, where its file of trust
has one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from itertools import chain
from typing import Any

from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.tablets.groups import map_of
from ringlog.kernel.values import Token
from ringlog.log.errors import LogError
from ringlog.log.kafka.producer import AckedProducer, Delivered
from ringlog.log.kafka.topics import LOAD, topic_name
from ringlog.node.protocol.lifecycle import AwaitLoads, MeasureTablets, PublishLoad
from ringlog.node.registers.cells import CellMap
from ringlog.node.retry import Stopped
from ringlog.node.rows.replica import RowReplica
from ringlog.protocol.balancer.load_reports import Amounts
from ringlog.runtime.logs import get_logger
from ringlog.runtime.trust import current
from ringlog.wire.acks import coded_load
from ringlog.wire.records import NodeLoad, encode_node_load

LOADS_S = 1.0
"""How often it is looked whether a report of load is due."""

log = get_logger("ringlog.node")


class Loads:
    """Measures and publishes reports of ``row_replica``'s node, for the one thread that performs the steps.

    ``cells``: the registers that the node has. Raises Stopped where that thread waits once ``stopping`` is set.
    """

    def __init__(
        self,
        bootstrap: str,
        cluster: str,
        row_replica: RowReplica,
        cells: Callable[[], CellMap],
        stopping: threading.Event,
    ) -> None:
        self._topic = topic_name(cluster, LOAD.suffix)
        self._bootstrap = bootstrap
        self._row_replica = row_replica
        self._cells = cells
        self._stopping = stopping
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
        """What does not get there is said, and tried again with the next report."""
        value, keys = encode_node_load(load), current().ack_keys
        if keys:
            value = coded_load(value, keys[0])
        if self._producer is None:
            self._producer = AckedProducer(self._bootstrap, f"ringlog-load-{load.node[:8]}")
        try:
            sent = self._producer.send(self._topic, value, key=load.node.encode(), partition=0)
        except LogError as error:
            log.warning("load_not_reported", why=error.message)
        else:
            sent.add_done_callback(_say)

    def close(self) -> None:
        """Let go of the connections."""
        if self._producer is not None:
            self._producer.close()


def _say(sent: Future[Delivered]) -> None:
    """Nobody waits for the answer: the balancer would only miss the report."""
    if (error := sent.exception()) is not None:
        log.warning("load_not_reported", why=str(error))


def sizes_of(state: ClusterState, table: str, held: Iterable[tuple[Token, int]]) -> dict[int, int]:
    """Bytes of each tablet of a table of whose tokens the node holds some. ``held``: token, bytes."""
    tablets = map_of(state, state.tables[table])
    assert tablets is not None, "a table that is reported is in tablets"
    found: dict[int, int] = {}
    for token, size in held:
        number = tablets.index_of(token)
        found[number] = found.get(number, 0) + size
    return found
