"""Images in the CDC log, compared with a model that knows the order of writes and which of them were logged.

The model is the audit's (``ringlog_audit.rules.images``): a heap of facts for each partition of a table, and a new heap
each time the table's images begin. Columns are those of the version that reads a write. Options are those of the newest
version that applies at its append time. Images end in a source partition with a write, if the table has none at its
append time. If no table has images, they end everywhere at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ringlog.kernel.model.outcome import Entry, Outcome, UnreadableEntry
from ringlog.kernel.model.state import ClusterState, in_order
from ringlog.kernel.model.tables import Table
from ringlog.kernel.ring.murmur3 import compose
from ringlog.kernel.values import asdict
from ringlog.wire.errors import WireError
from ringlog.wire.records import CdcRow, Mutation
from ringlog_audit.rules.compound import AuditColumns, AuditLogRow, is_compound, log_rows, plain_row
from ringlog_audit.rules.images import Images, Wanted
from ringlog_sim.checks.base import Check
from ringlog_sim.checks.cdc.judge import VerdictTimes
from ringlog_sim.devices.broker import DEAD, Partition, SimRecord
from ringlog_sim.devices.memo import cached_mutation

if TYPE_CHECKING:
    from ringlog_sim.simulation import Simulation

Place = tuple[int, int]
Heaps = dict[tuple[int, str, str], Images]
"""By source partition, full name and id of the table."""


class ImageRows(Check):
    """Every write of a table with images has the rows before and after it, as the earlier writes left them."""

    def __init__(self, sim: Simulation) -> None:
        super().__init__(sim)
        self._parts: list[tuple[int, list[tuple[int, SimRecord]]]] = []
        self._rows: dict[Place, dict[tuple[int, int], CdcRow]] = {}
        self._read: dict[int, int] = {}
        self._claims = 0
        self._times = VerdictTimes()

    def entry(
        self, before: ClusterState, after: ClusterState, item: Entry | UnreadableEntry, outcome: Outcome, offset: int
    ) -> None:
        """Record the entry. A write's append time determines its table."""
        self._times.observe(before, after)

    def claimed(self) -> None:
        """Count a new checkpoint, which starts new states."""
        self._claims += 1

    def routed(self, incarnation: str, epoch: int, records: list[tuple[int, SimRecord]]) -> None:
        """Record a stored plan part. Parts without offsets are skipped."""
        if records:
            self._parts.append((epoch, records))

    def rows(self, partition: Partition) -> None:
        """Record rows of writes. Another check compares copies."""
        start = self._read.get(partition.number, 0)
        for record in partition.records[start : partition.visible]:
            row: CdcRow = record.value
            found = self._rows.setdefault((row.source_partition, row.source_offset), {})
            found.setdefault((row.timestamp, row.batch_seq_no), row)
        self._read[partition.number] = partition.visible

    def quiet(self) -> None:
        """Check all parts after they are finished, unless the job has refused to start.

        With a second checkpoint, a write may have images by either, so such runs are not checked.
        """
        heaps: Heaps = {}
        if self.sim.shared["job"].refused or self._claims > 1:
            return
        letters = {
            (record.value.partition, record.value.offset)
            for partition in self.sim.broker.topics[DEAD]
            for record in partition.records[: partition.visible]
        }
        for epoch, records in self._parts:
            state = self.sim.log.states[epoch]
            kept = _kept(state)
            touched = {partition for partition, _ in records}
            for key in [key for key in heaps if not kept or (key[0] in touched and key[1:] not in kept)]:
                del heaps[key]
            for partition, record in records:
                place = partition, record.offset
                try:
                    mutation = cached_mutation(record.value)
                except WireError:
                    continue
                reading, counting = self._versions(state, mutation, record.time)
                if reading is None or place in letters:
                    continue
                if counting is None or not _has_images(counting):
                    heaps.pop((partition, reading.full_name, reading.id), None)
                elif found := self._rows.get(place):
                    self._compare(heaps, reading, counting, place, mutation, record.time, found)
            for partition in touched:
                last = max(record.time for number, record in records if number == partition)
                for name, table in in_order(state.tables):
                    if not _has_images(table) and self._times.since(table) <= last:
                        heaps.pop((partition, name, table.id), None)

    def _versions(self, state: ClusterState, mutation: Mutation, now: int) -> tuple[Table | None, Table | None]:
        """Return (the version that reads a write, the newest version at its append time), None for a missing one."""
        name = f"{mutation.keyspace}.{mutation.table}"
        if not state.settled.until:
            return state.tables.get(name), state.tables.get(name)
        reading = self._times.table_of(mutation, now)
        return (None if isinstance(reading, str) else reading), self._times.at(now).tables.get(name)

    def _compare(
        self,
        heaps: Heaps,
        table: Table,
        counting: Table,
        place: Place,
        mutation: Mutation,
        appended: int,
        found: dict[tuple[int, int], CdcRow],
    ) -> None:
        images = heaps.setdefault((place[0], table.full_name, table.id), Images())
        write, columns, wanted = _in_stored_names(asdict(mutation), table), _columns(table), _wanted(table, counting)
        keys_only = table.cdc.delta == "keys"
        logged = log_rows(write, columns, keys_only) if is_compound(write, columns) else plain_row(write, keys_only)
        key = compose([part for part in mutation.partition_key if part is not None])
        regular_columns = frozenset(wanted.regular)
        rows = images.rows(table.full_name, key, write, logged, columns, wanted, appended, regular_columns)
        self.sim.did["cdc", "imaged write"] += 1
        self.sim.did["cdc", "image"] += len(rows) - len(logged)
        found_rows = [_comparable(row) for row in rows]
        seen = [_seen(row) for _, row in sorted(found.items())]
        if found_rows != seen:
            self.sim.broken(
                "cdc_images", f"{place} of {table.full_name} ({mutation}) has rows {seen}, not {found_rows}"
            )


