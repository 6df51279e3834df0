"""The schedule and the content of a node's load reports.

A node reports at its start, when its set of tablets changes, and at regular intervals. A new tablet keeps its node out
of the balancer's plans until the node reports it, so it is reported soon. A node sends at most one report in
``BRIEFLY_US`` and at least one in ``SELDOM_US``. That is a third of the balancer's window, so the balancer still counts
a node after a lost report.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from ringlog.kernel.balance.advice import table_groups
from ringlog.kernel.balance.model import READS, TRAFFIC
from ringlog.kernel.balance.reports import WINDOW_US
from ringlog.kernel.model.state import ClusterState, in_order
from ringlog.kernel.tablets.groups import map_of
from ringlog.kernel.values import Micros, NodeId, Position, Token
from ringlog.wire.records import NodeLoad, TableLoad

SELDOM_US: Final[Micros] = WINDOW_US // 3
BRIEFLY_US: Final[Micros] = 1_000_000

Own = Mapping[str, tuple[int, ...]]
"""Table to the numbers of the tablets that a node has."""


def own_tablets(state: ClusterState, node: NodeId) -> dict[str, tuple[int, ...]]:
    """Return the tablets of the node by table, including tables that share the tablets of another one."""
    found: dict[str, tuple[int, ...]] = {}
    shared = table_groups(state)
    for name, tablets in in_order(state.tablets):
        if node in tablets.nodes:
            columns = tablets.columns()
            numbers = tuple(columns.tablet[columns.node == tablets.nodes.index(node)].tolist())
            found.update(dict.fromkeys((name, *shared.get(name, ())), numbers) if numbers else {})
    return found


class LoadReportSchedule:
    """The schedule of one run of a node. For one thread."""

    def __init__(self, node: NodeId) -> None:
        self._node = node
        self._at: Micros | None = None
        self._checked_change = -1
        self._own: Own | None = None

    def due(self, state: ClusterState, now: Micros) -> Own | None:
        """Return the tablets to report now, or None. ``now``: of a monotonic clock."""
        if self._node not in state.nodes or (self._at is not None and now - self._at < BRIEFLY_US):
            return None
        changed = max(state.changed.get("tablets", 0), state.changed.get("tables", 0))
        if self._at is not None and changed == self._checked_change and now - self._at < SELDOM_US:
            return None
        own, self._checked_change = own_tablets(state, self._node), changed
        return own if own != self._own or self._at is None or now - self._at >= SELDOM_US else None

    def sent(self, own: Own, now: Micros) -> None:
        """Record that these tablets were reported."""
        self._own, self._at = own, now


Amounts = Mapping[str, Mapping[int, int]]
"""Table and tablet to an amount."""

NO_RATES: Final[Mapping[str, Amounts]] = {}
NO_POSITIONS: Final[Mapping[int, int]] = {}


def load_of(
    state: ClusterState,
    node: NodeId,
    own: Own,
    sizes: Amounts,
    at: Micros,
    rates: Mapping[str, Amounts] = NO_RATES,
    judged: Mapping[int, int] = NO_POSITIONS,
) -> NodeLoad:
    """Return the record to send.

    Args:
        own: the tablets to report.
        sizes: their sizes in bytes. A missing one counts as 0.
        rates: averages per second of the measured tablets, by kind. A tablet without one counts as not measured.
        judged: positions of the mutations topic. The node has validated every record below them.

    A reference node does not measure its capacity, so the record has none.
    """

    def column(amounts: Amounts, table: str, numbers: Iterable[int]) -> tuple[int, ...]:
        return tuple([amounts.get(table, {}).get(number, 0) for number in numbers])

    tables = []
    for table, numbers in sorted(own.items()):
        found = state.tables[table]
        tablets = map_of(state, found)
        assert tablets is not None, "a table that is reported is in tablets"
        known = rates.get(READS, {}).get(table, {})
        for is_measured in (True, False):
            part = tuple([number for number in numbers if (number in known) == is_measured])
            if part:
                reads, writes, cpu = (column(rates[kind], table, part) if is_measured else () for kind in TRAFFIC)
                in_bytes = column(sizes, table, part)
                tables.append(TableLoad(table, part, in_bytes, reads, writes, cpu, found.id, tablets.count))
    positions = tuple(Position(partition, offset) for partition, offset in sorted(judged.items()))
    return NodeLoad(node, at, None, tuple(tables), positions)


def sizes_of(state: ClusterState, table: str, held: Iterable[tuple[Token, int]]) -> dict[int, int]:
    """Return the bytes of each tablet of a table.

    Args:
        held: Token and bytes of everything that the node stores for the table.
    """
    tablets = map_of(state, state.tables[table])
    assert tablets is not None, "a table that is reported is in tablets"
    found: dict[int, int] = {}
    for token, size in held:
        number = tablets.index_of(token)
        found[number] = found.get(number, 0) + size
    return found
