"""Zones: the allowed effects of each decision about a partition. It shares with the rules only the fields of commands
and of partitions.

========================  =============================================================================================
rule                      guarantee
========================  =============================================================================================
zone_cause                a trigger, a restart and a reset change only partitions whose last cause is older
zone_revision             a switch, a cancel and the end of a cancel name the pending revision
zone_third                a step that a group reports as applied counts, even if it was to be undone
zone_roles                no remaining node changes its role in a step while another node keeps its vote
zone_limit                a trigger or a restart starts at most ``zone_moves_max`` moving partitions
zone_high                 a highly available zone moves no partition to a node that is down
zone_healthy              no partition is reset that has a live quorum of voters and a live majority of each tablet
========================  =============================================================================================
"""

from __future__ import annotations

from collections.abc import Iterable

from ringlog.kernel.commands.placement.rebalances import (
    CancelRebalance,
    FinishCancel,
    ResetPartitions,
    RestartReplicas,
    SwitchStable,
    TriggerRebalance,
)
from ringlog.kernel.model.outcome import Entry
from ringlog.kernel.model.settings import setting
from ringlog.kernel.model.state import ClusterState, in_order
from ringlog.kernel.model.zones import HIGH_AVAILABILITY, ZonePartition
from ringlog_sim.checks.base import Check


class ZoneDecisions(Check):
    """The guarantees of this module."""

    def applied(self, before: ClusterState, after: ClusterState, item: Entry, offset: int) -> None:
        """Check a decision."""
        if before.zone_partitions is after.zone_partitions:
            return
        command = item.command
        if isinstance(command, (TriggerRebalance, RestartReplicas)):
            self._limit(before, after)
        for key, now in in_order(after.zone_partitions):
            was = before.zone_partitions.get(key)
            if was is None or was is now:
                continue
            self._named(key, was, command)
            if isinstance(command, FinishCancel) and command.result == "already_new":
                self._third(key, was, now)
            if isinstance(command, TriggerRebalance):
                self._high(key, was, now, after)
            if isinstance(command, ResetPartitions):
                self._healthy(key, was, before)
            self._roles(key, was, now)

    def _named(self, key: str, was: ZonePartition, command: object) -> None:
        match command:
            case TriggerRebalance() | RestartReplicas() | ResetPartitions():
                acted = was.change
                if not isinstance(command, TriggerRebalance):
                    acted = max(acted, was.reset_cause)
                if acted >= command.cause:
                    self.sim.broken("zone_cause", f"{key} had already handled {acted}: {command}")
            case SwitchStable():
                if command.revisions.pending != was.revisions.pending:
                    self.sim.broken("zone_revision", f"{key} has {was.revisions}: {command}")
            case CancelRebalance() | FinishCancel():
                if command.pending_revision != was.revisions.pending:
                    self.sim.broken("zone_revision", f"{key} has {was.revisions}: {command}")

    def _third(self, key: str, was: ZonePartition, now: ZonePartition) -> None:
        step = was.pending[0]
        if now.reached is None or (now.reached.peers, now.reached.learners) != (step.peers, step.learners):
            self.sim.broken("zone_third", f"{key} had applied {step}, but is at {now.reached}")

    def _roles(self, key: str, was: ZonePartition, now: ZonePartition) -> None:
        """Check the next step, if it is a new one."""
        have, step = now.reached, now.pending[0] if now.pending else None
        if have is None or step is None or step.forced or step.from_reset or was.pending[:1] == now.pending[:1]:
            return
        changed = {*have.peers} & {*step.learners} | {*have.learners} & {*step.peers}
        if changed and {*have.peers} & {*step.peers}:
            self.sim.broken("zone_roles", f"{key} has {have} and goes to {step}: other roles of {sorted(changed)}")

    def _limit(self, before: ClusterState, after: ClusterState) -> None:
        were, are = (_moving(state.zone_partitions.values()) for state in (before, after))
        most = setting(before, "zone_moves_max")
        if are > max(were, most):
            self.sim.broken("zone_limit", f"{are} partitions move, {were} moved before, the limit is {most}")

    def _high(self, key: str, was: ZonePartition, now: ZonePartition, state: ClusterState) -> None:
        goal = now.planned or (now.pending[-1] if now.pending else None)
        if state.zones[now.zone].mode != HIGH_AVAILABILITY or goal is None:
            return
        have = set(was.stable.nodes if was.stable is not None else ())
        if was.reached is not None and was.pending:
            have &= {*was.reached.nodes} & {*was.pending[-1].nodes}
        dead = [node for node in goal.nodes if node not in have and _is_dead(state, node)]
        if dead:
            self.sim.broken("zone_high", f"{key} is moved to {dead}, which are down")

    def _healthy(self, key: str, was: ZonePartition, before: ClusterState) -> None:
        survivors = was.pending[0].nodes if was.pending and was.pending[0].forced else ()
        if any(_is_dead(before, node) for node in survivors):
            return
        peers = () if was.reached is None else was.reached.peers
        alive = [node for node in peers if not _is_dead(before, node)]
        if 2 * len(alive) <= len(peers) or len(alive) < min(before.zones[was.zone].quorum, len(peers)):
            return
        for name, tablets in in_order(before.tablets):
            if before.keyspaces[name.partition(".")[0]].replication.zone != was.zone:
                continue
            tablet = tablets.tablet(was.number)
            coming = () if tablet.transition is None else tablet.transition.next
            for group in ({one.node for one in tablet.replicas}, {one.node for one in coming}):
                if group and 2 * len([node for node in group if not _is_dead(before, node)]) <= len(group):
                    return
        self.sim.broken("zone_healthy", f"{key} is reset, but {alive} of {peers} are alive")


def _moving(partitions: Iterable[ZonePartition]) -> int:
    return sum(bool(one.pending) for one in partitions)


def _is_dead(state: ClusterState, node: str) -> bool:
    found = state.nodes[node]
    return found.down or found.state == "left"
