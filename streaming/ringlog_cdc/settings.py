"""What one run of the CDC job needs to know."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class JobSettings:
    """``checkpoint`` is a local folder. A row larger than ``row_bytes_max`` becomes a dead letter.

    ``stop_when_idle``: end once everything that is in the mutations topic is durable in the CDC topic.
    ``metrics_port``: where Prometheus finds the figures; None: nowhere, 0: a free port.
    ``direct``: append promises to the log without a validator (recovery, tests). ``producer``: (name, value) options of
    the Kafka producers that write rows and dead letters, by Kafka's names: credentials that a fence can take away.
    ``lake``: folder or address that gets the rows as Delta tables, too; None: nowhere.
    ``image_ttl_s``: seconds after which a row that nobody writes has no preimage any more; 0: it always has.
    ``images_anew``: where the states that images are made of were lost, begin without them.
    """

    bootstrap_servers: str
    cluster: str
    checkpoint: Path
    writer: str = "spark"
    max_offsets_per_trigger: int = 500_000
    trigger_seconds: float = 1.0
    row_bytes_max: int = 1_048_576
    stop_when_idle: bool = False
    direct: bool = False
    metrics_port: int | None = None
    producer: tuple[tuple[str, str], ...] = ()
    lake: str | None = None
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
