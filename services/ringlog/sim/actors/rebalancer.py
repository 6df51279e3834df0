"""The rebalancer on the simulated world: performs the effects of ``ringlog.protocol.rebalancer``."""

from __future__ import annotations

from ringlog.protocol.rebalancer import rebalance
from ringlog.protocol.rebalancer_core import ROLE
from ringlog.sim.actors.acks import AcksWorker
from ringlog.sim.replica import Step


class RebalancerWorker(AcksWorker):
    """One instance of the rebalancer."""

    role = ROLE

    def work(self) -> Step:
        """Look at every change, for ever."""
        return self.replica.perform(rebalance())
