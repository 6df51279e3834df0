"""A check that every reader sees a cell under the column it was written to, and not at all after a drop of the column.

The model numbers the columns of the table that ``ringlog_sim.stories.column_rename`` alters. A rename keeps the number,
a drop ends it, and an added column gets a new one. Each value names its version and column, and so its number.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ringlog.client.cdc.rows import TableTypes
from ringlog.client.data.row_merge import merged
from ringlog.kernel.changes import table_change
from ringlog.kernel.commands.schema.batch import SchemaBatch
from ringlog.kernel.commands.schema.tables import AlterTable
from ringlog.kernel.model.outcome import Entry
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.model.tables import Table
from ringlog.kernel.values import Command
from ringlog.wire.records import CdcRow, Mutation, decode_mutation
from ringlog_sim.actors.cdc.producer import KEYSPACE, RESPELLED
from ringlog_sim.checks.base import Check
from ringlog_sim.devices.broker import CDC

if TYPE_CHECKING:
    from ringlog_sim.actors.nodes.node import SimNode
    from ringlog_sim.simulation import Simulation

NAME = f"{KEYSPACE}.{RESPELLED}"
RING = ((0, 0),)
Cells = dict[tuple[object, str], bytes]
"""By clustering key and column."""


class Columns(Check):
    """The columns in nodes' rows, and in the CDC log by the table version of each row and by the newest one."""

    def __init__(self, sim: Simulation) -> None:
        super().__init__(sim)
        self._numbers: dict[str, dict[str, int]] = {}
        self._count = 0

    def applied(self, before: ClusterState, after: ClusterState, item: Entry, offset: int) -> None:
        """Number the columns of a new version."""
        was, table = before.tables.get(NAME), after.tables.get(NAME)
        if table is None or table is was:
            return
        neededs = {} if was is None or was.id != table.id else dict(self._numbers[was.version])
        for command in _commands(item):
            if isinstance(command, AlterTable) and f"{command.keyspace}.{command.name}" == NAME:
                neededs = {name: number for name, number in neededs.items() if name not in command.drop_columns}
                for one in command.rename_columns:
                    neededs[one.to] = neededs.pop(one.from_)
        for column in table.columns:
            if column.name not in neededs:
                self._count += 1
                neededs[column.name] = self._count
        if neededs.keys() != {column.name for column in table.columns}:
            self.sim.broken("columns", f"epoch {after.epoch} has {table.columns}, not {sorted(neededs)}")
        self._numbers[table.version] = neededs

    def quiet(self) -> None:
        """Check all nodes and all rows, after they have been read to the end."""
        for _, node in sorted(self.sim.shared["nodes"].items()):
            if node.starts:
                self._check_node(node)
        for partition in self.sim.broker.topics[CDC]:
            for record in partition.records[: partition.visible]:
                if f"{record.value.keyspace}.{record.value.table}" == NAME:
                    self._check_row(record.value)

    def _check_node(self, node: SimNode) -> None:
        """Check a node's rows as a reader sees them: for each column, the newest value written to it."""
        table = node.row_replica.state.tables.get(NAME)
        if table is None:
            return
        kept: dict[bytes, list[Mutation]] = {}
        for version in node.row_replica.store.versions(RING, [NAME]):
            kept.setdefault(version.partition_key, []).append(decode_mutation(version.value))
        for key, writes in kept.items():
            live = merged(writes, node.row_replica.shape(NAME), 0)
            seen = {(row.clustering_key, cell.column): cell.value for row in live.rows for cell in row.cells}
            wanted = self._wanted(writes, table)
            if seen != wanted:
                self.sim.broken("columns", f"{node.name} has {seen} for {key!r}, not {wanted}")
            self.sim.did["columns", "seen on a node"] += len(seen)

    def _wanted(self, writes: Iterable[Mutation], table: Table) -> Cells:
        newest: dict[tuple[object, int], tuple[int, bytes]] = {}
        for write in writes:
            for cell in write.cells:
                assert cell.value is not None, "the profile deletes no cells"
                place = write.clustering_key, self._number(cell.value)
                newest[place] = max((write.timestamp, cell.value), newest.get(place, (0, b"")))
        names = self._names(table)
        self.sim.did["columns", "dropped"] += sum(number not in names for _, number in newest)
        return {(row, names[number]): value for (row, number), (_, value) in newest.items() if number in names}

    def _check_row(self, row: CdcRow) -> None:
        """Check a row of the log with the table at the row's epoch and with the newest version."""
        then = self.sim.log.states[row.epoch].tables.get(NAME)
        if then is None:
            self.sim.broken("columns", f"a row has epoch {row.epoch}, which has no table {NAME}")
            return
        now = self.sim.log.state.tables.get(NAME)
        for table in (then, now):
            if table is None or table.id != then.id:
                continue
            names = self._names(table)
            given = [(self._number(cell.value), cell.value) for cell in row.cells if cell.value is not None]
            # The operator's columns have other types, which do not fit the texts of this load.
            text_columns = {column.name for column in table.columns if column.type == "text"}
            wanted = {names[number]: value for number, value in given if names.get(number) in text_columns}
            shown = TableTypes(table_change(table, row.epoch)).row(row)
            seen = {name: str(value).encode() for name, value in shown.values.items() if name in text_columns}
            if seen != wanted:
                self.sim.broken("columns", f"a row of epoch {row.epoch} shows {seen} by {table.version}, not {wanted}")
            self.sim.did["columns", "seen in the CDC log"] += len(seen)

    def _names(self, table: Table) -> dict[int, str]:
        return {number: name for name, number in self._numbers[table.version].items()}

    def _number(self, value: bytes) -> int:
        """Return the number of the column that a value was written to."""
        version, name = value.decode().split("/")
        return self._numbers[version][name]


def _commands(item: Entry) -> Iterable[Command]:
    """Return the commands of an entry, including each command of a batch."""
    if isinstance(item.command, SchemaBatch):
        return [command for statement in item.command.statements for command in statement.commands]
    return [item.command] if isinstance(item.command, Command) else []