def _has_images(table: Table) -> bool:
    return table.cdc.enabled and (table.cdc.preimage != "false" or table.cdc.postimage)


def _kept(state: ClusterState) -> set[tuple[str, str]]:
    """Return (full name, id) of tables that have images, or had some for writes that may still be validated."""
    newest = {(name, table.id) for name, table in in_order(state.tables) if _has_images(table)}
    return newest | {
        (name, version.table.id)
        for name, versions in in_order(state.table_lives)
        for one in versions
        for version in one.versions
        if _has_images(version.table)
    }


def _in_stored_names(write: dict[str, Any], table: Table) -> dict[str, Any]:
    """Return the write with names as in rows. A column added after a drop or a rename has a different stored name."""
    places = dict(table.stored)
    for part in (write, *write["more"]):
        part["cells"] = tuple(cell | {"column": places.get(cell["column"], cell["column"])} for cell in part["cells"])
    return write


def _columns(table: Table) -> AuditColumns:
    """Return the columns of a table. Here they are scalar, and none is static."""
    types = {column.name: column.type for column in table.columns}
    return AuditColumns(
        tuple(types[name] for name in table.partition_key),
        tuple(types[name] for name in table.clustering_key),
        frozenset(),
        {},
        renamed=bool(table.stored),
    )


def _wanted(table: Table, counting: Table) -> Wanted:
    """Return the columns of one version with the options of the other."""
    keys, places = {*table.partition_key, *table.clustering_key}, dict(table.stored)
    regular = tuple(places.get(column.name, column.name) for column in table.columns if column.name not in keys)
    return Wanted(counting.cdc.preimage, counting.cdc.postimage, regular, ())


def _comparable(row: AuditLogRow) -> tuple[Any, ...]:
    head = row.timestamp, row.sequence, row.last, row.operation, row.ttl, tuple(row.clustering_key)
    return (*head, dict(sorted(row.values.items())), sorted(row.deleted))


def _seen(row: CdcRow) -> tuple[Any, ...]:
    head = row.timestamp, row.batch_seq_no, row.end_of_batch, row.operation, row.ttl, row.clustering_key
    return (*head, dict(sorted((cell.column, cell.value) for cell in row.cells)), sorted(row.deleted))
