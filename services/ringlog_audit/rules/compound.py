"""The rows that the log must have for a compound write, by ScyllaDB's rules.

The write becomes a list of *facts*: a row's marker, a cell, an element, a wiped collection, or a deleted row, range or
partition. Each fact has a time and, if it expires, a time to live. For each thing only the newest fact is kept. An
element older than its collection's wipe is dropped. The other facts are grouped and ordered by (time, kind, time to
live, row). Each group is one row of the log. This module shares no code with the audited job.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ringlog.kernel.values import Value
from ringlog_audit.rules.values import elements, is_of_type

STATIC = ("static",)
UPDATE, INSERT, ROW_DELETE, PARTITION_DELETE = 1, 2, 3, 4
KINDS = {"static": 0, "insert": 1, "update": 2, "row": 3, "range": 4, "partition": 5}


class AuditColumns(Value):
    """The columns of a table: types of its key, names of static columns, and types of the unfrozen collections by name.

    ``renamed``: some columns have other names in log rows than in writes.
    """

    partition: tuple[str, ...]
    clustering: tuple[str, ...]
    static: frozenset[str]
    collections: dict[str, str]
    renamed: bool = False

    @property
    def special(self) -> bool:
        """Return True if an insert or update of the table is never certain to be one plain row."""
        return bool(self.static or self.collections or self.renamed)


@dataclass(slots=True)
class AuditLogRow:
    """One row that the log must have. The order of columns does not matter."""

    timestamp: int
    sequence: int
    last: bool
    operation: int
    ttl: int | None
    clustering_key: tuple[Any, ...]
    values: dict[str, Any] = field(default_factory=dict)
    deleted: set[str] = field(default_factory=set)
    taken: dict[str, set[bytes]] = field(default_factory=dict)


def statements(write: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the statements of a decoded mutation, each with its own time and time to live (0: never expires)."""
    own = {"timestamp": write["timestamp"], "ttl": write["ttl"] or 0}
    found = [write | own]
    for more in write["more"]:
        given = {name: more[name] for name in own if more[name] is not None}
        found.append(more | own | given)
    return found


def is_compound(write: dict[str, Any], columns: AuditColumns) -> bool:
    """Return False if the write is one plain row, and True otherwise."""
    if any(write[name] for name in ("more", "deleted_elements", "replaced", "bounds")):
        return True
    if write["operation"] in ("INSERT", "UPDATE"):
        nulls = any(cell["value"] is None for cell in write["cells"])
        repeats = len({cell["column"] for cell in write["cells"]}) < len(write["cells"])
        return columns.special or repeats or write["ttl"] == 0 or (write["ttl"] is not None and nulls)
    return bool(write["operation"] == "RANGE_DELETE")


# ------------------------------------------------------------------------------------------------ what is allowed


def refusal(write: dict[str, Any], columns: AuditColumns) -> str:
    """Return the reason to reject a compound write because of its statements, or empty text."""
    for one in statements(write):
        if one["operation"] not in ("INSERT", "UPDATE", "ROW_DELETE", "RANGE_DELETE", "PARTITION_DELETE"):
            return "unknown_operation"
        if not _is_valid_key(one, columns):
            return "bad_key"
        if not _is_valid(one, columns):
            return "bad_change"
    return ""


def _named(one: dict[str, Any]) -> list[str]:
    taken = [item["column"] for item in one["deleted_elements"]]
    return [cell["column"] for cell in one["cells"]] + taken + list(one["replaced"])


def columns_named(write: dict[str, Any]) -> set[str]:
    """Return the columns that the statements of a decoded mutation name."""
    return {name for one in statements(write) for name in _named(one)}


def _is_valid_key(one: dict[str, Any], columns: AuditColumns) -> bool:
    key = one["clustering_key"]
    if one["operation"] in ("RANGE_DELETE", "PARTITION_DELETE"):
        return len(key) == 0
    if one["operation"] != "ROW_DELETE" and columns.clustering and not key:
        return bool(_named(one)) and columns.static.issuperset(_named(one))
    return len(key) == len(columns.clustering) and None not in key


