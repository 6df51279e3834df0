"""Opening a lake at the start of a job: sign it, fill it from the CDC topic, update its descriptions.

A lake is filled once per checkpoint, before the first batch. A new lake gets everything in the topic. A lake of an
earlier checkpoint of the same writer lacks at most the rows since that checkpoint's newest commit. Rows of stored but
unfinished plan parts are left to these parts. If a filled lake was replaced or has lost a table, the job stops instead
of starting over: rows in between would be missing without notice.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from ringlog.kernel.model.state import ClusterState
from ringlog_cdc.lake.delta import DeltaTables
from ringlog_cdc.lake.identity import Made, forget_filled, identify, is_filled, mark_filled
from ringlog_cdc.lake.sink import HEADS_TYPE, Lake, heads
from ringlog_cdc.report.progress import BatchProgress
from ringlog_cdc.settings import JobSettings
from ringlog_cdc.topics.frames import TopicReader, before
from ringlog_cdc.topics.source import Offsets


def open_lake(
    session: SparkSession,
    settings: JobSettings,
    state: ClusterState,
    planned: Mapping[int, int] | None,
    offsets: Offsets,
    say: BatchProgress,
) -> Lake | None:
    """Open the lake of the job and fill it. Return None if the job has no lake.

    Args:
        session: Spark session.
        settings: Settings of the job.
        state: Cluster state.
        planned: Source partition to the first offset that is left to plan parts. None: no part is unfinished.
        offsets: Client for offsets.
        say: Progress of the job.

    Raises:
        CdcError: The lake is not the checkpoint's, or is unreadable.
    """
    identity = identify(settings.checkpoint, state.cluster_id, settings.writer, settings.lake)
    if identity is None:
        return None
    lake = Lake(DeltaTables(session, identity.author), identity, Made(settings.checkpoint, identity))
    forget_filled(settings.checkpoint, identity)
    if is_filled(settings.checkpoint):
        lake.check_signed()
    else:
        authors = lake.others()
        # Sign before filling, so that a later checkpoint finds this author and closes it out.
        lake.sign()
        begins, ends = offsets.begins(settings.sink_topic), offsets.ends(settings.sink_topic)
        told = lake.lacks_from(sorted(state.tables)) if authors else {}
        begins |= {partition: max(offset, begins[partition]) for partition, offset in told.items()}
        count = sum(ends.values()) - sum(begins.values())
        say.emit("filling", lake=identity.root, records=count)
        found: dict[str, int] = {}
        if count:
            rows = TopicReader(session, settings).read(settings.sink_topic, begins, ends)
            rows = rows.mapInArrow(heads, HEADS_TYPE).where(F.col("topic") == settings.source_topic)
            found = lake.fill(rows if planned is None else rows.where(before(planned)), state)
        mark_filled(settings.checkpoint, identity)
        say.emit("filled", lake=identity.root, rows=found)
    lake.describe(state)
    return lake
