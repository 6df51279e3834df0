"""The load of a replica: bytes if sizes are known, else one for each table of the tablet.

A datacenter is balanced **by size** once one of its living hosts has reported, else **by count**. By size a tablet
counts ``max(bytes, least)``. A living host is *incomplete* if it has not reported the size of one of its settled
tablets. It neither gives nor gets tablets until it has reported, so a plan never uses half of the sizes. A tablet that
moves, and a tablet on a dead host, counts with the largest size that any replica reported. If none did, it counts with
the target size.

Weights in per cent mix in other loads. The share of each tablet in the sum of all reads (writes, processor time) of the
cluster counts as the same share of all bytes. All numbers are integers: equal reports give equal plans on every
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
"""The largest sum of all sizes, since they are added as signed 64-bit integers."""


def by_size(inputs: BalanceInput) -> set[str]:
    """Return the datacenters that are balanced by size."""
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
    """Return the reported amount of each row (host number, unit), at least ``least`` per table.

    ``UNKNOWN`` if the report of a table is missing.
    """
    host, unit = rows
    assert len(host) == len(unit), "columns of hosts and units have the same length"
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
    """Return the reported amount of each row of one table per group; ``UNKNOWN`` if there is none."""
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
    assert (keys[1:] > keys[:-1]).all(), "a host reports each tablet at most once"
    wanted = host * span + unit
    at = np.minimum(np.searchsorted(keys, wanted), max(0, count - 1))
    if not count:
        return np.full(len(wanted), UNKNOWN, np.int64)
    return np.where(keys[at] == wanted, values[at], UNKNOWN)


def bounded(sizes: Ints) -> Ints:
    """Return ``sizes``, each reduced if their sum might exceed 64 bits. Only forged reports have such amounts."""
    return np.minimum(sizes, SUM_MAX // max(1, len(sizes)))


def mixed(sizes: Ints, rates: Mapping[str, Ints], limits: Limits) -> Ints:
    """Return ``bounded`` sizes with the other loads mixed in. A rate that no node reports has no weight."""
    weights = {READS: limits.reads_percent, WRITES: limits.writes_percent, CPU: limits.cpu_percent}
    assert sum(weights.values()) <= 100, "weights of loads sum to at most 100"
    known = {kind: np.maximum(rates[kind], 0).astype(object) for kind, percent in weights.items() if percent}
    sums = {kind: int(column.sum()) for kind, column in known.items()}
    all_bytes = int(sizes.astype(object).sum())
    assert all_bytes <= SUM_MAX, "the result fits into 64 bits, because the sizes are bounded"
    assert all(len(column) == len(sizes) for column in known.values()), "each row has rates"
    rest = 100 - sum(weights[kind] for kind, whole in sums.items() if whole)
    total = sizes.astype(object) * rest
    for kind, whole in sums.items():
        if whole:
            total = total + known[kind] * (weights[kind] * all_bytes) // whole
    found: Ints = np.maximum(total // 100, 1).astype(np.int64)
    return found


def kinds_mixed_in(limits: Limits) -> tuple[str, ...]:
    """Return the loads other than bytes that count."""
    weights = {READS: limits.reads_percent, WRITES: limits.writes_percent, CPU: limits.cpu_percent}
    return tuple(kind for kind, percent in weights.items() if percent)


def reported(
    measured: Mapping[NodeId, MeasuredLoads], tablets: TabletGroup, number: int, nodes: Sequence[NodeId], least: int
) -> int:
    """Return the largest amount that any of the nodes has reported of a tablet, at least ``least`` per table.

    ``UNKNOWN`` if none of them has reported it.
    """
    known = [measured[node].loads.get(BYTES, {}) for node in nodes if node in measured]
    found = [
        sum(max(least, sizes[table][number]) for table in tablets.tables)
        for sizes in known
        if all(number in sizes.get(table, {}) for table in tablets.tables)
    ]
    return max(found, default=UNKNOWN)
