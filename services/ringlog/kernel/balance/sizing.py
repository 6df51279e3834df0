"""How many tablets a table should have: decisions to split or merge, for the rules of resizing to carry out.

::

    by size       bytes / target       if the average is above 2 x target, or at least target while it is being split
                                       if it is below target / 2, or at most target while it is being merged
                  the present count    otherwise, and without statistics: a table never shrinks unmeasured
    wanted        the greatest of: by size; the hints initial, least, expected bytes / target;
                  least tablets for each shard x shards / factor, in the datacenter where that is most
    goal          if a rack would have more than ``goal`` tablets for each shard, all its tables get that part of it
    target        wanted, rounded up to a power of two, within the hints
    split         if target >= 2 x count
    merge         if target <= count / 2, rounded up

**Which rule is ours.** The documents of the original split above 100 % of the target size, its code above 200 %; both
merge below 50 %. Ours is the code's: a split halves the average, so one that begins above 200 % ends above 100 %, far
from 50 %. After one that begins at 100 % a little less data would ask for the merge. A decision that is being carried
out is kept until the average has crossed the target itself: this is the hysteresis.

Rounding up comes after the goal, so there may be up to twice as many tablets as the goal says. Co-located tables share
one map: together they have the target size.

Source: ScyllaDB, ``service/tablet_allocator.cc`` (make_sizing_plan), ``docs/dev/topology-over-raft.md``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import Final

from ringlog.kernel.balance.model import BalancedHost, Limits
from ringlog.kernel.tablets.resize import MERGE, NONE, SPLIT

COUNT_MAX: Final = 1 << 20
"""Tablets of one table."""


@dataclass(frozen=True, slots=True)
class Hints:
    """What the table's owner says; 0: nothing."""

    initial: int = 0
    least: int = 0
    most: int = 0
    expected_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Sized:
    """A table as its size is judged: ``bytes`` of one replica of all tablets, None if not all are known.

    ``factors``: replicas of a tablet in each datacenter; ``racks``: per datacenter the racks that the replication
    names. ``decision``: what is being carried out. ``tables``: how many share the map.
    """

    table: str
    count: int
    factors: Mapping[str, int]
    racks: Mapping[str, frozenset[str]]
    bytes: int | None = None
    hints: Hints = Hints()
    decision: str = NONE
    tables: int = 1


@dataclass(frozen=True, slots=True)
class Resizing:
    """``decision`` (``SPLIT``, ``MERGE``, ``NONE``) replaces the present one; ``target``: tablets in the end."""

    table: str
    decision: str
    target: int


def decide_resizes(tables: Sequence[Sized], hosts: Sequence[BalancedHost], limits: Limits) -> tuple[Resizing, ...]:
    """Decisions that differ from the present ones; at most ``limits.resizes_per_plan``, revocations first."""
    targets = _targets(tables, hosts, limits)
    found = []
    for one in sorted(tables, key=lambda each: each.table):
        target = targets[one.table]
        decision = SPLIT if target >= 2 * one.count else MERGE if target <= -(-one.count // 2) < one.count else NONE
        if decision != one.decision:
            found.append(Resizing(one.table, decision, target))
    found.sort(key=lambda row: row.decision != NONE)
    return tuple(found[: limits.resizes_per_plan])


def _targets(tables: Sequence[Sized], hosts: Sequence[BalancedHost], limits: Limits) -> dict[str, int]:
    shards = _shards(hosts)
    wanted = {one.table: _wanted(one, shards, limits) for one in tables}
    scale = {one.table: Fraction(1) for one in tables}
    for where, count in shards.items():
        crowd = {one.table: wanted[one.table] * _share(one, where, shards) for one in tables}
        average = sum(crowd.values(), Fraction(0)) / count
        for table, part in crowd.items():
            if part and average > limits.tablets_per_shard_goal:
                scale[table] = min(scale[table], limits.tablets_per_shard_goal / average)
    return {one.table: _rounded(wanted[one.table] * scale[one.table], one.hints) for one in tables}


def _shards(hosts: Sequence[BalancedHost]) -> dict[tuple[str, str], int]:
    """Shards of each rack's hosts that stay."""
    found: dict[tuple[str, str], int] = {}
    for host in hosts:
        if host.serving:
            found[host.datacenter, host.rack] = found.get((host.datacenter, host.rack), 0) + host.shards
    return found


def _share(one: Sized, where: tuple[str, str], shards: Mapping[tuple[str, str], int]) -> Fraction:
    """Replicas of a tablet in the rack, on average."""
    datacenter, rack = where
    named = one.racks.get(datacenter)
    racks = {other for name, other in shards if name == datacenter and (not named or other in named)}
    return Fraction(one.factors.get(datacenter, 0), len(racks)) if rack in racks else Fraction(0)


def _wanted(one: Sized, shards: Mapping[tuple[str, str], int], limits: Limits) -> int:
    target = max(1, limits.target_bytes // one.tables)
    least = 1
    for datacenter, factor in one.factors.items():
        named = one.racks.get(datacenter)
        there = sum(n for (name, rack), n in shards.items() if name == datacenter and (not named or rack in named))
        least = max(least, ceil(Fraction(limits.tablets_per_shard_least * there, max(1, factor))))
    expected = -(-one.hints.expected_bytes // target)
    return max(least, one.hints.initial, one.hints.least, expected, _by_size(one, target))


def _by_size(one: Sized, target: int) -> int:
    """The count that the size asks for; the present one within the thresholds."""
    if one.bytes is None:
        return one.count
    large = one.bytes > 2 * target * one.count or (one.decision == SPLIT and one.bytes >= target * one.count)
    small = 2 * one.bytes < target * one.count or (one.decision == MERGE and one.bytes <= target * one.count)
    fits = max(1, -(-one.bytes // target))
    if large:
        return max(2 * one.count, fits)
    return min(-(-one.count // 2), fits) if small else one.count


def _rounded(wanted: Fraction, hints: Hints) -> int:
    target = power_of_two(max(1, ceil(wanted)))
    if hints.most and target > hints.most:
        target = power_of_two(hints.most + 1) // 2
    return min(COUNT_MAX, max(target, power_of_two(max(1, hints.least))))


def power_of_two(least: int) -> int:
    """The smallest one that is at least ``least`` (1 or more)."""
    assert least >= 1, "a table has a tablet"
    return 1 << (least - 1).bit_length()
