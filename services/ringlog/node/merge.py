"""One partition as a reader sees it: the versions of its rows merged by last write wins.

The rules are Cassandra's. Per column the greatest timestamp wins; of equal ones a delete wins over a value, and the
greater value over the lesser. A row delete covers what its row had up to and with its timestamp, a partition delete
what all rows had. A row exists while it was inserted (and that did not expire) or has a live cell; a value whose
time to live is over counts as deleted.

The order in which writes are given does not matter.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ringlog.wire.records import INSERT, PARTITION_DELETE, ROW_DELETE, Mutation

SECOND_US = 1_000_000
BEFORE_ALL = -(2**63)
Clustering = tuple[bytes | None, ...]


@dataclass(frozen=True, slots=True)
class CellState:
    """The live value of a column, in CQL serialisation, and the timestamp of its write (microseconds)."""

    column: str
    value: bytes
    timestamp: int


@dataclass(frozen=True, slots=True)
class RowState:
    """A live row. ``inserted``: timestamp of the insert that keeps it alive without cells; None: only its cells do."""

    clustering_key: Clustering
    inserted: int | None
    cells: tuple[CellState, ...]


def merged(writes: Iterable[Mutation], now_us: int) -> tuple[RowState, ...]:
    """The live rows of one partition at ``now_us``, by clustering key (as bytes); cells by column."""
    partition_delete = BEFORE_ALL
    rows: dict[Clustering, list[Mutation]] = {}
    for write in writes:
        if write.operation == PARTITION_DELETE:
            partition_delete = max(partition_delete, write.timestamp)
        else:
            rows.setdefault(write.clustering_key, []).append(write)
    found = (_row(key, rows[key], partition_delete, now_us) for key in sorted(rows, key=_order))
    return tuple(row for row in found if row is not None)


def _row(key: Clustering, writes: list[Mutation], covered: int, now_us: int) -> RowState | None:
    covered = max([covered, *(w.timestamp for w in writes if w.operation == ROW_DELETE)])
    marker: tuple[int, bool] | None = None
    winners: dict[str, tuple[int, bool, bytes]] = {}
    for write in writes:
        if write.operation == ROW_DELETE or write.timestamp <= covered:
            continue
        over = write.ttl is not None and write.timestamp + write.ttl * SECOND_US <= now_us
        if write.operation == INSERT:
            marker = max(marker or (BEFORE_ALL, False), (write.timestamp, over))
        for cell in write.cells:
            candidate = (write.timestamp, over or cell.value is None, cell.value or b"")
            winners[cell.column] = max(winners.get(cell.column, candidate), candidate)
    cells = tuple(
        CellState(column, value, timestamp) for column, (timestamp, gone, value) in sorted(winners.items()) if not gone
    )
    inserted = marker[0] if marker is not None and not marker[1] else None
    return RowState(key, inserted, cells) if cells or inserted is not None else None


def _order(key: Clustering) -> tuple[bytes, ...]:
    return tuple(b"" if part is None else b"\x01" + part for part in key)
