"""Opening a lake at the start of a job: sign it, fill it from the CDC topic, update its descriptions.

A lake is filled once per checkpoint, before the first batch. A new lake gets everything in the topic. A lake of an
earlier checkpoint of the same writer and tables lacks at most the rows since its newest commit. Rows of stored but
unfinished plan parts are left to these parts. If a filled lake was replaced or has lost a table, the job stops instead
of starting over: rows in between would be missing without notice.

The rows of the topic can be older than the table versions of the state. To fill a lake, the metadata log is therefore
read from its beginning.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from ringlog.client.cdc.schema import ANSWER_S, SchemaFollower
from ringlog.client.cdc.table_versions import TableVersions
from ringlog.kernel.model.state import ClusterState
from ringlog.log.replicas.replica import LogReplica
from ringlog_cdc.lake.columns import ids_of, versions_in
from ringlog_cdc.lake.delta import DeltaTables
from ringlog_cdc.lake.identity import Made, forget_filled, identify, is_filled, mark_filled
from ringlog_cdc.lake.sink import HEADS_TYPE, Lake, heads
from ringlog_cdc.report.progress import BatchProgress
from ringlog_cdc.settings import JobSettings
from ringlog_cdc.topics.frames import TopicReader, before
from ringlog_cdc.topics.source import Offsets

Known = Callable[[ClusterState], TableVersions]
"""Function from a state to the table versions up to it."""


def open_lake(
    session: SparkSession,
    settings: JobSettings,
    state: ClusterState,
    planned: Mapping[int, int] | None,
    offsets: Offsets,
    say: BatchProgress,
    known: Known = versions_in,
) -> Lake | None:
    """Open the lake of the job and fill it. Return None if the job has no lake.

    Args:
        session: Spark session.
        settings: Settings of the job.
        state: Cluster state.
        planned: Source partition to the first offset that is left to plan parts. None: no part is unfinished.
        offsets: Client for offsets.
        say: Progress of the job.
        known: Function from a state to the table versions up to it.

    Raises:
        CdcError: The lake is not the checkpoint's, or is unreadable.
        LogError: The metadata log cannot be read.
    """
    identity = identify(settings.checkpoint, state.cluster_id, settings.writer, settings.lake, settings.lake_tables)
    if identity is None:
        return None
    delta, made = DeltaTables(session, identity.author), Made(settings.checkpoint, identity)
    lake = Lake(delta, identity, made, known=known)
    forget_filled(settings.checkpoint, identity)
    if is_filled(settings.checkpoint):
        lake.check_signed()
        if lake.names.facts.dropped(state.tables):
            # A table was dropped while no driver was running. The log has the epoch.
            lake.names.keep(whole_history(settings))
    else:
        authors = lake.others()
        # Sign before filling, so that a later checkpoint finds this author and closes it out.
        lake.sign(state.epoch)
        begins, ends = offsets.begins(settings.sink_topic), offsets.ends(settings.sink_topic)
        told = lake.lacks_from(sorted(state.tables)) if authors and lake.has_same_tables() else {}
        begins |= {partition: max(offset, begins[partition]) for partition, offset in told.items()}
        count = sum(ends.values()) - sum(begins.values())
        say.emit("filling", lake=identity.root, records=count)
        found, history = dict[str, int](), whole_history(settings)
        lake.names.keep(history)
        if count:
            rows = TopicReader(session, settings).read(settings.sink_topic, begins, ends)
            rows = rows.mapInArrow(heads, HEADS_TYPE).where(F.col("topic") == settings.source_topic)
            found = lake.fill(rows if planned is None else rows.where(before(planned)), history, ids_of(state))
        mark_filled(settings.checkpoint, identity)
        say.emit("filled", lake=identity.root, rows=found)
    lake.describe(state)
    return lake


def follow_tables(replica: LogReplica, opened: Callable[[Callable[[], None]], None]) -> Known:
    """Follow the tables of a replica. Return the function from a state of it to the table versions up to that state.

    Args:
        replica: The replica.
        opened: Receives the function that ends the subscription.
    """
    found = TableVersions()

    def follow(before: ClusterState, after: ClusterState, *_: object) -> None:
        found.begin(before)
        found.record_step(before, after)

    subscription = replica.subscribe(follow, replica.halt_on_defect)
    opened(subscription.close)
    # Without effect if a step came in between.
    found.begin(subscription.state)

    def known(state: ClusterState) -> TableVersions:
        what = f"the tables of epoch {state.epoch}"
        return replica.wait_for(lambda _: found if found.epoch >= state.epoch else None, ANSWER_S, what)

    return known


def whole_history(settings: JobSettings) -> TableVersions:
    """Return all table versions, as far back as the metadata log has them. Raises LogError."""
    follower = SchemaFollower(settings.bootstrap_servers, settings.cluster).start()
    try:
        return follower.whole()
    finally:
        follower.close()
