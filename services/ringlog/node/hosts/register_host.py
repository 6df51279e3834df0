"""The registers of a node as a running thing: ``ringlog.node.protocol.registers`` on threads and a journal.

Threads that carry requests, one that adopts epochs and those that fetch streams share one immutable value under one
lock; the journal's thread takes the step that makes a record visible under it, too. Epochs and pages of streams go one
after the other, each to its end, under a lock of their own.

``hold`` performs ``ringlog.node.protocol.requests`` in the thread of a request; its waits release the lock.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

from ringlog.kernel.balance.model import READS, WRITES
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Epoch, NodeId, OperationId
from ringlog.node.errors import COPY, NodeFailed, RegistersForeign
from ringlog.node.protocol.registers import Done, DurableRegisters
from ringlog.node.protocol.requests import Hold, take
from ringlog.node.registers import registers
from ringlog.node.registers.cells import Excerpt
from ringlog.node.registers.image import Image
from ringlog.node.registers.journal import COMPACT_BYTES, Journal
from ringlog.node.registers.registers import Behind, RegisterFetch, RegisterReplica, Reply
from ringlog.node.registers.served import ServedRequests
from ringlog.protocol.effects import Steps, carry_out
from ringlog.wire.data import Cells, JournalRecord, Key, ReadRequest, StatusReply, WriteRequest

T = TypeVar("T")
POLL_INTERVAL_S = 0.2


def hold(changed: threading.Condition, steps: Steps[T], check: Callable[[], object] = lambda: None) -> T:
    """Perform steps in the thread that asks. ``changed`` is notified when a wait may be over; ``check`` is called now
    and then during one, and may raise.
    """

    def wait(effect: Hold) -> None:
        until = time.monotonic() + effect.timeout / 1e6
        while not changed.wait_for(effect.over, min(max(until - time.monotonic(), 0), POLL_INTERVAL_S)):
            check()
            if time.monotonic() >= until:
                return

    with changed:
        return carry_out(steps, wait)


class RegisterHost:
    """One node's registers, kept in ``folder``. Safe from threads. Raises JournalDamaged, RegistersForeign,
    OSError.

    ``served`` counts the requests that it admits.
    """

    def __init__(
        self, node: NodeId, folder: Path, compact_bytes: int = COMPACT_BYTES, served: ServedRequests | None = None
    ) -> None:
        self.node = node
        self._served = served or ServedRequests()
        self._open: dict[int, Future[Reply]] = {}
        self._changed = threading.Condition()
        self._steps = threading.Lock()
        self._journal = Journal(folder, self._whole, compact_bytes)
        found = self._journal.found()
        if found.node not in ("", node):
            self._journal.close()
            raise RegistersForeign(f"{folder} has the registers of node {found.node}, this is {node}: {COPY}")
        self._registers = DurableRegisters(node, found, self, self._reply)
        self.start = self._registers.start
        with self._steps:
            self._take_step(self._registers.begin)

    def close(self) -> None:
        """Write what is under way, and end."""
        self._journal.close()

    @property
    def adopted(self) -> tuple[Epoch, str]:
        """The newest epoch that the disk says was adopted, and the id of its state."""
        durable = self.value.durable
        return durable.epoch, durable.state_id

    @property
    def value(self) -> RegisterReplica:
        """The registers as they are now."""
        return self._registers.value

    def check(self) -> None:
        """Raise NodeFailed if the disk has failed: nothing may be answered any more."""
        if self._journal.failure is not None:
            raise NodeFailed(f"the journal cannot be written: {self._journal.failure}")

    # ---------------------------------------------------------------------------------------------- epochs

    def adopt(self, state: ClusterState) -> None:
        """Serve under ``state`` from now on, if it is newer; returns once that is on disk.

        ``state`` is what this node's own replica of the log has folded, nobody else's word. Raises NodeFailed, also
        where it does not descend from the state that was adopted last.
        """
        with self._steps:
            lost = self._registers.lost_under(state)
            if lost is not None:
                self._take_step(lambda done: self._registers.adopt(state, lost, done))

    def acknowledgeable(self) -> Epoch:
        """The newest epoch that the node may acknowledge as far as its registers go."""
        return self._registers.acknowledgeable()

    def received(self, operation: OperationId) -> bool:
        """True if everything that was to be streamed for the operation is here."""
        return self._registers.received(operation)

    # ------------------------------------------------------------------------------------- reads and writes

    def answered(self, request: WriteRequest | ReadRequest, may_wait: bool = True) -> Reply | Behind:
        """What there is to say to a request; to a write once it is on disk, or refused. Raises NodeFailed: nobody knows
        whether it is. ``may_wait``: for an epoch that is not adopted yet.
        """
        with self._changed:
            found = hold(self._changed, take(self._registers, request, may_wait), self.check)
            if isinstance(found, Behind) or (isinstance(found, Reply) and found.refused):
                return found
            kind = READS if isinstance(request, ReadRequest) else WRITES
            self._served.count_request(kind, self.value.state, request.key.keyspace, request.key.token)
            if isinstance(found, Reply):
                return found
            future = self._open[found] = Future()
        while True:
            try:
                return future.result(POLL_INTERVAL_S)
            except TimeoutError:
                self.check()

    def _reply(self, reply: Reply) -> None:
        self._open.pop(reply.number).set_result(reply)

    # ------------------------------------------------------------------------------------------- streaming

    def snapshot(self, fetch: RegisterFetch, newest: Epoch) -> Excerpt | Behind | str:
        """As a source: the cells as they are now, Behind until they may be given, or the code of a refusal."""
        return registers.snapshot(self.value, fetch, newest)

    def mark(self, fetch: RegisterFetch) -> Key | None:
        """Where a stream goes on: everything up to this key is here."""
        return self._registers.mark(fetch)

    def receive_page(self, fetch: RegisterFetch, page: Cells) -> bool:
        """Keep a page; returns once it is on disk, or False."""
        with self._steps:
            return self._take_step(lambda done: self._registers.receive_page(fetch, page, done))

    def receive_end(self, fetch: RegisterFetch) -> bool:
        """All pages are here; False refuses a stream that nobody wants any more."""
        with self._steps, self._changed:
            return self._registers.receive_end(fetch)

    # --------------------------------------------------------------------------------------------- the disk

    def append(self, record: JournalRecord, done: Done) -> None:
        """The journal, for ``DurableRegisters``: what it calls holds the lock."""

        def on_disk() -> None:
            with self._changed:
                done()

        self._journal.append(record, on_disk)

    def _take_step(self, begin: Callable[[Done], bool | None]) -> bool:
        """Begin something that is done when it is on the disk, and wait for that; False if it was refused."""
        over = threading.Event()

        def done() -> None:
            over.set()
            self._changed.notify_all()

        with self._changed:
            if begin(done) is False:
                return False
        while not over.wait(POLL_INTERVAL_S):
            self.check()
        return True

    def _whole(self) -> Image:
        with self._changed:
            return self._registers.image()

    def status(self) -> StatusReply:
        """How the registers are."""
        value = self.value
        return StatusReply(
            self.node,
            value.state.epoch,
            start=self.start,
            ready=registers.is_ready(value),
            acknowledgeable=registers.acknowledgeable(value),
            cells=len(value.durable.cells),
            pending=len(value.pending),
            streams=len(value.fetching),
        )
