"""Placement of partitions on nodes: rendezvous hashing, weighted by capacity and spread over racks.

Each node has a score for each partition, and the nodes with the best scores have the partition. A score depends only on
the zone, the partition, and the node's name and capacity. So a new node takes partitions from all other nodes alike,
and a departing node gives its partitions to all others. Nothing moves between the other nodes. With N nodes of one
capacity in one rack, one more node takes 1/(N+1) of the replicas.

**Capacity**: a hash ``u`` between 0 and 1 gives the score ``-log(u) / capacity``, and the smallest score wins. So a
node of twice the capacity wins twice as often. (Weighted rendezvous hashing, after Thaler and Ravishankar's HRW.) The
code compares logarithms of the scores. They are integers, computed from tables in integer arithmetic, so every machine
gets equal scores.

**Racks**: each next node is the one with the best score in a rack that has the fewest replicas so far.

The first ``2 x quorum - 1`` of the chosen nodes vote, the others are learners.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
from immutables import Map

from ringlog.kernel.columns.lazy_tuple import IdentityCache
from ringlog.kernel.model.state import ClusterState, Node
from ringlog.kernel.model.zones import REPLICAS_MAX, Zone, ZonePartition, ZoneStep, mode_of
from ringlog.kernel.zones.queue import step_of

Numbers = np.ndarray[Any, np.dtype[np.uint64]]

_HASH_BITS: Final = 52
_ROW_BITS: Final = 10
_FRACTION_BITS: Final = 32
_GOLDEN: Final = 0x9E3779B97F4A7C15
NAMES_KEPT_MAX: Final = 16_384

_BLOCK_CELLS: Final = 1 << 17
"""The number of scores in memory at once: a few MB."""
_PLACE_BITS: Final = 14
_SCORE_OFFSET: Final = 64 << _FRACTION_BITS
"""A number above the logarithm of the largest capacity, so that no key is negative."""
_KEY_BITS: Final = _PLACE_BITS + 7 + _FRACTION_BITS
"""The bits of a score with its offset (below 2^7) and a place. Six more bits hold the rank within the rack."""


def consensus_size(zone: Zone) -> int:
    """Return how many replicas of a partition vote."""
    return min(2 * zone.quorum - 1, zone.replicas)


def quorum_bounds(replicas: int) -> tuple[int, int]:
    """Return the least and the greatest quorum of this number of replicas."""
    least = min(replicas, 2)
    return least, max(least, (replicas + 1) // 2)


def default_quorum(replicas: int) -> int:
    """Return the quorum for a zone whose command gives none."""
    quorum = min(replicas, 2) if replicas <= 4 else 3
    least, most = quorum_bounds(replicas)
    assert least <= quorum <= most, "the default quorum is within the bounds"
    return quorum


def data_nodes(state: ClusterState, zone: Zone) -> list[Node]:
    """Return the data nodes that have not left, by name."""
    found = [state.nodes[node] for node in zone.nodes]
    return sorted((node for node in found if node.state != "left"), key=lambda node: node.name)


def is_alive(state: ClusterState, node: str) -> bool:
    """Return True unless a node was declared down or has left. The log knows no other liveness."""
    return not state.nodes[node].down and state.nodes[node].state != "left"


# ------------------------------------------------------------------------------------------------------- targets


def targets(
    state: ClusterState, zone: Zone, stable: Sequence[ZoneStep | None], numbers: Sequence[int]
) -> list[ZoneStep | None]:
    """Return where partitions ``numbers``, which have ``stable``, belong. None: no node can have the partition.

    In a mode that asks the living, a node that is down gets no new partitions and keeps those it has (see ``kept``).
    """
    assert len(stable) == len(numbers), "each partition has its stable configuration"
    chosen = _chosen(state, zone, numbers)
    if mode_of(zone).asks_the_living:
        had = [frozenset(() if have is None else have.nodes) for have in stable]
        chosen = [
            [node for node in order if is_alive(state, node) or node in have]
            for order, have in zip(chosen, had, strict=True)
        ]
    return [split(zone, order) for order in chosen]


_Placement = tuple[Map[str, Node], tuple[str, int, int], list[list[str]]]
_placements: Final = IdentityCache[tuple[str, ...], _Placement](8)
"""A cache by data nodes: all nodes, the zone's values, and ``ranked`` of all partitions of the zone."""


def _chosen(state: ClusterState, zone: Zone, numbers: Sequence[int]) -> list[list[str]]:
    """Return ``ranked`` of these partitions. Triggers that wait for room, and views of a zone, ask for all partitions,
    so these are cached.
    """
    of = (zone.name, zone.partitions, zone.replicas)
    known = _placements.get(zone.nodes)
    if known is None or known[0] is not state.nodes or known[1] != of:
        if 2 * len(numbers) < zone.partitions:
            return ranked(zone, data_nodes(state, zone), numbers)
        whole = ranked(zone, data_nodes(state, zone), range(zone.partitions))
        known = _placements.put(zone.nodes, (state.nodes, of, whole))
    return [known[2][number] for number in numbers]


def kept(partition: ZonePartition) -> ZoneStep | None:
    """Return the configuration that a partition keeps, even if its pending steps fail: the ``stable`` of ``targets``.

    Between steps, and after a reset, ``stable`` alone names nodes that are not in the group.
    """
    if partition.stable is None or partition.reached is None or not partition.pending:
        return partition.stable
    nodes = set(partition.stable.nodes).intersection(partition.reached.nodes, partition.pending[-1].nodes)
    return step_of(nodes)


