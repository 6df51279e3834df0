"""Who reads and who writes each range, against a layout that is worked out the naive way from an own record."""

from __future__ import annotations

from ringlog.kernel.outcome import Entry
from ringlog.kernel.state import ClusterState, Replica
from ringlog.sim.checks.base import Check
from ringlog.sim.checks.movements import Movements, SeenRange, movements


class Placements(Check):
    """Live placements are, at every epoch, what stage and token map say: ranges, groups and their order, since when.

    Nothing in flight: the canonical layout. After a cancel: what it was before the operation was admitted.
    """

    def begin(self, state: ClusterState) -> None:
        """The placements that the run begins with."""
        self._compare(state, movements(self.sim).upto(state.epoch))

    def applied(self, before: ClusterState, after: ClusterState, item: Entry, offset: int) -> None:
        """Compare whenever the placements, or what they should be, have changed."""
        record = movements(self.sim).upto(after.epoch)
        if after.placements is not before.placements or record.refreshed == after.epoch:
            self._compare(after, record)
        if after.token_owners is not before.token_owners or record.refreshed == after.epoch:
            self._compare_owners(after, record)

    def _compare(self, state: ClusterState, record: Movements) -> None:
        if set(state.placements) != set(record.layouts):
            self.sim.broken("placement", f"epoch {state.epoch}: settings {sorted(state.placements)} are placed")
        for key, layout in sorted(record.layouts.items()):
            placement = state.placements[key]
            ends = tuple(sorted(layout))
            where = f"epoch {state.epoch}, {key}"
            if placement.ends != ends or tuple(group.end for group in placement.ranges) != ends:
                self.sim.broken("placement", f"{where}: the ranges end at {placement.ends}, not at {ends}")
            for index, group in enumerate(placement.ranges):
                if group.start != ends[index - 1]:
                    self.sim.broken("placement", f"{where}: the range to {group.end} begins at {group.start}")
                span = layout[group.end]
                found = SeenRange(_members(group.read), _members(group.write), group.changed)
                if _listed(found) != _listed(span):
                    self.sim.broken("placement", f"{where}: the range to {group.end} is {found}, expected {span}")

    def _compare_owners(self, state: ClusterState, record: Movements) -> None:
        if dict(state.token_owners) != record.owners:
            self.sim.broken("placement", f"epoch {state.epoch}: other tokens are owned than by the entries")
        for node in state.nodes.values():
            mine = tuple(sorted(token for token, owner in record.owners.items() if owner == node.id))
            if node.tokens != mine:
                self.sim.broken("placement", f"epoch {state.epoch}: {node.name} shows the tokens {node.tokens}")


def _members(group: tuple[Replica, ...]) -> dict[str, int]:
    return {replica.node: replica.since for replica in group}


def _listed(span: SeenRange) -> tuple[object, ...]:
    """With the order of the members."""
    return tuple(span.read.items()), tuple(span.write.items()), span.changed
