"""Images in the CDC log against a model that knows the writes in order, and which of them were logged.

The model is the audit's (``ringlog.audit.images``): a heap of facts for each partition of a table, one heap for each
time that the table's images begin. They begin in a source partition with the first plan part after one that kept none
of that table; where no table keeps any they end everywhere at once. A write that counts, by its append time, for a
table that has the name no more has no images.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ringlog.audit.compound import AuditColumns, AuditLogRow, is_compound, log_rows, plain_row
from ringlog.audit.images import Images, Wanted
from ringlog.kernel.outcome import Entry, Outcome, UnreadableEntry
from ringlog.kernel.ring.partition_key import compose
from ringlog.kernel.state import ClusterState, Table, in_order
from ringlog.sim.broker import Partition, SimRecord
from ringlog.sim.checks.base import Check
from ringlog.sim.checks.judge import VerdictTimes
from ringlog.sim.memo import cached_mutation
from ringlog.wire.errors import WireError
from ringlog.wire.records import CdcRow, Mutation

if TYPE_CHECKING:
    from ringlog.sim.simulation import Simulation

Place = tuple[int, int]
Heaps = dict[tuple[int, str, str], Images]
"""By source partition, full name and id of the table."""


class ImageRows(Check):
    """Every write of a table with images has the rows before and after it, as the writes before it left them."""

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
        """Which table a write is of goes by its append time."""
        self._times.look(before, after)

    def claimed(self) -> None:
        """States begin anew with a checkpoint."""
        self._claims += 1

    def routed(self, incarnation: str, epoch: int, records: list[tuple[int, SimRecord]]) -> None:
        """A plan part is stored; parts that hold no offset are none."""
        if records:
            self._parts.append((epoch, records))

    def rows(self, partition: Partition) -> None:
        """Rows of writes; copies are the same row, which is another check's affair."""
        start = self._read.get(partition.number, 0)
        for record in partition.records[start : partition.visible]:
            row: CdcRow = record.value
            found = self._rows.setdefault((row.source_partition, row.source_offset), {})
            found.setdefault((row.timestamp, row.batch_seq_no), row)
        self._read[partition.number] = partition.visible

    def quiet(self) -> None:
        """All parts are carried out, unless the job has refused to go on. With a second checkpoint a write may have
        images by either, and there nothing is said of them.
        """
        heaps: Heaps = {}
        if self.sim.shared["job"].refused or self._claims > 1:
            return
        for epoch, records in self._parts:
            tables = _tables(self.sim.log.states[epoch])
            kept = {(name, table.id) for name, table in tables.items()}
            touched = {partition for partition, _ in records}
            for key in [key for key in heaps if not kept or (key[0] in touched and key[1:] not in kept)]:
                del heaps[key]
            for partition, record in records:
                try:
                    mutation = cached_mutation(record.value)
                except WireError:
                    continue
                table = tables.get(f"{mutation.keyspace}.{mutation.table}")
                found = self._rows.get((partition, record.offset))
                if table is not None and found and self._is_meant(epoch, table, record):
                    self._compare(heaps, table, (partition, record.offset), mutation, record.time, found)

    def _is_meant(self, epoch: int, table: Table, record: SimRecord) -> bool:
        """False for a write that is of a namesake before this table: it has no images, and is in none."""
        if not self.sim.log.states[epoch].settled.until:
            return True
        meant = self._times.at(record.time).tables.get(table.full_name)
        return meant is not None and meant.id == table.id

    def _compare(
        self,
        heaps: Heaps,
        table: Table,
        place: Place,
        mutation: Mutation,
        appended: int,
        found: dict[tuple[int, int], CdcRow],
    ) -> None:
        images = heaps.setdefault((place[0], table.full_name, table.id), Images())
        write, columns, wanted = _write_of(mutation), _columns(table), _wanted(table)
        keys_only = table.cdc.delta == "keys"
        logged = log_rows(write, columns, keys_only) if is_compound(write, columns) else plain_row(write, keys_only)
        key = compose([part for part in mutation.partition_key if part is not None])
        rows = images.rows(table.full_name, key, write, logged, columns, wanted, appended)
        self.sim.did["cdc", "imaged write"] += 1
        self.sim.did["cdc", "image"] += len(rows) - len(logged)
        told = [_told(row) for row in rows]
        seen = [_seen(row) for _, row in sorted(found.items())]
        if told != seen:
            self.sim.broken("cdc_images", f"{place} of {table.full_name} ({mutation}) has rows {seen}, not {told}")


def _tables(state: ClusterState) -> dict[str, Table]:
    """Those that keep images, by full name."""
    return {
        name: table
        for name, table in in_order(state.tables)
        if table.cdc.enabled and (table.cdc.preimage != "false" or table.cdc.postimage)
    }


def _write_of(mutation: Mutation) -> dict[str, Any]:
    return {
        "timestamp": mutation.timestamp,
        "ttl": mutation.ttl,
        "operation": mutation.operation,
        "clustering_key": mutation.clustering_key,
        "cells": [asdict(cell) for cell in mutation.cells],
    }


def _columns(table: Table) -> AuditColumns:
    """Columns of these tables are scalar, and none is static."""
    types = {column.name: column.type for column in table.columns}
    return AuditColumns(
        tuple(types[name] for name in table.partition_key),
        tuple(types[name] for name in table.clustering_key),
        frozenset(),
        {},
    )


def _wanted(table: Table) -> Wanted:
    keys = {*table.partition_key, *table.clustering_key}
    regular = tuple(column.name for column in table.columns if column.name not in keys)
    return Wanted(table.cdc.preimage, table.cdc.postimage, regular, ())


def _told(row: AuditLogRow) -> tuple[Any, ...]:
    head = row.timestamp, row.sequence, row.last, row.operation, row.ttl, tuple(row.clustering_key)
    return (*head, dict(sorted(row.values.items())), sorted(row.deleted))


def _seen(row: CdcRow) -> tuple[Any, ...]:
    head = row.timestamp, row.batch_seq_no, row.end_of_batch, row.operation, row.ttl, row.clustering_key
    return (*head, dict(sorted((cell.column, cell.value) for cell in row.cells)), sorted(row.deleted))
