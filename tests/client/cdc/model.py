"""A CDC topic as its writers leave it.

It contains batches in order, repeated batches of killed drivers, mutations that a producer sent twice, overlapping
generations, and closes that name the reached positions. One seed determines everything; the oracle is the list of
writes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from ringlog.client.cdc.generations import GenerationRecord, Generations
from ringlog.kernel.values import Value
from ringlog.wire.records import CdcRow
from tests.time_uuids import timeuuid

CDC_PARTITIONS, SOURCES = 3, 2
GENERATION_US = 100


class Write(Value):
    """One mutation at one timestamp: ``number`` is its identity, ``rows`` its number of rows."""

    number: int
    key: int
    timestamp: int
    rows: int


@dataclass(slots=True)
class Topic:
    """Partition to (offset, row). ``closes``: (rows in the topic when the close is known, generation)."""

    writes: list[Write] = field(default_factory=list)
    records: dict[int, list[tuple[int, CdcRow]]] = field(default_factory=lambda: {p: [] for p in range(CDC_PARTITIONS)})
    ends: dict[int, int] = field(default_factory=lambda: dict.fromkeys(range(CDC_PARTITIONS), 0))
    closes: list[GenerationRecord] = field(default_factory=list)

    def append(self, chance: Random, partition: int, row: CdcRow) -> None:
        """Append a record; a transaction marker sometimes takes the offset before it."""
        offset = self.ends[partition] + chance.choice((0, 0, 0, 1))
        self.records[partition].append((offset, row))
        self.ends[partition] = offset + 1


def row_of(write: Write, source: tuple[int, int], seq: int) -> CdcRow:
    """Return a row of a write at ``source`` (partition, offset)."""
    generation = write.timestamp // GENERATION_US * GENERATION_US
    stream = (write.key * 1_000 + generation).to_bytes(16, "big")
    return CdcRow(
        stream_id=stream,
        generation=generation,
        time=timeuuid(write.timestamp, b"%d" % write.number),
        batch_seq_no=seq,
        operation=1,
        ttl=None,
        end_of_batch=seq == write.rows - 1,
        keyspace="ks",
        table="t" if write.key % 4 else "other",
        mutation_id=None,
        source_topic="mutations",
        source_partition=source[0],
        source_offset=source[1],
        timestamp=write.timestamp,
        partition_key=(b"%d" % write.key,),
        clustering_key=(b"%d" % write.number,),
        cells=(),
        deleted=(),
    )


def partition_of(key: int, generation: int) -> int:
    """Return the partition of a key's stream; it differs in each generation."""
    return (key + generation // GENERATION_US) % CDC_PARTITIONS


def random_topic(chance: Random, generations: int = 3, batches: int = 6) -> Topic:
    """Return a random topic. Timestamps rise from batch to batch but overlap, so generations overlap too."""
    topic = Topic()
    sources: dict[int, list[tuple[Write, ...]]] = {p: [] for p in range(SOURCES)}
    number = 0
    span = generations * GENERATION_US
    for batch in range(batches):
        begins = {p: len(found) for p, found in sources.items()}
        for _ in range(chance.randint(1, 8)):
            middle = span * (batch + 1) // (batches + 1)
            times = [
                max(0, min(span - 1, middle + chance.randint(-60, 60))) for _ in range(chance.choice((1, 1, 1, 2)))
            ]
            key, pieces = chance.randrange(6), []
            for time in sorted(set(times)):
                pieces.append(Write(number, key, time, chance.choice((1, 1, 2, 3))))
                number += 1
            copies = chance.choice((1, 1, 1, 2))
            sources[key % SOURCES] += [tuple(pieces)] * copies
            topic.writes += pieces
        rows = [
            (partition_of(piece.key, piece.timestamp), row_of(piece, (source, offset), seq))
            for source, found in sorted(sources.items())
            for offset in range(begins[source], len(found))
            for piece in found[offset]
            for seq in range(piece.rows)
        ]
        for partition in range(CDC_PARTITIONS):
            mine = [row for place, row in rows if place == partition]
            for _ in range(chance.choice((0, 0, 1, 2))):  # Killed drivers.
                for row in mine[: chance.randint(0, len(mine))]:
                    topic.append(chance, partition, row)
            for row in mine:
                topic.append(chance, partition, row)
        lowest = span * (batch + 2) // (batches + 1) - 60
        _close(topic, lowest if batch + 1 < batches else span)
        if chance.random() < 0.3:  # A zombie repeats the batch behind the positions of the close.
            for partition, row in rows[: chance.randint(0, len(rows))]:
                topic.append(chance, partition, row)
    return topic


def _close(topic: Topic, low_watermark: int) -> None:
    """Close the generations that end at or below the low watermark, except the last one."""
    closed = {seen_generations.timestamp for seen_generations in topic.closes}
    for timestamp in range(0, max(0, low_watermark), GENERATION_US):
        if timestamp + GENERATION_US <= low_watermark and timestamp not in closed:
            topic.closes.append(GenerationRecord(str(timestamp), timestamp, tuple(sorted(topic.ends.items())), False))


def open_generations(count: int) -> Generations:
    """Return all generations, none closed."""
    return Generations(GenerationRecord(str(t), t, None, False) for t in range(0, count * GENERATION_US, GENERATION_US))
