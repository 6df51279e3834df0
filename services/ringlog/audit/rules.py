"""Which writes must be refused, worked out the plain way from what the documentation promises.

The first rule that applies counts, in the order of the code below. The acceptance window is that of ScyllaDB, with the
time at which the broker appended the write as the present.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ringlog.audit.streams import PublishedGeneration, generation_for

LEEWAY_US = 5_000_000
LONGEST_COMPONENT = 65_535
CDC_OPERATIONS = {"UPDATE": 1, "INSERT": 2, "ROW_DELETE": 3, "PARTITION_DELETE": 4}
"""Operation of a write to the number in its CDC row."""

SKIPPED = "skipped"
"""Not refused, and not in the CDC log either: its table keeps none."""


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """What the topic ``schema`` says of a table: numbers of key columns, and whether it keeps a CDC log."""

    partition_key: int
    clustering_key: int
    cdc: bool


@dataclass(frozen=True, slots=True)
class Rules:
    """All that refusals depend on. ``cluster_id``: 16 bytes."""

    cluster_id: bytes
    tables: dict[str, PublishedTable]
    generations: list[PublishedGeneration]
    leeway: int

    def refusal(self, write: dict[str, Any], now: int) -> str:
        """The reason for which a write, appended at ``now`` (microseconds), must be a dead letter; else empty."""
        if write["cluster_id"] not in (None, self.cluster_id):
            return "foreign_cluster"
        table = self.tables.get(f"{write['keyspace']}.{write['table']}")
        if table is None:
            return "unknown_table"
        if not table.cdc:
            return SKIPPED
        if write["operation"] not in CDC_OPERATIONS:
            return "unknown_operation"
        key, clustering = write["partition_key"], write["clustering_key"]
        if len(key) == 0 or None in key:
            return "null_partition_key"
        wanted = 0 if write["operation"] == "PARTITION_DELETE" else table.clustering_key
        if len(key) != table.partition_key or len(clustering) != wanted or None in clustering:
            return "bad_key"
        if any(len(part) > LONGEST_COMPONENT for part in key):
            return "bad_key"
        return self._outside(write["timestamp"], now)

    def _outside(self, timestamp: int, now: int) -> str:
        if timestamp > now + self.leeway:
            return "timestamp_in_future"
        own = generation_for(self.generations, timestamp)
        if own is None:
            return "no_generation"
        if timestamp <= now - self.leeway and own is not generation_for(self.generations, now):
            return "timestamp_too_old"
        return ""