def _is_valid(one: dict[str, Any], columns: AuditColumns) -> bool:
    bounds = one["bounds"]
    if (bounds is not None) != (one["operation"] == "RANGE_DELETE") or one["ttl"] < 0:
        return False
    if bounds is not None and not max(len(bounds["start"]), len(bounds["end"])) <= len(columns.clustering) > 0:
        return False
    if one["operation"].endswith("DELETE"):
        return not _named(one)
    return columns.collections.keys() >= {*one["replaced"], *(item["column"] for item in one["deleted_elements"])}


# ------------------------------------------------------------------------------------------------ what is logged


def log_rows(write: dict[str, Any], columns: AuditColumns, keys_only: bool) -> list[AuditLogRow]:
    """Return the rows of an accepted compound write, in order."""
    facts = facts_of(write, columns)
    wiped = {name[1:3]: fact[0] for name, fact in facts.items() if name[0] == "wipe"}
    order: dict[Any, int] = {}
    for name in facts:
        order.setdefault(name[1], len(order))
    markers = {name[1]: fact[:2] for name, fact in facts.items() if name[0] == "marker"}
    places: dict[tuple[Any, ...], AuditLogRow] = {}

    def place(row: Any, at: int, ttl: int, in_insert: bool) -> AuditLogRow:
        is_insert = in_insert and markers.get(row) == (at, ttl)
        kind = "static" if row == STATIC else "insert" if is_insert else "update"
        key = (at, KINDS[kind], ttl, order[row])
        found = AuditLogRow(at, 0, False, INSERT if is_insert else UPDATE, ttl or None, () if row == STATIC else row)
        return places.setdefault(key, found)

    for name, (at, ttl, value) in facts.items():
        fact_kind, row = name[0], name[1]
        if fact_kind == "marker":
            place(row, at, ttl, True)
        elif fact_kind == "wipe" or (fact_kind == "cell" and value is None):
            place(row, at, 0, True).deleted.add(name[2])
        elif fact_kind == "cell":
            place(row, at, ttl, True).values[name[2]] = value
        elif fact_kind == "element" and at >= wiped.get((row, name[2]), at):
            # An insert can contain elements only of a collection that it replaces.
            target = place(row, at, ttl, wiped.get((row, name[2])) == at and ttl == 0 and value is not None)
            if value is None:
                target.taken.setdefault(name[2], set()).add(name[3])
            else:
                target.values.setdefault(name[2], {})[name[3]] = value
        elif fact_kind == "row":
            places[at, KINDS["row"], 0, order[row]] = AuditLogRow(at, 0, False, ROW_DELETE, None, row)
        elif fact_kind == "partition":
            places[at, KINDS["partition"], 0, 0] = AuditLogRow(at, 0, False, PARTITION_DELETE, None, ())
    _ranges(write, columns, places)
    found = [places[key] for key in sorted(places)]
    for number, one in enumerate(found):
        follows = number > 0 and found[number - 1].timestamp == one.timestamp
        one.sequence = found[number - 1].sequence + 1 if follows else 0
        one.last = number + 1 == len(found) or found[number + 1].timestamp != one.timestamp
        if keys_only:
            one.values, one.deleted, one.taken = {}, set(), {}
    return found


def plain_row(write: dict[str, Any], keys_only: bool) -> list[AuditLogRow]:
    """Return the row of a write that is not compound."""
    codes = {"UPDATE": UPDATE, "INSERT": INSERT, "ROW_DELETE": ROW_DELETE, "PARTITION_DELETE": PARTITION_DELETE}
    row = AuditLogRow(
        write["timestamp"], 0, True, codes[write["operation"]], write["ttl"], tuple(write["clustering_key"])
    )
    cells = [] if keys_only else write["cells"]
    row.values = {cell["column"]: cell["value"] for cell in cells if cell["value"] is not None}
    row.deleted = {cell["column"] for cell in cells if cell["value"] is None}
    return [row]


