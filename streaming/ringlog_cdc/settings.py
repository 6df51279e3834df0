"""Settings of one run of the CDC job."""

from __future__ import annotations

from pathlib import Path

from ringlog.kernel.values import Value


class JobSettings(Value):
    """Settings of the job.

    Attributes:
        checkpoint: Local folder of plans, offsets and progress.
        writer: Name of the CDC writer in the metadata log.
        max_offsets_per_trigger: Most mutations in a batch.
        trigger_seconds: Minimum time between two batches.
        row_bytes_max: Larger CDC rows become dead letters.
        stop_when_idle: Stop once every mutation in the topic is durable in the CDC topic.
        direct: Append promises to the log without a validator, for recovery and tests.
        metrics_port: Port for Prometheus. None: no metrics. 0: a free port.
        producer: (name, value) options of the Kafka producers for rows and dead letters, such as credentials that a
            fence can revoke.
        lake: Folder or address for the rows as Delta tables, in addition to the topic.
        lake_tables: Patterns of the full names of tables that the lake gets, as in a shell. Empty: all tables.
        image_ttl_s: Seconds without a write until a row has no preimage. 0: no limit.
        images_anew: Start without image states if they were lost.
    """

    bootstrap_servers: str
    cluster: str
    checkpoint: Path
    writer: str = "spark"
    max_offsets_per_trigger: int = 500_000
    trigger_seconds: float = 0.5
    row_bytes_max: int = 1_048_576
    stop_when_idle: bool = False
    direct: bool = False
    metrics_port: int | None = None
    producer: tuple[tuple[str, str], ...] = ()
    lake: str | None = None
    lake_tables: tuple[str, ...] = ()
    image_ttl_s: int = 0
    images_anew: bool = False

    @property
    def source_topic(self) -> str:
        """The mutations topic."""
        return f"{self.cluster}.mutations"

    @property
    def sink_topic(self) -> str:
        """The CDC topic."""
        return f"{self.cluster}.cdc"

    @property
    def letters_topic(self) -> str:
        """The dead-letter topic."""
        return f"{self.cluster}.dead-letters"
