"""Checks of the states on replicas.

Every replica goes through the states of the true log, and independent replicas reach the same digests. Every state
satisfies the invariants of ``ringlog.kernel.invariants``.
"""

from __future__ import annotations

from ringlog.kernel.encoding.encoder import digest
from ringlog.kernel.invariants.check import CODE, violations
from ringlog.kernel.model.outcome import Entry
from ringlog.kernel.model.state import EMPTY_STATE, ClusterState
from ringlog_sim.checks.base import Check
from ringlog_sim.devices.listener import FoldingReplica

DIGEST_EVERY = 128
"""Independent states are compared at each epoch. Their digests cost far more, so they are compared once in N epochs."""


class Replicas(Check):
    """Epochs never decrease or skip. All replicas have the same state and digest at an epoch."""

    def folded(self, replica: FoldingReplica, before: ClusterState, after: ClusterState) -> None:
        """Check the new state of a replica."""
        epoch = after.epoch
        if epoch != before.epoch + 1:
            self.sim.broken("epochs", f"{replica.name} went from epoch {before.epoch} to {epoch}")
        states = self.sim.log.states
        if epoch >= len(states):
            self.sim.broken("epochs", f"{replica.name} is at epoch {epoch}, which the log does not have")
        if after is states[epoch]:
            return
        if not replica.is_independent or after != states[epoch]:
            self.sim.broken("determinism", f"{replica.name} has a different state at epoch {epoch}")
        if epoch % DIGEST_EVERY == 0:
            self._compare(replica)

    def quiet(self) -> None:
        """Compare the final digests of independent replicas with the log's, in one run of eight because of
        their cost.
        """
        for replica in self.sim.replicas:
            if replica.is_independent and replica.is_alive() and self.sim.world.seed % 8 == 0:
                self._compare(replica)

    def _compare(self, replica: FoldingReplica) -> None:
        epoch = replica.state.epoch
        if digest(replica.state) != digest(self.sim.log.states[epoch]):
            self.sim.broken("determinism", f"{replica.name} has a different digest at epoch {epoch}")


_looked_at: dict[int, ClusterState] = {}


class StateInvariants(Check):
    """After each entry, all invariants of ``ringlog.kernel.invariants`` hold."""

    def begin(self, state: ClusterState) -> None:
        """Check the complete first state once. Many runs share it."""
        if _looked_at.get(id(state)) is not state:
            self._check(state, EMPTY_STATE)
            _looked_at[id(state)] = state

    def applied(self, before: ClusterState, after: ClusterState, item: Entry, offset: int) -> None:
        """Check the changes of an entry."""
        self._check(after, before)

    def _check(self, state: ClusterState, previous: ClusterState) -> None:
        for found in violations(state, previous):
            self.sim.broken(CODE, f"epoch {state.epoch}: {found.invariant} ({found.sentence}): {found.detail}")
