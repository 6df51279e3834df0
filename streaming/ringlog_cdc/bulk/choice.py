"""The path of each record: in bulk, or by the definition for one of these reasons.

Invariants:

* The reasons affect speed only: both paths give the same bytes.
* ``choose`` looks at structure: tables, operations, names of columns. Two reasons follow later, ``REJECTED`` from
  routing and ``OVERSIZED`` from encoding.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from ringlog_cdc.bulk.columns import ColumnChecks, NamedTables, has_images, is_compound, operations_of
from ringlog_cdc.bulk.routing import BulkTable
from ringlog_cdc.columnar.mutations import Mutations
from ringlog_cdc.columnar.words import I64, U8, Flags
from ringlog_cdc.definition.row import OPERATION_CODES


class RecordPath(IntEnum):
    """How a record is processed. The names of the reasons are the labels of a metric."""

    BULK = 0
    """Together with other records."""
    NOT_PLAIN = 1
    """The value is unreadable, not canonical, or several statements or collections."""
    NAMES = 2
    """A column occurs twice, or the batch names too many tables or columns."""
    EARLIER_VERSION = 3
    """The write was appended while an earlier version of its table may have applied."""
    COMPOUND = 4
    """The write may become several rows, or its columns are stored under other names."""
    IMAGES = 5
    """The table keeps images, and its rows or this write need more than one cell per column."""
    REJECTED = 6
    """The write breaks a rule and becomes a dead letter."""
    OVERSIZED = 7
    """The row is larger than the limit."""


def choose(
    mutations: Mutations, rows: I64, tables: NamedTables, checks: ColumnChecks, appended: I64, table: BulkTable
) -> U8:
    """Return the path of each plain mutation. If several reasons apply, the first one counts.

    Args:
        mutations: Columns of a batch.
        rows: Numbers of n plain mutations.
        tables: Their tables.
        checks: Checks of their columns.
        appended: Their append times, microseconds.
        table: The table of the workers.
    """
    path = np.full(len(rows), RecordPath.BULK, dtype=np.uint8)
    # From the last reason to the first: a later assignment wins.
    if table.definition.images:
        path[has_images(tables, table) & ~is_flat_write(mutations, rows, tables, table)] = RecordPath.IMAGES
    path[is_compound(mutations, rows, tables, table)] = RecordPath.COMPOUND
    path[appended < table.newest_since] = RecordPath.EARLIER_VERSION
    path[checks.doubtful | (tables.codes < 0)] = RecordPath.NAMES
    return path


def is_flat_write(mutations: Mutations, rows: I64, tables: NamedTables, table: BulkTable) -> Flags:
    """Return True for inserts, updates and row deletes of tables with images and one cell per column."""
    images = table.definition.images
    flat = np.array([*(name in images and images[name].is_flat for name in tables.names), False])
    operations = operations_of(mutations, rows)
    found: Flags = flat[tables.codes] & (operations > 0) & (operations <= OPERATION_CODES["ROW_DELETE"])
    return found
