"""The start of a job with a lake: it signs, fills what is missing from the CDC topic, and brings descriptions in step.

A lake is filled once for each checkpoint that meets it, before its first batch. A new lake gets what the topic has. One
that an earlier checkpoint of the same writer has written to lacks at most what came after that one's newest commit.
Rows of plan parts that are stored and not carried out are left to these. A lake that was filled and is another one now,
or has lost a table, is not begun anew: what came in between would be missing, and nobody would know.
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
    """The lake of the job, with everything that the CDC topic has; None if it has no lake.

    ``planned``: source partition to the first offset that is left to plan parts; None: all that is in the topic is
    carried out. Raises CdcError.
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
