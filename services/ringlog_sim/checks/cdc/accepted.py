"""Models of accepted writes, and of the rows that a consumer of the CDC log must get.

The rule of acceptance is stated again in a few lines and applied to every record of the mutations topic. A record has
one verdict, from the tables and settings of its append time and from all generations, once the validation watermark of
the log is above them. From then on every node keeps it, or none does, whatever they have folded and however often they
restart. Until then no node may keep it. A write may be in the topic several times: it is kept if one of its records
counts. The verdict is computed again after each entry and must not change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ringlog.kernel.model.state import EMPTY_STATE, ClusterState
from ringlog.kernel.ring.murmur3 import compose, token_of
from ringlog.kernel.values import Micros
from ringlog.wire.errors import WireError
from ringlog.wire.records import CdcRow, Mutation
from ringlog_sim.actors.cdc.consumer import StoredRows, name_of
from ringlog_sim.actors.cdc.producer import KEYSPACE, TABLE
from ringlog_sim.checks.cdc.judge import Reaches, VerdictTimes, window_of
from ringlog_sim.devices.broker import MUTATIONS
from ringlog_sim.devices.memo import cached_mutation

if TYPE_CHECKING:
    from ringlog_sim.simulation import Simulation


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
    """All records so far; ``observe`` takes in what is new. Writes are distinguished by their bytes."""

    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self._read: dict[int, int] = {}
        self._state = EMPTY_STATE
        self._reaches = Reaches()
        self._times = VerdictTimes()
        self.records: list[WrittenRecord] = []

    def observe(self) -> None:
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
        self._reaches.observe(state)
        self._times.observe(before, state)
        was, self._state = self._state, state
        self.observe()
        if any(getattr(was, part) is not getattr(state, part) for part in ("settled", "tables", "generations")):
            for written in self.records:
                self._judge(written)

    def _judge(self, written: WrittenRecord) -> None:
        """The verdict by the newest state, if it has one; it is what it was."""
        state_then = self._times.at(written.appended)
        window, write = window_of(state_then), written.write
        used = max(written.appended, write.timestamp if write.timestamp <= written.appended + window else 0)
        if used >= self._state.settled.until:
            return
        starts = tuple(made.timestamp for made in self._state.generations)
        table = state_then.tables.get(NAME)
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


Place = tuple[int, int]
"""(partition, offset)."""

Name = tuple[int, int, Micros, int]
"""Of a row: partition and offset of its write, timestamp, number among its write's rows of that timestamp."""


def faults_of(stored: StoredRows, rows: Mapping[Name, CdcRow], complete: Set[Place]) -> Iterator[str]:
    """What is wrong, in sentences: each row comes once, in order, and none once the consumer has left its generation.

    ``rows``: all that a CDC topic has; ``complete``: the writes whose last row is among them.
    """
    # What is repeated of a write that is not whole yet comes before it is delivered.
    late = [row for row in stored.late if name_of(row) not in stored.names]
    if late:
        yield f"a row of {late[0].generation} was taken for a repetition: {late[0]}"
    delivered = [(row.mutation_id, row.timestamp, row.batch_seq_no) for row in stored.delivered]
    got = {row.mutation_id for row in stored.delivered}
    # What a job has begun to write that was refused for good is never whole: nobody delivers a part of it.
    whole = (row for name, row in rows.items() if name[:2] in complete)
    wanted = {row.mutation_id for row in whole if row.generation <= stored.entered}
    if len(set(delivered)) != len(delivered) or got != wanted:
        yield f"the consumer has {len(delivered)} rows of {len(got)} writes, wanted {len(wanted)}"
    # Of the copies of a write in the source the rows of one were delivered, all of them.
    places = {(row.source_partition, row.source_offset) for row in stored.delivered}
    if len(delivered) != sum(name[:2] in places for name in rows):
        yield "the consumer has a part of a write"
    # If partitions were added, the writes of one key lie in two of them, and only timestamps order these.
    last: dict[tuple[bytes, tuple[bytes, ...], int], Place] = {}
    generation = -1
    for row in stored.delivered:
        place = (row.source_partition, row.source_offset)
        key = (row.stream_id, row.partition_key, row.source_partition)
        if row.generation < generation or place < last.get(key, (-1, -1)):
            yield f"the consumer got the row of {place} out of order"
        generation, last[key] = row.generation, place
