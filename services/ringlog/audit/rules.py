"""Which writes must be refused, worked out the plain way from what the documentation promises.

The first rule that applies counts, in the order of the code below. The acceptance window is that of ScyllaDB, with the
time at which the broker appended the write as the present.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ringlog.audit.compound import AuditColumns, columns_named, is_of_type, refusal, statements
from ringlog.audit.history import ColumnSteps
from ringlog.audit.images import Wanted
from ringlog.audit.leeway import Leeways
from ringlog.audit.streams import PublishedGeneration, generation_for

LONGEST_COMPONENT = 65_535
CDC_OPERATIONS = {"UPDATE": 1, "INSERT": 2, "ROW_DELETE": 3, "PARTITION_DELETE": 4}
"""Operation of a write to the number in its CDC row."""

NAMES = "names"
"""Stands beside what was read of a write before its cells: the columns that these name."""

SKIPPED = "skipped"
"""Not refused, and not in the CDC log either: its table keeps none."""


def _logged(one: dict[str, Any], columns: dict[str, str]) -> dict[str, Any]:
    return one | {
        "cells": [cell | {"column": columns.get(cell["column"], cell["column"])} for cell in one["cells"]],
        "deleted_elements": [
            taken | {"column": columns.get(taken["column"], taken["column"])} for taken in one["deleted_elements"]
        ],
        "replaced": [columns.get(name, name) for name in one["replaced"]],
    }


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """What the topic ``schema`` says of a table: its columns, ``names`` of those outside the key, whether it keeps a
    CDC log, and one of keys only; the images in it, if any; its id; whether columns of it were dropped or renamed;
    ``stored``: how rows call columns that have another name. ``columns`` and ``images`` have them as rows call them.
    """

    columns: AuditColumns
    names: frozenset[str]
    cdc: bool
    keys_only: bool
    images: Wanted | None = None
    id: str = ""
    respelled: bool = False
    stored: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AuditRules:
    """All that refusals depend on. ``cluster_id``: 16 bytes."""

    cluster_id: bytes
    tables: dict[str, PublishedTable]
    generations: list[PublishedGeneration]
    leeways: Leeways
    history: ColumnSteps = field(default_factory=ColumnSteps)

    def refusal(self, write: dict[str, Any], now: int, compound: bool = False, epoch: int | None = None) -> str:
        """The reason for which a write, appended at ``now`` (microseconds), must be a dead letter; else empty.

        ``compound``: it is one, and decoded whole; else only what comes before its cells is looked at. ``epoch``: at
        which it was judged; None: that is not known, and no epoch since it was appended would let it in.
        """
        if write["cluster_id"] not in (None, self.cluster_id):
            return "foreign_cluster"
        table = self.tables.get(f"{write['keyspace']}.{write['table']}")
        if table is None:
            return "unknown_table"
        version = self.history.read_by(write, now, epoch)
        is_named = write.get("table_version") is not None or write.get("epoch") is not None
        if version is None and self.history.settled and is_named:
            return "unknown_version"
        if not table.cdc:
            return SKIPPED
        columns, operation = table.columns, write["operation"]
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
        if version is None:
            known = table.names | self.history.names(f"{write['keyspace']}.{write['table']}")
        else:
            known = frozenset(version.columns)
        if not known.issuperset(write[NAMES] if NAMES in write else columns_named(write)):
            return "unknown_column"
        if not compound:
            return self._outside(write["timestamp"], now, epoch)
        windows = (self._outside(one["timestamp"], now, epoch) for one in statements(write))
        return refusal(self.as_logged(write, now, epoch), columns) or next(filter(None, windows), "")

    def as_logged(self, write: dict[str, Any], now: int, epoch: int | None) -> dict[str, Any]:
        """A decoded write with columns as rows of the log call them. ``epoch``: by which it was judged, if known."""
        version = self.history.read_by(write, now, epoch)
        if version is None or not version.respelled:
            return write
        return (
            write | _logged(write, version.columns) | {"more": [_logged(one, version.columns) for one in write["more"]]}
        )

    def _outside(self, timestamp: int, now: int, epoch: int | None) -> str:
        ahead = self.leeways.widest(now) if epoch is None else self.leeways.at_epoch(epoch)
        if timestamp > now + ahead:
            return "timestamp_in_future"
        if generation_for(self.generations, timestamp) is None:
            return "no_generation"
        later = [generation for generation in self.generations if generation.timestamp > timestamp]
        if later and later[0].timestamp <= now and timestamp <= now - self.leeways.at_epoch(later[0].committed):
            return "timestamp_too_old"
        return ""
