"""What the simulated workers of roles that ask the validator share: a client on the worker's own replica."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringlog.kernel.values import Micros
from ringlog.protocol.coordinator import Note, Submit
from ringlog.protocol.submission import NoAnswer
from ringlog.sim.actors.role import Worker
from ringlog.sim.client import SimClient
from ringlog.sim.replica import Step
from ringlog.sim.world import MS, SECOND

if TYPE_CHECKING:
    from ringlog.sim.simulation import Simulation
    from ringlog.sim.world import SimHost

SUBMIT_US: Micros = 5 * SECOND
AFTER_REFUSAL_US: Micros = 500 * MS


class AskingWorker(Worker):
    """One instance of such a role."""

    def __init__(self, sim: Simulation, host: SimHost, committed: int) -> None:
        super().__init__(sim, host, committed)
        self.client = SimClient(sim, host, self.instance, self.replica)
        self.replica.at_once |= {Note: lambda _: None}
        self.replica.in_time |= {Submit: self._submit}

    def close(self) -> None:
        """Let go of readers."""
        super().close()
        self.client.close()

    def _submit(self, effect: Submit) -> Step:
        proposal = effect.proposal
        try:
            return (
                yield from self.client.submit(proposal.command, SUBMIT_US, proposal.request_id, proposal.since_epoch)
            )
        except NoAnswer:
            return None
