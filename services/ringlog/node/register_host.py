"""The registers of a node as a running thing: ``ringlog.node.registers`` decides, this has it on disk, and waits.

Threads that carry requests, one that adopts epochs and those that fetch streams share one immutable value under one
lock. What must be durable goes to the journal first; its thread then takes the step that makes it visible. So between
two of its batches the value is the fold of what is on the disk: it is what the journal makes its images of.

- a **write** is admitted and appended in one step, applied and answered when it is on disk;
- an **epoch** is appended, with the ranges that go by it, while nothing new is admitted; it is adopted when it is on
  disk. So the journal has writes and epochs in the order in which they were admitted and adopted;
- a **page of a stream** is kept when it is on disk, with the place where the stream goes on after a restart. No epoch
  is adopted between the two: what a cancelled operation streamed is dropped whole.

Reads take no step on the disk: what they find is there already.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import count
from pathlib import Path

from immutables import Map

from ringlog.kernel.balance.model import READS, WRITES
from ringlog.kernel.history import state_id_at
from ringlog.kernel.state import ClusterState
from ringlog.kernel.values import Epoch, NodeId, OperationId
from ringlog.node import registers
from ringlog.node.cells import Excerpt
from ringlog.node.errors import NodeFailed
from ringlog.node.image import Image, StreamName
from ringlog.node.journal import COMPACT_BYTES, Journal
from ringlog.node.registers import Behind, Durable, RegisterFetch, RegisterReplica, Reply
from ringlog.node.served import ServedRequests
from ringlog.node.spans import Span, Spans
from ringlog.node.work import works_of
from ringlog.wire.cells import Key, RegisterCell
from ringlog.wire.data import JournalRecord, StatusReply, StreamMark

CATCH_UP_S = 0.2
"""How long a request that is ahead waits for this node's own log before its sender has to ask again."""
LOOK_S = 0.2


