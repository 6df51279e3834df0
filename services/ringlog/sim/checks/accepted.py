"""Which writes count, retold: the rule of acceptance in a few lines, applied to every record of the mutations topic.

A record has one verdict, by the tables and settings that count for its append time and by all generations, from when
the log has a settled time above what it uses: every node keeps it from then on, or none does, whatever it has folded
and however often it starts again. Until then nobody may keep it. One write may be in the topic several times: it must
be kept if one of its records counts. The verdict is worked out again after each entry, and must stay what it was.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ringlog.kernel.ring.murmur3 import token_of
from ringlog.kernel.ring.partition_key import compose
from ringlog.kernel.state import EMPTY_STATE, ClusterState
from ringlog.sim.actors.producer import KEYSPACE, TABLE
from ringlog.sim.broker import MUTATIONS
from ringlog.sim.checks.judge import Reaches, VerdictTimes, window_of
from ringlog.sim.memo import cached_mutation
from ringlog.wire.errors import WireError
from ringlog.wire.records import Mutation

if TYPE_CHECKING:
    from ringlog.sim.simulation import Simulation

NAME = f"{KEYSPACE}.{TABLE}"


@dataclass(slots=True)
class WrittenRecord:
    """One record of the topic. ``counts``: its verdict; None: it has none yet."""

    partition: int
    offset: int
    value: bytes
    appended: int
    write: Mutation
    key: bytes
    token: int
    counts: bool | None = None


class AcceptedWrites:
    """All records so far; ``look`` takes in what is new. Writes are distinguished by their bytes."""

    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self._read: dict[int, int] = {}
        self._state = EMPTY_STATE
        self._reaches = Reaches()
        self._times = VerdictTimes()
        self.records: list[WrittenRecord] = []

    def look(self) -> None:
        """Take in the records that can be read by now."""
        for partition in self._sim.broker.topics[MUTATIONS]:
            first = self._read.get(partition.number, 0)
            if first == partition.visible:
                continue
            self._read[partition.number] = partition.visible
            for record in partition.records[first : partition.visible]:
                try:
                    write = cached_mutation(record.value)
                except WireError:
                    continue
                if f"{write.keyspace}.{write.table}" != NAME:
                    continue
                key = compose([part for part in write.partition_key if part is not None])
                appended = record.time // 1000 * 1000
                written = WrittenRecord(
                    partition.number, record.offset, record.value, appended, write, key, token_of(key)
                )
                self._judge(written)
                self.records.append(written)

    def changed(self, before: ClusterState, state: ClusterState) -> None:
        """The log has a new state."""
        self._reaches.look(state)
        self._times.look(before, state)
        was, self._state = self._state, state
        self.look()
        if any(getattr(was, part) is not getattr(state, part) for part in ("settled", "tables", "generations")):
            for written in self.records:
                self._judge(written)

    def _judge(self, written: WrittenRecord) -> None:
        """The verdict by the newest state, if it has one; it is what it was."""
        known = self._times.at(written.appended)
        window, write = window_of(known), written.write
        used = max(written.appended, write.timestamp if write.timestamp <= written.appended + window else 0)
        if used >= self._state.settled.until:
            return
        starts = tuple(made.timestamp for made in self._state.generations)
        table = known.tables.get(NAME)
        counts = (
            table is not None
            and _acceptable(write.timestamp, written.appended, starts, tuple(map(self._reaches.at, starts)), window)
            and {cell.column for cell in write.cells} <= {column.name for column in table.columns}
        )
        if written.counts not in (None, counts):
            place = f"{written.partition}/{written.offset}"
            self._sim.broken(
                "verdict", f"{place} counted: {written.counts}, and by epoch {self._state.epoch}: {counts}"
            )
        written.counts = counts

    def must(self) -> set[bytes]:
        """The writes that everybody who has passed them keeps, and nobody else has any."""
        return {written.value for written in self.records if written.counts}


def _acceptable(timestamp: int, now: int, starts: tuple[int, ...], reaches: tuple[int, ...], leeway: int) -> bool:
    """ScyllaDB's rule: not from the future, in a generation, and of one that has ended only within its window."""
    if timestamp > now + leeway or not any(start <= timestamp for start in starts):
        return False
    followers = [(start, reach) for start, reach in zip(starts, reaches, strict=True) if timestamp < start <= now]
    return not followers or timestamp > now - min(followers)[1]
