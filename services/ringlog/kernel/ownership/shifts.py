"""Ranges whose replicas change with tokens: found near the tokens, without comparing two layouts.

Two facts keep the cost at (changed tokens) x (replication factor), for any size of the ring:

- A range can differ only if its walk meets a changed token before the group is full. So it is a short distance
  counter-clockwise of that token, in the ring before or after the change.
- In a datacenter, replicas depend only on the tokens of that datacenter. Between two of them they are the same for
  every range, however finely other tokens split it. So a setting consists of **parts**, one for each datacenter, which
  are compared at the tokens of that datacenter; settings with a common part share the work. Under SimpleStrategy there
  is one part, the whole ring.

The naive definition (compare the groups of every range of two rings) is the model of the tests.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ringlog.kernel.ownership.kinds import strategy_of
from ringlog.kernel.ownership.strategies import (
    ENTIRE_END,
    Ring,
    filling,
    first_met,
    is_first_met,
    natural,
)
from ringlog.kernel.ownership.token_maps import merged
from ringlog.kernel.ring.ranges import Range, index_at
from ringlog.kernel.values import NodeId, Replication, Token

Shift = tuple[Range, tuple[NodeId, ...], tuple[NodeId, ...]]
"""A range whose members change: its replicas in the ring before and after, in the order of the walk."""


def part_in(replication: Replication, datacenter: str) -> Replication | None:
    """Return the part of a setting for one datacenter, or None. A setting without datacenters is one part."""
    if not strategy_of(replication).has_datacenters:
        return replication
    for local in replication.datacenters:
        if local.datacenter == datacenter:
            return Replication(replication.strategy, local.factor, (local,))
    return None


def shifts(
    parts: Iterable[Replication], datacenter: str, before: Ring, after: Ring, changed: Iterable[Token]
) -> dict[Replication, list[Shift]]:
    """Return for each part the ranges, by end, whose replicas differ between two rings that differ in ``changed``.

    ``datacenter``: the parts depend only on its tokens; empty: on all. All ranges end at the tokens of either ring.
    """
    changed = tuple(changed)
    assert before.nodes is after.nodes, "the locations of nodes do not change with tokens"
    new = set(changed).difference(before.owners)
    grows = len(after.tokens) == len(before.tokens) + len(new)
    cuts = after.tokens if grows else merged(before.tokens, new)
    own = _Own(datacenter, before, after)
    found: dict[Replication, list[Shift]] = {}
    for nested in _nested(parts, (before, after)):
        widest = nested[0]
        walked = _walked(widest, (before, after), cuts, own, changed)
        for part in nested:
            most = None if part is widest else part.factor
            found[part] = _shifted(part, [(end, old[:most], new[:most]) for end, old, new in walked], cuts, own)
    return found


class _Own(dict[Token, bool]):
    """For each token whether the parts depend on it, computed on the first lookup."""

    def __init__(self, datacenter: str, before: Ring, after: Ring) -> None:
        super().__init__()
        self._datacenter = datacenter
        self._rings = before, after

    def __missing__(self, token: Token) -> bool:
        before, after = self._rings
        owner = before.owners.get(token) or after.owners[token]
        assert owner, "each range end is a token, before or after"
        self[token] = found = not self._datacenter or before.place(owner)[0] == self._datacenter
        return found


def _nested(parts: Iterable[Replication], rings: Iterable[Ring]) -> list[list[Replication]]:
    """Return the parts in lists: from the widest down, parts whose groups are prefixes of the widest one's are in one
    list.

    If no rack is repeated and none is listed, a walk takes the first node of each rack that it meets, until it has
    enough: a smaller factor only ends it earlier.
    """
    alike, single = [], []
    for part in parts:
        if strategy_of(part).has_datacenters and all(is_first_met(part, ring) for ring in rings):
            alike.append(part)
        else:
            single.append([part])
    assert len({part.datacenters[0].datacenter for part in alike}) <= 1, "parts belong to the same datacenter"
    return [*([sorted(alike, key=lambda part: -part.factor)] if alike else []), *single]


def _walked(
    part: Replication,
    rings: tuple[Ring, Ring],
    cuts: Sequence[Token],
    own: Mapping[Token, bool],
    changed: Iterable[Token],
) -> list[tuple[Token, tuple[NodeId, ...], tuple[NodeId, ...]]]:
    """Return the ends of the part's own ranges whose walk meets a changed token in one of ``rings`` before it is full.

    Each comes with the replicas before and after.
    """
    before, after = rings
    if strategy_of(part).is_everywhere:
        return [(ENTIRE_END, natural(part, before, ENTIRE_END), natural(part, after, ENTIRE_END))] if cuts else []
    walked: dict[Token, tuple[tuple[NodeId, ...], tuple[NodeId, ...]]] = {}
    quickly = all(is_first_met(part, ring) for ring in rings)
    for ring in rings:
        for token in changed:
            if token not in ring.owners:
                continue
            ends = list(_reaching(part, ring, cuts, token, own))
            if quickly:
                groups = zip(*[first_met(part, one, token, ends) for one in rings], strict=True)
                walked.update(zip(ends, groups, strict=True))
            else:
                walked.update((end, (natural(part, before, end), natural(part, after, end))) for end in ends)
    return [(end, old, new) for end, (old, new) in walked.items()]


def _shifted(
    part: Replication,
    walked: Iterable[tuple[Token, tuple[NodeId, ...], tuple[NodeId, ...]]],
    cuts: Sequence[Token],
    own: Mapping[Token, bool],
) -> list[Shift]:
    """Return the shifts; ``walked``: ends of the part's own ranges, with the replicas before and after.

    The tokens of other datacenters split each of them into several ranges.
    """
    found: dict[int, Shift] = {}
    for end, old, new in walked:
        if old == new or set(old) == set(new):
            continue
        if strategy_of(part).is_everywhere:
            return [((end, end), old, new)]
        last = bisect_left(cuts, end)
        for index in range(last, last - len(cuts), -1):
            start = cuts[index - 1]
            found[index % len(cuts)] = ((start, cuts[index]), old, new)
            if own[start]:
                break
    return [shift for _, shift in sorted(found.items())]


def _reaching(
    replication: Replication, ring: Ring, cuts: Sequence[Token], token: Token, own: Mapping[Token, bool]
) -> Iterator[Token]:
    """Yield the part's own ends whose walk reaches ``token``, an own token, before its group is full.

    They come counter-clockwise. Other ends are skipped: a walk takes no node there.
    """
    group, owners = filling(replication, ring), ring.owners
    first = index_at(cuts, token)
    assert cuts[first] == token, "each changed token is a range end, before or after"
    if group.full:
        return
    yield token
    for step in range(1, len(cuts)):
        end = cuts[first - step]
        if own[end]:
            owner = owners.get(end)
            if owner is not None:
                group.accept(owner)
                if group.full:
                    return
            yield end