def split(zone: Zone, order: Sequence[str]) -> ZoneStep | None:
    """Return a configuration whose first nodes in ``order`` vote. None if ``order`` is empty."""
    size = consensus_size(zone)
    return step_of(set(order[:size]), set(order[size:])) if order else None


def ranked(zone: Zone, nodes: Sequence[Node], numbers: Sequence[int]) -> list[list[str]]:
    """Return for each partition the ids of the nodes that are to have it, the best first."""
    if not nodes or not numbers:
        return [[] for _ in numbers]
    ids = [node.id for node in nodes]
    per_block = max(1, _BLOCK_CELLS // len(nodes))
    blocks = (numbers[start : start + per_block] for start in range(0, len(numbers), per_block))
    rows = [[ids[place] for place in row] for block in blocks for row in _best(zone, nodes, block)]
    assert len(rows) == len(numbers), "each partition is in one block"
    return rows


def _best(zone: Zone, nodes: Sequence[Node], numbers: Sequence[int]) -> list[list[int]]:
    """Return for each partition the indexes of its nodes, the best first.

    The next node is always in a rack that has the fewest so far: first the best node of each rack, then the second. So
    nodes are ordered by their rank within their rack, then by score. Equal scores are ordered by index. A key holds
    rank, score and index.
    """
    assert len(nodes) <= 1 << _PLACE_BITS, "a node index fits into a key"
    assert zone.replicas <= REPLICAS_MAX <= 1 << 63 - _KEY_BITS, "a rank within a rack fits into a key"
    keys = (scores(zone.name, nodes, numbers) + _SCORE_OFFSET << _PLACE_BITS) | np.arange(len(nodes))
    racks: dict[tuple[str, str], list[int]] = {}
    for place, node in enumerate(nodes):
        racks.setdefault((node.datacenter, node.rack), []).append(place)
    if 1 < len(racks) < len(nodes):
        by_size: dict[int, list[list[int]]] = {}
        for places in racks.values():
            by_size.setdefault(len(places), []).append(places)
        levels = np.arange(zone.replicas) << _KEY_BITS
        parts = []
        for alike in by_size.values():
            of_rack = np.sort(keys[:, np.array(alike)], axis=2)[:, :, : zone.replicas]
            parts.append((of_rack | levels[: of_rack.shape[2]]).reshape(len(numbers), -1))
        keys = np.concatenate(parts, axis=1)
    if zone.replicas < keys.shape[1]:
        keys = np.partition(keys, zone.replicas - 1, axis=1)[:, : zone.replicas]
    found: list[list[int]] = (np.sort(keys, axis=1) & ((1 << _PLACE_BITS) - 1)).tolist()
    return found


# -------------------------------------------------------------------------------------------------------- scores


def scores(zone: str, nodes: Sequence[Node], numbers: Sequence[int]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the scores, partitions x nodes. A smaller score is better."""
    seeds = np.array([_seed(node.name) for node in nodes], np.uint64)
    places = np.array([(_seed(zone) + number * _GOLDEN) % 2**64 for number in numbers], np.uint64)
    hashed = _mixed(_mixed(places)[:, None] ^ seeds[None, :]) >> np.uint64(64 - _HASH_BITS)
    waits = (_HASH_BITS << _FRACTION_BITS) - _log2(hashed + np.uint64(1)) + 1
    assert (waits > 0).all(), "a logarithm is of a positive number"
    weights = np.array([_log2_of(node.capacity) for node in nodes], np.int64)
    found: np.ndarray[Any, np.dtype[np.int64]] = _log2(waits.astype(np.uint64)) - weights[None, :]
    return found


@lru_cache(NAMES_KEPT_MAX)
def _seed(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest()[:8], "big")


def _mixed(value: Numbers) -> Numbers:
    """Return the values after the SplitMix64 finalizer: each bit of a value changes half of the result's bits."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


def _log2(value: Numbers) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the binary logarithm of numbers from 1 to 2^53, with 32 fractional bits. It is monotonic.

    A float represents each of these numbers exactly, so the exponent is exact.
    """
    exponent = np.frexp(value.astype(np.float64))[1].astype(np.int64) - 1
    mantissa = (value << (np.uint64(_HASH_BITS) - exponent.astype(np.uint64))).astype(np.int64)
    row = (mantissa >> (_HASH_BITS - _ROW_BITS)) & ((1 << _ROW_BITS) - 1)
    rest = (mantissa >> (_HASH_BITS - _ROW_BITS - 20)) & ((1 << 20) - 1)
    table = _table()
    low = table[row]
    found: np.ndarray[Any, np.dtype[np.int64]] = (
        (exponent << _FRACTION_BITS) + low + (((table[row + 1] - low) * rest) >> 20)
    )
    return found


@lru_cache(NAMES_KEPT_MAX)
def _log2_of(value: int) -> int:
    """Return the binary logarithm of one number of any size, with 32 fractional bits."""
    beyond = max(0, value.bit_length() - _HASH_BITS)
    return int(_log2(np.array([value >> beyond], np.uint64))[0]) + (beyond << _FRACTION_BITS)


@lru_cache(1)
def _table() -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return log2(1 + row / 1024), by squaring: each time the square reaches 2, the next binary digit is 1."""
    found = []
    for row in range(1 << _ROW_BITS):
        value, digits = ((1 << _ROW_BITS) + row) << (62 - _ROW_BITS), 0
        for _ in range(_FRACTION_BITS):
            value = value * value >> 62
            digits = 2 * digits + (value >> 63)
            value >>= value >> 63
        found.append(digits)
    table = np.array([*found, 1 << _FRACTION_BITS], np.int64)
    assert (table[1:] > table[:-1]).all(), "interpolation between rows is monotonic"
    return table
