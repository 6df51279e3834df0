"""The routing table: everything besides the record itself that its outcome depends on.

It is built once per stored context, so a replay decides the same and writes the same bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from zlib import crc32

from ringlog.kernel.generations.acceptance import range_of
from ringlog.kernel.generations.admission import AdmissionRules
from ringlog.kernel.generations.statements import TableShape
from ringlog.kernel.generations.verdicts import CountedVersion, SchemaHistory, newest_of, version_at
from ringlog.kernel.model.state import Generation
from ringlog.kernel.model.tablet_streams import ranges_of
from ringlog.kernel.ring.shards import shard_of
from ringlog.kernel.values import GenerationRange, Value, field, replace
from ringlog.wire.records import Mutation
from ringlog_cdc.definition.image_tables import EarlierImages, ImageTable

Ring = tuple[int, str]
"""Index of a generation, and the id of a table in tablets, or empty for the token ring."""


class RoutingTable(Value, eq=False):
    """See above.

    Attributes:
        topic: Name of the mutations topic.
        partitions: Number of partitions of the CDC topic.
        rules: Rules that accept or reject writes, with the tables and the start of each generation.
        rings: The ranges of each generation, by generation and table.
        closed: Indexes of closed generations.
        images: Full name to table, for tables that keep images.
        earlier_images: Image options of earlier table versions.
        ids: Full name to id, for tables in tablets.
    """

    topic: str
    partitions: int
    rules: AdmissionRules
    rings: Mapping[Ring, Sequence[GenerationRange]]
    closed: frozenset[int] = frozenset()
    images: Mapping[str, ImageTable] = field(default_factory=dict)
    earlier_images: EarlierImages = field(default_factory=EarlierImages)
    ids: Mapping[str, str] = field(default_factory=dict)

    def stream_of(self, generation: int, token: int, table: str) -> tuple[bytes, int]:
        """Return the stream of a row, and its partition of the CDC topic.

        Args:
            generation: Index of the row's generation, which has streams.
            token: Token of the partition key.
            table: Id of the table if it is in tablets, else empty.
        """
        # A generation that does not describe the table uses the streams of the token ring.
        ranges = self.rings.get((generation, table)) or self.rings[generation, ""]
        found = ranges[range_of(ranges, token)]
        stream = found.streams[shard_of(token, len(found.streams), found.ignore_msb)]
        # The partition is a hash of the id, so all rows of a stream are in one partition, in order.
        return stream, crc32(stream) % self.partitions

    def earlier_version(self, mutation: Mutation, appended: int) -> CountedVersion | None:
        """Return the table version that reads a write, or None if it is the newest one with the name."""
        history = self.rules.history
        if history is None or history.is_newest(mutation, appended):
            return None
        found = version_at(history, mutation, appended)
        if isinstance(found, str) or found is newest_of(history, f"{mutation.keyspace}.{mutation.table}"):
            return None
        return found

    def images_of(self, mutation: Mutation, appended: int, earlier: CountedVersion | None) -> ImageTable | None:
        """Return the image options and columns for a write, or None if it has no images.

        Args:
            mutation: The write.
            appended: Its append time, microseconds.
            earlier: Result of ``earlier_version``.
        """
        if earlier is None:
            return self.images.get(f"{mutation.keyspace}.{mutation.table}")
        assert self.rules.history is not None, "the table has an earlier version"
        # Columns come from the version that the write names, options from the version that counts at its append time.
        unnamed = replace(mutation, table_version=None, epoch=None)
        counting = version_at(self.rules.history, unnamed, appended)
        assert not isinstance(counting, str), "a version of the table reads the write"
        return self.earlier_images.at(earlier.id, earlier.epoch, counting.epoch)


def routing_table(
    topic: str,
    generations: Sequence[Generation],
    tables: Mapping[str, TableShape],
    closed: Collection[str],
    leeway: int,
    partitions: int,
    reaches: Sequence[int] | None = None,
    cluster_id: str = "",
    images: Mapping[str, ImageTable] | None = None,
    history: SchemaHistory | None = None,
    ids: Mapping[str, str] | None = None,
    earlier_images: EarlierImages | None = None,
) -> RoutingTable:
    """Build the routing table.

    Args:
        topic: Name of the mutations topic.
        generations: Generations by ascending timestamp.
        tables: Full name to table.
        closed: Ids of closed generations.
        leeway: Allowed lateness, microseconds.
        partitions: Number of partitions of the CDC topic.
        reaches: Allowed lateness after each generation's start. None: ``leeway`` for all.
        cluster_id: Id of this cluster.
        images: Full name to table, for tables that keep images.
        history: Earlier table versions by append time. None: ``tables`` apply to every write.
        ids: Full name to id, for tables in tablets.
        earlier_images: Image options of earlier table versions.
    """
    starts = tuple(generation.timestamp for generation in generations)
    assert list(starts) == sorted(set(starts)), "generations come in the order of their timestamps"
    rings: dict[Ring, Sequence[GenerationRange]] = {}
    for index, generation in enumerate(generations):
        rings[index, ""] = generation.ranges
        for described in generation.tables:
            rings[index, described.table] = ranges_of(generation.timestamp, described)
    own = tuple(reaches) if reaches is not None else (leeway,) * len(starts)
    return RoutingTable(
        topic=topic,
        partitions=partitions,
        rules=AdmissionRules(cluster_id, dict(tables), starts, leeway, own, history),
        rings=rings,
        closed=frozenset(index for index, generation in enumerate(generations) if generation.id in closed),
        images=dict(images or {}),
        earlier_images=earlier_images or EarlierImages(),
        ids=dict(ids or {}),
    )
