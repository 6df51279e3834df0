"""What a check can look at: one method for each kind of thing that happens; the default looks away.

A check belongs to one run. It keeps a model of its own, simple and independent of the code that it checks, and calls
``self.sim.broken(rule, detail)`` when what it sees and the model differ.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringlog.client.plans import Level
from ringlog.client.results import AppliedResult, ExpiredResult, Submitted, WithdrawnResult
from ringlog.kernel.outcome import Entry, Outcome, Unreadable
from ringlog.kernel.state import ClusterState
from ringlog.kernel.values import Micros
from ringlog.node.holder import Fetch, Snapshot
from ringlog.node.registers import Reply
from ringlog.protocol.submission import Asked
from ringlog.wire.cells import Key
from ringlog.wire.records import Mutation, NodeAck

if TYPE_CHECKING:
    from ringlog.sim.broker import Partition, Record
    from ringlog.sim.replica import SimReplica
    from ringlog.sim.simulation import Simulation


class Check:
    """Looks away. ``rule`` in docs and mutant tables is the class's name."""

    def __init__(self, sim: Simulation) -> None:
        self.sim = sim

    def begin(self, state: ClusterState) -> None:
        """The run begins with a log that leads to ``state``; not called where it begins with an empty one."""

    def entry(
        self, before: ClusterState, after: ClusterState, item: Entry | Unreadable, outcome: Outcome, offset: int
    ) -> None:
        """The true log has one more record."""

    def folded(self, replica: SimReplica, before: ClusterState, after: ClusterState) -> None:
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
        """The keeper was told that its write for ``state`` was applied."""

    def began(self, node: str) -> None:
        """A node begins a life; nothing of the one before is left but its disk."""

    def stored(self) -> None:
        """The cache was asked to write, whoever hears of it."""

    def adopted(self, node: str, state: ClusterState) -> None:
        """A node serves under ``state`` from now on."""

    def acked(self, ack: NodeAck) -> None:
        """A node is about to publish an acknowledgement."""

    def received(self, node: str, fetch: Fetch, snapshot: Snapshot, kept: bool) -> None:
        """A gaining node got rows from a source, and kept them or refused a late stream."""

    def mutation(self, key: str, mutation: Mutation) -> None:
        """A producer is about to send a write; ``key`` names it."""

    def claimed(self) -> None:
        """A CDC writer begins with an empty checkpoint."""

    def routed(self, incarnation: str, epoch: int, records: list[tuple[int, Record]]) -> None:
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

    def replied(self, node: str, reply: Reply) -> None:
        """A replica of registers answers, or refuses."""

    def wrote(self, key: Key, timestamp: int, level: Level, done: bool) -> None:
        """A write of a register begins, or (``done``) has succeeded."""

    def found(self, key: Key, timestamp: int | None, level: Level) -> None:
        """A read of a register has succeeded; None: nothing was written yet."""

    def quiet(self) -> None:
        """Faults have stopped and everybody had time: nothing may be left undone."""
