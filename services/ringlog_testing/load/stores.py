"""The targets of a load: registers of a keyspace, and rows of a table. Each key holds one number.

A register is in a keyspace of the token ring, or in a table in tablets (also those of a zone). A row has one column of
type text as its partition key, and a column of type bigint.

**Reads of rows.** A row is read at QUORUM and at the positions of the acknowledged writes of its key. So a read finds
every write that was acknowledged before, and everything that an earlier read found: rows are linearizable here, too.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Protocol

from ringlog.client.data.coordinator import Coordinator
from ringlog.client.data.plans import Answer, Level
from ringlog.client.data.registers import RegisterResult
from ringlog.client.data.row_merge import merged
from ringlog.client.data.row_reads import FoundPartition, Positions
from ringlog.client.data.row_writer import RowWriter
from ringlog.kernel.generations.statements import shape_of_table
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.model.tables import Table
from ringlog.kernel.ownership.kinds import strategy_of
from ringlog.kernel.ring.murmur3 import compose
from ringlog.kernel.values import Epoch, Micros, NodeId, Value
from ringlog.runtime.draw import SystemDraw, draw_uuid
from ringlog.wire.records import INSERT, Cell, Mutation, decode_mutation
from ringlog_testing.load.order import LOST_ROWS

REGISTERS, ROWS = "registers", "rows"


class WriteRejected(Exception):
    """A rule rejects the write: it has no effect and never will. ``code``: of the rule."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class NoTarget(Exception):
    """The keyspace or table cannot take a load. ``code`` is stable, ``ways_out`` are commands."""

    def __init__(self, code: str, text: str, *ways_out: str) -> None:
        super().__init__(text)
        self.code = code
        self.ways_out = ways_out


class Answered(Value):
    """An answer: the value that a read found, None if there is none, and a note with the epoch and the nodes."""

    value: int | None
    note: str


class LoadStore(Protocol):
    """A target of a load. Thread-safe. Each error of a request with a ``code`` leaves its outcome unknown."""

    @property
    def kind(self) -> str:
        """Return ``registers`` or ``rows``."""

    @property
    def name(self) -> str:
        """Return the kind and the name of the keyspace or table."""

    def write(self, key: str, value: int, timestamp: Micros, timeout_s: float) -> Answered:
        """Write a value. Raises WriteRejected."""

    def read(self, key: str, timeout_s: float) -> Answered:
        """Read a value."""


class LoadRegisters:
    """Registers of ``space``: a keyspace of the token ring, or a table (``keyspace.table``) in tablets."""

    kind = REGISTERS

    def __init__(self, coordinator: Coordinator, space: str, state: Callable[[], ClusterState]) -> None:
        self._coordinator, self._space, self._names = coordinator, space, _Names(state)
        self.name = f"{REGISTERS} {space}"

    def write(self, key: str, value: int, timestamp: Micros, timeout_s: float) -> Answered:
        """Write a register at QUORUM. Raises RequestTimedOut, RequestImpossible."""
        return self.answered(
            self._coordinator.write(self._space, key.encode(), b"%d" % value, timestamp=timestamp, timeout_s=timeout_s)
        )

    def read(self, key: str, timeout_s: float) -> Answered:
        """Read a register at QUORUM. Raises RequestTimedOut, RequestImpossible."""
        return self.answered(self._coordinator.read(self._space, key.encode(), timeout_s=timeout_s))

    def answered(self, done: RegisterResult) -> Answered:
        """Return the answer of a successful request. Override it to examine each success."""
        value = None if done.cell is None or done.cell.deleted else int(done.cell.value)
        return Answered(value, self._names.note(done.epoch, done.answers))


