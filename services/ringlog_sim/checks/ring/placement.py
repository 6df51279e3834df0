"""Readers and writers of each range, compared with a naive layout from an independent model."""

from __future__ import annotations

from collections.abc import Iterator

from ringlog.kernel.model.outcome import Entry
from ringlog.kernel.model.state import ClusterState, Replica
from ringlog_sim.checks.base import Check
from ringlog_sim.checks.ring.layout import SeenRange
from ringlog_sim.checks.ring.movements import Movements, movements


class Placements(Check):
    """At every epoch, live placements follow from stage and token map: ranges, groups, their order, and first epochs.

    With nothing in flight, they are the canonical layout. After a cancel, they are as before the operation's admission.
    """

    def begin(self, state: ClusterState) -> None:
        """Check the placements at the start of the run."""
        self._compare(placement_faults(state, movements(self.sim).upto(state.epoch)))

    def applied(self, before: ClusterState, after: ClusterState, item: Entry, offset: int) -> None:
        """Compare whenever the placements or the model have changed."""
        record = movements(self.sim).upto(after.epoch)
        if after.placements is not before.placements or record.refreshed == after.epoch:
            self._compare(placement_faults(after, record))
        if after.token_owners is not before.token_owners or record.refreshed == after.epoch:
            self._compare(owner_faults(after, record))

    def _compare(self, faults: Iterator[str]) -> None:
        for fault in faults:
            self.sim.broken("placement", fault)


def placement_faults(state: ClusterState, record: Movements) -> Iterator[str]:
    """Yield differences between the live placements and those of the model."""
    if set(state.placements) != set(record.layouts):
        yield f"epoch {state.epoch}: there are placements of {sorted(state.placements)}"
        return
    for key, layout in sorted(record.layouts.items()):
        placement = state.placements[key]
        ends = tuple(sorted(layout))
        where = f"epoch {state.epoch}, {key}"
        if placement.ends != ends or tuple(group.end for group in placement.ranges) != ends:
            yield f"{where}: the ranges end at {placement.ends}, not at {ends}"
            continue
        for index, group in enumerate(placement.ranges):
            if group.start != ends[index - 1]:
                yield f"{where}: the range to {group.end} begins at {group.start}"
            span = layout[group.end]
            found = SeenRange(_members(group.read), _members(group.write), group.changed)
            if _listed(found) != _listed(span):
                yield f"{where}: the range to {group.end} is {found}, expected {span}"


def owner_faults(state: ClusterState, record: Movements) -> Iterator[str]:
    """Yield differences between the owned tokens and those of the model."""
    if dict(state.token_owners) != record.owners:
        yield f"epoch {state.epoch}: token owners differ from the entries"
    for node in state.nodes.values():
        own = tuple(sorted(token for token, owner in record.owners.items() if owner == node.id))
        if node.tokens != own:
            yield f"epoch {state.epoch}: {node.name} shows the tokens {node.tokens}"


def _members(group: tuple[Replica, ...]) -> dict[str, int]:
    return {replica.node: replica.since for replica in group}


def _listed(span: SeenRange) -> tuple[object, ...]:
    """Return the range as tuples, including the order of the members."""
    return tuple(span.read.items()), tuple(span.write.items()), span.changed
