"""What a consumer of the CDC log was given, against the rows that the check of the CDC log has seen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set

from ringlog.kernel.values import Micros
from ringlog.sim.actors.consumer import StoredRows, name_of
from ringlog.wire.records import CdcRow

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
    last: dict[tuple[bytes, tuple[bytes, ...]], Place] = {}
    generation = -1
    for row in stored.delivered:
        place, key = (row.source_partition, row.source_offset), (row.stream_id, row.partition_key)
        if row.generation < generation or place < last.get(key, (-1, -1)):
            yield f"the consumer got the row of {place} out of order"
        generation, last[key] = row.generation, place
