"""The lake against the CDC topic: each row of the one is in the other, in its table, once, and says the same.

Of a row its identity and place are compared (source, timestamp, number, stream, generation, time UUID, operation, time
to live, end of batch), not the values of its columns. What the topic no longer keeps is not looked for there.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable
from typing import Any

from ringlog.audit.delta_log import DeltaFiles, open_lake, tables_in
from ringlog.audit.report import Check, Report
from ringlog.audit.topics import AuditError, Decoder, records

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


def audit_lake(bootstrap: str, cluster: str, address: str, report: Report, say: Callable[[str], None]) -> None:
    """Add the checks of the lake at ``address`` to the report. Raises AuditError if it cannot be read."""
    complete = Check("lake_complete", "every row of the CDC topic is in its table of the lake, and says the same")
    once = Check("lake_once", "no row is in the lake twice")
    nothing_else = Check("lake_nothing_else", "the lake has no row that the CDC topic has not")
    wanted, is_whole = _rows_of_topic(bootstrap, cluster)
    seen: set[tuple[str, Name]] = set()
    count = 0
    system, root = open_lake(address)
    for table, path in sorted(tables_in(system, root, SUFFIX).items()):
        for row in DeltaFiles(system, path).rows(COLUMNS):
            count += 1
            name: Name = row[:4]
            if (table, name) in seen:
                once.fail(f"{table} {name}")
            seen.add((table, name))
            there = wanted.get((table, name))
            if there is None and is_whole:
                nothing_else.fail(f"{table} {name}")
            elif there is not None and there != _digest(*row[4:]):
                complete.fail(f"{table} {name} says something else")
    for table, name in wanted.keys() - seen:
        complete.fail(f"{table} {name} is missing")
    report.counts["lake_rows"] = count
    report.checks += [complete, once, nothing_else]
    say(f"{count:,} rows of the lake compared")


def _rows_of_topic(bootstrap: str, cluster: str) -> tuple[dict[tuple[str, Name], bytes], bool]:
    """Table and identity of each row of the job to the digest of the rest; does the topic begin with its first?"""
    decoder, source = Decoder(bootstrap, cluster), f"{cluster}.mutations"
    found: dict[tuple[str, Name], bytes] = {}
    firsts: dict[int, int] = {}
    for message in records(bootstrap, f"{cluster}.cdc"):
        firsts.setdefault(message.partition() or 0, message.offset() or 0)
        try:
            row = decoder.decode(message.value() or b"")
        except AuditError:
            continue  # the check of the topic itself says so
        if row["source_topic"] == source:
            name = row["source_partition"], row["source_offset"], row["timestamp"], row["batch_seq_no"]
            found[f"{row['keyspace']}.{row['table']}", name] = _digest(
                row["stream_id"],
                row["generation"],
                str(uuid.UUID(bytes=row["time"])),
                row["operation"],
                row["ttl"],
                row["end_of_batch"],
            )
    return found, not any(firsts.values())


def _digest(*fields: Any) -> bytes:
    stream, generation, *rest = fields
    return hashlib.blake2b(repr((bytes(stream), int(generation), *rest)).encode(), digest_size=16).digest()
