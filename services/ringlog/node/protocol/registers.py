"""The order of steps that makes changes of a node's registers durable, visible and answered.

``ringlog.node.registers.registers`` makes the decisions. This module performs each of them when the journal has it:

- A **write** is admitted and passed to the journal in one step. It is applied and answered once it is on disk.
- An **epoch** is passed to the journal together with the ranges that the node loses. Until it is on disk, no request is
  admitted. So the order of writes and epochs in the journal is the order of their effects.
- A **page of a stream** is kept once it is on disk with its last key. After a restart, the stream continues there. No
  epoch is adopted in between, so all rows of a cancelled operation can be dropped.

Reads need no disk access: everything they find is durable already.

Invariant: between two steps, the value is the fold of the records that are on disk.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Protocol

from immutables import Map

from ringlog.kernel.history import state_id_at
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Epoch, NodeId, OperationId
from ringlog.node.registers import registers
from ringlog.node.registers.image import Image, StreamName
from ringlog.node.registers.registers import Admission, Durable, RegisterFetch, RegisterReplica, Reply
from ringlog.node.registers.spans import Span, Spans
from ringlog.protocol.nodes.errors import NodeFailed
from ringlog.protocol.nodes.stream_work import works_for_node
from ringlog.wire.data import Cells, JournalRecord, Key, ReadRequest, RegisterCell, StreamMark, WriteRequest

Done = Callable[[], None]


class RecordJournal(Protocol):
    """A sink that writes records to disk in the order of the calls."""

    def append(self, record: JournalRecord, done: Done) -> None:
        """Write a record to disk soon, then call ``done``. Calls of ``done`` follow the order of the records."""


class DurableRegisters:
    """The registers of one node, starting from the content of its disk.

    The caller serializes all methods and all calls of ``done``. It passes the next epoch, page or end of a stream only
    after the previous ``done``.

    Args:
        found: The content of the disk.
        reply: Receives the answers to writes.
    """

    def __init__(self, node: NodeId, found: Image, journal: RecordJournal, reply: Callable[[Reply], None]) -> None:
        self.node = node
        self.start = found.start + 1
        self.value: RegisterReplica = registers.restarted(node, Durable(found.epoch, found.cells, found.state_id))
        self.is_adopting = False
        self._marks: dict[StreamName, Key] = dict(found.marks)
        self._journal = journal
        self._reply = reply
        self._numbers = count(1)

    def begin(self, done: Done) -> None:
        """Write to disk that the node has started again."""
        self._journal.append(JournalRecord(start=self.start, node=self.node), done)

    def image(self) -> Image:
        """Return the content of the disk."""
        durable = self.value.durable
        return Image(durable.epoch, self.start, durable.cells, Map(self._marks), durable.state_id, self.node)

    # ---------------------------------------------------------------------------------------------- epochs

    def lost_under(self, state: ClusterState) -> Spans | None:
        """Return the registers that the node loses under ``state``, or None if ``state`` is not newer.

        May run concurrently with other calls. Raises NodeFailed if ``state`` does not descend from the last adopted
        one.
        """
        value = self.value
        if not registers.is_newer(value, state):
            return None
        if registers.is_of_another_log(value, state):
            raise NodeFailed(_other_log(value.durable, state))
        return registers.lost_under(value, state)

    def adopt(self, state: ClusterState, lost: Spans, done: Done) -> None:
        """Serve under ``state`` once it is on disk. Until then no request is admitted.

        Args:
            lost: The registers to drop, from ``lost_under``.
        """
        self.is_adopting = True
        # List only spans with cells or pending writes: a node may lose many ranges that contain nothing.
        gone = tuple(span for span in lost if _is_in_use(self.value, span))
        wanted = works_for_node(state, self.node)
        ended = tuple(sorted({name[0] for name in self._marks}.difference(wanted)))
        record = JournalRecord(epoch=state.epoch, ended=ended, state_id=state.state_id, gone=gone)
        self._journal.append(record, partial(self._adopted, state, lost, ended, done))

    def _adopted(self, state: ClusterState, lost: Spans, ended: tuple[OperationId, ...], done: Done) -> None:
        self.value, replies = registers.adopt(self.value, state, lost)
        self._marks = {name: key for name, key in self._marks.items() if name[0] not in ended}
        self.is_adopting = False
        for reply in replies:
            self._reply(reply)
        done()

    def acknowledgeable(self) -> Epoch:
        """Return the newest epoch that the registers allow the node to acknowledge."""
        return registers.acknowledgeable(self.value)

    def received(self, operation: OperationId) -> bool:
        """Return True if the node has received all registers that the operation streams to it."""
        return operation in self.value.received

    # ------------------------------------------------------------------------------------- reads and writes

    def admit(self, request: WriteRequest | ReadRequest) -> Admission:
        """Admit a request. Return the number of a write, the result of a read, or a refusal.

        Must not be called while an epoch is being adopted. The journal would otherwise have the epoch and the requests
        admitted under it in the wrong order, and a read could return cells that the next epoch drops.
        """
        assert not self.is_adopting, "no epoch is being written to the disk"
        number, key, cell = next(self._numbers), request.key, written(request)
        epochs = request.epoch, request.state_id, (request.newest, request.newest_id)
        self.value, verdict = (
            registers.admit_read(self.value, number, key, *epochs)
            if cell is None
            else registers.admit_write(self.value, number, key, cell, *epochs)
        )
        if verdict is not None:
            return verdict
        if cell is not None:
            self._journal.append(JournalRecord(cells=((key, cell),)), partial(self._apply, number))
            # The answer follows from ``_apply`` when the journal has synced the write.
            return number
        self.value, (reply,) = registers.answer_read(self.value, number)
        return reply

    def _apply(self, number: int) -> None:
        self.value, replies = registers.apply(self.value, number)
        for reply in replies:
            self._reply(reply)

    # ------------------------------------------------------------------------------------------- streaming

    def mark(self, fetch: RegisterFetch) -> Key | None:
        """Return the last key of a stream that is on disk, or None."""
        return self._marks.get((fetch.operation, fetch.source, fetch.replication))

    def receive_page(self, fetch: RegisterFetch, page: Cells, done: Done) -> bool:
        """Keep a page that follows ``mark``, in ascending order.

        Return False if the stream is not wanted, or if cells do not belong to it under the adopted epoch. The source
        may then be behind or ahead.
        """
        if fetch not in self.value.fetching or not registers.page_matches_fetch(self.value.state, fetch, page):
            return False
        last = page.cells[-1][0]
        mark = StreamMark(fetch.operation, fetch.source, fetch.replication, last)
        record = JournalRecord(cells=page.cells, marks=(mark,))
        self._journal.append(record, partial(self._page_kept, fetch, page, last, done))
        return True

    def _page_kept(self, fetch: RegisterFetch, page: Cells, last: Key, done: Done) -> None:
        after = registers.receive_page(self.value, fetch, dict(page.cells))
        assert after is not None, "no other epoch was adopted meanwhile"
        self.value = after
        self._marks[fetch.operation, fetch.source, fetch.replication] = last
        done()

    def receive_end(self, fetch: RegisterFetch) -> bool:
        """Record that all pages have arrived. Return False if the stream is no longer wanted."""
        after = registers.receive(self.value, fetch, {})
        self.value = after or self.value
        return after is not None


def written(request: WriteRequest | ReadRequest) -> RegisterCell | None:
    """Return the cell to write, or None for a read."""
    return request.cell if isinstance(request, WriteRequest) else None


def _other_log(durable: Durable, state: ClusterState) -> str:
    return (
        f"the registers are of a log in which the state at epoch {durable.epoch} was {durable.state_id}; in this one "
        f"it was {state_id_at(state, durable.epoch)}: restore the log, or replace this node by a new one"
    )


def _is_in_use(value: RegisterReplica, span: Span) -> bool:
    """Return True if the span contains cells, or if a pending write would add one."""
    keyspace, first, last = span
    return value.durable.cells.has_any(span) or any(
        write.key.keyspace == keyspace and first <= write.key.token <= last for write in value.pending
    )
