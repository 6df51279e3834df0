"""Balance over time: the tablets and bytes of each shard, and the number of tablets in transition.

The input is a sequence of states and the nodes' load reports. It may come from a rehearsal, a simulated cluster or the
log of a running cluster. A settled replica counts as one tablet, with the bytes that nodes last reported for it. After
a split or merge, the known bytes of the table are divided evenly among its tablets until nodes report again. The
history begins with the first table in tablets.

A table is recounted only if its tablets or sizes changed. A history has fewer than ``MOMENTS_MAX`` moments: at that
number, every second moment is dropped, and its successor keeps the greater number of tablets in transition.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ringlog.kernel.balance.advice import report_basis, table_groups
from ringlog.kernel.balance.model import BYTES
from ringlog.kernel.balance.reports import Reports, measured_of
from ringlog.kernel.model.state import EMPTY_STATE, OWNING, ClusterState, in_order
from ringlog.kernel.model.tablet_map import TabletMap
from ringlog.kernel.values import NodeId, Value, replace
from ringlog.protocol.balancer.load_book import ReceivedLoad, take

Ints = NDArray[np.int64]

MOMENTS_MAX: Final = 2_000


class HistoryNode(Value):
    """A node of a history. Moments refer to it by its position in ``BalanceHistory.nodes``."""

    name: str
    shards: int


class BalanceMoment(Value):
    """The balance from the time ``at`` until the next moment.

    ``there``: the numbers of the nodes in the cluster. ``tablets``, ``sizes``: replicas and bytes, of shape (nodes
    known so far, greatest shard count so far). ``moving``: the number of tablets in transition.
    """

    at: int
    there: frozenset[int]
    tablets: Ints
    sizes: Ints
    moving: int


class _CountedTable(Value):
    """The tablets of a table, and arrays of equal length with each replica's node number, shard and bytes."""

    tablets: TabletMap
    node: Ints
    shard: Ints
    size: Ints


class BalanceHistory:
    """Moments in order, up to ``end``. ``add_reports`` and ``add_state`` extend it."""

    def __init__(self) -> None:
        self.moments: list[BalanceMoment] = []
        self.nodes: list[HistoryNode] = []
        self.end = 0
        self._numbers: dict[NodeId, int] = {}
        self._newest = Reports().newest
        self._reported: dict[str, dict[int, int]] = {}
        self._stale: set[str] = set()
        self._tables: dict[str, _CountedTable] = {}
        self._last = EMPTY_STATE

    def add_reports(self, reports: Reports, state: ClusterState) -> None:
        """Record the newest reports of the nodes."""
        if reports.newest is self._newest:
            return
        present = report_basis(state)
        for node, found in in_order(reports.newest):
            if self._newest.get(node) is not found:
                for table, sizes in measured_of(found.report, present).loads.get(BYTES, {}).items():
                    self._reported.setdefault(table, {}).update(sizes)
                    self._stale.add(table)
        self._newest = reports.newest

    def add_state(self, at: int, state: ClusterState) -> None:
        """Record the state at ``at`` (epochs or microseconds). A time before ``end`` counts as ``end``."""
        if not state.tablets and not self.moments:
            return
        self.end = max(self.end, at)
        last, self._last = self._last, state
        # States share unchanged parts, so identity detects an unchanged table without a comparison.
        if state.tablets is last.tablets and state.nodes is last.nodes and not self._stale:
            return
        for node, found in in_order(state.nodes):
            if node not in self._numbers:
                self._numbers[node] = len(self.nodes)
                self.nodes.append(HistoryNode(found.name, found.shards))
        sharing_tables = table_groups(state)
        for name in self._tables.keys() - state.tablets.keys():
            del self._tables[name]
        for name in self._reported.keys() - state.tables.keys():
            del self._reported[name]
        for name, tablets in in_order(state.tablets):
            self._count((name, *sharing_tables.get(name, ())), tablets)
        self._stale.clear()
        self._keep(self._moment(state))

    def _count(self, together: tuple[str, ...], tablets: TabletMap) -> None:
        before = self._tables.get(tablets.table)
        if before is not None and before.tablets.count != tablets.count:
            for table in together:
                whole = sum(self._reported.get(table, {}).values())
                self._reported[table] = dict.fromkeys(range(tablets.count), whole // tablets.count)
        elif before is not None and before.tablets.chunks is tablets.chunks and self._stale.isdisjoint(together):
            return
        present = np.zeros(tablets.count, np.int64)
        for table in together:
            for number, size in self._reported.get(table, {}).items():
                if number < tablets.count:
                    present[number] += size
        rows = tablets.columns()
        numbers = np.array([self._numbers[node] for node in tablets.nodes], np.int64)
        self._tables[tablets.table] = _CountedTable(tablets, numbers[rows.node], rows.shard, present[rows.tablet])

    def _moment(self, state: ClusterState) -> BalanceMoment:
        shape = len(self.nodes), max(node.shards for node in self.nodes)
        tablets, sizes = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        for table in self._tables.values():
            # ``np.add.at`` adds once for each replica. Indexed ``+=`` would add once for each distinct shard.
            np.add.at(tablets, (table.node, table.shard), 1)
            np.add.at(sizes, (table.node, table.shard), table.size)
        held = np.flatnonzero(tablets.sum(axis=1)).tolist()
        there = [self._numbers[node] for node, found in state.nodes.items() if found.state in OWNING]
        moving = sum(len(each.transitions) for each in state.tablets.values())
        return BalanceMoment(self.end, frozenset((*there, *held)), tablets, sizes, moving)

    def _keep(self, moment: BalanceMoment) -> None:
        if not self.moments or not _is_same(self.moments[-1], moment):
            self.moments.append(moment)
        if len(self.moments) == MOMENTS_MAX:
            pairs = zip(self.moments[::2], self.moments[1::2], strict=True)
            self.moments = [replace(one, moving=max(one.moving, gone.moving)) for gone, one in pairs]


def history_of(states: Iterable[ClusterState], reports_in: Iterable[ReceivedLoad]) -> BalanceHistory:
    """Return the history of a log. Each state is recorded by its time, after the reports that the broker appended by
    then.
    """
    history, reports, state = BalanceHistory(), Reports(), EMPTY_STATE
    waiting = deque(sorted(reports_in, key=lambda one: one.appended))
    for state in states:
        while waiting and waiting[0].appended <= state.time:
            reports = take(reports, (waiting.popleft(),), state)
        history.add_reports(reports, state)
        history.add_state(state.time, state)
    for one in waiting:
        reports = take(reports, (one,), state)
        history.add_reports(reports, state)
        history.add_state(one.appended, state)
    return history


def _is_same(one: BalanceMoment, other: BalanceMoment) -> bool:
    return (
        (one.there, one.moving, one.tablets.shape) == (other.there, other.moving, other.tablets.shape)
        and bool((one.tablets == other.tablets).all())
        and bool((one.sizes == other.sizes).all())
    )
