"""The rules for rejecting writes, derived directly from the documentation.

The first matching rule applies, in the order of the code below. The acceptance window is that of ScyllaDB, with the
broker's append time of the write as the current time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ringlog_audit.rules.compound import columns_named, is_of_type, refusal, statements
from ringlog_audit.rules.lateness import Leeways
from ringlog_audit.rules.streams import PublishedGeneration, generation_for
from ringlog_audit.writes.history import AuditVersion, TableHistory

LONGEST_COMPONENT = 65_535
CDC_OPERATIONS = {"UPDATE": 1, "INSERT": 2, "ROW_DELETE": 3, "PARTITION_DELETE": 4}
"""Operation of a write to the number in its CDC row."""

NAMES = "names"
"""The key of a partly decoded write under which the column names of its cells are stored."""

SKIPPED = "skipped"
"""The write is accepted, but its table has no CDC log."""


def _logged(one: dict[str, Any], columns: Mapping[str, str]) -> dict[str, Any]:
    return one | {
        "cells": [cell | {"column": columns.get(cell["column"], cell["column"])} for cell in one["cells"]],
        "deleted_elements": [
            taken | {"column": columns.get(taken["column"], taken["column"])} for taken in one["deleted_elements"]
        ],
        "replaced": [columns.get(name, name) for name in one["replaced"]],
    }


def as_logged(write: dict[str, Any], version: AuditVersion) -> dict[str, Any]:
    """Return a decoded write with the column names that log rows use. ``version``: the version that reads it."""
    names = version.table.stored
    if not names:
        return write
    return write | _logged(write, names) | {"more": [_logged(one, names) for one in write["more"]]}


@dataclass(frozen=True, slots=True)
class AuditRules:
    """All inputs for rejecting writes. ``cluster_id``: 16 bytes."""

    cluster_id: bytes
    history: TableHistory
    generations: list[PublishedGeneration]
    leeways: Leeways

    def refusal(
        self,
        write: dict[str, Any],
        version: AuditVersion | str,
        now: int,
        compound: bool = False,
        epoch: int | None = None,
    ) -> str:
        """Return the reason to reject a write appended at ``now`` (microseconds), or empty text.

        ``version``: the version that reads it, or the reason why there is none. ``compound``: the write is compound and
        decoded completely; otherwise only the fields before its cells are checked. ``epoch``: the epoch at which the
        write was validated, None if not known.
        """
        if write["cluster_id"] not in (None, self.cluster_id):
            return "foreign_cluster"
        if self.history.is_forgotten(now, epoch):
            return "verdict_forgotten"
        if isinstance(version, str):
            return version
        columns, operation = version.table.columns, write["operation"]
        if operation not in CDC_OPERATIONS and operation != "RANGE_DELETE":
            return "unknown_operation"
        key, clustering = write["partition_key"], write["clustering_key"]
        if len(key) == 0 or None in key:
            return "null_partition_key"
        wanted = 0 if operation == "PARTITION_DELETE" else len(columns.clustering)
        if len(key) != len(columns.partition) or any(len(part) > LONGEST_COMPONENT for part in key):
            return "bad_key"
        if not compound and (len(clustering) != wanted or None in clustering):
            return "bad_key"
        if not all(is_of_type(kind, part) for kind, part in zip(columns.partition, key, strict=True)):
            return "bad_key_type"
        if not version.table.names.issuperset(write[NAMES] if NAMES in write else columns_named(write)):
            return "unknown_column"
        if compound and (reason := refusal(as_logged(write, version), columns)):
            return reason
        if not version.table.cdc:
            return SKIPPED
        timestamps = [one["timestamp"] for one in statements(write)] if compound else [write["timestamp"]]
        windows = (self._outside(timestamp, now, epoch) for timestamp in timestamps)
        return next(filter(None, windows), "")

    def _outside(self, timestamp: int, now: int, epoch: int | None) -> str:
        if timestamp > now + self.leeways.ahead(now, epoch):
            return "timestamp_in_future"
        if generation_for(self.generations, timestamp) is None:
            return "no_generation"
        later = [generation for generation in self.generations if generation.timestamp > timestamp]
        if later and later[0].timestamp <= now and timestamp <= now - self.leeways.at_epoch(later[0].committed):
            return "timestamp_too_old"
        return ""
