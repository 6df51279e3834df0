"""Detection of a second process with the identity of a node, whose folder was copied, by the node's acknowledgements.

What a node acknowledges it has on its disk first, and it counts its starts there. So if the acks topic has an epoch or
a start of this node that its folder does not know, the folder is an older copy: what was acknowledged since is missing
in it, and the node ends before it serves anything. And if, while it runs, an acknowledgement of a later incarnation
comes, another process has become this node: this one ends.

Anybody who may acknowledge for some node can write such a record, too. So a node whose acknowledgements have a code
(``wire.acks``) hears only those that have one, once all that were said in its name, whatever code they have, had
nothing against its folder; the folder notes by which keys codes were made then. If none of these has been taken out
since, what the node itself has said since has a code by a key that is there. Otherwise the next start looks at all
again: words by a key that is gone look like anybody's. A node that runs notes its keys when they change, once it has
read all that there is. A key that was taken out must not come back: what the node said in between has no code by it.

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
from ringlog.wire.acks import digest_of_key, has_code_of, order_of
from ringlog.wire.errors import WireError
from ringlog.wire.records import NodeAck, decode_node_ack

POLL_S = 0.5
COPIED = "use the folder that ran last, or replace this node by a new one"
NO_CODE = (
    ", in a record without a code by the node's ack.key. If this folder ran last, somebody else wrote that: have the "
    "topic of acknowledgements made again (guide several-machines, a forged acknowledgement)"
)

log = get_logger("ringlog.node")


class DuplicateCheck:
    """Reads what node ``node`` acknowledged; this process is its incarnation ``name``. Closes ``acks`` at its end.

    ``keys``: those that codes of its acknowledgements are made with; empty: what has no code counts, too. So it does
    in ``check``, unless all keys that were ``noted`` in the folder are there still. ``keep`` notes others.
    """

    def __init__(
        self,
        acks: MetadataLog,
        node: str,
        name: str,
        keys: Callable[[], Sequence[str]] = tuple,
        noted: Sequence[str] = (),
    ) -> None:
        self._acks = acks
        self._node = node
        self._keys = keys
        self._noted = tuple(noted)
        self._is_starting = True
        self.keep: Callable[[tuple[str, ...]], None] = lambda _: None
        self._order = order_of(name)
        self._tail: LogTail | None = None
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self.failure: NodeFailed | None = None

    def check(self, cluster_id: str, acknowledged: int) -> None:
        """Read the topic before anything is acknowledged; may be called again.

        ``acknowledged``: the newest epoch that the folder knows. Raises NodeFailed for an older copy of the folder,
        LogUnavailable, TopicMissing.
        """
        self._close_tail()
        tail = self._tail = self._acks.tail(self._acks.begin_offset())
        digests = self._digests()
        for offset, ack, has_code in self._own_acks(read_to_end(self._acks, tail)):
            if ack.cluster_id != cluster_id:
                continue
            start, _ = order_of(ack.incarnation)
            if start >= self._order[0] or ack.applied > acknowledged:
                raise NodeFailed(
                    f"this node acknowledged epoch {ack.applied} in its start {start}, and this folder knows of epoch "
                    f"{acknowledged} and begins start {self._order[0]}: the folder is an older copy: {COPIED}; "
                    f"said at offset {offset} of {self._acks.name}{NO_CODE if digests and not has_code else ''}"
                )
        self._keep_digests(digests)

    def start(self) -> None:
        """Go on reading, in a thread: ``failure`` is set when another process has become this node."""
        self._is_starting = False
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
                digests = self._digests()
                records = self._tail.poll(POLL_S)
                for _, ack, _ in self._own_acks(records):
                    self._check_ack(ack)
                if not records and self.failure is None and digests == self._digests():
                    self._keep_digests(digests)
            except LogTruncated:
                self._close_tail()  # the topic was made again: what comes counts
            except LogError as error:
                log.debug("acks not read", why=error.message)
                self._stopping.wait(POLL_S)
            except OSError as error:  # of the folder: tried again
                log.warning("keys not noted", why=error.strerror)
                self._stopping.wait(POLL_S)

    def _check_ack(self, ack: NodeAck) -> None:
        if order_of(ack.incarnation) > self._order:
            self.failure = NodeFailed(
                f"another process has become this node (incarnation {ascii(ack.incarnation[:80])[1:-1]}, at epoch "
                f"{ack.applied}): "
                "this one ends; its folder was copied: let one of the two run"
            )

    def _digests(self) -> tuple[str, ...]:
        return tuple(map(digest_of_key, self._keys()))

    def _keep_digests(self, digests: tuple[str, ...]) -> None:
        if digests != self._noted:
            self.keep(digests)
            self._noted = digests

    def _own_acks(self, records: Iterable[LogRecord]) -> Iterable[tuple[int, NodeAck, bool]]:
        """Yield (offset, acknowledgement, True if it has a code by one of the keys) of this node's acknowledgements."""
        name, keys = self._node.encode(), self._keys()
        digests = set(map(digest_of_key, keys))
        counts_all = not keys or (self._is_starting and not (self._noted and digests.issuperset(self._noted)))
        for record in records:
            if name not in record.data:
                continue  # of another node: not even decoded
            try:
                ack = decode_node_ack(record.data)
                has_code = has_code_of(record.data, keys)
            except WireError:
                continue
            if ack.node == self._node and (counts_all or has_code):
                yield record.offset, ack, has_code

    def _close_tail(self) -> None:
        tail, self._tail = self._tail, None
        if tail is not None:
            tail.close()
