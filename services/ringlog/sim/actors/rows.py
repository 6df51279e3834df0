"""From mutations to CDC rows and dead letters: ``ringlog_cdc.rows`` on the records of the simulated broker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ringlog.kernel.generations.acceptance import append_time_us
from ringlog.sim.broker import CDC, DEAD, MUTATIONS, Record
from ringlog.sim.memo import cached_mutation
from ringlog.wire.errors import WireError
from ringlog_cdc.plan import PlanEntry
from ringlog_cdc.routing import RoutingTable, route
from ringlog_cdc.rows import Input, Limits, cdc_row, columns_of, dead_letter
from ringlog_cdc.verdicts import ROUTED

ROW_BYTES_MAX = 1_000_000


@dataclass(frozen=True, slots=True)
class Taken:
    """A record of the mutations topic, and what the job knows of it."""

    record: Record
    item: Input


def read_input(partition: int, record: Record) -> Taken:
    """The record, decoded."""
    try:
        mutation = cached_mutation(record.value)
    except WireError:
        mutation = None
    appended = append_time_us(record.time // 1_000)
    return Taken(record, Input(partition, record.offset, appended, record.key.encode(), record.value, mutation))


Places = dict[tuple[str, int], list[tuple[str, Any]]]
"""(topic, partition) to the values (key, record) that go there, in order."""


def outgoing(table: RoutingTable, rows: Sequence[Taken], entry: PlanEntry, cluster_id: str) -> Places:
    """What goes out for the rows of a plan part, which are in the order of the source."""
    places: Places = {}
    if not rows:
        return places
    limits = Limits(MUTATIONS, entry.incarnation, entry.epoch, ROW_BYTES_MAX)
    routed = route(table, columns_of([row.item for row in rows], cluster_id))
    for index, row in enumerate(rows):
        verdict = int(routed.verdict[index])
        if verdict == ROUTED:
            made = cdc_row(row.item, routed, index, MUTATIONS)
            places.setdefault((CDC, int(routed.partition[index])), []).append((made.stream_id.hex(), made))
        elif verdict > ROUTED:
            letter = dead_letter(row.item, verdict, limits)
            places.setdefault((DEAD, 0), []).append((f"{row.item.partition}/{row.item.offset}", letter))
    return places
