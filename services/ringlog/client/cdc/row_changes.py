"""Effects of a write: the log rows that refer to the same table row, combined.

The log splits a write by time to live and operation, and adds images as separate rows. A ``RowEffect`` describes one
row of the table (or its static row, a range of rows, the partition). It contains the columns that were set and
deleted, and the images if the table keeps them.

Invariant: every row of the write is part of an effect. Range and partition deletes are separate effects.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ringlog.client.cdc.rows import CdcChange, LogRow
from ringlog.kernel.rows.log_rows import (
    INSERT,
    PARTITION_DELETES,
    POSTIMAGE,
    PREIMAGE,
    RANGE_ENDS,
    RANGE_STARTS,
    ROW_DELETES,
)
from ringlog.kernel.values import Value, field, replace

Names = Mapping[str, Any]


class Bound(Value):
    """One end of a range of rows. ``key``: partition columns and a prefix of the clustering columns."""

    key: Names
    inclusive: bool


class RowEffect(Value):
    """The effect of a write on one row, range or partition.

    ``operation``: insert, update, row_delete, partition_delete or range_delete. ``number``: number of its first row in
    the write. ``before``, ``after``: the images, or None. ``start``, ``end``: bounds of a range delete. ``undecoded``:
    values that fit no column of the table (``ringlog.client.cdc.rows``). Those of its rows take precedence over those
    of its images.
    """

    operation: str
    number: int
    key: Names
    values: Names = field(default_factory=dict)
    deleted: tuple[str, ...] = ()
    deleted_elements: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    before: Names | None = None
    after: Names | None = None
    start: Bound | None = None
    end: Bound | None = None
    undecoded: Mapping[str, bytes] = field(default_factory=dict)


def effects(change: CdcChange) -> tuple[RowEffect, ...]:
    """Return the effects of a write in the order of the log."""
    images: dict[int, dict[str, Names]] = {PREIMAGE: {}, POSTIMAGE: {}}
    undecoded: dict[str, dict[str, bytes]] = {}
    found: list[list[LogRow]] = []
    by_key: dict[str, list[LogRow]] = {}
    for row in change.rows:
        name = _name(row)
        if row.code in images:
            images[row.code][name] = {**row.key, **row.values, **dict.fromkeys(row.deleted)}
            undecoded[name] = {**row.undecoded, **undecoded.get(name, {})}
        elif row.code in RANGE_ENDS and found and found[-1][0].code in RANGE_STARTS and len(found[-1]) == 1:
            found[-1].append(row)
        elif row.code in RANGE_STARTS or row.code in PARTITION_DELETES or row.code in ROW_DELETES:
            found.append([row])
        elif name in by_key:
            by_key[name].append(row)
        else:
            by_key[name] = [row]
            found.append(by_key[name])
    return tuple(
        replace(_effect(rows, images, by_key), undecoded=_undecoded(rows, undecoded.get(_name(rows[0]), {})))
        for rows in found
    )


def _undecoded(rows: list[LogRow], of_images: Mapping[str, bytes]) -> Mapping[str, bytes]:
    return {**of_images, **{name: data for row in rows for name, data in row.undecoded.items()}}


def _name(row: LogRow) -> str:
    """Return a name of the table row: the representation of its key, because a user type in it cannot be hashed."""
    return repr(dict(row.key))


def _effect(rows: list[LogRow], images: dict[int, dict[str, Names]], by_key: Mapping[str, list[LogRow]]) -> RowEffect:
    first, last = rows[0], rows[-1]
    if first.code in RANGE_STARTS:
        start = Bound(first.key, RANGE_STARTS[first.code])
        end = Bound(last.key, RANGE_ENDS.get(last.code, True))
        shared = {name: value for name, value in first.key.items() if name in last.key and last.key[name] == value}
        return RowEffect("range_delete", first.batch_seq_no, shared, start=start, end=end)
    before, after = images[PREIMAGE].get(_name(first)), images[POSTIMAGE].get(_name(first))
    if first.code in PARTITION_DELETES:
        # The static row also has the key of the partition. An image beside a change of static columns belongs to that
        # change.
        own = None if _name(first) in by_key else before
        return RowEffect("partition_delete", first.batch_seq_no, first.key, before=own)
    if first.code in ROW_DELETES:
        return RowEffect("row_delete", first.batch_seq_no, first.key, before=before)
    values = {name: value for row in rows for name, value in row.values.items()}
    elements = {name: keys for row in rows for name, keys in row.deleted_elements.items()}
    operation = "insert" if any(row.code == INSERT for row in rows) else "update"
    deleted = tuple(dict.fromkeys(name for row in rows for name in row.deleted))
    return RowEffect(operation, first.batch_seq_no, first.key, values, deleted, elements, before, after)
