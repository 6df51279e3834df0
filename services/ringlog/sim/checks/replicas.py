"""Every replica goes through the states of the true log, and lone ones come to the same digests by themselves."""

from __future__ import annotations

from ringlog.kernel.encoding import combined_digest, part_digests
from ringlog.kernel.state import ClusterState
from ringlog.sim.checks.base import Check
from ringlog.sim.replica import SimReplica
from ringlog.sim.simulation import Simulation

Parts = tuple[ClusterState, dict[str, str]]


class Replicas(Check):
    """Epochs never go back or skip; the state at an epoch has one digest, whoever folds it and from whatever bytes."""

    def __init__(self, sim: Simulation) -> None:
        super().__init__(sim)
        self._epochs: dict[int, int] = {}
        self._true: Parts | None = None
        self._digests: dict[int, str] = {}
        self._alone: dict[int, Parts] = {}

    def folded(self, replica: SimReplica, before: ClusterState, after: ClusterState) -> None:
        """A replica has reached another state."""
        if after.epoch != before.epoch + 1:
            self.sim.broken("epochs", f"{replica.name} went from epoch {before.epoch} to {after.epoch}")
        states = self.sim.log.states
        if after.epoch >= len(states):
            self.sim.broken("epochs", f"{replica.name} is at epoch {after.epoch}, the log is not")
        if not replica.alone:
            if after is not states[after.epoch]:
                self.sim.broken("determinism", f"{replica.name} has another state at epoch {after.epoch}")
            return
        parts = part_digests(after, self._alone.get(id(replica)))
        self._alone[id(replica)] = (after, parts)
        if combined_digest(parts) != self._digest(after.epoch):
            self.sim.broken("determinism", f"{replica.name} has another digest at epoch {after.epoch}")

    def _digest(self, epoch: int) -> str:
        """The digest of the true log's state, worked out when it is first asked for."""
        if epoch not in self._digests:
            state = self.sim.log.states[epoch]
            parts = part_digests(state, self._true)
            self._true = (state, parts)
            self._digests[epoch] = combined_digest(parts)
        return self._digests[epoch]
