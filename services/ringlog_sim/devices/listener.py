"""Listeners and the recorded history of a run.

A listener has one method for each kind of event and ignores events by default. A recording keeps the clients'
operations and their answers in memory, in order of occurrence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from ringlog.client.data.plans import Level
from ringlog.client.data.row_reads import FoundPartition
from ringlog.kernel.model.outcome import Entry, Outcome, UnreadableEntry
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Epoch, Micros
from ringlog.log.folding import Start
from ringlog.node.protocol.peers import PeerAnswered
from ringlog.node.registers.registers import Admission, Reply
from ringlog.node.rows.replica import RowFetch
from ringlog.protocol.submission.results import AppliedResult, ExpiredResult, Submitted, WithdrawnResult
from ringlog.protocol.submission.submission import RequestKey
from ringlog.wire.data import EntriesReply, EntriesRequest, Key, RowVersion
from ringlog.wire.records import Mutation, NodeAck
from ringlog_sim.devices.broker import Partition, SimRecord
from ringlog_testing.histories.events import Event, Op, OpValue, Type, to_json
from ringlog_testing.histories.operations import OperationHistory, pair


class FoldingReplica(Protocol):
    """The visible part of a replica of the metadata log. ``is_independent``: it does its own decoding and folding."""

    name: str
    is_independent: bool
    state: ClusterState

    def is_alive(self) -> bool:
        """Return False after it was closed, or after its host has crashed."""
        ...

    def close(self) -> None:
        """Stop folding."""
        ...


class RunListener:
    """A listener that ignores all events."""

    def begin(self, state: ClusterState) -> None:
        """The run begins with a log that leads to ``state``. Not called for an empty log."""

    def entry(
        self, before: ClusterState, after: ClusterState, item: Entry | UnreadableEntry, outcome: Outcome, offset: int
    ) -> None:
        """The true log has one more record."""

    def applied(self, before: ClusterState, after: ClusterState, item: Entry, offset: int) -> None:
        """The record was an entry that was applied."""

    def folded(self, replica: FoldingReplica, before: ClusterState, after: ClusterState) -> None:
        """A replica has reached another state."""

    def asked(self, client: str, key: RequestKey, kind: str) -> None:
        """A client sends a request."""

    def answered(self, client: str, key: RequestKey, answer: Submitted) -> None:
        """A client has received an answer."""

    def withdrawn(self, client: str, key: RequestKey, ended: WithdrawnResult | AppliedResult | ExpiredResult) -> None:
        """A client has withdrawn its request. ``ended``: the outcome that it learned."""

    def results(self, partition: Partition) -> None:
        """The results topic has new records."""

    def published(self, partition: Partition) -> None:
        """The change topics have new records."""

    def cached(self, state: ClusterState) -> None:
        """The cache writer has learned that its write for ``state`` was applied."""

    def began(self, node: str) -> None:
        """A node starts. Only its disk has survived."""

    def stored(self) -> None:
        """The cache received a write, even if the answer is lost."""

    def adopted(self, node: str, state: ClusterState) -> None:
        """A node serves at ``state`` from now on."""

    def acked(self, ack: NodeAck) -> None:
        """A node is about to publish an acknowledgement."""

    def received(self, node: str, fetch: RowFetch, versions: Sequence[RowVersion]) -> None:
        """A gaining node has received all rows from a source."""

    def mutation(self, key: str, mutation: Mutation) -> None:
        """A producer is about to send a write. ``key`` names it."""

    def claimed(self) -> None:
        """A CDC writer starts with an empty checkpoint."""

    def routed(self, incarnation: str, epoch: int, records: list[tuple[int, SimRecord]]) -> None:
        """A CDC writer has stored that it handles these mutations (partition, record), with the state of ``epoch``."""

    def closing(self, low_watermark: Micros, read: Mapping[int, int] | None) -> None:
        """A CDC writer has stored that everything below this time is durable.

        ``read``: the ends that it had read before if its clock is ahead, and None otherwise.
        """

    def rows(self, partition: Partition) -> None:
        """A partition of the CDC log has new records."""

    def letters(self, partition: Partition) -> None:
        """There are new dead letters."""

    def read(self, node: str, table: str, key: bytes, epoch: int, found: frozenset[bytes]) -> None:
        """A node answered a read with these encoded writes."""

    def serves(self, node: str, state: ClusterState) -> None:
        """A replica of registers serves at ``state`` from now on."""

    def admitted(self, node: str, number: int, epoch: int, is_write: bool, planned: ClusterState) -> None:
        """A replica of registers has admitted request ``number``, planned on ``planned``, at ``epoch``."""

    def came(
        self,
        node: str,
        state: ClusterState,
        key: Key,
        is_write: bool,
        planned: ClusterState,
        found: Admission,
    ) -> None:
        """A request, planned on ``planned``, has reached a replica of registers that serves at ``state``.

        ``found``: its outcome, a number for an admitted write.
        """

    def replied(self, node: str, reply: Reply) -> None:
        """A replica of registers answers or rejects a request."""

    def wrote(self, key: Key, timestamp: int, level: Level, epoch: Epoch | None) -> None:
        """A write of a register begins, or has succeeded at an epoch."""

    def found(self, key: Key, timestamp: int | None, level: Level, epoch: Epoch) -> None:
        """A read of a register has succeeded at an epoch. ``timestamp`` None: no value yet."""

    def found_rows(self, begun: Micros, at: Mapping[int, int], found: FoundPartition) -> None:
        """A read of rows, begun at ``begun`` and requested at these positions, has succeeded."""

    def begins(self, reader: str, start: Start) -> None:
        """A reader begins with a snapshot, or with the log's beginning if it finds none."""

    def snapshots(self) -> None:
        """The snapshots topic has new records."""

    def gave(self, node: str, request: EntriesRequest, reply: EntriesReply) -> None:
        """A node is about to answer a peer that is behind."""

    def peer_answer(self, node: str, answer: PeerAnswered) -> None:
        """A node has received a peer's answer about the log."""

    def let_go(self, begin: int) -> None:
        """The metadata log now begins at that offset."""

    def quiet(self) -> None:
        """Faults have stopped and the cluster had time to finish: no work may remain."""


LOG = "log"
"""The key of the metadata log in a history."""


class Recording:
    """A recorder in memory. Each operation has its own process, so an interrupted one stays open with an unknown
    outcome.
    """

    def __init__(self) -> None:
        self._count = 0
        self.events: list[Event] = []

    def invoke(self, who: str, op: Op, key: str, value: OpValue = None) -> Event:
        """Record the start of an operation of ``who``. Pass the returned event to ``ok`` or ``fail``."""
        self._count += 1
        return self._add(Event(len(self.events) + 1, f"{who}#{self._count}", Type.INVOKE, op, key, value))

    def ok(self, begun: Event, value: OpValue = None) -> None:
        """Record that it took effect and answered ``value``."""
        self._add(Event(len(self.events) + 1, begun.process, Type.OK, begun.op, begun.key, value))

    def fail(self, begun: Event, code: str) -> None:
        """Record that it took no effect and never will."""
        self._add(Event(len(self.events) + 1, begun.process, Type.FAIL, begun.op, begun.key, code))

    def _add(self, event: Event) -> Event:
        self.events.append(event)
        return event

    def history(self) -> OperationHistory:
        """Return the whole recording as operations by key."""
        return pair(self.events)

    def lines(self) -> list[str]:
        """Return the whole recording as lines of JSON."""
        return [to_json(event) for event in self.events]