class AckedPositions:
    """For each key, the positions of its acknowledged writes. Thread-safe: all coordinators of a load share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of: dict[str, dict[int, int]] = {}

    def of(self, key: str) -> Positions:
        """Return the positions that a read of the key must have reached."""
        with self._lock:
            return dict(self._of.get(key, {}))

    def add(self, key: str, at: Positions) -> None:
        """Add an acknowledged write."""
        with self._lock:
            found = self._of.setdefault(key, {})
            for partition, offset in at.items():
                found[partition] = max(offset, found.get(partition, 0))


class LoadRows:
    """Rows of ``table``, in its bigint ``column``. ``acked``: see ``AckedPositions``."""

    kind = ROWS

    def __init__(
        self,
        coordinator: Coordinator,
        writer: RowWriter,
        table: Table,
        column: str,
        acked: AckedPositions,
        state: Callable[[], ClusterState],
    ) -> None:
        self._coordinator, self._writer, self._column = coordinator, writer, column
        self._table, self._shape, self._names = table, shape_of_table(table), _Names(state)
        self._draw, self._acked = SystemDraw(), acked
        self.name = f"{ROWS} {table.full_name}"

    def write(self, key: str, value: int, timestamp: Micros, timeout_s: float) -> Answered:
        """Write a row and wait for the decision on it. Raises WriteRejected, WriteUnanswered, WaitTimedOut."""
        deadline = time.monotonic() + timeout_s
        mutation = Mutation(
            mutation_id=draw_uuid(self._draw),
            cluster_id=None,
            keyspace=self._table.keyspace,
            table=self._table.name,
            timestamp=timestamp,
            ttl=None,
            operation=INSERT,
            partition_key=(key.encode(),),
            clustering_key=(),
            cells=(Cell(self._column, value.to_bytes(8, "big", signed=True)),),
        )
        written = self._writer.write(mutation, timeout_s)
        code = self._writer.verdict(written, max(deadline - time.monotonic(), 0.1)).code
        if code:
            raise WriteRejected(code)
        # Before the acknowledgement is recorded: each later read is at this position or above.
        self._acked.add(key, written.at)
        return Answered(None, f"position {written.partition}:{written.offset}")

    def read(self, key: str, timeout_s: float) -> Answered:
        """Read a row at QUORUM and at its acknowledged positions. Raises RequestTimedOut, RequestImpossible."""
        place = self._table.full_name, compose([key.encode()])
        at = self._acked.of(key)
        found = self._coordinator.read_rows(*place, at=at, level=Level.QUORUM, timeout_s=timeout_s)
        note = self._names.note(found.epoch, found.answers)
        if found.lacking:
            note = f"{LOST_ROWS}{self._names.of(found.lacking)}; {note}"
        return Answered(self._value(found), note)

    def _value(self, found: FoundPartition) -> int | None:
        live = merged(map(decode_mutation, found.writes), self._shape, time.time_ns() // 1_000)
        cells = {cell.column: cell.value for row in live.rows for cell in row.cells}
        return int.from_bytes(cells[self._column], "big", signed=True) if self._column in cells else None


class _Names:
    """Names of nodes for notes. ``state``: returns the newest state. A node that is not in it is named by its id."""

    def __init__(self, state: Callable[[], ClusterState]) -> None:
        self._state = state

    def of(self, nodes: Iterable[NodeId]) -> str:
        known = self._state().nodes
        return " ".join(sorted(known[node].name if node in known else node[:8] for node in nodes))

    def note(self, epoch: Epoch, answers: tuple[Answer, ...]) -> str:
        return f"epoch {epoch}, {self.of({answer.node for answer in answers})}"


def register_space(state: ClusterState, keyspace: str, table: str) -> str:
    """Return the name that requests for registers use: the keyspace, or the table if it is in tablets.

    Raises NoTarget.
    """
    found = state.keyspaces.get(keyspace)
    if found is None:
        raise NoTarget(
            "unknown_keyspace",
            f"keyspace {keyspace} does not exist",
            f"ringlog keyspace create {keyspace} --factor 3",
        )
    if strategy_of(found.replication).in_ring:
        return keyspace
    if not table:
        raise NoTarget("bad_usage", f"the tables of {keyspace} are in tablets: pass --table {keyspace}.TABLE")
    return table


def row_target(state: ClusterState, full_name: str) -> tuple[Table, str]:
    """Return the table and its column for the load. Raises NoTarget."""
    table = state.tables.get(full_name)
    if table is None:
        raise NoTarget("unknown_table", f"the table {full_name} does not exist", _created(full_name))
    types = {column.name: column.type for column in table.columns}
    columns = [name for name, type_ in types.items() if type_ == "bigint" and name not in table.partition_key]
    if len(table.partition_key) != 1 or types[table.partition_key[0]] != "text" or table.clustering_key or not columns:
        why = f"{full_name} needs one key column of type text and a column of type bigint: use a table of its own"
        raise NoTarget("type_mismatch", why, _created(f"{table.keyspace}.load"))
    return table, columns[0]


def _created(table: str) -> str:
    return f"echo 'CREATE TABLE {table} (key text PRIMARY KEY, value bigint);' | ringlog ddl"
