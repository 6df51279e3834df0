"""The coordinator's controller: its sources are the nodes' acknowledgements, its planner is ``core``.

After the take-over it reads the compacted acks topic from the beginning, then new records. Both may bring the same
record, in any order; ``ack_book`` decides which one counts.
"""

from __future__ import annotations

from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Epoch, GenerationId, Micros, NodeId, Value
from ringlog.protocol.controller import Controller, RoundPlan, Wait, control
from ringlog.protocol.coordinator.ack_book import AckBook, read_acks, update_acks
from ringlog.protocol.coordinator.core import CoordinatorView, awaits_publication, prepared_in_full, propose, rejections
from ringlog.protocol.effects import Effect, Newest, Steps, WallClock


class DeleteAcks(Effect[None], Value):
    """Delete the acknowledgements of nodes that have left. Node ids are never used again."""

    nodes: tuple[NodeId, ...]


class PublishedEpoch(Effect[Epoch], Value):
    """Outcome: the last published epoch that is known here, 0 if none. Does not wait."""


class UnstoredBytes(Effect[int], Value):
    """Outcome: bytes of the entries applied since the newest mark of a snapshot. Does not wait."""


class CoordinatorController(Controller):
    """One term of the coordinator. It plans in each round, because its plan also depends on the clock."""

    fault_point = "proposing"

    def __init__(self) -> None:
        self._acks = AckBook()
        self._complete: tuple[GenerationId | None, Micros] = (None, 0)

    async def start(self) -> None:
        """Read all acknowledgements, and delete those of nodes that have left."""
        self._acks = await read_acks()
        await DeleteAcks(_left(self._acks, await Newest()))

    async def update(self, wait: Wait) -> None:
        """Read new acknowledgements."""
        self._acks = await update_acks(self._acks, wait)

    async def plan(self) -> RoundPlan:
        """Return the next steps of operations, generations, tablets, service members and snapshots."""
        published = await PublishedEpoch()
        state = await Newest()
        unstored = await UnstoredBytes()
        now = await WallClock()
        generation = prepared_in_full(state)
        if generation != self._complete[0]:
            self._complete = (generation, now)
        acks = self._acks
        view = CoordinatorView(state, acks.newest(state), published, now, self._complete[1], acks.latest(), unstored)
        return RoundPlan(propose(view), rejections(view))

    def forget_inputs(self) -> None:
        """Do nothing: no input is remembered."""

    async def next_wait(self, _plan: RoundPlan, /) -> Wait:
        """Poll for the publication of a committed generation: no record announces it."""
        return Wait.PUBLICATION if awaits_publication(await Newest()) else Wait.NEWS


def coordinate() -> Steps[None]:
    """Serve one term of the coordinator. Only an exception of the driver ends it."""
    return control(CoordinatorController())


def _left(acks: AckBook, state: ClusterState) -> tuple[NodeId, ...]:
    return tuple(node for node in acks.nodes() if node in state.nodes and state.nodes[node].state == "left")
