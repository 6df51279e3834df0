"""Intersection of quorums of the views of one range while its members change, by enumeration of small groups.

Only the sizes of the groups count, so each combination of sizes is enumerated once.

Views 0 to 3: before, after start, after middle, after finish. A read needs a quorum of the readers, a write a quorum of
the old and a quorum of the new group of its view.
"""

from __future__ import annotations

from functools import cache
from itertools import combinations

from ringlog.kernel.operations.gates import quorum

Group = frozenset[str]
MEMBERS_MAX = 7
"""Of greater groups (every node of a ring) there are too many choices."""


def _at_least(group: Group, size: int) -> list[Group]:
    return [frozenset(chosen) for chosen in combinations(sorted(group), size)]


def _quorums(*groups: Group) -> list[Group]:
    """The smallest sets of answers that hold a quorum of each group."""
    found = [frozenset[str]()]
    for group in groups:
        found = [one | more for one in found for more in _at_least(group, quorum(len(group)))]
    return [one for one in set(found) if not any(other < one for other in found)]


def check(old: Group, new: Group) -> None:
    """Fail if two quorums of views at most one apart do not meet."""
    if old and new and old != new and len(old | new) <= MEMBERS_MAX:
        _check(len(old & new), len(old - new), len(new - old))


@cache
def _check(common: int, leaving: int, entering: int) -> None:
    both = frozenset(f"b{number}" for number in range(common))
    old = both | {f"l{number}" for number in range(leaving)}
    new = both | {f"e{number}" for number in range(entering)}
    reads = [_quorums(group) for group in (old, old, new, new)]
    writes = [_quorums(*groups) for groups in ((old,), (old, new), (old, new), (new,))]
    for one in range(4):
        for other in range(max(0, one - 1), min(4, one + 2)):
            assert all(r & w for r in reads[one] for w in writes[other]), (old, new, one, other)
