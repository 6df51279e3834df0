"""The coordinator on the simulated world: performs the effects of ``ringlog.protocol.coordinator``."""

from __future__ import annotations

from ringlog.kernel.changes import EpochChange
from ringlog.protocol.coordinator import Forget, PublishedEpoch, UnstoredBytes, coordinate
from ringlog.sim.actors.acks import AcksWorker
from ringlog.sim.broker import CHANGES, SimRecord, SimTail
from ringlog.sim.memo import cached_change
from ringlog.sim.replica import Step


class CoordinatorWorker(AcksWorker):
    """One instance of the coordinator."""

    role = "coordinator"
    _published = 0

    def work(self) -> Step:
        """Look at every change, for ever."""
        self.replica.at_once |= {
            Forget: lambda _: None,
            PublishedEpoch: lambda _: self._published,
            UnstoredBytes: lambda _: self.replica.recent.since_mark,
        }
        return self.replica.perform(coordinate())

    def listen(self) -> list[SimTail]:
        """The epochs that are published, too."""
        return [*super().listen(), self.sim.broker.tail(self.host, CHANGES, 0, 0, self._take_changes)]

    def _take_changes(self, records: list[SimRecord]) -> None:
        for record in records:
            if record.key == "epochs":
                change = cached_change(record.value)
                assert isinstance(change, EpochChange)
                self._published = change.epoch
