"""The balancer's thread: performs the effects of ``ringlog.protocol.balancer.balancer`` on the topics.

A separate reader reads the load reports, because it returns the broker's times. Records that faust delivers wake it.
"""

from __future__ import annotations

from ringlog.agents.roles.controller import WAITS_S, ControllerThread
from ringlog.client.node_reports import LoadsReader
from ringlog.protocol.balancer.balancer import ROLE, NewLoads, ReadLoads, balance
from ringlog.protocol.balancer.load_book import ReceivedLoad
from ringlog.protocol.controller import Wait


class BalancerThread(ControllerThread):
    """One instance of the balancer."""

    role = ROLE

    def run_protocol(self) -> None:
        """Run the protocol, forever."""
        self._loads = LoadsReader(self.settings.bootstrap_servers, self.settings.cluster, self.check_active)
        self.driver.handlers |= {ReadLoads: lambda _: self._loads.at_end(), NewLoads: self._new_loads}
        try:
            self.driver.run_steps(balance())
        finally:
            self._loads.close()

    def _new_loads(self, effect: NewLoads) -> tuple[ReceivedLoad, ...]:
        wait_s = WAITS_S[effect.wait]
        for offset, _ in (
            self.records_after_pause(wait_s) if effect.wait is Wait.PAUSE else self.wait_for_records(wait_s)
        ):
            self.acknowledge(offset)
        return self._loads.new()