def facts_of(write: dict[str, Any], columns: AuditColumns) -> dict[tuple[Any, ...], tuple[int, int, Any]]:
    """Return (kind, row, column, element) to the newest (time, time to live, value). The value of a delete is None."""
    found: dict[tuple[Any, ...], tuple[int, int, Any]] = {}

    def add(name: tuple[Any, ...], at: int, ttl: int, value: Any) -> None:
        fact = (at, ttl, value)
        if name not in found or weight(fact) > weight(found[name]):
            found[name] = fact

    for one in statements(write):
        at, ttl, operation = one["timestamp"], one["ttl"], one["operation"]
        row = tuple(one["clustering_key"])
        if operation == "ROW_DELETE":
            add(("row", row), at, 0, None)
        elif operation == "PARTITION_DELETE":
            add(("partition", "partition"), at, 0, None)
        if operation not in ("INSERT", "UPDATE"):
            continue
        if operation == "INSERT" and len(row) == len(columns.clustering):
            add(("marker", row), at, ttl, b"")
        for column in one["replaced"]:
            add(("wipe", STATIC if column in columns.static else row, column), at, 0, None)
        for cell in one["cells"]:
            column, value = cell["column"], cell["value"]
            where = STATIC if column in columns.static else row
            if column not in columns.collections:
                add(("cell", where, column), at, 0 if value is None else ttl, value)
            elif value is None:
                add(("wipe", where, column), at, 0, None)
            else:
                for key, each in elements(columns.collections[column], value).items():
                    add(("element", where, column, key), at, ttl, each)
        for taken in one["deleted_elements"]:
            for key in taken["keys"]:
                where = STATIC if taken["column"] in columns.static else row
                add(("element", where, taken["column"], key), at, 0, None)
    return found


def weight(fact: tuple[int, int, Any]) -> tuple[int, bool, int, bytes]:
    """Return the sort key of a fact; the greater one wins.

    The later time wins. At equal times a delete wins, then the longer time to live, then the greater value.
    """
    at, ttl, value = fact
    return at, value is None, ttl, value or b""


def _ranges(write: dict[str, Any], columns: AuditColumns, places: dict[tuple[Any, ...], AuditLogRow]) -> None:
    """Add two rows for each range that can contain a row."""
    for number, one in enumerate(statements(write)):
        bounds, at = one["bounds"], one["timestamp"]
        if bounds is None or _is_empty(bounds, columns.clustering):
            continue
        for side, name, inclusive, code in ((0, "start", 5, 6), (1, "end", 7, 8)):
            whole = bounds[f"{name}_inclusive"] or not bounds[name]
            row = AuditLogRow(at, 0, False, inclusive if whole else code, None, tuple(bounds[name]))
            places[at, KINDS["range"], 0, 2 * number + side] = row


def _is_empty(bounds: dict[str, Any], kinds: tuple[str, ...]) -> bool:
    """Return True if the end is not after the start."""
    start, end = _points(bounds, kinds)
    return end <= start


def covers(bounds: dict[str, Any], key: tuple[Any, ...], kinds: tuple[str, ...]) -> bool:
    """Return True if a row is in a range."""
    start, end = _points(bounds, kinds)
    row: list[Any] = [(1, sortable(kind, part)) for kind, part in zip(kinds, key, strict=True)]
    return start < [*row, (1,)] < end


def _points(bounds: dict[str, Any], kinds: tuple[str, ...]) -> tuple[list[Any], list[Any]]:
    """Return the ends of a range as points between rows. Rows with the same prefix are on the same side."""

    def point(name: str, after: bool) -> list[Any]:
        parts: list[Any] = [(1, sortable(kind, part)) for kind, part in zip(kinds, bounds[name], strict=False)]
        return [*parts, (2,) if after else (0,)]

    start = point("start", bool(bounds["start"]) and not bounds["start_inclusive"])
    return start, point("end", not bounds["end"] or bounds["end_inclusive"])


def sortable(kind: str, value: bytes) -> Any:
    """Return a sort key for values of common clustering key types. Values of other types are ordered by their bytes."""
    if kind in ("tinyint", "smallint", "int", "bigint", "varint", "timestamp") and is_of_type(kind, value):
        return int.from_bytes(value, "big", signed=True), b""
    return 0, value