class RegisterHost:
    """One node's registers, kept in ``folder``. Safe from threads. Raises JournalDamaged, OSError.

    ``served`` counts the requests that it admits.
    """

    def __init__(
        self, node: NodeId, folder: Path, compact_bytes: int = COMPACT_BYTES, served: ServedRequests | None = None
    ) -> None:
        self.node = node
        self._served = served or ServedRequests()
        self._journal = Journal(folder, self._whole, compact_bytes)
        image = self._journal.found()
        self.start = image.start + 1
        self._marks: dict[StreamName, Key] = dict(image.marks)
        self._value = registers.restarted(node, Durable(image.epoch, image.cells, image.state_id))
        self._open: dict[int, Future[Reply]] = {}
        self._numbers = count(1)
        self._changed = threading.Condition()
        self._is_adopting = False
        self._steps = threading.Lock()
        self._append_and_wait(JournalRecord(start=self.start))

    def close(self) -> None:
        """Write what is under way, and end."""
        self._journal.close()

    @property
    def adopted(self) -> tuple[Epoch, str]:
        """The newest epoch that the disk says was adopted, and the id of its state."""
        return self._value.durable.epoch, self._value.durable.state_id

    @property
    def value(self) -> RegisterReplica:
        """The registers as they are now."""
        return self._value

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
            before = self._value
            if not registers.is_news(before, state):
                return
            if registers.is_of_another_log(before, state):
                raise NodeFailed(_other_log(before.durable, state))
            lost = registers.lost_under(before, state)
            with self._changed:
                self._is_adopting = True
            gone = tuple(span for span in lost if _is_in_use(self._value, span))
            ended = self._ended(state)
            record = JournalRecord(epoch=state.epoch, ended=ended, state_id=state.state_id, gone=gone)
            self._append_and_wait(record, partial(self._adopted, state, lost, ended))

    def _adopted(self, state: ClusterState, lost: Spans, ended: tuple[OperationId, ...]) -> None:
        with self._changed:
            self._value, replies = registers.adopt(self._value, state, lost)
            self._marks = {name: key for name, key in self._marks.items() if name[0] not in ended}
            self._is_adopting = False
            self._reply(replies)
            self._changed.notify_all()

    def acknowledgeable(self) -> Epoch:
        """The newest epoch that the node may acknowledge as far as its registers go."""
        return registers.acknowledgeable(self._value)

    def received(self, operation: OperationId) -> bool:
        """True if everything that was to be streamed for the operation is here."""
        return operation in self._value.received

    def _ended(self, state: ClusterState) -> tuple[OperationId, ...]:
        wanted = works_of(state, self.node)
        return tuple(sorted({name[0] for name in self._marks}.difference(wanted)))

    def _await_adoption(self) -> None:
        while not self._changed.wait_for(lambda: not self._is_adopting, LOOK_S):
            self.check()

    def _catch_up(self, epoch: Epoch) -> None:
        """Wait a moment for the own log to come to ``epoch``, which is only what somebody says."""
        if self._value.state.epoch < epoch:
            with self._changed:
                self._changed.wait_for(lambda: self._value.state.epoch >= epoch, CATCH_UP_S)

    # ------------------------------------------------------------------------------------- reads and writes

    def write(self, key: Key, cell: RegisterCell, epoch: Epoch, state_id: str = "") -> Reply | Behind:
        """Keep a cell; returns when it is on disk, or refused. Raises NodeFailed: nobody knows whether it is."""
        self._catch_up(epoch)
        with self._changed:
            self._await_adoption()
            number = next(self._numbers)
            self._value, verdict = registers.admit_write(self._value, number, key, cell, epoch, state_id)
            if verdict is not None:
                return verdict
            self._served.note(WRITES, self._value.state, key.keyspace, key.token)
            future = self._open[number] = Future()
            self._journal.append(JournalRecord(cells=((key, cell),)), partial(self._apply, number))
        while True:
            try:
                return future.result(LOOK_S)
            except TimeoutError:
                self.check()

    def read(self, key: Key, epoch: Epoch, state_id: str = "") -> Reply | Behind:
        """What a register holds, or why that is not said. Raises NodeFailed."""
        self._catch_up(epoch)
        with self._changed:
            self._await_adoption()
            number = next(self._numbers)
            self._value, verdict = registers.admit_read(self._value, number, key, epoch, state_id)
            if verdict is not None:
                return verdict
            self._served.note(READS, self._value.state, key.keyspace, key.token)
            self._value, replies = registers.look_up(self._value, number)
        (reply,) = replies
        return reply

    def _apply(self, number: int) -> None:
        with self._changed:
            self._value, replies = registers.apply(self._value, number)
            self._reply(replies)

    def _reply(self, replies: Sequence[Reply]) -> None:
        for reply in replies:
            self._open.pop(reply.number).set_result(reply)

    # ------------------------------------------------------------------------------------------- streaming

    def snapshot(self, fetch: RegisterFetch) -> Excerpt | Behind | str:
        """As a source: the cells as they are now, Behind until they may be given, or the code of a refusal."""
        return registers.snapshot(self._value, fetch)

    def mark(self, fetch: RegisterFetch) -> Key | None:
        """Where a stream goes on: everything up to this key is here."""
        return self._marks.get((fetch.operation, fetch.source, fetch.replication))

    def receive_page(self, fetch: RegisterFetch, cells: dict[Key, RegisterCell]) -> bool:
        """Keep a page, in ascending order, that follows ``mark``; False refuses a stream that nobody wants any more, or
        cells that are none of it under the adopted epoch: a source may not know yet that their keyspace is gone.
        """
        last = max(cells)
        mark = StreamMark(fetch.operation, fetch.source, fetch.replication, last)
        with self._steps:
            wanted = registers.spans_of(self._value.state, fetch)
            if fetch not in self._value.fetching or not all(key in wanted for key in cells):
                return False
            self._append_and_wait(
                JournalRecord(cells=tuple(cells.items()), marks=(mark,)), partial(self._page_kept, fetch, cells, last)
            )
        return True

    def _page_kept(self, fetch: RegisterFetch, cells: dict[Key, RegisterCell], last: Key) -> None:
        with self._changed:
            after = registers.receive_page(self._value, fetch, cells)
            assert after is not None, "no epoch was adopted in between"
            self._value = after
            self._marks[fetch.operation, fetch.source, fetch.replication] = last

    def receive_end(self, fetch: RegisterFetch) -> bool:
        """All pages are here; False refuses a stream that nobody wants any more."""
        with self._steps, self._changed:
            after = registers.receive(self._value, fetch, {})
            self._value = after or self._value
            return after is not None

    # --------------------------------------------------------------------------------------------- the disk

    def _append_and_wait(self, record: JournalRecord, step: Callable[[], None] = lambda: None) -> None:
        """Have a record on the disk; ``step`` is taken as soon as it is there."""
        done = threading.Event()

        def on_disk() -> None:
            step()
            done.set()

        self._journal.append(record, on_disk)
        while not done.wait(LOOK_S):
            self.check()

    def _whole(self) -> Image:
        with self._changed:
            durable, marks = self._value.durable, Map(self._marks)
        return Image(durable.epoch, self.start, durable.cells, marks, durable.state_id)

    def status(self) -> StatusReply:
        """How the registers are."""
        value = self._value
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


def _other_log(durable: Durable, state: ClusterState) -> str:
    return (
        f"the registers are of a log in which the state at epoch {durable.epoch} was {durable.state_id}; in this one "
        f"it was {state_id_at(state, durable.epoch)}: restore the log, or replace this node by a new one"
    )


def _is_in_use(value: RegisterReplica, span: Span) -> bool:
    """True if there are cells in the span, or writes in hand that would bring some."""
    keyspace, first, last = span
    return value.durable.cells.has_any(span) or any(
        write.key.keyspace == keyspace and first <= write.key.token <= last for write in value.pending
    )
