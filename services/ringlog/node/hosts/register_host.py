"""The registers of a running node: ``ringlog.node.protocol.registers`` on threads and a journal.

Threads that handle requests, adopt epochs and fetch streams share one immutable value under one lock. The journal's
thread takes the same lock when it makes a record visible. Epochs and pages of streams run one after the other, each to
its end, under a second lock.

``run_request_steps`` performs ``ringlog.node.protocol.requests`` in the thread of a request. Its waits release the
lock.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from time import thread_time_ns
from typing import Any, TypeVar

from ringlog.kernel.balance.model import READS, WRITES
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Epoch, NodeId, OperationId
from ringlog.node.protocol.registers import Done, DurableRegisters
from ringlog.node.protocol.requests import Authorize, WaitUntil, admit_register_request
from ringlog.node.registers import registers
from ringlog.node.registers.cells import CellSnapshot
from ringlog.node.registers.image import Image
from ringlog.node.registers.journal import COMPACT_BYTES, Journal
from ringlog.node.registers.registers import Behind, RegisterFetch, RegisterReplica, Reply
from ringlog.node.registers.served import ServedRequests
from ringlog.protocol.effects import Effect, Steps, run_steps
from ringlog.protocol.nodes.errors import COPY, NodeFailed, RegistersForeign
from ringlog.wire.data import Cells, JournalRecord, Key, ReadRequest, StatusReply, WriteRequest

T = TypeVar("T")
POLL_INTERVAL_S = 0.2


def run_request_steps(changed: threading.Condition, steps: Steps[T], check: Callable[[], object] = lambda: None) -> T:
    """Perform the steps of a request in the calling thread.

    Args:
        changed: Notified when a wait may be over. The steps run under its lock.
        check: Called periodically during a wait, and may raise.
    """

    def wait(effect: Effect[Any]) -> None:
        assert isinstance(effect, WaitUntil), effect
        until = time.monotonic() + effect.timeout / 1e6
        while not changed.wait_for(effect.over, min(max(until - time.monotonic(), 0), POLL_INTERVAL_S)):
            check()
            if time.monotonic() >= until:
                return

    with changed:
        return run_steps(steps, wait)


class RegisterHost:
    """The registers of one node, stored in ``folder``. Thread-safe.

    Args:
        served: Counts the admitted requests.

    Raises:
        JournalDamaged: The folder lacks acknowledged data.
        RegistersForeign: The folder belongs to another node.
        OSError: The disk failed.
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
            raise RegistersForeign(f"{folder} has the registers of node {found.node}, this node is {node}: {COPY}")
        self._registers = DurableRegisters(node, found, self, self._reply)
        self.start = self._registers.start
        with self._steps:
            self._take_step(self._registers.begin)

    def close(self) -> None:
        """Write pending records and close the journal."""
        self._journal.close()

    @property
    def adopted(self) -> tuple[Epoch, str]:
        """The newest adopted epoch on disk, and the id of its state."""
        durable = self.value.durable
        return durable.epoch, durable.state_id

    @property
    def value(self) -> RegisterReplica:
        """The present registers."""
        return self._registers.value

    def check(self) -> None:
        """Raise NodeFailed if the disk has failed. Nothing may be answered after that."""
        if self._journal.failure is not None:
            raise NodeFailed(f"the journal cannot be written: {self._journal.failure}")

    # ---------------------------------------------------------------------------------------------- epochs

    def adopt(self, state: ClusterState) -> None:
        """Serve under ``state`` if it is newer. Returns when that is on disk.

        ``state`` must come from this node's own replica of the log. Raises NodeFailed if the disk fails, or if
        ``state`` does not descend from the last adopted one.
        """
        with self._steps:
            lost = self._registers.lost_under(state)
            if lost is not None:
                self._take_step(lambda done: self._registers.adopt(state, lost, done))

    def acknowledgeable(self) -> Epoch:
        """Return the newest epoch that the registers allow the node to acknowledge."""
        return self._registers.acknowledgeable()

    def received(self, operation: OperationId) -> bool:
        """Return True if the node has received all registers that the operation streams to it."""
        return self._registers.received(operation)

    # ------------------------------------------------------------------------------------- reads and writes

    def answered(
        self, request: WriteRequest | ReadRequest, may_wait: bool = True, authorize: Authorize = lambda _: None
    ) -> Reply | Behind:
        """Return the answer to a request. A write is answered when it is on disk or refused.

        Raises NodeFailed if the disk fails; the outcome of a write is then unknown.

        Args:
            may_wait: True if the request may wait for an epoch that is not adopted yet.
            authorize: Checks the sender under the state that admits the request.
        """
        began = thread_time_ns()
        with self._changed:
            found = run_request_steps(
                self._changed, admit_register_request(self._registers, request, may_wait, authorize), self.check
            )
            if isinstance(found, Behind) or (isinstance(found, Reply) and found.refused):
                return found
            kind = READS if isinstance(request, ReadRequest) else WRITES
            self._served.count_request(kind, self.value.state, request.key.keyspace, request.key.token, began)
            if isinstance(found, Reply):
                return found
            # Still under the lock, so the journal's thread cannot answer before the future is registered.
            future = self._open[found] = Future()
        while True:
            try:
                return future.result(POLL_INTERVAL_S)
            except TimeoutError:
                self.check()

    def _reply(self, reply: Reply) -> None:
        self._open.pop(reply.number).set_result(reply)

    # ------------------------------------------------------------------------------------------- streaming

    def snapshot(self, fetch: RegisterFetch, newest: Epoch) -> CellSnapshot | Behind | str:
        """Return the cells of a stream as a source, Behind until they are available, or the code of a refusal."""
        return registers.snapshot(self.value, fetch, newest)

    def mark(self, fetch: RegisterFetch) -> Key | None:
        """Return the last key of a stream that is on disk, or None."""
        return self._registers.mark(fetch)

    def receive_page(self, fetch: RegisterFetch, page: Cells) -> bool:
        """Keep a page of a stream. Returns True when it is on disk, or False if it is not wanted."""
        with self._steps:
            return self._take_step(lambda done: self._registers.receive_page(fetch, page, done))

    def receive_end(self, fetch: RegisterFetch) -> bool:
        """Complete a stream. Return False if it is no longer wanted."""
        with self._steps, self._changed:
            return self._registers.receive_end(fetch)

    # --------------------------------------------------------------------------------------------- the disk

    def append(self, record: JournalRecord, done: Done) -> None:
        """Write a record to the journal, for ``DurableRegisters``. ``done`` runs under the lock."""

        def on_disk() -> None:
            with self._changed:
                done()

        self._journal.append(record, on_disk)

    def _take_step(self, begin: Callable[[Done], bool | None]) -> bool:
        """Begin a step and wait until it is on disk. Return False if it was refused."""
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
        """Return the state of the registers."""
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
