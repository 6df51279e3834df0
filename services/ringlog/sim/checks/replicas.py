"""Every replica goes through the states of the true log, and lone ones come to the same digests by themselves."""

from __future__ import annotations

from ringlog.kernel.encoding import digest
from ringlog.kernel.state import ClusterState
from ringlog.sim.checks.base import Check
from ringlog.sim.hearer import FoldingReplica

DIGEST_EVERY = 128
"""Lone states are compared whole at each epoch; their digests, which cost far more, once in N epochs."""


class Replicas(Check):
    """Epochs never go back or skip; the state at an epoch is one and has one digest, on every replica."""

    def folded(self, replica: FoldingReplica, before: ClusterState, after: ClusterState) -> None:
        """A replica has reached another state."""
        epoch = after.epoch
        if epoch != before.epoch + 1:
            self.sim.broken("epochs", f"{replica.name} went from epoch {before.epoch} to {epoch}")
        states = self.sim.log.states
        if epoch >= len(states):
            self.sim.broken("epochs", f"{replica.name} is at epoch {epoch}, the log is not")
        if after is states[epoch]:
            return
        if not replica.alone or after != states[epoch]:
            self.sim.broken("determinism", f"{replica.name} has another state at epoch {epoch}")
        if epoch % DIGEST_EVERY == 0:
            self._compare(replica)

    def quiet(self) -> None:
        """At rest the digests of lone replicas are those of the log; in one run of eight, as they cost so much."""
        for replica in self.sim.replicas:
            if replica.alone and replica.lives() and self.sim.world.seed % 8 == 0:
                self._compare(replica)

    def _compare(self, replica: FoldingReplica) -> None:
        epoch = replica.state.epoch
        if digest(replica.state) != digest(self.sim.log.states[epoch]):
            self.sim.broken("determinism", f"{replica.name} has another digest at epoch {epoch}")
