"""Snapshots, archive and truncation: no needed record is deleted, and readers begin with states of the log."""

from __future__ import annotations

from ringlog.kernel.changes import EpochChange
from ringlog.kernel.commands.cluster.snapshots import last_snapshot
from ringlog.kernel.model.outcome import Entry
from ringlog.kernel.model.settings import setting
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Epoch
from ringlog.log.folding import Start
from ringlog.wire.records import SnapshotConfirmation, StoredSnapshot, decode_snapshot_record
from ringlog_sim.checks.base import Check
from ringlog_sim.devices.broker import CHANGES, METADATA, SNAPSHOTS
from ringlog_sim.devices.memo import cached_change
from ringlog_sim.simulation import Simulation


class Beginnings(Check):
    """The log begins with the entry of a readable snapshot, and the archive has all deleted records.

    A reader begins with the true state of an epoch, directly after its entry.
    """

    def __init__(self, sim: Simulation) -> None:
        super().__init__(sim)
        self._behind: dict[int, Epoch] = {}
        self._begin = 0
        self._unmarked: dict[Epoch, int] = {}

    def applied(self, before: ClusterState, after: ClusterState, item: Entry, offset: int) -> None:
        """Check one more record of the true log."""
        self._behind[offset + 1] = after.epoch
        ends, size = self.sim.log_ends, setting(before, "snapshot_bytes")
        records = self.sim.broker.partition(METADATA).records
        if str(after.epoch) not in after.snapshots:
            ends.unmarked_bytes += len(records[offset - records[0].offset].value)
        else:
            if item.submitter.startswith("coordinator"):
                size_then = self._unmarked.get(item.since_epoch, size)  # the size at the time of the request
                entries = setting(before, "snapshot_entries")
                if size_then < size and not 0 < entries <= before.epoch - last_snapshot(before):
                    self.sim.broken("log_ends", f"a snapshot after {size_then} bytes, the limit is {size}")
                self.sim.did["snapshots", "by size"] += 1
            ends.unmarked_bytes = 0
        self._unmarked[after.epoch] = ends.unmarked_bytes

    def begins(self, reader: str, start: Start) -> None:
        """Check the first state of a reader."""
        epoch, states = start.state.epoch, self.sim.log.states
        if start.position == 0 and self._begin:
            self.sim.broken("log_ends", f"{reader} finds no start point, the log begins at {self._begin}")
        is_true = self._behind.get(start.position) == epoch and start.state == states[epoch]
        if start.position and not is_true:
            self.sim.broken("log_ends", f"{reader} starts with a different state of epoch {epoch} at {start.position}")

    def let_go(self, begin: int) -> None:
        """Check a truncation of the log."""
        sim, first = self.sim, self._behind.get(begin + 1)
        sim.did["snapshots", "truncated"] += 1
        bound = sim.log.state.log_bounds.get("truncated")
        if first is None or bound is None or first > bound.epoch:
            sim.broken("log_ends", f"the log begins at {begin}, with epoch {first}, but no entry allowed that")
            return
        self._begin = begin
        self._covered()
        if (published := self._published()) <= first:
            sim.broken("log_ends", f"the log begins with epoch {first}, but only {published} is published")
        if sim.log_ends.files is not None:
            self._archived(sim.log_ends.files)

    def snapshots(self) -> None:
        """Check the start of the log after new snapshot records."""
        if self._begin:
            self._covered()

    def quiet(self) -> None:
        """Check that a reader absent until now can begin."""
        if self._begin:
            self.sim.begin("the slowest reader", self._published() - 1)

    def _covered(self) -> None:
        """Check that the snapshot at the start of the log exists, complete and confirmed."""
        sim, epoch = self.sim, self._behind[self._begin + 1]
        partition = sim.broker.partition(SNAPSHOTS)
        newest = {record.key: record.value for record in partition.records[: partition.visible]}
        there = {key: value for key, value in newest.items() if value}
        wanted = sim.log.states[epoch].state_id
        records = [decode_snapshot_record(there[key]) for key in there if key.startswith(f"{epoch}/")]
        heads = [one for one in records if isinstance(one, StoredSnapshot) and one.state_id == wanted]
        others = [one for one in records if isinstance(one, SnapshotConfirmation) and one.state_id == wanted]
        is_whole = bool(heads) and all(f"{heads[0].id}/{number}" in there for number in range(len(heads[0].chunks)))
        if not is_whole or not others:
            sim.broken("log_ends", f"the log begins with epoch {epoch}, but its snapshot is incomplete")

    def _published(self) -> Epoch:
        partition = self.sim.broker.partition(CHANGES)
        there = reversed(partition.records[: partition.visible])
        newest = next((cached_change(record.value) for record in there if record.key == "epochs"), None)
        return newest.epoch if isinstance(newest, EpochChange) else 0

    def _archived(self, files: dict[str, bytes]) -> None:
        """Check that the archive has all deleted records in order."""
        held, at = b"".join(files[name] for name in sorted(files)), 0
        for record in self.sim.broker.partition(METADATA).records:
            if record.offset >= self._begin:
                return
            at = held.find(record.value, at)
            if at < 0:
                self.sim.broken("log_ends", f"offset {record.offset} was deleted, but is not in the archive")
            at += len(record.value)
