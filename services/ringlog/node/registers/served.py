"""Request rates of each tablet of a node: the reads and writes that it served per second.

A load report may follow directly after a previous one, when few requests have been counted. So rates describe the last
complete period, or the present one until the first is complete. A tablet is identified by its number and the number of
tablets of its table. Counts from before a split or merge are discarded.
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
"""Kind, table, number of tablets, tablet: requests."""


class ServedRequests:
    """Counts requests. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, str, int, int]] = Counter()
        self._begun: Micros | None = None
        self._whole: tuple[Counts, Micros] | None = None

    def count_request(self, kind: str, state: ClusterState, table: str, token: Token) -> None:
        """Count a request served under ``state``, if ``table`` (``keyspace.table``) has tablets."""
        found = state.tables.get(table)
        tablets = None if found is None else map_of(state, found)
        if tablets is not None:
            with self._lock:
                self._counts[kind, table, tablets.count, tablets.index_of(token)] += 1

    def rates(self, state: ClusterState, now: Micros) -> dict[str, Amounts]:
        """Return requests per second, rounded up, by kind, table and tablet.

        Args:
            now: Microseconds of a monotonic clock.
        """
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
