"""The registers of a node as a running thing: ``ringlog.node.registers`` decides, this has it on disk, and waits.

Threads that carry requests, one that adopts epochs and those that fetch streams share one immutable value under one
lock. What must be durable goes to the journal first; its thread then takes the step that makes it visible:

- a **write** is admitted and appended in one step, applied and answered when it is on disk;
- an **epoch** is appended, with what is dropped by it, while nothing new is admitted; it is adopted when it is on disk.
  So the journal has writes and epochs in the order in which they were admitted and adopted;
- a **page of a stream** is kept when it is on disk, with the place where the stream goes on after a restart. No epoch
  is adopted between the two: what a cancelled operation streamed is dropped whole.

Reads take no step on the disk: what they find is there already.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import count
from pathlib import Path

from ringlog.kernel.fold import fold
from ringlog.kernel.outcome import OutcomeKind
from ringlog.kernel.state import ClusterState
from ringlog.kernel.values import Epoch, NodeId, OperationId
from ringlog.node import registers
from ringlog.node.errors import NodeFailed
from ringlog.node.image import StreamName
from ringlog.node.journal import COMPACT_BYTES, Journal
from ringlog.node.registers import Behind, Durable, Fetch, Registers, Reply
from ringlog.wire.cells import Cell, Key
from ringlog.wire.data import JournalRecord, StatusReply, StreamMark
from ringlog.wire.entries import decode_entry

CATCH_UP_S = 0.2
"""How long a request that is ahead waits for the log before its sender is asked for the entries."""
LOOK_S = 0.2


class RegisterHost:
    """One node's registers, kept in ``folder``. Safe from threads. Raises JournalDamaged, OSError."""

    def __init__(self, node: NodeId, folder: Path, compact_bytes: int = COMPACT_BYTES) -> None:
        self.node = node
        self._journal = Journal(folder, compact_bytes)
        image = self._journal.image
        self.start = image.start + 1
        self._marks: dict[StreamName, Key] = dict(image.marks)
        self._value = registers.restarted(node, Durable(image.epoch, image.cells))
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
    def value(self) -> Registers:
        """The registers as they are now."""
        return self._value

    def check(self) -> None:
        """Raise NodeFailed if the disk has failed: nothing may be answered any more."""
        if self._journal.failure is not None:
            raise NodeFailed(f"the journal cannot be written: {self._journal.failure}")

    # ---------------------------------------------------------------------------------------------- epochs

    def adopt(self, state: ClusterState) -> None:
        """Serve under ``state`` from now on, if it is newer; returns once that is on disk. Raises NodeFailed."""
        with self._steps:
            with self._changed:
                before = self._value
                after, _ = registers.adopt(before, state)
                if after is before:
                    return
                self._is_adopting = True
            ended = self._ended(after)
            self._append_and_wait(JournalRecord(epoch=state.epoch, dropped=_dropped(before, after), ended=ended))
            with self._changed:
                self._value, replies = registers.adopt(self._value, state)
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

    def _ended(self, after: Registers) -> tuple[OperationId, ...]:
        wanted = {fetch.operation for fetch in after.fetching}.union(after.received)
        return tuple(sorted({name[0] for name in self._marks}.difference(wanted)))

    def _await_adoption(self) -> None:
        while not self._changed.wait_for(lambda: not self._is_adopting, LOOK_S):
            self.check()

    def _catch_up(self, epoch: Epoch, entries: Sequence[bytes]) -> None:
        """Try to get to ``epoch``: by what the sender attached, else by waiting a moment for the log."""
        state = self._value.state
        if state.epoch >= epoch:
            return
        if entries and registers.is_ready(self._value):
            self.adopt(learned(state, entries))
        with self._changed:
            self._changed.wait_for(lambda: self._value.state.epoch >= epoch, CATCH_UP_S)

    # ------------------------------------------------------------------------------------- reads and writes

    def write(self, key: Key, cell: Cell, epoch: Epoch, entries: Sequence[bytes] = ()) -> Reply | Behind:
        """Keep a cell; returns when it is on disk, or refused. Raises NodeFailed: nobody knows whether it is."""
        self._catch_up(epoch, entries)
        with self._changed:
            self._await_adoption()
            number = next(self._numbers)
            self._value, verdict = registers.admit_write(self._value, number, key, cell, epoch)
            if verdict is not None:
                return verdict
            future = self._open[number] = Future()
            self._journal.append(JournalRecord(cells=((key, cell),)), partial(self._apply, number))
        while True:
            try:
                return future.result(LOOK_S)
            except TimeoutError:
                self.check()

    def read(self, key: Key, epoch: Epoch, entries: Sequence[bytes] = ()) -> Reply | Behind:
        """What a register holds, or why that is not said. Raises NodeFailed."""
        self._catch_up(epoch, entries)
        with self._changed:
            self._await_adoption()
            number = next(self._numbers)
            self._value, verdict = registers.admit_read(self._value, number, key, epoch)
            if verdict is not None:
                return verdict
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

    def snapshot(self, fetch: Fetch) -> dict[Key, Cell] | Behind | str:
        """As a source: the cells in ascending order, Behind until they may be given, or the code of a refusal."""
        return registers.snapshot(self._value, fetch)

    def mark(self, fetch: Fetch) -> Key | None:
        """Where a stream goes on: everything up to this key is here."""
        return self._marks.get((fetch.operation, fetch.source, fetch.replication))

    def receive_page(self, fetch: Fetch, cells: dict[Key, Cell]) -> bool:
        """Keep a page, in ascending order, that follows ``mark``; False refuses a stream that nobody wants any more."""
        last = max(cells)
        mark = StreamMark(fetch.operation, fetch.source, fetch.replication, last)
        with self._steps:
            if fetch not in self._value.fetching:
                return False
            self._append_and_wait(JournalRecord(cells=tuple(cells.items()), marks=(mark,)))
            with self._changed:
                after = registers.receive_page(self._value, fetch, cells)
                assert after is not None, "no epoch was adopted in between"
                self._value = after
                self._marks[fetch.operation, fetch.source, fetch.replication] = last
        return True

    def receive_end(self, fetch: Fetch) -> bool:
        """All pages are here; False refuses a stream that nobody wants any more."""
        with self._steps, self._changed:
            after = registers.receive(self._value, fetch, {})
            self._value = after or self._value
            return after is not None

    # --------------------------------------------------------------------------------------------- the disk

    def _append_and_wait(self, record: JournalRecord) -> None:
        done = threading.Event()
        self._journal.append(record, done.set)
        while not done.wait(LOOK_S):
            self.check()

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


def learned(state: ClusterState, entries: Sequence[bytes]) -> ClusterState:
    """The state after the applied ones of some entries of the log; those that do not follow it change nothing."""
    for data in entries:
        folded = fold(state, decode_entry(data))
        if folded.outcome.kind is OutcomeKind.APPLIED:
            state = folded.state
    return state


def _dropped(before: Registers, after: Registers) -> tuple[Key, ...]:
    """What goes by the adoption: cells that are held, and those that writes in hand would bring."""
    return tuple(sorted(set(_gone(before, after))))


def _gone(before: Registers, after: Registers) -> Iterator[Key]:
    if after.durable.cells is not before.durable.cells:
        yield from (key for key in before.durable.cells if key not in after.durable.cells)
    kept = {write.number for write in after.pending}
    yield from (write.key for write in before.pending if write.number not in kept)
