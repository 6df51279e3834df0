"""A comparison of the lake with the CDC topic: each row of one is in the other once, in the same table, with equal
values.

For each row the audit compares identity and place (source, timestamp, number, stream, generation, time UUID, operation,
time to live, end of batch) and all values (``ringlog_audit.cells``). Rows that the topic no longer contains are not
checked. The table of a row is the one that had its name at the row's epoch, by the metadata log. If the log does not
have it, key values are not compared, and any value may be undecoded.
"""

from __future__ import annotations

import uuid
from bisect import bisect_right
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from typing import Any

from ringlog.kernel.model.tables import Table
from ringlog_audit.cells import TableOfRow, says_the_same
from ringlog_audit.report import AuditCheck, AuditReport
from ringlog_audit.sources.delta_log import DeltaFiles, exists, open_lake, tables_in
from ringlog_audit.sources.topics import AuditError, AuditTopics, Decoder
from ringlog_audit.writes.history import changes

SUFFIX, WRITERS = "_scylla_cdc_log", "cdc-writers"
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


def audit_lake(
    topics: AuditTopics,
    address: str,
    report: AuditReport,
    say: Callable[[str], None],
    archived: Iterable[bytes] = (),
) -> None:
    """Add the checks of the lake at ``address`` to the report. Raise AuditError if it cannot be read.

    ``archived``: records that the metadata log no longer contains.
    """
    complete = AuditCheck(
        "lake_complete", "each row of the CDC topic is in its table of the lake with the same content"
    )
    once = AuditCheck("lake_once", "the lake contains no row twice")
    nothing_else = AuditCheck("lake_nothing_else", "the lake contains only rows of the CDC topic")
    decoder = Decoder(topics)
    versions = TablesByEpoch(topics, archived)
    wanted, is_whole = _rows_of_topic(topics, decoder)
    seen: set[tuple[str, Name]] = set()
    count = 0
    system, root = open_lake(address)
    selects = selection_of(system, root)
    for table, path in sorted(tables_in(system, root, SUFFIX).items()):
        files = DeltaFiles(system, path)
        types = files.types()
        for row, cells in zip(files.rows(COLUMNS), files.scalars(), strict=True):
            count += 1
            name: Name = row[:4]
            if (table, name) in seen:
                once.fail(f"{table} {name}")
            seen.add((table, name))
            there = wanted.get((table, name))
            if there is None and is_whole:
                nothing_else.fail(f"{table} {name}")
            elif there is not None:
                logged = decoder.decode(there)
                known = TableOfRow.of(versions.at(table, logged["epoch"]), types)
                if not _same(logged, row[4:], cells, known):
                    complete.fail(f"{table} {name} has another content")
    for table, name in wanted.keys() - seen:
        if selects(table):
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


def selection_of(system: Any, root: str) -> Callable[[str], bool]:
    """Return the function that returns True for the tables whose rows the lake must have.

    The last job that signed the lake has selected them. A lake without authors has all tables.
    """
    path = f"{root.rstrip('/')}/{WRITERS}"
    if not exists(system, f"{path}/_delta_log"):
        return bool
    patterns = max(DeltaFiles(system, path).rows(("epoch", "tables")), default=(0, ""))[1]
    return lambda table: not patterns or any(fnmatchcase(table, one) for one in patterns.split(","))


class TablesByEpoch:
    """The table of each name at each epoch."""

    def __init__(self, topics: AuditTopics, archived: Iterable[bytes]) -> None:
        self._versions: dict[str, list[tuple[int, Table | None]]] = {}
        for _, before, after in changes(topics, archived):
            if before.tables is not after.tables:
                for name in {*before.tables, *after.tables}:
                    if (table := after.tables.get(name)) is not before.tables.get(name):
                        self._versions.setdefault(name, []).append((after.epoch, table))

    def at(self, name: str, epoch: int) -> Table | None:
        """Return the table with that name at an epoch. None: there was none, or it is not known."""
        versions = self._versions.get(name, ())
        place = bisect_right(versions, epoch, key=lambda version: version[0])
        return versions[place - 1][1] if place else None


def _same(row: dict[str, Any], place: tuple[Any, ...], cells: dict[str, Any], known: TableOfRow | None) -> bool:
    stream, generation, *rest = place
    own = (str(uuid.UUID(bytes=row["time"])), row["operation"], row["ttl"], row["end_of_batch"])
    if (bytes(stream), int(generation), *rest) != (row["stream_id"], row["generation"], *own):
        return False
    return says_the_same(row, cells, known)
