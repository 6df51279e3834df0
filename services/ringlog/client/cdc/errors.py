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
├── UnreadableChange     a record of ``cdc-generations`` is not a change
├── UnknownColumn        no version of the table has the column
├── UnknownLetter        the topic of dead letters has no such letter
├── NotResendable        the record of a dead letter cannot be sent again
├── ResendFailed         Kafka rejected a transaction that sends records again
├── ExportReplaced       another process continues the export
├── ExportTooLarge       a record of an export is larger than its topic permits
└── ExportFailed         Kafka rejected a request of an export
"""

from __future__ import annotations

from ringlog.kernel.values import Epoch
from ringlog.log.errors import LogError


class CdcReadError(LogError):
    """Base of these errors."""

    code = "cdc_read_error"


class BadProgress(CdcReadError):
    """The stored progress is damaged or not supported by this release."""

    code = "bad_progress"

    def __init__(self, why: str) -> None:
        super().__init__(f"stored progress: {why}", "start again from a start point, with another progress")


class TablesForgotten(CdcReadError):
    """The log was truncated, and its remaining part lacks the version of the table at that epoch."""

    code = "tables_forgotten"

    def __init__(self, name: str, epoch: Epoch) -> None:
        why = f"{name} at epoch {epoch}: the log begins later and has no version of that table from then"
        super().__init__(why, "start after those rows; `ringlog log at EPOCH --archive` shows the table at that epoch")


class TableReplaced(CdcReadError):
    """A streaming query of Spark read rows of a new table with the same name. A query has the columns of one table."""

    code = "table_replaced"

    def __init__(self, name: str, table_id: str, epoch: Epoch) -> None:
        why = f"{name}: table {table_id} was dropped or renamed at epoch {epoch}, and rows of a new table follow"
        left = f"to read the remaining rows of the first one, use tableid={table_id} and another checkpoint"
        super().__init__(why, f"restart the query: it continues with the new table; {left}")


class ProgressInUse(CdcReadError):
    """Another consumer uses this progress. Two consumers would skip rows of each other."""

    code = "progress_in_use"

    def __init__(self, name: str) -> None:
        super().__init__(f"another consumer uses {name}", "stop the other consumer, or pass another progress or share")


class BadStore(CdcReadError):
    """The progress file cannot be read or written, or is another kind of file."""

    code = "bad_store"

    def __init__(self, path: object, why: object) -> None:
        super().__init__(f"{path}: {why}", "its earlier content is unchanged; fix the file, or pass another progress")


class GenerationExpired(CdcReadError):
    """The consumer was stopped for longer than the retention of the CDC log."""

    code = "generation_expired"

    def __init__(self, timestamp: int) -> None:
        super().__init__(
            f"the generation that started at {timestamp} is no longer retained",
            "its rows may be lost; continue with lost='skip', or start again from another start point",
        )
        self.timestamp = timestamp


class RowsLost(CdcReadError):
    """The retention of the topic deleted rows before this consumer read them."""

    code = "rows_lost"

    def __init__(self, partition: int, position: int, begin: int) -> None:
        super().__init__(
            f"partition {partition} begins at {begin}, but the next offset to read is {position}",
            "rows are lost; continue with lost='skip', or start again from another start point",
        )
        self.partition, self.position, self.begin = partition, position, begin


class UnknownTable(CdcReadError):
    """The table does not exist, or has no CDC log."""

    code = "unknown_table"

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"{name}: {why}", "see: ringlog table list")


class BadStart(CdcReadError):
    """The start point is not valid."""

    code = "bad_start"

    def __init__(self, given: object) -> None:
        super().__init__(f"{given!r} is not a start point", "pass earliest, now, microseconds, or an ISO 8601 time")


class UnreadableRecord(CdcReadError):
    """A record that consumers cannot interpret."""

    code = "unreadable_row"

    def __init__(self, partition: int, offset: int, why: str) -> None:
        super().__init__(
            f"CDC record {partition}/{offset}: {why}", "upgrade this program if it is older than the cluster"
        )


class UnreadableChange(CdcReadError):
    """A record of `cdc-generations` that consumers cannot interpret. Skipping it could hide a generation."""

    code = "unreadable_change"

    def __init__(self, topic: str, offset: int, why: str) -> None:
        ends = "upgrade this program if it is older than the cluster. Otherwise restart the change publisher"
        super().__init__(f"record {offset} of {topic}: {why}", f"{ends}, which replaces unreadable records")


class UnknownColumn(CdcReadError):
    """No version of the table has the column."""

    code = "unknown_column"

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"{name}: {why}", "see: ringlog schema describe")


class UnknownLetter(CdcReadError):
    """The topic of dead letters has no letter with this id."""

    code = "unknown_letter"

    def __init__(self, name: str) -> None:
        super().__init__(f"no dead letter is named {name[:200]}", "see: ringlog cdc dead-letters list")


class NotResendable(CdcReadError):
    """The record of a dead letter cannot be sent again. The message has the reason."""

    code = "not_resendable"

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"dead letter {name}: {why}", "nothing of it was sent")


class ResendFailed(CdcReadError):
    """Kafka rejected a transaction that sends records of dead letters again."""

    code = "resend_failed"

    def __init__(self, why: str) -> None:
        super().__init__(why, "repeat the command: letters that were already sent are left out")


class ExportReplaced(CdcReadError):
    """Another process continues the export of this name."""

    code = "export_replaced"

    def __init__(self, name: str) -> None:
        super().__init__(f"another process continues the export {name}", "run one process for each export")


class ExportTooLarge(CdcReadError):
    """A record of an export is larger than its topic permits."""

    code = "export_too_large"

    def __init__(self, name: str, place: tuple[int, int], size: int, topic: str, limit: int) -> None:
        super().__init__(
            f"a change of {name} (CDC record {place[0]}/{place[1]}) needs {size} bytes, but {topic} permits {limit}",
            "raise max.message.bytes of the topic and start the export again, or pass --skip-oversized",
        )


class ExportFailed(CdcReadError):
    """Kafka rejected a request of an export."""

    code = "export_failed"

    def __init__(self, why: str) -> None:
        super().__init__(why, "no change is lost or exported twice: start the export again")
