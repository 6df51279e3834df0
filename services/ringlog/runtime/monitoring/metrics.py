"""The table of all metrics: name, kind, labels and meaning.

Processes collect nothing only for metrics. At a scrape (``runtime.monitoring.scrape``), functions convert the state of
the process to ``Sample`` values.

Invariant: a sample whose name is not in the table cannot be served. So the reference page, the alert rules and the
dashboard have one source.

Names follow the conventions of Prometheus: the base unit is the last word, and counters are served with ``_total``.
Label values are few and known (roles, states, outcomes, codes) or node names, never tables, keys or clients.

Source: prometheus.io/docs/practices/naming.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final, Literal

from ringlog.kernel.values import Value

Kind = Literal["gauge", "counter", "histogram"]

EVERY: Final = "every agent and every node"
CERTIFIED: Final = "every agent and every node with a certificate"
READER: Final = "every node, and every active agent"
AGENT: Final = "every agent"
WORKER: Final = "every active agent"
VALIDATOR: Final = "the active validator"
COORDINATOR: Final = "the active coordinator"
ACK_READERS: Final = "the active coordinator and the active rebalancer"
NODE: Final = "every node"
JOB: Final = "the CDC job"
CONSUMER: Final = "`ringlog cdc tail` and `ringlog cdc apply`"
IMPORT: Final = "`ringlog cdc import-debezium`"


class Metric(Value):
    """A metric. ``by`` names the processes that report it.

    ``labels`` are its own labels. Metrics of an agent also have ``role``, and those of a node ``node``.
    """

    name: str
    kind: Kind
    by: str
    meaning: str
    labels: tuple[str, ...] = ()

    @property
    def served(self) -> tuple[str, ...]:
        """The metric names for queries."""
        if self.kind == "histogram":
            return tuple(f"{self.name}_{part}" for part in ("bucket", "sum", "count"))
        return (f"{self.name}_total",) if self.kind == "counter" else (self.name,)


class Durations:
    """A histogram of durations: counts by upper bound in seconds. One thread adds, any thread may read."""

    BOUNDS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)

    def __init__(self) -> None:
        self._counts = [0] * (len(self.BOUNDS) + 1)
        self.total_s = 0.0

    def add(self, seconds: float) -> None:
        """Count one duration."""
        self._counts[bisect_left(self.BOUNDS, seconds)] += 1
        self.total_s += seconds

    def buckets(self) -> list[tuple[str, float]]:
        """Return (upper bound, cumulative count) pairs, ascending. The last bound is ``+Inf``."""
        found, below = [], 0
        for bound, count in zip((*map(str, self.BOUNDS), "+Inf"), tuple(self._counts), strict=True):
            below += count
            found.append((bound, float(below)))
        return found


class Sample(Value):
    """A value of the metric ``name``. ``labels`` contains the label values in the table's order."""

    name: str
    value: float | Durations
    labels: tuple[str, ...] = ()


