"""Which ranges change hands when tokens do: found near the tokens, not by comparing two layouts.

Two facts keep the cost at (changed tokens) x (replication factor), whatever the size of the ring:

- A range can differ only if its walk meets a changed token before the group is full. So it lies a short way
  counter-clockwise of that token, in the ring before or in the ring after.
- In a datacenter, replicas depend on the tokens of that datacenter alone: between two of them they are the same for
  every range, however finely the others cut it. So a setting falls into **parts**, one for each datacenter, which are
  compared on the ring of that datacenter; settings that have a part in common share the work. Under SimpleStrategy
  there is one part, the whole ring.

The naive definition (compare the groups of every range of two rings) is the model of the tests.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence

from ringlog.kernel.ownership.strategies import ENTIRE, ENTIRE_END, NETWORK, Ring, filling, natural
from ringlog.kernel.ring.ranges import Range, index_at
from ringlog.kernel.values import NodeId, Replication, Token

Shift = tuple[Range, tuple[NodeId, ...], tuple[NodeId, ...]]
"""A range whose members change: its replicas in the ring before and in the ring after, in the order of the walk."""


def part_in(replication: Replication, datacenter: str) -> Replication | None:
    """What a setting asks of one datacenter; None if nothing. All of it, if it knows no datacenters."""
    if replication.strategy != NETWORK:
        return replication
    for local in replication.datacenters:
        if local.datacenter == datacenter:
            return Replication(NETWORK, local.factor, (local,))
    return None


def shifts(
    part: Replication, before: Ring, after: Ring, cuts: Sequence[Token], changed: Iterable[Token]
) -> list[Shift]:
    """The ranges, by end, whose replicas under ``part`` differ in two rings, which differ in the tokens ``changed``.

    ``before`` and ``after`` hold the tokens on which the part depends. ``cuts``: the ascending ends of all ranges.
    """
    changed = tuple(changed)
    assert before.nodes is after.nodes, "who is where does not change with tokens"
    own = sorted((*before.tokens, *sorted(set(changed).difference(before.owners))))
    found: dict[int, Shift] = {}
    for end in affected_ends(part, (before, after), own, changed):
        old, new = natural(part, before, end), natural(part, after, end)
        if set(old) == set(new):
            continue
        if part.strategy == ENTIRE:
            return [((end, end), old, new)]
        last = bisect_left(cuts, end)
        width = (last - bisect_left(cuts, own[bisect_left(own, end) - 1])) % len(cuts) or len(cuts)
        for index in range(last - width + 1, last + 1):
            found[index % len(cuts)] = ((cuts[index - 1], cuts[index]), old, new)
    return [shift for _, shift in sorted(found.items())]


def affected_ends(
    replication: Replication, rings: Iterable[Ring], cuts: Sequence[Token], changed: Iterable[Token]
) -> set[Token]:
    """The range ends, of ascending ``cuts``, whose walk in one of ``rings`` meets a changed token before it is full."""
    if replication.strategy == ENTIRE:
        return {ENTIRE_END} if cuts else set()
    ends: set[Token] = set()
    tokens = tuple(changed)
    for ring in rings:
        for token in tokens:
            if token in ring.owners:
                ends.update(_reaching(replication, ring, cuts, token))
    return ends


def _reaching(replication: Replication, ring: Ring, cuts: Sequence[Token], token: Token) -> Iterator[Token]:
    """The ends from which a walk gets to ``token`` before its group is full, counter-clockwise from there."""
    group = filling(replication, ring)
    first = index_at(cuts, token)
    for step in range(len(cuts)):
        end = cuts[first - step]
        owner = ring.owners.get(end) if step else None
        if owner is not None:
            group.offer(owner)
        if group.full:
            return
        yield end
