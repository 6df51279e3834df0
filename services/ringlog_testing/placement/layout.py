"""A naive implementation of replica placement: sort the tokens, walk clockwise, and take the nodes of the setting.

It shares with the kernel only the fields of a setting. ``Places``: node to (datacenter, rack). The kernel's own tests
also use it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Replication, Value

Owners = Mapping[int, str]
"""Token to node id."""

Places = Mapping[str, tuple[str, str]]
LAST = 2**63 - 1
"""The end of the only range under EntireStrategy."""


class AppliedEntry(Protocol):
    """An accepted entry of the log."""

    @property
    def command(self) -> object:
        """Return the applied command."""


class AppliedLog(Protocol):
    """Accepted entries (None: rejected) and states, both by epoch."""

    @property
    def entries(self) -> Mapping[int, AppliedEntry | None] | Sequence[AppliedEntry | None]:
        """Return the entry of each epoch."""

    @property
    def states(self) -> Mapping[int, ClusterState] | Sequence[ClusterState]:
        """Return the state after each epoch."""


class SeenRange(Value):
    """One range: the members of its read and its write group, each with its first epoch."""

    read: Mapping[str, int]
    write: Mapping[str, int]
    changed: int

    def next(self, read: tuple[str, ...], write: tuple[str, ...], epoch: int) -> SeenRange:
        """Return the range with these groups from ``epoch`` on, or unchanged if the groups are equal."""
        if (read, write) == (tuple(self.read), tuple(self.write)):
            return self
        same = set(read) == set(self.read) and set(write) == set(self.write)
        return SeenRange(
            {node: self.read.get(node, epoch) for node in read},
            {node: self.write.get(node, epoch) for node in write},
            self.changed if same else epoch,
        )

    def with_others(self, others: Iterable[SeenRange]) -> SeenRange:
        """Return one range from several with the same members. Each member has the latest of its epochs."""
        spans = (self, *others)
        return SeenRange(
            {node: max(span.read[node] for span in spans) for node in self.read},
            {node: max(span.write[node] for span in spans) for node in self.write},
            max(span.changed for span in spans),
        )


NO_RANGE = SeenRange({}, {}, 0)
Layout = dict[int, SeenRange]
"""End of a range to its groups."""


def walk(owners: Owners, end: int) -> list[str]:
    """Return the distinct owners clockwise from the first token at or after ``end``."""
    tokens = sorted(owners)
    return list(dict.fromkeys([owners[t] for t in tokens if t >= end] + [owners[t] for t in tokens if t < end]))


def replicas(setting: Replication, owners: Owners, places: Places, end: int) -> tuple[str, ...]:
    """Return the replicas of the range that ends at ``end``, in the order of the walk."""
    met = walk(owners, end)
    if setting.strategy == "entire":
        return tuple(met)
    if setting.strategy == "simple":
        return tuple(met[: setting.factor])
    chosen: set[str] = set()
    for wanted in setting.datacenters:
        local = [(node, places[node][1]) for node in met if places[node][0] == wanted.datacenter]
        chosen.update(_listed(local, wanted.racks) if wanted.racks else _spread(local, wanted.factor))
    return tuple(node for node in met if node in chosen)


def _listed(local: list[tuple[str, str]], racks: Iterable[str]) -> list[str]:
    """Return the first node of each listed rack."""
    return [next(node for node, its in local if its == rack) for rack in racks if any(its == rack for _, its in local)]


def _spread(local: list[tuple[str, str]], factor: int) -> list[str]:
    """Return the first node of each rack. If there are too few racks, add further nodes in walk order."""
    repeats = factor - len({rack for _, rack in local})
    chosen: list[str] = []
    seen: set[str] = set()
    for node, rack in local:
        if len(chosen) < factor and (rack not in seen or repeats > 0):
            repeats -= rack in seen
            seen.add(rack)
            chosen.append(node)
    return chosen


def key_of(setting: Replication) -> str:
    """Return the state's name for a setting."""
    if setting.strategy == "simple":
        return f"simple:{setting.factor}"
    if setting.strategy == "entire":
        return "entire"
    return "network:" + ",".join(
        f"{local.datacenter}={'+'.join(local.racks) if local.racks else local.factor}" for local in setting.datacenters
    )


def ends_of(setting: Replication, tokens: Iterable[int]) -> set[int]:
    """Return the range ends of a setting on a ring with these tokens."""
    ends = set(tokens)
    return ends and ({LAST} if setting.strategy == "entire" else ends)


def holds(start: int, end: int, token: int) -> bool:
    """Return True if ``(start, end]`` of the ring has the token. ``(t, t]`` has all tokens."""
    return start < token <= end if start < end else token > start or token <= end


def covering(ends: Iterable[int], token: int) -> int:
    """Return the end of the range that has the token, from at least one end."""
    ordered = sorted(ends)
    return next((end for end in ordered if end >= token), ordered[0])