_ROWS: Final = (
    Metric("ringlog_release_info", "gauge", EVERY, "Always 1; a label has the release.", ("release",)),
    Metric("ringlog_clock_seconds", "gauge", EVERY, "The process's own clock; compare it with `timestamp()`."),
    Metric(
        "ringlog_certificate_expires_seconds",
        "gauge",
        CERTIFIED,
        "Expiry time of the certificate or its authority, seconds since 1970.",
    ),
    Metric("ringlog_epoch", "gauge", READER, "The newest epoch that the process has applied."),
    Metric(
        "ringlog_log_behind_records",
        "gauge",
        READER,
        "Known records of the metadata log that the process has not read yet.",
    ),
    Metric(
        "ringlog_log_silent_seconds",
        "gauge",
        READER,
        "Seconds without an answer of the broker about the end of the metadata log; asked every five seconds.",
    ),
    Metric("ringlog_log_halted", "gauge", READER, "1: the process has stopped reading the log permanently."),
    Metric("ringlog_log_time_seconds", "gauge", READER, "The log's time: the latest clock of an author so far."),
    Metric(
        "ringlog_log_records",
        "counter",
        READER,
        "Records of the metadata log read since the start, by outcome.",
        ("outcome",),
    ),
    Metric("ringlog_agent_ready", "gauge", AGENT, "1: `/health` reports the agent as ready."),
    Metric(
        "ringlog_agent_state",
        "gauge",
        AGENT,
        "1 for the current state of the agent, 0 for the other states.",
        ("state",),
    ),
    Metric("ringlog_agent_term", "gauge", WORKER, "The term of the agent in its role; 0: none yet."),
    Metric("ringlog_agent_handled_epoch", "gauge", WORKER, "The last epoch whose work the role has finished."),
    Metric(
        "ringlog_agent_refused_proposals",
        "gauge",
        WORKER,
        "Commands of the role that are rejected; `ringlog status` lists them with the reason.",
    ),
    Metric("ringlog_agent_broken_state", "gauge", WORKER, "1: the state breaks an invariant of this release."),
    Metric("ringlog_validator_waiting_requests", "gauge", VALIDATOR, "Requests without an answer yet."),
    Metric("ringlog_validator_answers", "counter", VALIDATOR, "Requests answered since the start.", ("outcome",)),
    Metric(
        "ringlog_validator_refused",
        "counter",
        VALIDATOR,
        "Requests that their sender may not send, by the code of the answer. The log has `request_refused`.",
        ("code",),
    ),
    Metric(
        "ringlog_validator_answer_seconds",
        "histogram",
        VALIDATOR,
        "Time from the read of a record of requests to its last answer.",
    ),
    Metric(
        "ringlog_validator_commit_seconds",
        "histogram",
        VALIDATOR,
        "Time from the append of a batch to the outcome of its last entry in the log.",
    ),
    Metric("ringlog_cluster_nodes", "gauge", COORDINATOR, "Nodes of the directory, by their state.", ("state",)),
    Metric("ringlog_cluster_nodes_down", "gauge", COORDINATOR, "Nodes that were declared down."),
    Metric("ringlog_cluster_service_members", "gauge", COORDINATOR, "Log replicas of the metadata service."),
    Metric("ringlog_cluster_in_recovery", "gauge", COORDINATOR, "1: the cluster is in recovery."),
    Metric("ringlog_cluster_pauses", "gauge", COORDINATOR, "Kinds of changes that are paused."),
    Metric(
        "ringlog_cluster_settled_seconds",
        "gauge",
        COORDINATOR,
        "The validation watermark, seconds since 1970. A value in the far future comes from a wrong clock.",
    ),
    Metric(
        "ringlog_operations", "gauge", COORDINATOR, "Operations in flight, by the reason of their wait.", ("waits_for",)
    ),
    Metric(
        "ringlog_operations_oldest_seconds",
        "gauge",
        COORDINATOR,
        "Seconds that the oldest of them has been in its stage; 0 without any.",
        ("waits_for",),
    ),
    Metric(
        "ringlog_tablets_on_their_way",
        "gauge",
        COORDINATOR,
        "Migrating tablets, by the reason of their wait.",
        ("waits_for",),
    ),
    Metric("ringlog_awaited_nodes", "gauge", COORDINATOR, "Nodes that operations and tablets wait for."),
    Metric(
        "ringlog_awaited_node",
        "gauge",
        COORDINATOR,
        "Operations and tablets that wait for the node. Shows at most fifty nodes, the most awaited first.",
        ("node",),
    ),
    Metric(
        "ringlog_node_heard_seconds",
        "gauge",
        COORDINATOR,
        "Append time of the node's last load report, seconds since 1970. Omits nodes that left or were declared down. "
        "Shows at most fifty nodes, the longest silent first.",
        ("node",),
    ),
    Metric("ringlog_snapshot_epoch", "gauge", COORDINATOR, "Epoch of the newest confirmed snapshot; 0: there is none."),
    Metric("ringlog_archive_epoch", "gauge", COORDINATOR, "The last epoch in the archive; 0: no archive."),
    Metric(
        "ringlog_log_begin_epoch",
        "gauge",
        COORDINATOR,
        "The first epoch of the log after a truncation; 0: not truncated.",
    ),
    Metric(
        "ringlog_acks_rejected",
        "counter",
        ACK_READERS,
        "Acknowledgements without a valid MAC of their node; counted only if `ack.master` exists.",
    ),
    Metric("ringlog_cdc_writers", "gauge", COORDINATOR, "CDC writers, by live and fenced.", ("state",)),
    Metric(
        "ringlog_cdc_writers_low_watermark_seconds",
        "gauge",
        COORDINATOR,
        "The lowest low-watermark of the live writers in the log, seconds since 1970. It rises only when a "
        "generation is sealed, so its age is not a lag.",
    ),
    Metric(
        "ringlog_cdc_writers_behind_offsets",
        "gauge",
        COORDINATOR,
        "Mutations behind the positions that the live writer with the most of them has reported to the log. Measured "
        "every 15 seconds, also without the job; missing while unknown.",
    ),
    Metric(
        "ringlog_cdc_writers_behind_seconds",
        "gauge",
        COORDINATOR,
        "Age of the oldest mutation behind the reported positions of a live writer; 0 without any. A healthy writer "
        "stays below half of `cdc_horizon_lead_us` plus its batch.",
    ),
    Metric("ringlog_node_ready", "gauge", NODE, "1: `/health` reports the node as ready."),
    Metric("ringlog_node_acknowledged_epoch", "gauge", NODE, "The newest epoch that the node has acknowledged."),
    Metric("ringlog_node_rows_epoch", "gauge", NODE, "The epoch of the node's rows."),
    Metric("ringlog_node_known_epoch", "gauge", NODE, "The newest epoch known from the log or a peer."),
    Metric("ringlog_node_registers_epoch", "gauge", NODE, "The epoch of the node's registers."),
    Metric("ringlog_node_rows", "gauge", NODE, "Row versions that the node stores."),
    Metric("ringlog_node_registers", "gauge", NODE, "Registers that the node stores."),
    Metric("ringlog_node_registers_pending", "gauge", NODE, "Register writes that are not synced yet."),
    Metric(
        "ringlog_node_disk_bytes",
        "gauge",
        NODE,
        "Size of the node's files: `rows`, `registers` (journal and image), `log_copy` (of a member).",
        ("of",),
    ),
    Metric(
        "ringlog_node_writes",
        "counter",
        NODE,
        "Writes of the mutations topic validated since the start: `kept`, `not_mine`, or the code of the rejection.",
        ("verdict",),
    ),
    Metric(
        "ringlog_node_mutations_behind_records",
        "gauge",
        NODE,
        "Known offsets of the mutations topic that the node has not validated yet.",
    ),
    Metric(
        "ringlog_node_streams",
        "gauge",
        NODE,
        "Open streams that the node receives: `rows` or `registers`.",
        ("of",),
    ),
    Metric("ringlog_node_stream_tries", "gauge", NODE, "Failed attempts of open streams, in total."),
    Metric(
        "ringlog_node_streams_given_up",
        "gauge",
        NODE,
        "Streams that failed the maximum number of attempts; their operation waits for an operator's decision.",
    ),
    Metric("ringlog_node_copy_epoch", "gauge", NODE, "The last epoch in the log replica's copy of the log."),
    Metric(
        "ringlog_node_clock_ahead_seconds",
        "gauge",
        NODE,
        "How far the node's clock is ahead of the broker's: the least of the last eight writes that came while nothing "
        "was behind, their way to the node included.",
    ),
    Metric("ringlog_cdc_mutations", "counter", JOB, "Mutations that the job has processed."),
    Metric("ringlog_cdc_rows", "counter", JOB, "Rows that the job has written, by generation.", ("generation",)),
    Metric("ringlog_cdc_rejected", "counter", JOB, "Mutations in the dead letters, by reason.", ("reason",)),
    Metric("ringlog_cdc_skipped", "counter", JOB, "Mutations without a row, which need none."),
    Metric(
        "ringlog_cdc_one_by_one",
        "counter",
        JOB,
        "Mutations that the job has not processed in bulk, by reason. They take longer.",
        ("reason",),
    ),
    Metric("ringlog_cdc_batches", "counter", JOB, "Finished batches."),
    Metric("ringlog_cdc_held_seconds", "counter", JOB, "Seconds that batches waited for a write lease."),
    Metric(
        "ringlog_cdc_rows_per_second",
        "gauge",
        JOB,
        "Mutations per second in the last batch, without waits.",
    ),
    Metric(
        "ringlog_cdc_behind_offsets",
        "gauge",
        JOB,
        "Mutations that are not durable as rows or dead letters, by the broker's present ends. NaN: not known.",
    ),
    Metric(
        "ringlog_cdc_behind_seconds",
        "gauge",
        JOB,
        "Age of the oldest of them since its append; 0 without any. NaN: not known.",
    ),
    Metric(
        "ringlog_cdc_behind_unknown_seconds",
        "gauge",
        JOB,
        "Seconds since the broker last answered, if it does not answer; else 0.",
    ),
    Metric("ringlog_cdc_waiting_seconds", "gauge", JOB, "Seconds that the current batch has waited for a write lease."),
    Metric("ringlog_cdc_epoch", "gauge", JOB, "Metadata epoch of the last batch."),
    Metric(
        "ringlog_cdc_generation_seconds", "gauge", JOB, "Start of the newest generation in use, seconds since 1970."
    ),
    Metric(
        "ringlog_cdc_low_watermark_seconds",
        "gauge",
        JOB,
        "Low-watermark: all rows below are durable in the CDC topic, seconds since 1970. It rises only when a "
        "generation is sealed, so its age is not a lag.",
    ),
    Metric(
        "ringlog_cdc_horizon_seconds",
        "gauge",
        JOB,
        "Write lease: the writer routes only writes below, seconds since 1970.",
    ),
    Metric("ringlog_cdc_reader_changes", "counter", CONSUMER, "Changes that the command has read."),
    Metric(
        "ringlog_cdc_reader_behind_offsets",
        "gauge",
        CONSUMER,
        "Rows of the CDC topic that the command has not read, by the broker's present ends. NaN: not known.",
    ),
    Metric(
        "ringlog_cdc_reader_behind_seconds",
        "gauge",
        CONSUMER,
        "Age of the oldest of them since the job wrote it; 0 without any. NaN: not known.",
    ),
    Metric(
        "ringlog_cdc_reader_behind_unknown_seconds",
        "gauge",
        CONSUMER,
        "Seconds since the broker last answered, if it does not answer; else 0.",
    ),
    Metric(
        "ringlog_import_events",
        "counter",
        IMPORT,
        "Change events read since the start: `mutations`, `refused`, `tombstones`, `unchanged`.",
        ("outcome",),
    ),
)

ALL_METRICS: Final = {figure.name: figure for figure in _ROWS}
"""Metrics by name, in the order of the reference page."""
