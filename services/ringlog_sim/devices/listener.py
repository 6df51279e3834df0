"""Listeners and the recorded history of a run.

A listener has one method for each kind of event; by default it ignores them. A recording keeps in memory the operations
of clients and their answers, in the order in which they happened.
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
from ringlog.node.registers.registers import Reply, Taken
from ringlog.node.rows.replica import RowFetch
from ringlog.protocol.submission.results import AppliedResult, ExpiredResult, Submitted, WithdrawnResult
from ringlog.protocol.submission.submission import Asked
from ringlog.wire.data import EntriesReply, EntriesRequest, Key, RowVersion
from ringlog.wire.records import Mutation, NodeAck
from ringlog_sim.devices.broker import Partition, SimRecord
from ringlog_testing.histories.events import Event, Op, Type, Value, to_json
from ringlog_testing.histories.operations import OperationHistory, pair


class FoldingReplica(Protocol):
    """What there is to see of a replica of the metadata log. ``is_independent``: it decodes and folds by itself."""

    name: str
    is_independent: bool
    state: ClusterState

    def is_alive(self) -> bool:
        """False once it was closed, or its host has crashed."""
        ...

    def close(self) -> None:
        """Fold no more."""
        ...


class RunListener:
    """Looks away."""

    def begin(self, state: ClusterState) -> None:
        """The run begins with a log that leads to ``state``; not called where it begins with an empty one."""

    def entry(
        self, before: ClusterState, after: ClusterState, item: Entry | UnreadableEntry, outcome: Outcome, offset: int
    ) -> None:
        """The true log has one more record."""

    def applied(self, before: ClusterState, after: ClusterState, item: Entry, offset: int) -> None:
        """It was an entry, and was applied."""

    def folded(self, replica: FoldingReplica, before: ClusterState, after: ClusterState) -> None:
        """A replica has reached another state."""

    def asked(self, client: str, asked: Asked, kind: str) -> None:
        """A client begins to ask."""

    def answered(self, client: str, asked: Asked, answer: Submitted) -> None:
        """A client believes an answer."""

    def withdrawn(self, client: str, asked: Asked, ended: WithdrawnResult | AppliedResult | ExpiredResult) -> None:
        """A client gave up and ended its request: (digest, epoch) of what was applied under its id, None if expired."""

    def results(self, partition: Partition) -> None:
        """There are more records in the results."""

    def published(self, partition: Partition) -> None:
        """There are more records in the change topics."""

    def cached(self, state: ClusterState) -> None:
        """The keeper has the answer that its write for ``state`` was applied."""

    def began(self, node: str) -> None:
        """A node begins a life; nothing of the one before is left but its disk."""

    def stored(self) -> None:
        """The cache was asked to write, even if nobody hears of it."""

    def adopted(self, node: str, state: ClusterState) -> None:
        """A node serves under ``state`` from now on."""

    def acked(self, ack: NodeAck) -> None:
        """A node is about to publish an acknowledgement."""

    def received(self, node: str, fetch: RowFetch, versions: Sequence[RowVersion]) -> None:
        """A gaining node has got all rows from a source."""

    def mutation(self, key: str, mutation: Mutation) -> None:
        """A producer is about to send a write; ``key`` names it."""

    def claimed(self) -> None:
        """A CDC writer begins with an empty checkpoint."""

    def routed(self, incarnation: str, epoch: int, records: list[tuple[int, SimRecord]]) -> None:
        """A CDC writer has stored that it handles these mutations (partition, record), as it knew at ``epoch``."""

    def closing(self, low_watermark: Micros, read: Mapping[int, int] | None) -> None:
        """A CDC writer has stored that all below this time is durable; ``read``: the ends that it had read before if
        its clock runs ahead, else None.
        """

    def rows(self, partition: Partition) -> None:
        """There are more records in a partition of the CDC log."""

    def letters(self, partition: Partition) -> None:
        """There are more dead letters."""

    def read(self, node: str, table: str, key: bytes, epoch: int, found: frozenset[bytes]) -> None:
        """A node answered a read with these encoded writes."""

    def serves(self, node: str, state: ClusterState) -> None:
        """A replica of registers serves under ``state`` from now on."""

    def admitted(self, node: str, number: int, epoch: int, is_write: bool, planned: ClusterState) -> None:
        """A replica of registers has taken request ``number``, planned on ``planned``, under ``epoch``."""

    def came(
        self,
        node: str,
        state: ClusterState,
        key: Key,
        is_write: bool,
        planned: ClusterState,
        found: Taken,
    ) -> None:
        """A request, planned on ``planned``, has come to a replica of registers that serves under ``state``.

        ``found``: what became of it: a number if it is a write that was taken.
        """

    def replied(self, node: str, reply: Reply) -> None:
        """A replica of registers answers, or refuses."""

    def wrote(self, key: Key, timestamp: int, level: Level, epoch: Epoch | None) -> None:
        """A write of a register begins, or has succeeded, as of an epoch."""

    def found(self, key: Key, timestamp: int | None, level: Level, epoch: Epoch) -> None:
        """A read of a register has succeeded, as of an epoch; None: nothing was written yet."""

    def found_rows(self, begun: Micros, at: Mapping[int, int], found: FoundPartition) -> None:
        """A read of rows that began then, asked for at these positions, has succeeded."""

    def begins(self, reader: str, start: Start) -> None:
        """A reader begins with a snapshot; with the log's beginning if it finds none."""

    def snapshots(self) -> None:
        """There are more records in the snapshots."""

    def gave(self, node: str, request: EntriesRequest, reply: EntriesReply) -> None:
        """A node is about to answer a peer that is behind."""

    def peer_answer(self, node: str, answer: PeerAnswered) -> None:
        """A node has heard of the log from a peer."""

    def let_go(self, begin: int) -> None:
        """The metadata log begins at that offset now."""

    def quiet(self) -> None:
        """Faults have stopped and everybody had time: nothing may be left undone."""


LOG = "log"
"""The key under which the metadata log stands."""


class Recording:
    """Every operation has a process of its own, so one that was cut off is open for ever: its outcome is unknown."""

    def __init__(self) -> None:
        self._count = 0
        self.events: list[Event] = []

    def invoke(self, who: str, op: Op, key: str, value: Value = None) -> Event:
        """An operation of ``who`` begins; give what this returns to ``ok`` or ``fail``."""
        self._count += 1
        return self._add(Event(len(self.events) + 1, f"{who}#{self._count}", Type.INVOKE, op, key, value))

    def ok(self, begun: Event, value: Value = None) -> None:
        """It took effect and answered ``value``."""
        self._add(Event(len(self.events) + 1, begun.process, Type.OK, begun.op, begun.key, value))

    def fail(self, begun: Event, code: str) -> None:
        """It took no effect and never will."""
        self._add(Event(len(self.events) + 1, begun.process, Type.FAIL, begun.op, begun.key, code))

    def _add(self, event: Event) -> Event:
        self.events.append(event)
        return event

    def history(self) -> OperationHistory:
        """All of it, as operations by key."""
        return pair(self.events)

    def lines(self) -> list[str]:
        """All of it, as lines of JSON."""
        return [to_json(event) for event in self.events]
