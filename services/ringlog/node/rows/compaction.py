"""Compaction: removes row versions that no reader needs, page by page, and reads large partitions.

The state of a partition is the join of the effects of its writes (``ringlog.kernel.rows``). The join is commutative,
associative and idempotent. So a version is *redundant* if the join of other remaining versions already contains its
effect. Without it, the partition has the same state at every instant, for any further writes in any order. Overwritten
cells and everything below a tombstone are redundant. The newest tombstones are not.

The effect of a version must not depend on the columns that this node knows so far. Two kinds of versions therefore
remain until their partition is deleted. The first names a column that the table lacks here, because it was dropped or
is added later. The second has a multi-cell user type, which may gain fields. A tombstone of the partition covers every
column, so a DELETE makes a large partition readable again.

Versions are removed in the same transaction as their successors, or in a later one. Two replicas may therefore store
different versions of a partition with the same state: readers compare states (``ringlog.client.data.row_reads``).

A scan holds the node's lock for one page at a time. It restarts if rows of any table were dropped in the meantime.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final, Protocol

from ringlog.kernel.cql.collections import cells_of
from ringlog.kernel.generations.statements import TableShape, statements_of, stored_shape
from ringlog.kernel.rows.partition import Key, PartitionState, join
from ringlog.kernel.rows.writes import columns_of, effect_of
from ringlog.kernel.values import Micros
from ringlog.node.checks import token_of_partition
from ringlog.node.rows.store import RowStore, order
from ringlog.wire.data import RowVersion
from ringlog.wire.errors import WireError
from ringlog.wire.records import Mutation, decode_mutation

PAGE_VERSIONS: Final = 500
PAGE_BYTES: Final = 1024 * 1024
"""A page ends at the first of these limits, so the lock is held for a bounded time."""
SMALL_BYTES: Final = 256 * 1024
"""A partition of at most this size is read at once and without compaction."""
COMPACTED_AFTER: Final = 2_000
"""The number of writes after which a partition is compacted.

