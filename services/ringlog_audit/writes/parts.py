"""The rows of compound writes in the order of arrival: which part of the write each row is, and which are missing."""

from __future__ import annotations

from typing import Any

from ringlog.kernel.values import Value
from ringlog_audit.rules.values import elements
from ringlog_audit.writes.writes import AuditWrite, ExpectedRow, MutationsReading, Position


class RowPlace(Value):
    """The place of a row. ``is_last``: all rows of its write are now present. ``is_repeated``: the row was present
    before.
    """

    generation: int
    stream: bytes
    refusal: str = ""
    is_last: bool = True
    is_repeated: bool = False


class Parts:
    """The parts of incomplete writes, by position. Only alternatives that match all rows so far are kept."""

    def __init__(self, reading: MutationsReading) -> None:
        self._reading = reading
        self._open: dict[Position, list[dict[tuple[int, int], ExpectedRow]]] = {}
        self._there: dict[Position, set[tuple[int, int]]] = {}

    def place(self, write: AuditWrite, position: Position, row: dict[str, Any]) -> RowPlace | None:
        """Return the place of a decoded row of that write, or None if the write has no such row."""
        assert write.version is not None, "a version of the table reads the write"
        if position not in self._open:
            _, alternatives = self._reading.whole(write, position, decided=row["epoch"])
            self._open[position] = [
                {(part.row.timestamp, part.row.sequence): part for part in parts} for parts in alternatives or ()
            ]
        name = (row["timestamp"], row["batch_seq_no"])
        kinds = write.version.table.columns.collections
        fitting = [parts for parts in self._open[position] if name in parts and _says(row, parts[name], kinds)]
        if not fitting:
            return None
        self._open[position] = fitting
        there = self._there.setdefault(position, set())
        is_repeated = name in there
        there.add(name)
        part, is_last = fitting[0][name], len(there) in map(len, fitting)
        return RowPlace(part.generation, part.stream, "", is_last, is_repeated)


def _says(row: dict[str, Any], part: ExpectedRow, collections: dict[str, str]) -> bool:
    """Return True if a row matches a part of its write. The order of columns and elements does not matter."""
    own = part.row
    try:
        values = {
            cell["column"]: elements(collections[cell["column"]], cell["value"])
            if cell["column"] in collections
            else cell["value"]
            for cell in row["cells"]
        }
    except ValueError:
        return False
    taken = {one["column"]: set(one["keys"]) for one in row["deleted_elements"]}
    return (
        (row["operation"], row["ttl"], row["end_of_batch"]) == (own.operation, own.ttl, own.last)
        and tuple(row["clustering_key"]) == own.clustering_key
        and (values, set(row["deleted"]), taken) == (own.values, own.deleted, own.taken)
        and len(row["cells"]) == len(values)
        and len(row["deleted"]) == len(own.deleted)
    )
