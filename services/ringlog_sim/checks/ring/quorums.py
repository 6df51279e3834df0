"""Quorums of any two views in use at the same time: every read quorum intersects every write quorum.

A view is the log's readers and writers, from one epoch to the next that changes them. A coordinator may plan with any
view, however old. But a node answers under no epoch below the one that it serves. So a view can only have quorums of
members that have not passed it (rules R2 and R3 of the protocol). A node that left and returned is a new member;
``Placements`` checks this by ``since``. A write needs a quorum of the old and of the new group while both are written
(R1). The gates (R5) must have made every unsafe quorum impossible when a new view appears. Nodes only advance, so the
check runs at that moment.

Quorums are those of the whole cluster, and those of each datacenter for requests within it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from ringlog.kernel.model.outcome import Entry
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Value
from ringlog_sim.checks.base import Check
from ringlog_sim.checks.ring.gates import Acknowledgements
from ringlog_sim.checks.ring.movements import movements
from ringlog_testing.placement.layout import covering

if TYPE_CHECKING:
    from ringlog_sim.simulation import Simulation

Group = tuple[str, ...]


class Served(Value):
    """A range in a view: the readers, and the groups that each need a write quorum."""

    read: Group
    writes: tuple[Group, ...]


@dataclass(slots=True)
class SeenRanges:
    """From epoch ``first`` to ``last`` (None: current). ``ranges``: key to end to groups.

    ``keys``: the key of each keyspace, which is distinguished from later ones of its name by its first epoch.
    """

    first: int
    last: int | None
    ranges: dict[str, dict[int, Served]]
    keys: dict[tuple[str, int], str]


class Quorums(Check):
    """Reads and writes that can both succeed at one time have a node in common."""

    def __init__(self, sim: Simulation) -> None:
        super().__init__(sim)
        self._views: list[SeenRanges] = []

    def begin(self, state: ClusterState) -> None:
        """Record the view at the start of the run. All nodes have reached it."""
        self._views = [self._view(state)]

    def applied(self, before: ClusterState, after: ClusterState, item: Entry, offset: int) -> None:
        """Compare a new view with all usable ones."""
        record = movements(self.sim).upto(after.epoch)
        same = after.placements is before.placements and record.refreshed != after.epoch
        if same or record.forfeited:
            return
        for view in self._views:
            if view.last is None:
                view.last = before.epoch
        new = self._view(after)
        serving = self._serving()
        self._views = [view for view in self._views if self._usable(view, serving)]
        for view in self._views:
            self._compare(view, new, serving)
            self._compare(new, view, serving)
        self._compare(new, new, serving)
        self._views.append(new)

    def _view(self, state: ClusterState) -> SeenRanges:
        """Return the view of a state. Its readers are from the state, the two groups of a write from the model."""
        record = movements(self.sim).upto(state.epoch)
        ranges: dict[str, dict[int, Served]] = {}
        for key, placement in sorted(state.placements.items()):
            ranges[key] = {}
            for group in placement.ranges:
                _, old, new = record.groups(key, group.end)
                present = tuple(replica.node for replica in group.write)
                read = tuple(replica.node for replica in group.read)
                ranges[key][group.end] = Served(read, _distinct(old, new, present))
        keys = {
            (name, made): record.key(name) for name, made in sorted(record.created.items()) if name in record.keyspaces
        }
        return SeenRanges(state.epoch, None, ranges, keys)

    def _serving(self) -> dict[str, int]:
        """Return, for each node, the lowest epoch of requests that it answers."""
        truth: Acknowledgements = self.sim.shared["acknowledgements"]
        serving = dict(truth.acknowledged)
        for node, found in sorted(self.sim.shared["nodes"].items()):
            if found.row_replica.caught_up:
                serving[node] = max(serving.get(node, 0), found.row_replica.state.epoch)
        return serving

    def _usable(self, view: SeenRanges, serving: dict[str, int]) -> bool:
        """Return True if a range of the view can still have a quorum of any kind."""
        return any(
            smallest_quorums((group,), self._able(view, group, serving))
            for layout in view.ranges.values()
            for served in layout.values()
            for group in (served.read, *served.writes)
        )

    def _able(self, view: SeenRanges, group: Iterable[str], serving: dict[str, int]) -> frozenset[str]:
        """Return the nodes of the group that can still answer in the view."""
        return frozenset(node for node in group if view.last is None or serving.get(node, 0) <= view.last)

    def _compare(self, reading: SeenRanges, writing: SeenRanges, serving: dict[str, int]) -> None:
        shared = reading.keys.keys() & writing.keys.keys()
        for key, other in sorted({(reading.keys[name], writing.keys[name]) for name in shared}):
            readers, writers = reading.ranges[key], writing.ranges[other]
            if not readers or not writers:
                continue
            for end in sorted({*readers, *writers}):
                read, write = readers[covering(readers, end)], writers[covering(writers, end)]
                for scope in self._scopes(read, write):
                    self._meet(f"{key} at {end}{scope[0]}", scope[1], (reading, read), (writing, write), serving)

    def _scopes(self, read: Served, write: Served) -> list[tuple[str, Group]]:
        """Return the whole cluster, and each datacenter if there are several."""
        where = movements(self.sim).places
        nodes = sorted({*read.read, *(node for group in write.writes for node in group)})
        names = sorted({where[node][0] for node in nodes})
        scopes = [("", tuple(nodes))]
        if len(names) > 1:
            scopes += [(f" in {name}", tuple(n for n in nodes if where[n][0] == name)) for name in names]
        return scopes

    def _meet(
        self,
        kind: str,
        scope: Group,
        reading: tuple[SeenRanges, Served],
        writing: tuple[SeenRanges, Served],
        serving: dict[str, int],
    ) -> None:
        read_group = tuple(node for node in reading[1].read if node in scope)
        write_groups = tuple(tuple(node for node in group if node in scope) for group in writing[1].writes)
        write_groups = tuple(group for group in write_groups if group)
        if not read_group or not write_groups:
            return
        reads = smallest_quorums((read_group,), self._able(reading[0], read_group, serving))
        writes = smallest_quorums(write_groups, self._able(writing[0], {n for g in write_groups for n in g}, serving))
        apart = next(((r, w) for r in reads for w in writes if not r & w), None)
        if apart is not None:
            self.sim.broken(
                "quorums",
                f"{kind}: readers {sorted(apart[0])} of the view of epoch {reading[0].first} miss writers "
                f"{sorted(apart[1])} of the view of epoch {writing[0].first}",
            )


def _distinct(old: Group, new: Group, present: Group) -> tuple[Group, ...]:
    """Return the groups that each need a write quorum, or all current writers if the two groups do not cover them."""
    groups = [old] if set(old) == set(new) else [old, new]
    if {node for group in groups for node in group} != set(present):
        groups = [present]
    return tuple(group for group in groups if group)


@lru_cache(maxsize=4096)
def smallest_quorums(groups: tuple[Group, ...], able: frozenset[str]) -> tuple[frozenset[str], ...]:
    """Return all minimal subsets of ``able`` with more than half of each group."""
    nodes = sorted(able)
    found: list[frozenset[str]] = []
    for mask in sorted(range(1, 1 << len(nodes)), key=int.bit_count):
        chosen = frozenset(node for number, node in enumerate(nodes) if mask >> number & 1)
        if any(smaller <= chosen for smaller in found):
            continue
        if all(2 * len(chosen.intersection(group)) > len(group) for group in groups):
            found.append(chosen)
    return tuple(found)
