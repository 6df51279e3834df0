"""The request coordinator of a program: reads and writes of registers, and reads of rows, on the data nodes.

    with Client("127.0.0.1:9092", "shop") as client, Coordinator(client.replica) as coordinator:
        coordinator.write("ks", b"seat-12A", b"taken", timestamp=1_700_000_000_000_000)
        print(coordinator.read("ks", b"seat-12A").cell)

Rows are written to the mutations topic (``ringlog.client.data.row_writer``) and read here, optionally at a position of
that topic.

A keyspace with tablets has registers in each of its tables. ``keyspace`` is then the full name of the table,
``"ks.t"``.

``ringlog.client.data.registers`` defines the protocol. This module runs it in the calling thread. Answers arrive in
threads of the connections, newer states in the thread of the replica.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Condition, Lock
from typing import Any, TypeVar

from ringlog.client.data import registers as protocol
from ringlog.client.data import row_reads
from ringlog.client.data.peers import Find, Peers, StatusPages
from ringlog.client.data.plans import Level
from ringlog.client.data.registers import (
    AskReplica,
    AwaitReplies,
    FoundAnswer,
    ReadNewest,
    ReceivedReply,
    RegisterResult,
    found_in,
)
from ringlog.client.data.row_reads import FoundPartition, Positions, ReadEnds, found_rows, message_of
from ringlog.client.errors import TooLarge
from ringlog.kernel.model.outcome import Entry, Outcome, UnreadableEntry
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Micros
from ringlog.log.errors import LogUnavailable, TopicMissing, WaitTimedOut
from ringlog.log.replicas.driver import micros
from ringlog.log.replicas.replica import LogReplica
from ringlog.protocol.effects import Newest, Now, Steps, Until, run_steps
from ringlog.runtime.logs import get_logger
from ringlog.wire.data import (
    FOREIGN_CLUSTER,
    KEY_BYTES_MAX,
    VALUE_BYTES_MAX,
    WRONG_NODE,
    ReadReply,
    ReadRowsReply,
    RegisterCell,
    WriteReply,
    key_of,
    pack,
    unpack,
)
from ringlog.wire.errors import WireError

TIMEOUT_S = 10.0
T = TypeVar("T")

log = get_logger("ringlog.client")


class _Mailbox:
    """Events of one request: replies, and whether there is a newer state. Thread-safe."""

    def __init__(self) -> None:
        self._replies: list[ReceivedReply] = []
        self._is_woken = False
        self._changed = Condition()

    def put(self, reply: ReceivedReply) -> None:
        with self._changed:
            self._replies.append(reply)
            self._changed.notify()

    def wake(self) -> None:
        with self._changed:
            self._is_woken = True
            self._changed.notify()

    def take(self, timeout: Micros) -> list[ReceivedReply]:
        with self._changed:
            self._changed.wait_for(lambda: self._replies or self._is_woken, timeout / 1e6)
            taken, self._replies, self._is_woken = self._replies, [], False
        return taken


class Coordinator:
    """A coordinator for the requests of one program. Thread-safe.

    Args:
        replica: A started replica.
        datacenter: The program's own datacenter, for LOCAL_QUORUM.
        find: Returns the data port of a node. Default: the node's status page.
        ends: Returns the end offsets of the mutations topic by partition, within a number of seconds. Without it,
            replicas that have lost rows are not detected.
    """

    def __init__(
        self,
        replica: LogReplica,
        datacenter: str = "",
        find: Find | None = None,
        ends: Callable[[float], Positions | None] | None = None,
    ) -> None:
        self._replica = replica
        self._ends = ends or (lambda _: None)
        self._datacenter = datacenter
        self._peers = Peers(find or StatusPages(lambda: replica.state))
        self._lock = Lock()
        self._mailboxes: set[_Mailbox] = set()
        self._unsubscribe = replica.subscribe(self._on_state, replica.halt_on_defect).close

    def close(self) -> None:
        """Close the connections. Pending requests time out, and requests that were not delivered yet are dropped."""
        self._unsubscribe()
        self._peers.close()

    def __enter__(self) -> Coordinator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------------------------------------ requests

    def write(
        self,
        keyspace: str,
        name: bytes,
        value: bytes | None,
        *,
        timestamp: int,
        level: Level = Level.QUORUM,
        timeout_s: float = TIMEOUT_S,
    ) -> RegisterResult:
        """Write a value; None deletes.

        ``timestamp``: microseconds. The write with the greatest timestamp wins, in any order of arrival. Raises
        RequestTimedOut (a later read may or may not return the value), RequestImpossible, TooLarge, ReplicaHalted.
        """
        if len(name) > KEY_BYTES_MAX or len(value or b"") > VALUE_BYTES_MAX:
            rule = f"a key has up to {KEY_BYTES_MAX} bytes, a value up to {VALUE_BYTES_MAX}"
            raise TooLarge(rule, "store large values elsewhere")
        cell = RegisterCell(timestamp, value or b"", value is None)
        key = key_of(keyspace, name)
        return self._perform(protocol.write(key, cell, level, self._datacenter, micros(timeout_s)))

    def read(
        self, keyspace: str, name: bytes, *, level: Level = Level.QUORUM, timeout_s: float = TIMEOUT_S
    ) -> RegisterResult:
        """Read a register. Raises RequestTimedOut, RequestImpossible, ReplicaHalted."""
        key = key_of(keyspace, name)
        return self._perform(protocol.read(key, level, self._datacenter, micros(timeout_s)))

    def read_rows(
        self,
        table: str,
        partition_key: bytes,
        *,
        at: Positions | None = None,
        level: Level | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> FoundPartition:
        """Read a partition of ``table`` (``keyspace.table``) by its composed key (``kernel.ring.murmur3``).

        ``ringlog.client.data.row_merge`` merges the result to rows.

        Args:
            at: Positions of acknowledged writes. Each answer must have reached them, and one replica is enough.
            level: Consistency level. Default: ONE with ``at``, else QUORUM. At QUORUM, later reads find all writes that
                this read found.

        Raises RequestTimedOut, RequestImpossible, TooLarge, ReplicaHalted.
        """
        if len(partition_key) > KEY_BYTES_MAX:
            raise TooLarge(f"a key has up to {KEY_BYTES_MAX} bytes", "store large values elsewhere")
        level = level or (Level.ONE if at else Level.QUORUM)
        steps = row_reads.read(table, partition_key, at or {}, level, self._datacenter, micros(timeout_s))
        found = self._perform(steps)
        if found.lacking:
            log.error("rows_lost", table=table, key=partition_key.hex(), nodes=list(found.lacking), epoch=found.epoch)
        return found

    # ------------------------------------------------------------------------------------------ effects

    def _perform(self, steps: Steps[T]) -> T:
        mailbox = _Mailbox()
        handlers: dict[type, Callable[[Any], Any]] = {
            Newest: lambda _: self._replica.state,
            Now: lambda _: time.monotonic_ns() // 1_000,
            Until: self._until,
            ReadNewest: self._read_newest,
            ReadEnds: lambda effect: self._ends(effect.timeout / 1e6),
            AskReplica: lambda effect: self._ask(effect, mailbox),
            AwaitReplies: lambda effect: mailbox.take(effect.timeout),
        }
        with self._lock:
            self._mailboxes.add(mailbox)
        try:
            return run_steps(steps, lambda effect: handlers[type(effect)](effect))
        finally:
            with self._lock:
                self._mailboxes.discard(mailbox)

    def _until(self, effect: Until[T]) -> T | None:
        try:
            return self._replica.wait_for(effect.found, effect.timeout / 1e6, effect.what)
        except WaitTimedOut:
            return None

    def _read_newest(self, effect: ReadNewest) -> bool:
        try:
            self._replica.read_barrier(effect.timeout / 1e6)
        except (LogUnavailable, TopicMissing, WaitTimedOut):
            return False
        return True

    def _ask(self, effect: AskReplica, mailbox: _Mailbox) -> None:
        def answered(data: bytes | None) -> None:
            mailbox.put((effect, None if data is None else self._found(effect, data)))

        self._peers.call(effect.node, effect.request.method, pack(message_of(effect)), effect.timeout / 1e6, answered)

    def _found(self, effect: AskReplica, data: bytes) -> FoundAnswer | None:
        """Decode a reply. Return None for an invalid reply and for a reply of another node."""
        reply: WriteReply | ReadReply | ReadRowsReply
        try:
            reply = unpack(_REPLIES[effect.request.method], data)
        except WireError:
            return None
        if reply.refused in (WRONG_NODE, FOREIGN_CLUSTER) or reply.node != effect.node:
            # Another node listens at this address. Look up the right one before the next call.
            self._peers.forget(effect.node)
            return None
        return found_rows(reply) if isinstance(reply, ReadRowsReply) else found_in(reply)

    def _on_state(
        self, before: ClusterState, after: ClusterState, _: Entry | UnreadableEntry, __: Outcome, ___: int
    ) -> None:
        # A record without effect leaves the same state object, so no plan can change.
        if after is before:
            return
        with self._lock:
            mailboxes = tuple(self._mailboxes)
        for mailbox in mailboxes:
            mailbox.wake()


_REPLIES: dict[str, type[Any]] = {
    "Write": WriteReply,
    "Repair": WriteReply,
    "Read": ReadReply,
    "ReadRows": ReadRowsReply,
}
"""The type of the reply to each method."""
