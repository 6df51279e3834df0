"""How much a replica counts: bytes where sizes are known, else one for each table of the tablet.

A datacenter is balanced **by size** as soon as one of its hosts that are alive has reported, else **by count**. By
size a tablet counts ``max(bytes, least)``; what a living host of the datacenter has not reported of a settled tablet
makes the host *incomplete*: it neither gives nor gets until it has reported, so a plan never rests on half of the
sizes. Of a tablet that moves, and of a host that is not alive, the largest size that any replica reported counts, and
the target size if none did.

Other loads can be mixed in by weights in per cent: the share of each tablet in the sum of all reads (writes, processor
time) of the cluster stands for the same share of all bytes. Integers only: equal reports give equal plans on every
machine.

Source: ScyllaDB, ``locator/load_sketch.hh``; the mixing is ours (CEP-21 names balancing by load as future work).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ringlog.kernel.balance.model import BYTES, CPU, READS, WRITES, BalanceInput, Limits, MeasuredLoads, TabletGroup
from ringlog.kernel.values import NodeId

Ints = NDArray[np.int64]

UNKNOWN: Final = -1
SUM_MAX: Final = 1 << 62
"""The largest sum of all sizes: they are added as signed 64-bit integers."""


def by_size(inputs: BalanceInput) -> set[str]:
    """The datacenters whose loads are bytes."""
    return {host.datacenter for host in inputs.hosts if host.alive and host.id in inputs.measured}


def amounts(
    measured: Mapping[NodeId, MeasuredLoads],
    kind: str,
    tables: Sequence[TabletGroup],
    first: Sequence[int],
    hosts: Mapping[NodeId, int],
    rows: tuple[Ints, Ints],
    least: int = 0,
) -> Ints:
    """What was reported of each row (host's number, unit), at least ``least`` for each table; ``UNKNOWN`` if one is
    missing.
    """
    host, unit = rows
    total = np.zeros(len(host), np.int64)
    for position in range(max((len(one.tables) for one in tables), default=0)):
        concerned = {
            one.tables[position]: at for one, at in zip(tables, first, strict=True) if position < len(one.tables)
        }
        found = _joined(measured, kind, concerned, hosts, host, unit)
        if len(concerned) < len(tables):
            has = np.repeat([position < len(one.tables) for one in tables], [one.count for one in tables])
            found = np.where(has[unit], found, least)
            total = np.where(has[unit], total, total - least)
        total = np.where((found == UNKNOWN) | (total == UNKNOWN), UNKNOWN, total + np.maximum(found, least))
    return total


def _joined(
    measured: Mapping[NodeId, MeasuredLoads],
    kind: str,
    first: Mapping[str, int],
    hosts: Mapping[NodeId, int],
    host: Ints,
    unit: Ints,
) -> Ints:
    """The reported amount of each row of one table for each group; ``UNKNOWN`` where there is none."""
    columns = [
        (hosts[node], first[table], column)
        for node, found in sorted(measured.items())
        if node in hosts
        for table, column in found.loads.get(kind, {}).items()
        if table in first
    ]
    sizes = [len(column) for _, _, column in columns]
    count = sum(sizes)
    numbers = np.fromiter(chain.from_iterable([column for _, _, column in columns]), np.int64, count)
    values = np.fromiter(chain.from_iterable([column.values() for _, _, column in columns]), np.int64, count)
    units = numbers + np.repeat(np.array([at for _, at, _ in columns], np.int64), sizes)
    span = int(max(unit.max(initial=0), units.max(initial=0))) + 1
    keys = np.repeat(np.array([at for at, _, _ in columns], np.int64), sizes) * span + units
    order = np.argsort(keys, kind="stable")
    keys, values = keys[order], values[order]
    wanted = host * span + unit
    at = np.minimum(np.searchsorted(keys, wanted), max(0, count - 1))
    if not count:
        return np.full(len(wanted), UNKNOWN, np.int64)
    return np.where(keys[at] == wanted, values[at], UNKNOWN)


def bounded(sizes: Ints) -> Ints:
    """``sizes``, each reduced as far as their sum might exceed 64 bits: only forged reports have such amounts."""
    return np.minimum(sizes, SUM_MAX // max(1, len(sizes)))


def mixed(sizes: Ints, rates: Mapping[str, Ints], limits: Limits) -> Ints:
    """Mix the other loads into ``bounded`` sizes. Rates that no node reports count nothing."""
    weights = {READS: limits.reads_percent, WRITES: limits.writes_percent, CPU: limits.cpu_percent}
    assert sum(weights.values()) <= 100, "weights of loads are parts of a whole"
    known = {kind: np.maximum(rates[kind], 0).astype(object) for kind, percent in weights.items() if percent}
    sums = {kind: int(column.sum()) for kind, column in known.items()}
    all_bytes = int(sizes.astype(object).sum())
    rest = 100 - sum(weights[kind] for kind, whole in sums.items() if whole)
    total = sizes.astype(object) * rest
    for kind, whole in sums.items():
        if whole:
            total = total + known[kind] * (weights[kind] * all_bytes) // whole
    found: Ints = np.maximum(total // 100, 1).astype(np.int64)
    return found


def kinds_mixed_in(limits: Limits) -> tuple[str, ...]:
    """The loads besides bytes that count."""
    weights = {READS: limits.reads_percent, WRITES: limits.writes_percent, CPU: limits.cpu_percent}
    return tuple(kind for kind, percent in weights.items() if percent)


def reported(
    measured: Mapping[NodeId, MeasuredLoads], tablets: TabletGroup, number: int, nodes: Sequence[NodeId], least: int
) -> int:
    """The most that any of the nodes has reported of a tablet, at least ``least`` for each table; ``UNKNOWN`` if none
    of them has.
    """
    known = [measured[node].loads.get(BYTES, {}) for node in nodes if node in measured]
    found = [
        sum(max(least, sizes[table][number]) for table in tablets.tables)
        for sizes in known
        if all(number in sizes.get(table, {}) for table in tablets.tables)
    ]
    return max(found, default=UNKNOWN)
