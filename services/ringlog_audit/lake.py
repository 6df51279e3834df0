"""A comparison of the lake with the CDC topic: each row of one is in the other once, in the same table, with equal
values.

For each row the audit compares identity and place (source, timestamp, number, stream, generation, time UUID, operation,
time to live, end of batch) and all values (``ringlog_audit.cells``). Rows that the topic no longer contains are not
checked. Key column names come from the current schema. So the key values of rows that were decided before the last
change of their table are not compared.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from ringlog_audit.cells import Keys, says_the_same
from ringlog_audit.report import AuditCheck, AuditReport
from ringlog_audit.rules.tables import as_logged
from ringlog_audit.sources.delta_log import DeltaFiles, open_lake, tables_in
from ringlog_audit.sources.topics import AuditError, AuditTopics, Decoder, latest

SUFFIX = "_scylla_cdc_log"
COLUMNS = (
    "cdc$source_partition",
    "cdc$source_offset",
    "cdc$timestamp",
    "cdc$batch_seq_no",
    "cdc$stream_id",
    "cdc$generation",
    "cdc$time",
    "cdc$operation",
    "cdc$ttl",
    "cdc$end_of_batch",
)
Name = tuple[int, int, int, int]


def audit_lake(topics: AuditTopics, address: str, report: AuditReport, say: Callable[[str], None]) -> None:
    """Add the checks of the lake at ``address`` to the report. Raise AuditError if it cannot be read."""
    complete = AuditCheck(
        "lake_complete", "each row of the CDC topic is in its table of the lake with the same content"
    )
    once = AuditCheck("lake_once", "the lake contains no row twice")
    nothing_else = AuditCheck("lake_nothing_else", "the lake contains only rows of the CDC topic")
    decoder = Decoder(topics)
    keys = _keys(topics, decoder)
    wanted, is_whole = _rows_of_topic(topics, decoder)
    seen: set[tuple[str, Name]] = set()
    count = 0
    system, root = open_lake(address)
    for table, path in sorted(tables_in(system, root, SUFFIX).items()):
        files = DeltaFiles(system, path)
        for row, cells in zip(files.rows(COLUMNS), files.scalars(), strict=True):
            count += 1
            name: Name = row[:4]
            if (table, name) in seen:
                once.fail(f"{table} {name}")
            seen.add((table, name))
            there = wanted.get((table, name))
            if there is None and is_whole:
                nothing_else.fail(f"{table} {name}")
            elif there is not None and not _same(decoder.decode(there), row[4:], cells, keys.get(table)):
                complete.fail(f"{table} {name} has another content")
    for table, name in wanted.keys() - seen:
        complete.fail(f"{table} {name} is missing")
    report.counts["lake_rows"] = count
    report.checks += [complete, once, nothing_else]
    say(f"{count:,} rows of the lake compared")


def _rows_of_topic(topics: AuditTopics, decoder: Decoder) -> tuple[dict[tuple[str, Name], bytes], bool]:
    """Return (table, identity) of the job's rows to their bytes, and whether the topic starts at offset 0."""
    source = topics.name("mutations")
    found: dict[tuple[str, Name], bytes] = {}
    firsts: dict[int, int] = {}
    for message in topics.records("cdc"):
        firsts.setdefault(message.partition() or 0, message.offset() or 0)
        value = message.value() or b""
        try:
            row = decoder.decode(value)
        except AuditError:
            continue  # the check of the topic reports it
        if row["source_topic"] == source:
            name = row["source_partition"], row["source_offset"], row["timestamp"], row["batch_seq_no"]
            found[f"{row['keyspace']}.{row['table']}", name] = value
    return found, not any(firsts.values())


def _keys(topics: AuditTopics, decoder: Decoder) -> dict[str, tuple[int, Keys]]:
    """Return, for each table, the epoch of its last change and the names of its key columns."""
    found: dict[str, tuple[int, Keys]] = {}
    for key, value in latest(topics, "schema").items():
        if key.startswith(b"table/"):
            table = as_logged(decoder.decode(value))
            own = tuple(table["partition_key"]), tuple(table["clustering_key"])
            found[f"{table['keyspace']}.{table['name']}"] = table["changed"], own
    return found


def _same(row: dict[str, Any], place: tuple[Any, ...], cells: dict[str, Any], keys: tuple[int, Keys] | None) -> bool:
    stream, generation, *rest = place
    own = (str(uuid.UUID(bytes=row["time"])), row["operation"], row["ttl"], row["end_of_batch"])
    if (bytes(stream), int(generation), *rest) != (row["stream_id"], row["generation"], *own):
        return False
    is_now = keys is not None and row["epoch"] >= keys[0]
    return says_the_same(row, cells, keys[1] if keys is not None and is_now else None)
