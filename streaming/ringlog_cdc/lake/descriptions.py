"""``cdc-generations`` and ``cdc-streams`` in the lake: what the metadata log says of them, kept in step by the job.

A generation's streams are there before its own row, and its own row before any row of the log that lies in it: who
sees a generation finds all its streams. ``closed`` is set no sooner than all rows of the generation are in the lake,
as a generation closes only when its writers' rows are durable, in the lake too.

Each commit has the epoch as its number: a driver that lags behind, of this writer or another, changes nothing.
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
"""Of a generation: its id, how many ranges it describes, and since when it is published, closed, expired."""


class Descriptions:
    """The two tables of one lake. For one thread at a time. ``check``: called before anything is written; may raise."""

    def __init__(
        self, delta: DeltaTables, root: str, cluster_id: str, check: Callable[[], None] = lambda: None
    ) -> None:
        self._check = check
        self._delta = delta
        self._root = root
        self._cluster_id = cluster_id
        self._marks: dict[int, Mark] = {}

    def keep(self, state: ClusterState) -> bool:
        """Bring both tables in step with ``state``; False if there was nothing to do."""
        marks = {found.timestamp: _mark(found) for found in state.generations}
        if marks == self._marks or not marks:
            return False
        self._check()
        if not self._marks:
            self._marks = self._read()
        for generation in state.generations:
            before = self._marks.get(generation.timestamp)
            if before is None or (before[1], before[4]) != (_mark(generation)[1], _mark(generation)[4]):
                self._put_streams(generation, state.epoch)
        if marks != self._marks:
            self._put_generations(state)
        self._marks = marks
        return True

    def _read(self) -> dict[int, Mark]:
        """What a driver before this one has written."""
        there = self._delta.load(description_path(self._root, GENERATIONS))
        rows = () if there is None else there.collect()
        return {
            row[GENERATION]: (row["id"], row["ranges"], row["published"], row["closed"], row["expired"]) for row in rows
        }

    def _put_streams(self, generation: Generation, epoch: int) -> None:
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
        rows = self._delta.session.createDataFrame(generations_table(state.generations, state.epoch)).coalesce(1)
        path = description_path(self._root, GENERATIONS)
        self._delta.overwrite(path, rows, state.epoch, self._author(GENERATIONS))

    def _author(self, name: str) -> str:
        return f"ringlog/{self._cluster_id}/{name}"


def _mark(generation: Generation) -> Mark:
    gone = generation.forgotten
    ranges = len(generation.ranges) + sum(len(one.ends) for one in generation.tables) if gone is None else gone.ranges
    return generation.id, ranges, generation.published, generation.closed, _expired(generation)


def _expired(generation: Generation) -> int | None:
    return None if generation.expired is None else generation.expired_at


def generations_table(generations: Sequence[Generation], epoch: int) -> pa.Table:
    """Rows of ``cdc-generations``: all of them, with the epoch they are from."""
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
    """Rows of ``cdc-streams`` for a generation that has its ranges: a stream each, with its place in its range.

    ``table``: the id of the table of which the range is a tablet; empty: the range is one of the ring.
    """
    rows: list[dict[str, Any]] = []
    tablets = [(one.table, ranges_of(generation.timestamp, one)) for one in generation.tables]
    for table, ranges in [("", generation.ranges), *tablets]:
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
