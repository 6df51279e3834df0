"""Errors of CDC consumers. Each has a stable code and names the next step.

CdcReadError
├── BadProgress          stored progress is damaged or was written by a later release
├── TablesForgotten      the log begins after the table version of a row
├── TableReplaced        a streaming query read rows of a recreated table
├── ProgressInUse        another consumer uses this progress
├── BadStore             the file for progress or tables cannot be used
├── GenerationExpired    the generation to read is no longer kept
├── RowsLost             the topic no longer has the rows to read next
├── UnknownTable         the schema has no such table, or the table has no CDC log
├── BadStart             the start point is invalid
├── UnreadableRecord     a record of the CDC topic is not a CDC row, or does not fit its table
└── UnreadableChange     a record of ``cdc-generations`` is not a change
"""

from __future__ import annotations

from ringlog.kernel.values import Epoch
from ringlog.log.errors import LogError


class CdcReadError(LogError):
    """Base of these errors."""

    code = "cdc_read_error"


class BadProgress(CdcReadError):
    """The stored progress cannot be understood."""

    code = "bad_progress"

    def __init__(self, why: str) -> None:
        super().__init__(f"stored progress: {why}", "begin anew at a start point, under another name")


class TablesForgotten(CdcReadError):
    """The log was truncated, and what is left of it does not say which table had a name at that epoch."""

    code = "tables_forgotten"

    def __init__(self, name: str, epoch: Epoch) -> None:
        why = f"{name} at epoch {epoch}: the log begins later, and keeps no version of that table from then"
        super().__init__(why, "start behind those rows; `ringlog log at EPOCH --archive` shows the table as it was")


class TableReplaced(CdcReadError):
    """A streaming query of Spark met rows of another table that was made under its table's name meanwhile: a query has
    the columns of one table.
    """

    code = "table_replaced"

    def __init__(self, name: str, table_id: str, epoch: Epoch) -> None:
        why = f"{name}: table {table_id} lost its name at epoch {epoch}, and rows of another one have come"
        left = f"what is left of the first one is read with tableid={table_id} and a checkpoint of its own"
        super().__init__(why, f"start the query again: it goes on with the other one's; {left}")


class ProgressInUse(CdcReadError):
    """Two consumers with one progress would each skip what the other one has read."""

    code = "progress_in_use"

    def __init__(self, name: str) -> None:
        super().__init__(f"another consumer holds {name}", "stop it, or give this one its own progress, or a share")


class BadStore(CdcReadError):
    """The file that keeps the place cannot be read or written, or is another kind of file."""

    code = "bad_store"

    def __init__(self, path: object, why: object) -> None:
        super().__init__(f"{path}: {why}", "what was kept in it before is as it was; mend it, or name another file")


class GenerationExpired(CdcReadError):
    """The consumer was away for longer than the CDC log is kept."""

    code = "generation_expired"

    def __init__(self, timestamp: int) -> None:
        super().__init__(
            f"the generation that began at {timestamp} is no longer kept",
            "rows of it may be gone; go on with lost='skip', or begin anew",
        )
        self.timestamp = timestamp


class RowsLost(CdcReadError):
    """The topic's retention has deleted rows that were not read yet."""

    code = "rows_lost"

    def __init__(self, partition: int, position: int, begin: int) -> None:
        super().__init__(
            f"partition {partition} begins at {begin}, offset {position} comes next",
            "rows are gone; go on with lost='skip', or begin anew",
        )
        self.partition, self.position, self.begin = partition, position, begin


class UnknownTable(CdcReadError):
    """No such table."""

    code = "unknown_table"

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"{name}: {why}", "see: ringlog table list")


class BadStart(CdcReadError):
    """Not a start point."""

    code = "bad_start"

    def __init__(self, given: object) -> None:
        super().__init__(f"{given!r} is no start point", "give earliest, now, microseconds, or an ISO 8601 time")


class UnreadableRecord(CdcReadError):
    """A record that no consumer can interpret."""

    code = "unreadable_row"

    def __init__(self, partition: int, offset: int, why: str) -> None:
        super().__init__(f"CDC record {partition}/{offset}: {why}", "is this program older than the cluster?")


class UnreadableChange(CdcReadError):
    """A record of `cdc-generations` that no consumer can interpret: passed over it might hide a generation."""

    code = "unreadable_change"

    def __init__(self, topic: str, offset: int, why: str) -> None:
        ends = "is this program older than the cluster? If not, somebody else wrote it: start the publisher again"
        super().__init__(f"record {offset} of {topic}: {why}", f"{ends}, which mends what cannot be read")
