"""What can be heard of a run: one method for each kind of thing that happens; the default looks away."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from ringlog.client.plans import Level
from ringlog.client.results import AppliedResult, ExpiredResult, Submitted, WithdrawnResult
from ringlog.client.row_reads import FoundPartition
from ringlog.kernel.outcome import Entry, Outcome, UnreadableEntry
from ringlog.kernel.state import ClusterState
from ringlog.kernel.values import Epoch, Micros
from ringlog.log.folding import Start
from ringlog.node.holder import RowFetch
from ringlog.node.protocol.peers import PeerHeard
from ringlog.node.registers import Reply, Taken
from ringlog.node.store import RowVersion
from ringlog.protocol.submission import Asked
from ringlog.sim.broker import Partition, SimRecord
from ringlog.wire.cells import Key
from ringlog.wire.data import EntriesReply, EntriesRequest
from ringlog.wire.records import Mutation, NodeAck


class FoldingReplica(Protocol):
    """What there is to see of a replica of the metadata log. ``alone``: it decodes and folds by itself."""

    name: str
    alone: bool
    state: ClusterState

    def lives(self) -> bool:
        """False once it was closed, or its host has crashed."""
        ...

    def close(self) -> None:
        """Fold no more."""
        ...


class Hearer:
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

    def closing(self, low_watermark: Micros, skewed: bool) -> None:
        """A CDC writer has stored that all below this time is durable; ``skewed``: its clock runs ahead."""

    def rows(self, partition: Partition) -> None:
        """There are more records in a partition of the CDC log."""

    def letters(self, partition: Partition) -> None:
        """There are more dead letters."""

    def read(self, node: str, table: str, key: bytes, epoch: int, found: frozenset[tuple[int, str]]) -> None:
        """A node answered a read with versions (timestamp, mutation id)."""

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

    def heard(self, node: str, heard: PeerHeard) -> None:
        """A node has heard of the log from a peer."""

    def let_go(self, begin: int) -> None:
        """The metadata log begins at that offset now."""

    def quiet(self) -> None:
        """Faults have stopped and everybody had time: nothing may be left undone."""
