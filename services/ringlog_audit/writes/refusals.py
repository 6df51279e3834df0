"""The rules for rejecting writes, derived directly from the documentation.

The first matching rule applies, in the order of the code below. The acceptance window is that of ScyllaDB, with the
broker's append time of the write as the current time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ringlog.kernel.values import Value
from ringlog_audit.rules.compound import AuditColumns, columns_named, refusal, statements
from ringlog_audit.rules.lateness import Leeways
from ringlog_audit.rules.streams import PublishedGeneration, compose, generation_for
from ringlog_audit.rules.values import element_type, is_of_type, logged_type
from ringlog_audit.writes.history import AuditVersion, TableHistory

LONGEST_COMPONENT = 65_535
CDC_OPERATIONS = {"UPDATE": 1, "INSERT": 2, "ROW_DELETE": 3, "PARTITION_DELETE": 4}
"""Operation of a write to the number in its CDC row."""

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


class AuditRules(Value):
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
        record_key: bytes | None,
        compound: bool = False,
        epoch: int | None = None,
    ) -> str:
        """Return the reason to reject a write appended at ``now`` (microseconds), or empty text.

        ``version``: the version that reads it, or the reason why there is none. ``compound``: the write is compound and
        decoded completely; otherwise only the fields up to its cells are checked. ``epoch``: epoch of the decision,
        None if not known. ``record_key``: key of the record.
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
        if not _has_typed_keys(write, columns):
            return "bad_key_type"
        if record_key != f"{write['keyspace']}.{write['table']}\0".encode() + compose(key):
            return "wrong_record_key"
        if not version.table.names.issuperset(columns_named(write)):
            return "unknown_column"
        if not _has_typed_values(write, version):
            return "bad_value_type"
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


def _has_typed_keys(write: dict[str, Any], columns: AuditColumns) -> bool:
    """Return True if all components of keys and bounds are of the types of their columns."""
    keys = [(columns.partition, write["partition_key"])]
    for one in statements(write):
        keys.append((columns.clustering, one["clustering_key"]))
        if one["bounds"] is not None:
            keys += [(columns.clustering, one["bounds"][side]) for side in ("start", "end")]
    pairs = (pair for kinds, parts in keys for pair in zip(kinds, parts, strict=False))
    return all(part is None or is_of_type(kind, part) for kind, part in pairs)


def _has_typed_values(write: dict[str, Any], version: AuditVersion) -> bool:
    """Return True if all values and all keys of deleted elements are of the types of their columns."""
    table = version.table
    for one in statements(write):
        for cell in one["cells"]:
            name = table.stored.get(cell["column"], cell["column"])
            kind = logged_type(table.types[name])
            if cell["value"] is not None and not is_of_type(kind, cell["value"]):
                return False
        for taken in one["deleted_elements"]:
            whole = table.columns.collections.get(table.stored.get(taken["column"], taken["column"]))
            if whole is not None and not all(is_of_type(element_type(whole), key) for key in taken["keys"]):
                return False
    return True
