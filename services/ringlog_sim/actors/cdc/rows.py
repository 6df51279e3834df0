"""CDC rows and dead letters: ``ringlog_cdc.definition.decision`` on the records of the simulated broker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ringlog.kernel.generations.acceptance import append_time_us
from ringlog.kernel.values import Value, replace
from ringlog.wire.errors import WireError
from ringlog.wire.records import CdcRow, DeadLetter, decode_cdc_row, decode_dead_letter
from ringlog_cdc.definition.decision import Input, PartContext, decide
from ringlog_cdc.definition.images import States
from ringlog_cdc.definition.reasons import ROUTED
from ringlog_cdc.definition.routing_table import RoutingTable
from ringlog_cdc.plan.plan import PlanEntry
from ringlog_cdc.plan.recovered_rows import KnownRows, LeftToWrite, Noted
from ringlog_sim.devices.broker import CDC, DEAD, MUTATIONS, SimRecord
from ringlog_sim.devices.memo import cached_mutation

ROW_BYTES_MAX = 1_000_000


class Taken(Value):
    """A record of the mutations topic and its decoded form."""

    record: SimRecord
    item: Input


def read_input(partition: int, record: SimRecord) -> Taken:
    """Return the decoded record."""
    try:
        mutation = cached_mutation(record.value)
    except WireError:
        mutation = None
    appended = append_time_us(record.time // 1_000)
    return Taken(record, Input(partition, record.offset, appended, record.key.encode(), record.value, mutation))


Places = dict[tuple[str, int], list[tuple[str, Any]]]
"""(topic, partition) to its values (key, record), in order."""


def part_output(table: RoutingTable, rows: Sequence[Taken], entry: PlanEntry, states: States | None = None) -> Places:
    """Return the output for the rows of a plan part, which are in source order.

    ``states``: the row states of tables with images, if there are such tables.
    """
    part = PartContext(MUTATIONS, entry.incarnation, entry.epoch, ROW_BYTES_MAX)
    places: Places = {}
    for out in (out for row in rows for out in decide(table, row.item, part, states)):
        if out.reason == ROUTED:
            places.setdefault((CDC, out.partition), []).append((out.key.hex(), decode_cdc_row(out.value)))
        elif out.reason > ROUTED:
            places.setdefault((DEAD, 0), []).append((out.key.decode(), decode_dead_letter(out.value)))
    return places


def record_name(record: SimRecord) -> Noted:
    """Return the name of a row or a letter."""
    found: CdcRow | DeadLetter = record.value
    if isinstance(found, DeadLetter):
        return found.partition, found.offset, 0, 0, 0, False, True
    return (*_name(found), found.operation, found.end_of_batch, False)


def _name(row: CdcRow) -> tuple[int, int, int, int]:
    return row.source_partition, row.source_offset, row.timestamp, row.batch_seq_no


def new_output(places: Places, stored: KnownRows) -> Places:
    """Return the output without existing records. Incomplete writes are completed."""
    left = LeftToWrite(stored)

    def goes_out(found: CdcRow | DeadLetter, to: int) -> CdcRow | DeadLetter | None:
        if isinstance(found, DeadLetter):
            return None if left.has_letter((found.partition, found.offset)) else found
        number = left.number(_name(found), to, found.operation, found.end_of_batch)
        return None if number is None else replace(found, batch_seq_no=number)

    rest = {
        place: [(key, value) for key, found in values if (value := goes_out(found, place[1])) is not None]
        for place, values in places.items()
    }
    return {place: values for place, values in rest.items() if values}
