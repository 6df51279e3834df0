"""How often each tablet of a node is read and written: the requests that it served, in a second.

A report that follows a move at once has not counted for long. So rates are those of the last whole period, and of the
present one only until there is a whole one. A tablet is known by its number and by how many there are: what was counted
before a split or merge is nobody's.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping

from ringlog.kernel.balance.model import READS, WRITES
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.tablets.groups import map_of
from ringlog.kernel.values import SECOND_US, Micros, Token
from ringlog.protocol.balancer.load_reports import SELDOM_US, Amounts

Counts = Mapping[tuple[str, str, int, int], int]
"""Kind, table, number of its tablets, tablet: requests."""


class ServedRequests:
    """Counts requests. Safe from threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, str, int, int]] = Counter()
        self._begun: Micros | None = None
        self._whole: tuple[Counts, Micros] | None = None

    def count_request(self, kind: str, state: ClusterState, table: str, token: Token) -> None:
        """A request was served under ``state``; it counts if ``table`` (``keyspace.table``) is in tablets."""
        found = state.tables.get(table)
        tablets = None if found is None else map_of(state, found)
        if tablets is not None:
            with self._lock:
                self._counts[kind, table, tablets.count, tablets.index_of(token)] += 1

    def rates(self, state: ClusterState, now: Micros) -> dict[str, Amounts]:
        """Kind, table, tablet: requests in a second, rounded up. ``now``: of a clock that does not go back."""
        with self._lock:
            begun = self._begun = now if self._begun is None else self._begun
            counts, passed = self._whole or (self._counts.copy(), now - begun)
            if now - begun >= SELDOM_US:
                self._whole = counts, passed = self._counts, now - begun
                self._counts, self._begun = Counter(), now
        found: dict[str, dict[str, dict[int, int]]] = {READS: {}, WRITES: {}}
        for (kind, table, count, number), requests in counts.items():
            table_schema = state.tables.get(table)
            tablets = None if table_schema is None else map_of(state, table_schema)
            if tablets is not None and tablets.count == count:
                rate = -(-requests * SECOND_US // max(passed, SECOND_US))
                found[kind].setdefault(table, {})[number] = rate
        return dict(found)
