"""Detection of a second process with the identity of a node, after its folder was copied.

A node writes each epoch to its folder before it acknowledges it, and the folder counts its starts. Two checks follow:

- At the start: if the acks topic has an epoch or a start of this node that the folder does not contain, the folder is
  an older copy. The node ends before it serves anything.
- While the node runs: an acknowledgement of a later incarnation means that another process has become this node. This
  process ends.

Forged records: any client that may write to the acks topic could imitate these records. So a node with MAC keys
(``wire.acks``) accepts only acknowledgements with a valid MAC. This is safe once all records in its name, valid or not,
have been checked without a finding. The folder then notes the keys of that time. If none of the noted keys has been
removed, all later records of the node have a MAC by a present key. If one was removed, the next start checks all
records again, because records by a removed key cannot be verified. A running node notes changed keys after it has read
the topic to its end. A removed key must not be added again: records from the time in between have no MAC by it.

For a short time, both processes may serve. This is harmless if nodes are identified by their addresses. Requests and
streams go to the registered address, and a process at another address cannot register.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence

from ringlog.log.errors import LogError, LogTruncated
from ringlog.log.port import LogRecord, LogTail, MetadataLog
from ringlog.log.reading import read_to_end
from ringlog.protocol.nodes.errors import NodeFailed
from ringlog.runtime.logs import get_logger
from ringlog.wire.acks import digest_of_key, has_valid_mac, incarnation_order
from ringlog.wire.errors import WireError
from ringlog.wire.records import NodeAck, decode_node_ack

POLL_S = 0.5
COPIED = "use the folder that ran last, or replace this node"
NO_CODE = (
    ", in a record without a valid MAC. If this folder ran last, another client wrote the record: "
    "delete the topic of acknowledgements, and run ringlog cluster repair-topics (docs/deploy/tls.md)"
)

log = get_logger("ringlog.node")


class DuplicateCheck:
    """Reads the acknowledgements of one node, and closes ``acks`` at the end.

    Args:
        name: The incarnation of this process.
        keys: Returns the present MAC keys. Without any, records without a MAC count.
        noted: The digests of the keys in the folder. ``check`` ignores records without a MAC only if all of these keys
            are still present.

    Attributes:
        keep: Writes the digests of the present keys to the folder.
        failure: Set when another process has become this node.
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
        self._order = incarnation_order(name)
        self._tail: LogTail | None = None
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self.failure: NodeFailed | None = None

    def check(self, cluster_id: str, acknowledged: int) -> None:
        """Read the topic before anything is acknowledged. May be called again.

        Args:
            acknowledged: The newest acknowledged epoch in the folder.

        Raises:
            NodeFailed: The folder is an older copy.
            LogUnavailable: The broker does not answer.
            TopicMissing: The topic does not exist.
        """
        self._close_tail()
        tail = self._tail = self._acks.tail(self._acks.begin_offset())
        digests = self._digests()
        for offset, ack, has_code in self._own_acks(read_to_end(self._acks, tail)):
            if ack.cluster_id != cluster_id:
                continue
            start, _ = incarnation_order(ack.incarnation)
            # The folder counts a start before it is used. An equal or greater start was therefore made from another
            # copy.
            if start >= self._order[0] or ack.applied > acknowledged:
                raise NodeFailed(
                    f"this node acknowledged epoch {ack.applied} in its start {start}, but this folder has epoch "
                    f"{acknowledged} and start {self._order[0]}: the folder is an older copy: {COPIED}; "
                    f"recorded at offset {offset} of {self._acks.name}{NO_CODE if digests and not has_code else ''}"
                )
        self._keep_digests(digests)

    def start(self) -> None:
        """Continue to read in a thread, which sets ``failure`` if another process becomes this node."""
        self._is_starting = False
        self._thread = threading.Thread(target=self._run, name="rivals", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop reading."""
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
                # Note the keys only at the end of the topic, and only if they did not change while the records were
                # read.
                if not records and self.failure is None and digests == self._digests():
                    self._keep_digests(digests)
            except LogTruncated:
                self._close_tail()  # The topic was created again: read it from its beginning.
            except LogError as error:
                log.debug("acks not read", why=error.message)
                self._stopping.wait(POLL_S)
            except OSError as error:  # The folder could not be written: retry.
                log.warning("keys not noted", why=error.strerror)
                self._stopping.wait(POLL_S)

    def _check_ack(self, ack: NodeAck) -> None:
        if incarnation_order(ack.incarnation) > self._order:
            self.failure = NodeFailed(
                f"another process has become this node (incarnation {ascii(ack.incarnation[:80])[1:-1]}, at epoch "
                f"{ack.applied}): "
                "this process ends. Its folder was copied: run only one of the two"
            )

    def _digests(self) -> tuple[str, ...]:
        return tuple(map(digest_of_key, self._keys()))

    def _keep_digests(self, digests: tuple[str, ...]) -> None:
        if digests != self._noted:
            self.keep(digests)
            self._noted = digests

    def _own_acks(self, records: Iterable[LogRecord]) -> Iterable[tuple[int, NodeAck, bool]]:
        """Yield (offset, acknowledgement, True if it has a valid MAC) of the relevant acknowledgements of this node."""
        name, keys = self._node.encode(), self._keys()
        digests = set(map(digest_of_key, keys))
        counts_all = not keys or (self._is_starting and not (self._noted and digests.issuperset(self._noted)))
        for record in records:
            if name not in record.data:
                continue  # Another node's record: skip it without decoding.
            try:
                ack = decode_node_ack(record.data)
                has_code = has_valid_mac(record.data, keys)
            except WireError:
                continue
            if ack.node == self._node and (counts_all or has_code):
                yield record.offset, ack, has_code

    def _close_tail(self) -> None:
        tail, self._tail = self._tail, None
        if tail is not None:
            tail.close()
