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
from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["gauge", "counter", "histogram"]

EVERY: Final = "every agent and every node"
CERTIFIED: Final = "every agent and every node with a certificate"
READER: Final = "every node, and every agent that has its role"
AGENT: Final = "every agent"
WORKER: Final = "every agent that has its role"
VALIDATOR: Final = "the validator that has its role"
COORDINATOR: Final = "the coordinator that has its role"
ACK_READERS: Final = "the coordinator and the rebalancer that have their roles"
NODE: Final = "every node"
JOB: Final = "the CDC job"


@dataclass(frozen=True, slots=True)
class Metric:
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


@dataclass(frozen=True, slots=True)
class Sample:
    """A value of the metric ``name``. ``labels`` contains the label values in the table's order."""

    name: str
    value: float | Durations
    labels: tuple[str, ...] = ()


_ROWS: Final = (
    Metric("ringlog_release_info", "gauge", EVERY, "1; the release that runs.", ("release",)),
    Metric("ringlog_clock_seconds", "gauge", EVERY, "The process's own clock; compare it with `timestamp()`."),
    Metric(
        "ringlog_certificate_expires_seconds",
        "gauge",
        CERTIFIED,
        "When its certificate or its authority expires.",
    ),
    Metric("ringlog_epoch", "gauge", READER, "The newest epoch that the process has folded."),
    Metric(
        "ringlog_log_behind_records",
        "gauge",
        READER,
        "Records of the metadata log that the process has not read, of those that it knows of.",
    ),
    Metric(
        "ringlog_log_silent_seconds",
        "gauge",
        READER,
        "Since when the broker has not said where the metadata log ends; asked every five seconds.",
    ),
    Metric("ringlog_log_halted", "gauge", READER, "1: the process reads the log no further, for good."),
    Metric("ringlog_log_time_seconds", "gauge", READER, "The log's time: the latest clock of an author so far."),
    Metric(
        "ringlog_log_records",
        "counter",
        READER,
        "Records of the metadata log that were read since the start, by what became of them.",
        ("outcome",),
    ),
    Metric("ringlog_agent_ready", "gauge", AGENT, "1: `/health` says that the agent is ready."),
    Metric(
        "ringlog_agent_state", "gauge", AGENT, "1 for the state that the agent is in, 0 for the others.", ("state",)
    ),
    Metric("ringlog_agent_term", "gauge", WORKER, "The term in which the agent has the role; 0: it has none yet."),
    Metric("ringlog_agent_handled_epoch", "gauge", WORKER, "The epoch up to which the role's work is done."),
    Metric(
        "ringlog_agent_refused_proposals",
        "gauge",
        WORKER,
        "What the role would do and is refused; `ringlog status` says what and why.",
    ),
    Metric("ringlog_agent_broken_state", "gauge", WORKER, "1: the folded state breaks an invariant of this release."),
    Metric("ringlog_validator_waiting_requests", "gauge", VALIDATOR, "Requests that were read and have no answer yet."),
    Metric(
        "ringlog_validator_answers", "counter", VALIDATOR, "Requests that were answered since the start.", ("outcome",)
    ),
    Metric(
        "ringlog_validator_answer_seconds",
        "histogram",
        VALIDATOR,
        "From when a record of requests was read to when all of it was answered.",
    ),
    Metric(
        "ringlog_validator_commit_seconds",
        "histogram",
        VALIDATOR,
        "From when the first entries of a batch were appended to when the log showed what became of all.",
    ),
    Metric("ringlog_cluster_nodes", "gauge", COORDINATOR, "Nodes of the directory, by their state.", ("state",)),
    Metric("ringlog_cluster_nodes_down", "gauge", COORDINATOR, "Nodes that were declared down."),
    Metric("ringlog_cluster_service_members", "gauge", COORDINATOR, "Members of the metadata service."),
    Metric("ringlog_cluster_in_recovery", "gauge", COORDINATOR, "1: a recovery goes on."),
    Metric("ringlog_cluster_pauses", "gauge", COORDINATOR, "Kinds of changes that are paused."),
    Metric(
        "ringlog_cluster_settled_seconds",
        "gauge",
        COORDINATOR,
        "The settled time, seconds since 1970: one of the far future was left by a clock.",
    ),
    Metric("ringlog_operations", "gauge", COORDINATOR, "Operations in flight, by what they wait for.", ("waits_for",)),
    Metric(
        "ringlog_operations_oldest_seconds",
        "gauge",
        COORDINATOR,
        "How long the oldest of them has been in its stage; 0 where there is none.",
        ("waits_for",),
    ),
    Metric(
        "ringlog_tablets_on_their_way",
        "gauge",
        COORDINATOR,
        "Tablets in transition, by what they wait for.",
        ("waits_for",),
    ),
    Metric("ringlog_awaited_nodes", "gauge", COORDINATOR, "Nodes that operations and tablets wait for."),
    Metric(
        "ringlog_awaited_node",
        "gauge",
        COORDINATOR,
        "How many operations and tablets wait for that node; of many nodes the fifty that most wait for.",
        ("node",),
    ),
    Metric(
        "ringlog_node_heard_seconds",
        "gauge",
        COORDINATOR,
        "When the broker took the last load report of that node, seconds since 1970; nodes that left or were declared "
        "down are left out, of many nodes the fifty that have been silent for longest are shown.",
        ("node",),
    ),
    Metric("ringlog_snapshot_epoch", "gauge", COORDINATOR, "Epoch of the newest confirmed snapshot; 0: there is none."),
    Metric("ringlog_archive_epoch", "gauge", COORDINATOR, "Up to which epoch the archive holds the log; 0: none does."),
    Metric(
        "ringlog_log_begin_epoch", "gauge", COORDINATOR, "The epoch that the log may begin with; 0: it was not cut."
    ),
    Metric(
        "ringlog_acks_not_believed",
        "counter",
        ACK_READERS,
        "Acknowledgements without a code by the key of their node; only counted where there is an `ack.master`.",
    ),
    Metric("ringlog_cdc_writers", "gauge", COORDINATOR, "CDC writers, live and fenced ones.", ("state",)),
    Metric(
        "ringlog_cdc_writers_low_watermark_seconds",
        "gauge",
        COORDINATOR,
        "What the live writer that is farthest behind has made durable, as the log knows it, seconds since 1970.",
    ),
    Metric("ringlog_node_ready", "gauge", NODE, "1: `/health` says that the node is ready."),
    Metric("ringlog_node_acknowledged_epoch", "gauge", NODE, "The newest epoch that the node has acknowledged."),
    Metric("ringlog_node_rows_epoch", "gauge", NODE, "The epoch under which the node keeps rows."),
    Metric("ringlog_node_known_epoch", "gauge", NODE, "The newest epoch that the log, or a peer, has shown."),
    Metric("ringlog_node_registers_epoch", "gauge", NODE, "The epoch under which the node answers for registers."),
    Metric("ringlog_node_rows", "gauge", NODE, "Versions of rows that the node holds."),
    Metric("ringlog_node_registers", "gauge", NODE, "Registers that the node holds."),
    Metric("ringlog_node_registers_pending", "gauge", NODE, "Writes of registers that are not on the disk yet."),
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
        "Writes of the mutations topic that were judged since the start: `kept`, `not_mine`, or the code of a refusal.",
        ("verdict",),
    ),
    Metric(
        "ringlog_node_mutations_behind_records",
        "gauge",
        NODE,
        "Offsets of the mutations topic that the node has not judged, of those that it knows of.",
    ),
    Metric(
        "ringlog_node_streams",
        "gauge",
        NODE,
        "Streams that the node waits for: of `rows`, of `registers`.",
        ("of",),
    ),
    Metric("ringlog_node_stream_tries", "gauge", NODE, "How often open streams were asked for in vain, in all."),
    Metric(
        "ringlog_node_streams_given_up",
        "gauge",
        NODE,
        "Streams that were asked for in vain as often as may be; then an operation waits for an operator's decision.",
    ),
    Metric("ringlog_node_copy_epoch", "gauge", NODE, "Up to which epoch the copy of the log goes that a member keeps."),
    Metric(
        "ringlog_node_clock_ahead_seconds",
        "gauge",
        NODE,
        "How far the node's clock is ahead of the broker's: the least of the last eight writes that came while nothing "
        "was behind, their way to the node included.",
    ),
    Metric("ringlog_cdc_mutations", "counter", JOB, "Mutations that were carried out."),
    Metric(
        "ringlog_cdc_rows", "counter", JOB, "Rows that were written, by the generation they lie in.", ("generation",)
    ),
    Metric("ringlog_cdc_rejected", "counter", JOB, "Mutations that went to the dead letters, by reason.", ("reason",)),
    Metric("ringlog_cdc_skipped", "counter", JOB, "Mutations that have no row and need none."),
    Metric("ringlog_cdc_batches", "counter", JOB, "Batches that were finished."),
    Metric("ringlog_cdc_held_seconds", "counter", JOB, "Seconds for which batches waited for a horizon."),
    Metric(
        "ringlog_cdc_rows_per_second",
        "gauge",
        JOB,
        "Mutations a second in the last batch, without the time it waited.",
    ),
    Metric(
        "ringlog_cdc_behind", "gauge", JOB, "Offsets of one source partition that lie behind the last batch, at most."
    ),
    Metric("ringlog_cdc_waiting_seconds", "gauge", JOB, "For how long the batch in hand has waited for a horizon."),
    Metric("ringlog_cdc_epoch", "gauge", JOB, "Epoch of the metadata that the last batch was decided with."),
    Metric(
        "ringlog_cdc_generation_seconds", "gauge", JOB, "Start of the newest generation in use, seconds since 1970."
    ),
    Metric(
        "ringlog_cdc_low_watermark_seconds",
        "gauge",
        JOB,
        "Everything below is durable in the log of changes, seconds since 1970.",
    ),
    Metric("ringlog_cdc_horizon_seconds", "gauge", JOB, "The writer routes only what lies below, seconds since 1970."),
)

ALL_METRICS: Final = {figure.name: figure for figure in _ROWS}
"""Metrics by name, in the order of the reference page."""
