"""Is this process the node, or has its folder been copied? The node's own acknowledgements tell.

What a node acknowledges it has on its disk first, and it counts its starts there. So if the acks topic has an epoch or
a start of this node that its folder does not know, the folder is an older copy: what was acknowledged since is missing
in it, and the node ends before it serves anything. And if, while it runs, an acknowledgement of a later incarnation
comes, another process has become this node: this one ends.

Release 0.1.0 kept no epoch on the disk, counted no starts, and read all mutations at each start: what it acknowledged
says nothing against a folder that has acknowledged nothing yet.

Anybody who may acknowledge for some node can write such a record, too. So a node whose acknowledgements have a code
(``wire.ack_codes``) hears only those that have one, from the first look on that found nothing against its folder
among those without; the folder notes that.

That leaves a moment in which both serve. Where nodes are distinguished by their addresses it cannot be used: requests
and streams go to the registered address, and who starts elsewhere is refused.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence

from ringlog.log.errors import LogError, LogTruncated
from ringlog.log.port import LogRecord, LogTail, MetadataLog
from ringlog.log.reading import read_to_end
from ringlog.node.errors import NodeFailed
from ringlog.runtime.logs import get_logger
from ringlog.wire.ack_codes import has_code_of
from ringlog.wire.errors import WireError
from ringlog.wire.incarnations import order_of
from ringlog.wire.records import NodeAck, decode_node_ack

POLL_S = 0.5
COPIED = "use the folder that ran last, or replace this node by a new one"

log = get_logger("ringlog.node")


class Rivals:
    """Reads what node ``node`` acknowledged; this process is its incarnation ``name``. Closes ``acks`` at its end.

    ``keys``: those that codes of its acknowledgements are made with; empty: what has no code counts, too. So it does
    until the look has ended unless the folder ``is_coded``.
    """

    def __init__(
        self,
        acks: MetadataLog,
        node: str,
        name: str,
        keys: Callable[[], Sequence[str]] = tuple,
        is_coded: bool = False,
    ) -> None:
        self._acks = acks
        self._node = node
        self._keys = keys
        self._is_coded = is_coded
        self._order = order_of(name)
        self._tail: LogTail | None = None
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self.failure: NodeFailed | None = None

    def look(self, cluster_id: str, acknowledged: int) -> None:
        """Read what is there, before anything is acknowledged; may be called again.

        ``acknowledged``: the newest epoch that the folder knows. Raises NodeFailed for an older copy of the folder,
        LogUnavailable, TopicMissing.
        """
        self._close_tail()
        tail = self._tail = self._acks.tail(self._acks.begin_offset())
        for ack in self._mine(read_to_end(self._acks, tail)):
            if ack.cluster_id != cluster_id:
                continue
            start, _ = order_of(ack.incarnation)
            if start == 0 and acknowledged == 0:
                continue
            if start >= self._order[0] or ack.applied > acknowledged:
                raise NodeFailed(
                    f"this node acknowledged epoch {ack.applied} in its start {start}, and this folder knows of epoch "
                    f"{acknowledged} and begins start {self._order[0]}: the folder is an older copy: {COPIED}"
                )

    def start(self) -> None:
        """Go on reading, in a thread: ``failure`` is set when another process has become this node."""
        self._is_coded = True
        self._thread = threading.Thread(target=self._run, name="rivals", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Read no more."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
        self._close_tail()
        self._acks.close()

    def _run(self) -> None:
        while not self._stopping.is_set() and self.failure is None:
            try:
                if self._tail is None:
                    self._tail = self._acks.tail(self._acks.begin_offset())
                for ack in self._mine(self._tail.poll(POLL_S)):
                    self._meet(ack)
            except LogTruncated:
                self._close_tail()  # the topic was made again: what comes counts
            except LogError as error:
                log.debug("acks not read", why=error.message)
                self._stopping.wait(POLL_S)

    def _meet(self, ack: NodeAck) -> None:
        if order_of(ack.incarnation) > self._order:
            self.failure = NodeFailed(
                f"another process has become this node (incarnation {ack.incarnation}, at epoch {ack.applied}): "
                "this one ends; its folder was copied: let one of the two run"
            )

    def _mine(self, records: Iterable[LogRecord]) -> Iterable[NodeAck]:
        name, keys = self._node.encode(), self._keys() if self._is_coded else ()
        for record in records:
            if name not in record.data:
                continue  # of another node: not even decoded
            try:
                ack = decode_node_ack(record.data)
                is_said = not keys or has_code_of(record.data, keys)
            except WireError:
                continue
            if ack.node == self._node and is_said:
                yield ack

    def _close_tail(self) -> None:
        tail, self._tail = self._tail, None
        if tail is not None:
            tail.close()
