"""Models of accepted writes, and of the rows that a consumer of the CDC log must get.

The acceptance rule is written here a second time in a few lines and applied to every record of the mutations topic. A
record gets one decision once the log's validation watermark is above its times. The decision depends on the tables and
settings of its append time and on all generations. From then on either every node stores the write or none does, for
any folded epoch and after any restart. Before that, no node may store it. A write may be in the topic several times. It
is stored if one of its records counts. The decision is recomputed after each entry and must not change.
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
from ringlog_sim.checks.cdc.judge import Reaches, VerdictTimes, fits_columns, window_of
from ringlog_sim.devices.broker import MUTATIONS
from ringlog_sim.devices.memo import cached_mutation

if TYPE_CHECKING:
    from ringlog_sim.simulation import Simulation


NAME = f"{KEYSPACE}.{TABLE}"


@dataclass(slots=True)
class WrittenRecord:
    """One record of the topic. ``own_key``: its key is that of the write. ``counts``: its decision, None while it has
    none.
    """

    partition: int
    offset: int
    value: bytes
    appended: int
    write: Mutation
    key: bytes
    token: int
    own_key: bool
    counts: bool | None = None


class AcceptedWrites:
    """All records so far. ``observe`` adds new ones. Writes are distinguished by their bytes."""

    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self._read: dict[int, int] = {}
        self._state = EMPTY_STATE
        self._reaches = Reaches()
        self._times = VerdictTimes()
        self.records: list[WrittenRecord] = []

    def observe(self) -> None:
        """Add the records that are visible now."""
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
                own_key = record.key == f"{NAME}\0{key.decode()}"
                written = WrittenRecord(
                    partition.number, record.offset, record.value, appended, write, key, token_of(key), own_key
                )
                self._judge(written)
                self.records.append(written)

    def changed(self, before: ClusterState, state: ClusterState) -> None:
        """Update the model for a new state of the log."""
        self._reaches.observe(state)
        self._times.observe(before, state)
        was, self._state = self._state, state
        self.observe()
        if any(getattr(was, part) is not getattr(state, part) for part in ("settled", "tables", "generations")):
            for written in self.records:
                self._judge(written)

    def _judge(self, written: WrittenRecord) -> None:
        """Decide by the newest state, if it allows a decision. Report a changed decision."""
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
            and written.own_key
            and fits_columns(write, table)
        )
        if written.counts not in (None, counts):
            place = f"{written.partition}/{written.offset}"
            self._sim.broken(
                "verdict", f"{place}: version {written.counts} applied, but epoch {self._state.epoch} has {counts}"
            )
        written.counts = counts

    def must(self) -> set[bytes]:
        """Return the writes that every node past them stores. No node may store other writes."""
        return {written.value for written in self.records if written.counts}


def _acceptable(timestamp: int, now: int, starts: tuple[int, ...], reaches: tuple[int, ...], leeway: int) -> bool:
    """Return True if a write passes ScyllaDB's rule.

    It must not be too far in the future, must be in a generation, and after that generation's end only within its
    window.
    """
    if timestamp > now + leeway or not any(start <= timestamp for start in starts):
        return False
    followers = [(start, reach) for start, reach in zip(starts, reaches, strict=True) if timestamp < start <= now]
    return not followers or timestamp > now - min(followers)[1]


Place = tuple[int, int]
"""(partition, offset)."""

Name = tuple[int, int, Micros, int]
"""The identity of a row: its write's partition and offset, its timestamp, and its number among rows of that
timestamp.
"""


def faults_of(stored: StoredRows, rows: Mapping[Name, CdcRow], complete: Set[Place]) -> Iterator[str]:
    """Yield the consumer's errors: rows must come once, in order, and never after the consumer has left their
    generation.

    ``rows``: all rows of a CDC topic. ``complete``: the writes whose last row is among them.
    """
    # Repetitions of an incomplete write come before it is delivered.
    late = [row for row in stored.late if name_of(row) not in stored.names]
    if late:
        yield f"the consumer dropped a row of {late[0].generation} as a repetition: {late[0]}"
    delivered = [(row.mutation_id, row.timestamp, row.batch_seq_no) for row in stored.delivered]
    got = {row.mutation_id for row in stored.delivered}
    # A permanently rejected write that a job has begun stays incomplete. No consumer delivers a part of it.
    whole = (row for name, row in rows.items() if name[:2] in complete)
    wanted = {row.mutation_id for row in whole if row.generation <= stored.entered}
    if len(set(delivered)) != len(delivered) or got != wanted:
        yield f"the consumer has {len(delivered)} rows of {len(got)} writes, expected {len(wanted)}"
    # If the source has copies of a write, the consumer delivers all rows of exactly one copy.
    places = {(row.source_partition, row.source_offset) for row in stored.delivered}
    if len(delivered) != sum(name[:2] in places for name in rows):
        yield "the consumer has only some rows of a write"
    # After partitions are added, writes of one key are in two of them, and only timestamps order them.
    last: dict[tuple[bytes, tuple[bytes, ...], int], Place] = {}
    generation = -1
    for row in stored.delivered:
        place = (row.source_partition, row.source_offset)
        key = (row.stream_id, row.partition_key, row.source_partition)
        if row.generation < generation or place < last.get(key, (-1, -1)):
            yield f"the consumer got the row of {place} out of order"
        generation, last[key] = row.generation, place
