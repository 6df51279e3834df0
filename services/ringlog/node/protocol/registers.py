"""In which order a node's registers get to the disk, into sight, and into answers.

``ringlog.node.registers.registers`` decides; here each of its steps is taken when the journal has it:

- a **write** is admitted and handed to the journal in one step; it is applied and answered once it is on disk;
- an **epoch** is handed over with the ranges that go by it, while nothing new is admitted; it is adopted once it is on
  disk. So the journal has writes and epochs in the order in which they were admitted and adopted;
- a **page of a stream** is kept once it is on disk, with the place where the stream goes on after a restart. No epoch
  is adopted between the two: what a cancelled operation streamed is dropped whole.

Reads take no step on the disk: what they find is there already. Between two steps the value is the fold of what the
disk has.
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
from ringlog.node.errors import NodeFailed
from ringlog.node.registers import registers
from ringlog.node.registers.image import Image, StreamName
from ringlog.node.registers.registers import Durable, RegisterFetch, RegisterReplica, Reply, Taken
from ringlog.node.registers.spans import Span, Spans
from ringlog.node.stream_work import works_of
from ringlog.wire.data import Cells, JournalRecord, Key, ReadRequest, RegisterCell, StreamMark, WriteRequest

Done = Callable[[], None]


class RecordJournal(Protocol):
    """Where records go. They are on disk in the order in which they were handed over."""

    def append(self, record: JournalRecord, done: Done) -> None:
        """Have a record on the disk soon; ``done`` is called then, after those of the records before it."""


class DurableRegisters:
    """The registers of ``node``, that begin with what its disk held.

    Who drives them lets one call at a time in, and one ``done`` of the journal. Epochs, pages and ends of streams are
    handed over one after the other: the next one when the ``done`` of the last was called. ``reply``: hears the answers
    to writes.
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
        """Have it on the disk that the node has started again."""
        self._journal.append(JournalRecord(start=self.start, node=self.node), done)

    def image(self) -> Image:
        """What the disk holds."""
        durable = self.value.durable
        return Image(durable.epoch, self.start, durable.cells, Map(self._marks), durable.state_id, self.node)

    # ---------------------------------------------------------------------------------------------- epochs

    def lost_under(self, state: ClusterState) -> Spans | None:
        """The registers that go if ``state`` is adopted; None if it is not newer. May be asked beside other calls.

        Raises NodeFailed if the state does not descend from the one that was adopted last.
        """
        value = self.value
        if not registers.is_news(value, state):
            return None
        if registers.is_of_another_log(value, state):
            raise NodeFailed(_other_log(value.durable, state))
        return registers.lost_under(value, state)

    def adopt(self, state: ClusterState, lost: Spans, done: Done) -> None:
        """Serve under ``state`` once that is on disk; ``lost`` is what goes. Until then nothing is admitted."""
        self.is_adopting = True
        gone = tuple(span for span in lost if _is_in_use(self.value, span))
        wanted = works_of(state, self.node)
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
        """The newest epoch that the node may acknowledge as far as its registers go."""
        return registers.acknowledgeable(self.value)

    def received(self, operation: OperationId) -> bool:
        """True if everything that was to be streamed for the operation is here."""
        return operation in self.value.received

    # ------------------------------------------------------------------------------------- reads and writes

    def take(self, request: WriteRequest | ReadRequest) -> Taken:
        """Take a request: the number under which a write is answered, what a read finds, or why it is refused. Not
        while an epoch is adopted: the journal has it and what is admitted under it in their order, and what is read
        under an epoch may go with the next one.
        """
        assert not self.is_adopting, "an epoch is on its way to the disk"
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
            return number
        self.value, (reply,) = registers.answer_read(self.value, number)
        return reply

    def _apply(self, number: int) -> None:
        self.value, replies = registers.apply(self.value, number)
        for reply in replies:
            self._reply(reply)

    # ------------------------------------------------------------------------------------------- streaming

    def mark(self, fetch: RegisterFetch) -> Key | None:
        """Where a stream goes on: everything up to this key is here."""
        return self._marks.get((fetch.operation, fetch.source, fetch.replication))

    def receive_page(self, fetch: RegisterFetch, page: Cells, done: Done) -> bool:
        """Keep a page, in ascending order, that follows ``mark``; False rejects a stream that is not wanted, or cells
        that do not belong to it under the adopted epoch: the source may be behind, or ahead.
        """
        if fetch not in self.value.fetching or not registers.belongs(self.value.state, fetch, page):
            return False
        last = page.cells[-1][0]
        mark = StreamMark(fetch.operation, fetch.source, fetch.replication, last)
        record = JournalRecord(cells=page.cells, marks=(mark,))
        self._journal.append(record, partial(self._page_kept, fetch, page, last, done))
        return True

    def _page_kept(self, fetch: RegisterFetch, page: Cells, last: Key, done: Done) -> None:
        after = registers.receive_page(self.value, fetch, dict(page.cells))
        assert after is not None, "no epoch was adopted in between"
        self.value = after
        self._marks[fetch.operation, fetch.source, fetch.replication] = last
        done()

    def receive_end(self, fetch: RegisterFetch) -> bool:
        """All pages are here; False refuses a stream that nobody wants any more."""
        after = registers.receive(self.value, fetch, {})
        self.value = after or self.value
        return after is not None


def written(request: WriteRequest | ReadRequest) -> RegisterCell | None:
    """What is to be written; None: the request is a read."""
    return request.cell if isinstance(request, WriteRequest) else None


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