A later compaction needs this number of writes plus the number of versions that the last one read.
"""
COUNTED_MAX: Final = 50_000
"""The limit of partitions with a write count. Beyond it all counts are reset."""
_OPERATIONS: Final = frozenset({"INSERT", "UPDATE", "ROW_DELETE", "RANGE_DELETE", "PARTITION_DELETE"})
_GROWS_NEVER: Final = ("list<", "set<", "map<")

PartitionName = tuple[str, bytes]
"""Table and partition key."""


class ScannedRows(Protocol):
    """The rows of a node: the part of ``ringlog.node.rows.replica`` that a scan needs.

    Attributes:
        drops: The number of times that rows of lost ranges were dropped.
        scans: Running scans. Each receives the versions that are added to its partition.
    """

    drops: int
    scans: list[PartitionScan]
    store: RowStore

    @property
    def lock(self) -> AbstractContextManager[Any]: ...
    def shape(self, table: str) -> TableShape: ...
    def has_table(self, table: str) -> bool: ...
    def partition(self, table: str, partition_key: bytes, bytes_max: int) -> list[RowVersion] | None: ...
    def remove(self, versions: Sequence[RowVersion]) -> None: ...


class RedundantVersions:
    """Finds the redundant versions of one partition.

    Args:
        shape: The table as this node knows it.
    """

    def __init__(self, shape: TableShape) -> None:
        self._shape = stored_shape(shape)
        self._columns = columns_of(self._shape)
        self._column_names = frozenset(self._shape.columns or ())
        self._tombstones = PartitionState()
        self._row: Key | None = None
        self._state = PartitionState()

    def among(self, versions: Iterable[RowVersion]) -> list[RowVersion]:
        """Return the versions that earlier ones, in this call or previous calls, make redundant.

        Args:
            versions: In descending order within each row. The empty clustering key comes first, because it has the
                tombstones of ranges and of the partition. Other rows may come in any order.
        """
        found = []
        for version in versions:
            if version.clustering_key != self._row:
                self._begin(version.clustering_key)
            write = _decoded(version)
            if write is None:
                continue
            effect = self._effect(write)
            if effect is None:
                if _is_below(write, self._state.deleted):
                    found.append(version)
                continue
            joined = join(self._state, effect, self._columns)
            if joined == self._state:
                found.append(version)
            self._state = joined
        return found

    def _begin(self, row: Key) -> None:
        if self._row == ():
            self._tombstones = PartitionState(self._state.deleted, self._state.ranges)
        self._row, self._state = row, self._tombstones

    def _effect(self, write: Mutation) -> PartitionState | None:
        """Return the effect of a write, or None if it depends on the columns of the table."""
        for statement in statements_of(write):
            cells = [(cell.column, cell.value) for cell in statement.cells]
            taken = (one.column for one in statement.deleted_elements)
            names = {name for name, _ in cells}.union(statement.replaced, taken)
            if statement.operation not in _OPERATIONS or not names <= self._column_names:
                return None
            kinds = {name: self._columns.multi_cell[name] for name in names if name in self._columns.multi_cell}
            if not all(kind.startswith(_GROWS_NEVER) for kind in kinds.values()):
                return None
            try:
                for name, value in cells:
                    if name in kinds and value is not None:
                        cells_of(kinds[name], value)
            except ValueError:
                return None
        return effect_of(write, self._shape, self._columns)


def _decoded(version: RowVersion) -> Mutation | None:
    try:
        return decode_mutation(version.value)
    except WireError:
        return None  # A later release wrote it.


def _is_below(write: Mutation, deleted: Micros) -> bool:
    """Return True if a tombstone of the partition deletes every statement of a write."""
    return all(
        statement.operation in _OPERATIONS
        and (write.timestamp if statement.timestamp is None else statement.timestamp) <= deleted
        for statement in statements_of(write)
    )


class PartitionScan:
    """One pass over a partition that removes its redundant versions.

    Attributes:
        kept: The remaining versions.
        kept_bytes: The size of their writes.
    """

    def __init__(self, row_replica: ScannedRows, name: PartitionName) -> None:
        self.name = name
        self.kept: list[RowVersion] = []
        self.kept_bytes = 0
        self.seen = 0
        self.is_done = False
        self._row_replica = row_replica
        self._drops = row_replica.drops
        self._redundant = RedundantVersions(row_replica.shape(name[0]))
        self._below: RowVersion | None = None
        self._in_rows = False

    @property
    def is_broken(self) -> bool:
        """True if rows were dropped since the scan began, so that ``kept`` may contain dropped rows."""
        return self._row_replica.drops != self._drops

    def add(self, version: RowVersion) -> None:
        """Add a version that was written since the scan began."""
        self.kept.append(version)
        self.kept_bytes += len(version.value)

    def step(self, keeps: bool) -> None:
        """Process one page.

        Args:
            keeps: True to collect the remaining versions in ``kept``.
        """
        row_replica, (table, key) = self._row_replica, self.name
        with row_replica.lock:
            if self.is_broken:
                return
            token = token_of_partition(key)
            page = row_replica.store.page(table, token, key, self._in_rows, self._below, PAGE_VERSIONS, PAGE_BYTES)
        # Decode outside the lock: this is the expensive part. Rows may be dropped in the meantime, so check again.
        redundant = self._redundant.among(page)
        with row_replica.lock:
            if self.is_broken:
                return
            row_replica.remove(redundant)
        self.seen += len(page)
        if keeps:
            gone = {(one.clustering_key, one.timestamp, one.value) for one in redundant}
            for one in page:
                if (one.clustering_key, one.timestamp, one.value) not in gone:
                    self.add(one)
        if page:
            self._below = page[-1]
        elif self._in_rows:
            self.is_done = True
        else:
            # The versions with the empty clustering key come first: their tombstones make versions of rows redundant.
            self._in_rows, self._below = True, None


class Compactor:
    """Counts the writes of each partition and compacts those with many, one page with each ``step``.

    Args:
        after: The number of writes after which a partition is compacted.
    """

    def __init__(self, after: int = COMPACTED_AFTER) -> None:
        self._after = after
        self._written: Counter[PartitionName] = Counter()
        self._waiting: dict[PartitionName, None] = {}
        self._scan: PartitionScan | None = None

    def count_write(self, table: str, partition_key: bytes) -> None:
        """Count an added version."""
        name = table, partition_key
        self._written[name] += 1
        if self._written[name] >= self._after:
            self._waiting[name] = None
        elif len(self._written) > COUNTED_MAX:
            self._written.clear()

    def step(self, row_replica: ScannedRows) -> None:
        """Continue with the present partition, or begin with the next one."""
        if self._scan is None:
            if not self._waiting:
                return
            with row_replica.lock:
                name = next(iter(self._waiting))
                del self._waiting[name], self._written[name]
                self._scan = PartitionScan(row_replica, name) if row_replica.has_table(name[0]) else None
        scan = self._scan
        if scan is not None:
            scan.step(keeps=False)
            if scan.is_done:
                # Credit the versions that the scan has read, so that a large partition is not compacted again after a
                # few writes.
                self._written[scan.name] -= scan.seen
            if scan.is_done or scan.is_broken:
                self._scan = None


@contextmanager
def partition_read(
    row_replica: ScannedRows, name: PartitionName, bytes_max: int | None
) -> Iterator[list[RowVersion] | None]:
    """Provide the versions of a partition, or None if they exceed ``bytes_max`` bytes without the redundant ones.

    The node's lock is held inside the context, so that epoch, positions and versions belong together.
    """
    table, key = name
    while True:
        with row_replica.lock:
            small = row_replica.partition(table, key, SMALL_BYTES)
            if small is not None:
                yield small
                return
            scan = PartitionScan(row_replica, name)
            row_replica.scans.append(scan)
        try:
            while not scan.is_done and not scan.is_broken and (bytes_max is None or scan.kept_bytes <= bytes_max):
                scan.step(keeps=True)
            with row_replica.lock:
                if not scan.is_broken:
                    is_too_large = bytes_max is not None and scan.kept_bytes > bytes_max
                    yield None if is_too_large else sorted(set(scan.kept), key=order)
                    return
        finally:
            with row_replica.lock:
                row_replica.scans.remove(scan)
