"""The number of tablets that a table should have: decisions to split or merge, which the rules of resizing apply.

::

    size       bytes / target, or the traffic of all tablets / its target: whichever is greatest
    least      the greatest of: the hints initial, least, expected bytes / target; least tablets for each shard x
               shards / factor, in the datacenter where that is most
    goal       s <= 1: if a rack would have more than ``goal`` tablets for each shard, size and least of its tables
               are multiplied by s; then least is rounded up to a power of two, within the hints
    split      if 2 x count <= least, or size > 2 x count (or, already splitting, size >= count)
    merge      if count > most, or size < count / 2 (or, already merging, size <= count) and half of them are not
               fewer than least; not for size < count / 2 while the traffic of a tablet is unknown

**Decisions end.** While bytes and traffic are constant, size, least and s are constant, too: they depend on no measured
table's count. After a split for ``size > 2 x count`` the count is below the size. A merge needs a count above twice the
size, so none follows. After a merge the count is above the size, so no split follows. Nor does a merge go below
``least``. A table without sizes only grows, up to ``least``; until its count is stable, s may fall. Comparing a scaled
size with a count that is not scaled made split and merge alternate without end.

Nodes round the average of a tablet up, so the sum exceeds the real one by less than ``count``, and the size by less
than ``count / target``. A target is at least 1. So a split needs a real size above the count before it, which is half
of the count after it: no merge follows. A merge lowers the sum, so no split follows.

**Traffic that varies.** The size counts the sum, so a busy key in a table of idle tablets does not split it without
end. A split and a merge are a factor of more than two apart, from the count after the split. An average halves in five
minutes (``ringlog.node.registers.served``), so an interruption of that length undoes no split. Traffic that varies by
more, and more slowly, splits and merges its table once in each cycle, unless a hint sets its least number of tablets.

**Unknown traffic.** Splits count the known tablets only. Merges wait, because all nodes may have restarted. A store
whose nodes do not measure a traffic must not get a target for it.

**Tables without sizes.** If a tablet's size is missing, its table keeps the decision in progress, because a tablet's
size is unknown for a moment while it moves. The table's part in the goal is estimated from the known tablets, or is its
present count.

**Differences from the source.** The documents of the original split above 100 % of the target size, its code above 200
%; both merge below 50 %. This module follows the code. A split halves the average, so one that begins above 200 % ends
above 100 %, far from 50 %. The original scales only the resulting count; this module scales both sizes.

There may be up to twice as many tablets as the goal says. Co-located tables share one map: together they have the
target size.

Source: ScyllaDB, ``service/tablet_allocator.cc`` (make_sizing_plan), ``docs/dev/topology-over-raft.md``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import ceil
from typing import Final

from ringlog.kernel.balance.model import BYTES, BalancedHost, Limits
from ringlog.kernel.tablets.resize import MERGE, NONE, SPLIT
from ringlog.kernel.values import Value, field

COUNT_MAX: Final = 1 << 20
"""The most tablets of one table."""


class SizeOptions(Value):
    """The hints of the table's owner; 0: no hint."""

    initial: int = 0
    least: int = 0
    most: int = 0
    expected_bytes: int = 0


class Sized(Value):
    """A table as the sizing rules see it. ``bytes``: of one replica of all tablets; None if no size is known.

    ``complete``: False if ``bytes`` is an estimate because the size of some tablet is missing. ``factors``: replicas of
    a tablet in each datacenter; ``racks``: per datacenter the racks that the replication names. ``decision``: the one
    in progress. ``tables``: the number of tables that share the map. ``paused``: no decision is made about it.
    ``traffic``: the sums of the known averages by kind. ``measured``: whether each tablet has an average of each kind
    with a target.
    """

    table: str
    count: int
    factors: Mapping[str, int]
    racks: Mapping[str, frozenset[str]]
    bytes: int | None = None
    options: SizeOptions = SizeOptions()
    decision: str = NONE
    tables: int = 1
    complete: bool = True
    paused: bool = False
    traffic: Mapping[str, int] = field(default_factory=dict)
    measured: bool = True


LEAST: Final = "least"


class Demand(Value):
    """The decision for ``table`` (``SPLIT``, ``MERGE``, ``NONE``), and its reason.

    ``kind``: the load (of ``LOADS``) that asks for the most tablets, or ``LEAST`` for hints and shards. ``tablets``:
    their number, within the goal.
    """

    table: str
    decision: str
    kind: str
    tablets: int


def decide_resizes(tables: Sequence[Sized], hosts: Sequence[BalancedHost], limits: Limits) -> tuple[Demand, ...]:
    """Return the decisions that differ from the present ones: at most ``limits.resizes_per_plan``, revocations
    first.
    """
    return changed_decisions(tables, demands(tables, hosts, limits), limits)


def changed_decisions(tables: Sequence[Sized], wanted: Mapping[str, Demand], limits: Limits) -> tuple[Demand, ...]:
    """Return those of ``demands`` that ``decide_resizes`` returns."""
    found = [wanted[one.table] for one in tables if wanted[one.table].decision != one.decision and not one.paused]
    found.sort(key=lambda row: (row.decision != NONE, row.table))
    return tuple(found[: limits.resizes_per_plan])


