"""Registers with distinct written values, decided in n log n by Gibbons and Korach (1997).

Each read then identifies its write. A write and its reads are a cluster. Its zone is between the earliest return and
the latest invoke of its operations:

    forward    earliest return < latest invoke    the value must be current during the whole zone
    backward   otherwise                          the value may be current for a single instant in the zone

A history is linearizable if and only if no read returns before its write is invoked, no two forward zones overlap, and
no backward zone is inside a forward zone. A write of null has returned before the first line. A write of unknown
outcome never returns. Without reads of its value, it constrains nothing.

The method applies to reads and writes only. Each written value must differ from all others and from null.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

from ringlog_testing.histories.events import Op, OpValue, Scalar, Type
from ringlog_testing.histories.operations import ClientOperation
from ringlog_testing.histories.verdict import KeyVerdict, Linearizability

NEVER = 2**62
Name: TypeAlias = tuple[type, Scalar]
"""A value with its type, so that true and 1 differ."""


@dataclass(slots=True)
class _Cluster:
    """A value's write and its reads so far. None as an operation is the write of null before the first line."""

    written: int
    returned: int
    returner: ClientOperation | None
    invoked: int
    invoker: ClientOperation | None
    members: list[ClientOperation]

    @property
    def is_forward(self) -> bool:
        return self.returned < self.invoked

    @property
    def begin(self) -> int:
        return min(self.returned, self.invoked)

    @property
    def end(self) -> int:
        return max(self.returned, self.invoked)


def applies(operations: tuple[ClientOperation, ...]) -> bool:
    """Return whether these are reads and writes of different values."""
    if any(one.op is Op.CAS and one.type is not Type.FAIL for one in operations):
        return False
    written = [name_of(one.asked) for one in operations if one.op is Op.WRITE and one.type is not Type.FAIL]
    return len(set(written)) == len(written) and name_of(None) not in written


def decide(operations: tuple[ClientOperation, ...]) -> KeyVerdict:
    """Return whether one order explains the operations, which are sorted by invoke. The decision's line is 0."""
    clusters = {name_of(None): _Cluster(-1, 0, None, -1, None, [])}
    for one in operations:
        if one.op is Op.WRITE and one.type is not Type.FAIL:
            returned = NEVER if one.returned is None else one.returned
            clusters[name_of(one.asked)] = _Cluster(one.invoked, returned, one, one.invoked, one, [one])
    for one in operations:
        if one.op is not Op.READ or one.returned is None or one.type is not Type.OK:
            continue
        cluster = clusters.get(name_of(one.answer))
        if cluster is None:
            return _no("the value was never written", one)
        if one.returned < cluster.written:
            return _no("the value was read before its write began", one, *cluster.members[:1])
        cluster.members.append(one)
        if one.returned < cluster.returned:
            cluster.returned, cluster.returner = one.returned, one
        if one.invoked > cluster.invoked:
            cluster.invoked, cluster.invoker = one.invoked, one
    return _zones(clusters)


def name_of(value: OpValue) -> Name:
    """Return a scalar with its type, so that true and 1 differ."""
    assert not isinstance(value, tuple), "a register holds scalars"
    return type(value), value


def _zones(clusters: dict[Name, _Cluster]) -> KeyVerdict:
    forward = sorted((one for one in clusters.values() if one.is_forward), key=lambda one: one.begin)
    for former, latter in pairwise(forward):
        if latter.begin < former.end:
            return _conflict("two values are required to be current at the same time", former, latter)
    begins = [one.begin for one in forward]
    for one in clusters.values():
        place = bisect_right(begins, one.begin) - 1
        if not one.is_forward and place >= 0 and one.end < forward[place].end:
            return _conflict("a value appeared and disappeared while another had to stay current", forward[place], one)
    return KeyVerdict(Linearizability.LINEARIZABLE)


def _conflict(why: str, *clusters: _Cluster) -> KeyVerdict:
    found: list[ClientOperation] = []
    for cluster in clusters:
        for one in (*cluster.members[:1], cluster.returner, cluster.invoker):
            if one is not None and one not in found:
                found.append(one)
    return _no(why, *found)


def _no(why: str, *culprits: ClientOperation) -> KeyVerdict:
    return KeyVerdict(
        Linearizability.NOT_LINEARIZABLE, why=why, culprits=tuple(sorted(culprits, key=lambda one: one.invoked))
    )
