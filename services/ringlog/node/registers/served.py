"""Traffic of each tablet of a node: reads, writes and processor time, as averages per second.

A period lasts at least ``SELDOM_US``. At its end the mean of the period enters an average with a half-life of
``HALF_LIFE`` periods. The first period is the average. An average is linear: the averages of two tablets add up to the
average of the merged tablet, so a table's sum does not depend on its number of tablets. Decaying maxima would not add
up: a hot key that moves from tablet to tablet would be counted several times.

A tablet that the node has had for less than one period is not measured: it has no average, which differs from an
average of 0. A restarted node has measured nothing. After a split or merge of its table the averages are converted, and
the period of the table starts again.

The processor time is that of the thread that does the work of the request (``thread_time_ns``): validate and store a
write, or read and encode rows, or validate a register request. Commits, the journal, compaction, streams and the
encoding of gRPC are not in it, because they serve many tablets at once. Both readings of the clock take 1.2 of the
50 microseconds of a row write.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from time import thread_time_ns
from typing import Final

from ringlog.kernel.balance.model import CPU, TRAFFIC
from ringlog.kernel.balance.reports import recut
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.tablets.groups import map_of
from ringlog.kernel.values import SECOND_US, Micros, Token
from ringlog.protocol.balancer.load_reports import SELDOM_US, Amounts, Own

HALF_LIFE: Final = 5
"""A pause of this number of periods halves an average, which never merges a table that the load before it has split."""

_SCALE: Final = 1_000
"""Averages are integers, in thousandths per second, so that ``recut`` keeps their sums. They are rounded down, so the
average of an idle tablet reaches 0.
"""


class _Table:
    """The averages of one table: kind to tablet to thousandths per second. The period began at ``begun``, when the node
    had ``numbers``.
    """

    def __init__(self, count: int, begun: Micros, numbers: tuple[int, ...]) -> None:
        self.count = count
        self.begun = begun
        self.numbers = frozenset(numbers)
        self.averages: dict[str, Mapping[int, int]] = {kind: {} for kind in TRAFFIC}

    def resize(self, count: int, now: Micros, numbers: tuple[int, ...]) -> None:
        """Convert the averages to another number of tablets, and start a period."""
        self.averages = {kind: recut(found, self.count, count) for kind, found in self.averages.items()}
        self.count = count
        self.start_period(now, numbers)

    def end_period(
        self, counts: Mapping[tuple[str, int], int], now: Micros, numbers: tuple[int, ...], half_life: Micros
    ) -> None:
        """Take ``counts`` (kind and tablet to requests, or to nanoseconds of ``CPU``) into the averages."""
        passed = now - self.begun
        weight = 1 - 0.5 ** (passed / half_life)
        for kind, before in self.averages.items():
            unit = _SCALE if kind != CPU else _SCALE / 1_000
            found = dict(before)
            for number in self.numbers.intersection(numbers):
                mean = counts.get((kind, number), 0) * unit * SECOND_US / passed
                old = before.get(number, mean)
                found[number] = int(old + (mean - old) * weight)
            self.averages[kind] = found
        self.start_period(now, numbers)

    def start_period(self, now: Micros, numbers: tuple[int, ...]) -> None:
        """Start a period, and forget tablets that the node has no more."""
        self.begun, self.numbers = now, frozenset(numbers)
        self.averages = {
            kind: {number: amount for number, amount in found.items() if number in self.numbers}
            for kind, found in self.averages.items()
        }

    def reported(self, kind: str) -> dict[int, int]:
        """Return the averages per second, rounded up."""
        return {number: -(-amount // _SCALE) for number, amount in self.averages[kind].items()}


class ServedRequests:
    """Counts requests and their processor time. Thread-safe. ``period``: the least length of a period."""

    def __init__(self, period: Micros = SELDOM_US) -> None:
        self._period = period
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, int], Counter[tuple[str, int]]] = {}
        self._tables: dict[str, _Table] = {}

    def count_request(
        self, kind: str, state: ClusterState, table: str, token: Token, began_ns: int | None = None
    ) -> None:
        """Count a request served under ``state``, if ``table`` (``keyspace.table``) has tablets.

        Args:
            began_ns: ``thread_time_ns()`` of this thread when the work began; None: only the request counts.
        """
        found = state.tables.get(table)
        if found is None or (tablets := map_of(state, found)) is None:
            return
        number = tablets.index_of(token)
        with self._lock:
            counts = self._counts.setdefault((found.id, tablets.count), Counter())
            counts[kind, number] += 1
            if began_ns is not None:
                counts[CPU, number] += thread_time_ns() - began_ns

    def rates(self, state: ClusterState, own: Own, now: Micros) -> dict[str, Amounts]:
        """Return the averages per second of the measured tablets in ``own``, by kind, table and tablet.

        Call it for each report, so that a period begins when the node gets a tablet.

        Args:
            now: Microseconds of a monotonic clock.
        """
        rates: dict[str, dict[str, dict[int, int]]] = {kind: {} for kind in TRAFFIC}
        with self._lock:
            counts, self._counts = self._counts, {}
            kept: dict[str, _Table] = {}
            for name, numbers in own.items():
                table = state.tables[name]
                tablets = map_of(state, table)
                assert tablets is not None, "a table that is reported is in tablets"
                one = kept[table.id] = self._tables.get(table.id) or _Table(tablets.count, now, numbers)
                key = table.id, tablets.count
                if one.count != tablets.count:
                    one.resize(tablets.count, now, numbers)
                elif now - one.begun >= self._period:
                    one.end_period(counts.get(key, {}), now, numbers, HALF_LIFE * self._period)
                elif key in counts:
                    self._counts[key] = counts[key]
                for kind in TRAFFIC:
                    rates[kind][name] = one.reported(kind)
            self._tables = kept
        return dict(rates)