def demands(tables: Sequence[Sized], hosts: Sequence[BalancedHost], limits: Limits) -> dict[str, Demand]:
    """Return the decision about each table, and the load that leads to it."""
    shards = _shards(hosts)
    least = {one.table: _least(one, shards, limits) for one in tables}
    sizes = {one.table: _sizes(one, limits) for one in tables}
    size = {table: max(found.values()) for table, found in sizes.items()}
    assert len(least) == len(tables), "each table has one decision"
    scale = _scale(tables, shards, limits, least, size)
    found = {}
    for one in tables:
        table, part = one.table, scale[one.table]
        rounded = _rounded(least[table] * part, one.options)
        kind = next(kind for kind, amount in sizes[table].items() if amount == size[table])
        most = max(rounded, ceil(size[table] * part))
        decision = _decision(one, rounded, size[table] * part, limits)
        found[table] = Demand(table, decision, kind if most > rounded else LEAST, most)
    return found


def _sizes(one: Sized, limits: Limits) -> dict[str, Fraction]:
    """Return the number of tablets that each load asks for."""
    found = {BYTES: Fraction(one.bytes or 0, _target(one, limits))}
    for kind, target in limits.traffic_targets.items():
        found[kind] = Fraction(one.traffic.get(kind, 0), target)
    return found


def _decision(one: Sized, least: int, size: Fraction, limits: Limits) -> str:
    """Return the decision by the rules above; ``least`` and ``size`` are scaled."""
    count, most = one.count, _most(one.options)
    may_split = 2 * count <= min(most, limits.tablets_most)
    may_merge = count > 1 and -(-count // 2) >= least
    if count > most:
        return MERGE
    if may_split and 2 * count <= least:
        return SPLIT
    if one.bytes is None or not one.complete:
        return one.decision if {SPLIT: may_split, MERGE: may_merge}.get(one.decision) else NONE
    if may_split and (size > 2 * count or (one.decision == SPLIT and size >= count)):
        return SPLIT
    if may_merge and ((2 * size < count and one.measured) or (one.decision == MERGE and size <= count)):
        return MERGE
    return NONE


def _scale(
    tables: Sequence[Sized],
    shards: Mapping[tuple[str, str], int],
    limits: Limits,
    least: Mapping[str, int],
    size: Mapping[str, Fraction],
) -> dict[str, Fraction]:
    """Return for each table the factor that reduces its tablets to the goal."""
    wanted = {one.table: max(least[one.table], one.count if one.bytes is None else size[one.table]) for one in tables}
    scale = {one.table: Fraction(1) for one in tables}
    for where, count in shards.items():
        crowd = {one.table: wanted[one.table] * _portion(one, where, shards) for one in tables}
        average = sum(crowd.values(), Fraction(0)) / count
        for table, part in crowd.items():
            if part and average > limits.tablets_per_shard_goal:
                scale[table] = min(scale[table], limits.tablets_per_shard_goal / average)
    assert all(0 < factor <= 1 for factor in scale.values()), "the goal only reduces the number of tablets"
    return scale


def _shards(hosts: Sequence[BalancedHost]) -> dict[tuple[str, str], int]:
    """Return the number of shards in each rack, on hosts that stay."""
    found: dict[tuple[str, str], int] = {}
    for host in hosts:
        if host.serving:
            found[host.datacenter, host.rack] = found.get((host.datacenter, host.rack), 0) + host.shards
    return found


def _portion(one: Sized, where: tuple[str, str], shards: Mapping[tuple[str, str], int]) -> Fraction:
    """Return the average number of replicas of a tablet in the rack."""
    datacenter, rack = where
    named = one.racks.get(datacenter)
    racks = {other for name, other in shards if name == datacenter and (not named or other in named)}
    return Fraction(one.factors.get(datacenter, 0), len(racks)) if rack in racks else Fraction(0)


def _target(one: Sized, limits: Limits) -> int:
    """Return the target bytes of one table of the group in a tablet."""
    return max(1, limits.target_bytes // one.tables)


def _least(one: Sized, shards: Mapping[tuple[str, str], int], limits: Limits) -> int:
    """Return the fewest tablets that shards and hints ask for."""
    least = 1
    for datacenter, factor in one.factors.items():
        named = one.racks.get(datacenter)
        there = sum(n for (name, rack), n in shards.items() if name == datacenter and (not named or rack in named))
        least = max(least, ceil(Fraction(limits.tablets_per_shard_least * there, max(1, factor))))
    expected = -(-one.options.expected_bytes // _target(one, limits))
    return max(least, one.options.initial, one.options.least, expected)


def _rounded(wanted: Fraction, options: SizeOptions) -> int:
    """Return a power of two that is at least ``wanted``, within the hints."""
    rounded = max(min(power_of_two(max(1, ceil(wanted))), _most(options)), power_of_two(max(1, options.least)))
    assert rounded.bit_count() == 1, "tables converge to powers of two"
    return rounded


def _most(options: SizeOptions) -> int:
    """Return the greatest count that the hints allow, a power of two."""
    most = power_of_two(max(1, options.most + 1)) // 2 if options.most else COUNT_MAX
    return max(most, power_of_two(max(1, options.least)))


def power_of_two(least: int) -> int:
    """Return the smallest power of two that is at least ``least`` (1 or more)."""
    assert least >= 1, "a table has at least one tablet"
    return 1 << (least - 1).bit_length()
