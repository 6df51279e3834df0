"""The rebalancer's thread: performs the effects of ``ringlog.protocol.rebalancer`` on the topics."""

from __future__ import annotations

from ringlog.agents.shells.acks import AcksThread
from ringlog.protocol.rebalancer import rebalance
from ringlog.protocol.rebalancer_core import ROLE


class RebalancerThread(AcksThread):
    """One instance of the rebalancer."""

    role = ROLE

    def ask(self) -> None:
        """Perform the protocol, for ever."""
        self.hear()
        self.driver.carry_out(rebalance())
