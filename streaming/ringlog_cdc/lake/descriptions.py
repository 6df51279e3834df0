"""The tables ``cdc-generations`` and ``cdc-streams`` in the lake, kept up to date from the metadata log.

Invariants:

* The streams of a generation are written before its own row, and its row before any row of the log in it. A reader that
  sees a generation finds all its streams.
* ``closed`` is set only after all rows of the generation are in the lake. A generation closes only when its writers'
  rows are durable, in the lake too.
* Each commit is numbered with the epoch. A driver that is behind, of this writer or another, changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import functions as F

from ringlog.kernel.generations.describe import size_of
from ringlog.kernel.model.state import ClusterState, Generation
from ringlog.kernel.model.tablet_streams import ranges_of
from ringlog_cdc.lake.columns import GENERATION, TOKEN
from ringlog_cdc.lake.delta import GENERATIONS, STREAMS, DeltaTables, description_path
from ringlog_cdc.lake.heads import TOKEN_BYTES

GENERATION_FIELDS = pa.schema(
    [
        pa.field(GENERATION, pa.int64()),
        pa.field("id", pa.string()),
        pa.field("status", pa.string()),
        pa.field("ranges", pa.int64()),
        pa.field("streams", pa.int64()),
        pa.field("digest", pa.string()),
        pa.field("committed", pa.int64()),
        pa.field("published", pa.int64()),
        pa.field("closed", pa.int64()),
        pa.field("expired", pa.int64()),
        pa.field("epoch", pa.int64()),
    ]
)
STREAM_FIELDS = pa.schema(
    [
        pa.field(GENERATION, pa.int64()),
        pa.field("range_start", pa.int64()),
        pa.field("range_end", pa.int64()),
        pa.field("slot", pa.int32()),
        pa.field("cdc$stream_id", pa.binary()),
        pa.field(TOKEN, pa.int64()),
        pa.field("expired", pa.int64()),
        pa.field("table", pa.string()),
    ]
)

Mark = tuple[str, int, int | None, int | None, int | None]
"""Summary of a generation: id, number of described ranges, and the times when it was published, closed and expired."""


class Descriptions:
    """The two tables of one lake. For one thread at a time."""

    def __init__(
        self, delta: DeltaTables, root: str, cluster_id: str, check: Callable[[], None] = lambda: None
    ) -> None:
        """Open the tables.

        Args:
            delta: Access to Delta.
            root: Folder or address of the lake.
            cluster_id: Id of the cluster.
            check: Called before anything is written. May raise.
        """
        self._check = check
        self._delta = delta
        self._root = root
        self._cluster_id = cluster_id
        self._marks: dict[int, Mark] = {}

    def keep(self, state: ClusterState) -> bool:
        """Update both tables to ``state``. Return False if nothing has changed."""
        marks = {found.timestamp: _mark(found) for found in state.generations}
        if marks == self._marks or not marks:
            return False
        self._check()
        if not self._marks:
            self._marks = self._read()
        for generation in state.generations:
            before = self._marks.get(generation.timestamp)
            # Streams change with the described ranges and with expiry only.
            if before is None or (before[1], before[4]) != (_mark(generation)[1], _mark(generation)[4]):
                self._put_streams(generation, state.epoch)
        if marks != self._marks:
            self._put_generations(state)
        self._marks = marks
        return True

    def _read(self) -> dict[int, Mark]:
        """Return the summaries written by an earlier driver."""
        there = self._delta.load(description_path(self._root, GENERATIONS))
        rows = () if there is None else there.collect()
        return {
            row[GENERATION]: (row["id"], row["ranges"], row["published"], row["closed"], row["expired"]) for row in rows
        }

    def _put_streams(self, generation: Generation, epoch: int) -> None:
        """Write the streams of a generation.

        An expired one has no ranges in the state: its existing rows get the expiry.
        """
        path, start = description_path(self._root, STREAMS), generation.timestamp
        if generation.ranges:
            rows = self._delta.session.createDataFrame(streams_table(generation))
        else:
            there = self._delta.load(path)
            if there is None:
                return
            rows = there.where(F.col(GENERATION) == start).withColumn(
                "expired", F.lit(_expired(generation)).cast("bigint")
            )
        self._delta.overwrite(path, rows, epoch, self._author(f"{STREAMS}/{start}"), start)

    def _put_generations(self, state: ClusterState) -> None:
        """Write all generations."""
        rows = self._delta.session.createDataFrame(generations_table(state.generations, state.epoch)).coalesce(1)
        path = description_path(self._root, GENERATIONS)
        self._delta.overwrite(path, rows, state.epoch, self._author(GENERATIONS))

    def _author(self, name: str) -> str:
        """Return the author of a table's commits. Each has its own, since numbers count per author."""
        return f"ringlog/{self._cluster_id}/{name}"


def _mark(generation: Generation) -> Mark:
    """Return the summary of a generation."""
    gone = generation.forgotten
    ranges = len(generation.ranges) + sum(len(one.ends) for one in generation.tables) if gone is None else gone.ranges
    return generation.id, ranges, generation.published, generation.closed, _expired(generation)


def _expired(generation: Generation) -> int | None:
    """Return the time when the generation expired, or None."""
    return None if generation.expired is None else generation.expired_at


def generations_table(generations: Sequence[Generation], epoch: int) -> pa.Table:
    """Return the rows of ``cdc-generations``, with the epoch of the state."""
    rows: list[dict[str, Any]] = []
    for found in generations:
        size = size_of(found)
        rows.append(
            {
                GENERATION: found.timestamp,
                "id": found.id,
                "status": found.status,
                "ranges": size.ranges,
                "streams": size.streams,
                "digest": size.digest,
                "committed": found.committed,
                "published": found.published,
                "closed": found.closed,
                "expired": _expired(found),
                "epoch": epoch,
            }
        )
    return pa.Table.from_pylist(rows, GENERATION_FIELDS)


def streams_table(generation: Generation) -> pa.Table:
    """Return the rows of ``cdc-streams`` for a generation with ranges: one per stream, with its slot in the range.

    ``table`` is the id of the table whose tablet the range is, or empty for a range of the token ring.
    """
    rows: list[dict[str, Any]] = []
    tablets = [(one.table, ranges_of(generation.timestamp, one)) for one in generation.tables]
    for table, ranges in [("", generation.ranges), *tablets]:
        # The first range wraps around the ring, so it starts at the end of the last one.
        start = ranges[-1].end
        for described in ranges:
            for slot, stream in enumerate(described.streams):
                rows.append(
                    {
                        GENERATION: generation.timestamp,
                        "range_start": start,
                        "range_end": described.end,
                        "slot": slot,
                        "cdc$stream_id": stream,
                        TOKEN: int.from_bytes(stream[:TOKEN_BYTES], "big", signed=True),
                        "expired": _expired(generation),
                        "table": table,
                    }
                )
            start = described.end
    return pa.Table.from_pylist(rows, STREAM_FIELDS)
