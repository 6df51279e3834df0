"""Zones: the allowed concurrent states of their groups, and an independent model of requests. It shares with the agent
and the rules only the fields of commands and of partitions.

*Primaries.* The model knows each node's current view: the state that it serves, once that is past the epoch it had
acknowledged before a crash. A node counts in a partition's group with its view: the voters before the step, the voters
after it, and the primary, which is the first live voter. A primary is *confirmed* if majorities of both groups name it.
After each event, at most one view of a partition has a confirmed primary, between two resets. A reset gives up
unreachable nodes.

*Replicas.* A node that reports a step has on its disk all mutations appended before the step was decided. A node with a
failed disk reports that for the steps that add it, and reports nothing else.

*Steps.* A step recorded as applied is applied: each added node has reported it, and a majority of the previous voters
has the step on its disk. For a step recorded as undone, a majority of them has seen the cancel. A recorded step is
never undone.

*Requests.* The placement that a trigger requested becomes stable, or is replaced by another trigger, a reset, a cancel
or the end of the partition. A partition without a pending step has no planned one.

*Data.* A tablet of a zone moves only from nodes that the partition's step removes to nodes that it adds. A step is
recorded as applied only when all of the partition's tablets are on its nodes. Other nodes may have them only if a later
step needs them, or if they are stable and planned again. A cancel is recorded as done when only the previous nodes have
the tablets, and all live ones of these do.

*Restarts.* When replicas restart, a quorum of the voters is up without them. After the restart, unless another event
ended it, the group has been without them. A returned node has a replica of the partition and of each tablet that began
after the restart. If nothing else changed, the partition is on the same nodes as before.

*At the end.* No left node is a data node, and the data nodes are those whose timers have expired. In a zone with
keyspaces, they have joined and are not leaving. A partition with only live nodes has the number of nodes that its zone
requests, unless it was cancelled, or reset manually, after the last change of its zone.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ringlog.client.data.plans import Level
from ringlog.kernel.commands.placement.rebalances import (
    CancelRebalance,
    FinishCancel,
    ResetPartitions,
    RestartReplicas,
    SwitchStable,
    TriggerRebalance,
)
from ringlog.kernel.commands.placement.tablets import MigrateTablets, TabletMigration
from ringlog.kernel.model.outcome import Entry
from ringlog.kernel.model.state import ClusterState, Node, in_order
from ringlog.kernel.model.zones import HIGH_AVAILABILITY, NEVER, ZonePartition
from ringlog.kernel.values import Epoch, Value
from ringlog.kernel.zones.resets import MANUAL
from ringlog.wire.data import Key
from ringlog.wire.records import NodeAck
from ringlog_sim.checks.base import Check
from ringlog_sim.devices.broker import CDC, MUTATIONS

if TYPE_CHECKING:
    from ringlog_sim.simulation import Simulation

Group = tuple[str, ...]


class Knowledge(Value):
    """A node's view of a group. ``begun``: the epoch of the last reset, or of the partition's creation."""

    begun: int
    revisions: tuple[int, int]
    old: Group
    new: Group
    primary: str

    @property
    def groups(self) -> tuple[Group, ...]:
        """Return the voter groups. A majority of each is needed."""
        return tuple(group for group in (self.old, self.new) if group)


@dataclass(slots=True)
class Restart:
    """Replicas that restart. ``was``: the partition's nodes, if it must return to them. ``out``: nodes that have been
    out.
    """

    epoch: int
    nodes: frozenset[str]
    was: Group | None
    out: frozenset[str] = frozenset()


class ZonesCheck(Check):
    """The guarantees of this module."""

    def __init__(self, sim: Simulation) -> None:
        super().__init__(sim)
        self._known_groups: dict[str, dict[str, Knowledge]] = {}
        self._seen: dict[str, int] = {}
        self._kept: dict[str, int] = {}
        self._begun: dict[str, list[int]] = {}
        self._cancels: dict[str, int] = {}
        self._applied: set[tuple[str, int]] = set()
        self._wishes: dict[str, Group] = {}
        self._elsewhere: set[str] = set()
        self._excused: dict[str, int] = {}
        self._restarts: dict[str, Restart] = {}
        self._begins: dict[int, list[int]] = {}
        self._has: set[tuple[str, str, int]] = set()

    # ------------------------------------------------------------------------------------------- primaries

    def began(self, node: str) -> None:
        """Forget a node's view after a restart."""
        self._known_groups.pop(node, None)

    def adopted(self, node: str, state: ClusterState) -> None:
        """Record a node's new view."""
        self._seen[node] = max(self._seen.get(node, 0), state.epoch)
        before = self._known_groups.get(node, {})
        if not state.zones and not before:
            return
        if state.epoch < self.node(node).host.disk.get("acknowledged", 0):
            return
        knowledge = self._known_groups[node] = {
            key: found
            for key, one in state.zone_partitions.items()
            if (found := self._knowledge(key, one, state)) is not None and any(node in group for group in found.groups)
        }
        for key in sorted(key for key, found in knowledge.items() if before.get(key) != found):
            self._one_primary(key)

    def acked(self, ack: NodeAck) -> None:
        """Record that a node's epoch is on its disk, and check its reports."""
        self._kept[ack.node] = max(self._kept.get(ack.node, 0), ack.applied)
        for report in ack.reports:
            if report.operation.startswith("zone/"):
                key, _, revision = report.operation.removeprefix("zone/").partition("@")
                number, _, status = revision.partition("/")
                self.sim.did["zone word", status] += 1
                if status == "has":
                    self._follows(ack.node, key, int(number), report.rows)
        node = self.node(ack.node)
        if node.rows.fails:
            reported = {report.operation for report in ack.reports}
            steps = ((key, one) for key, one in node.row_replica.state.zone_partitions.items() if one.pending)
            wanted = {f"zone/{key}@{one.revisions.pending}/failed" for key, one in steps if _comes(ack.node, one)}
            if reported != wanted:
                self.sim.broken("zone_failed", f"the disk of {ack.node} fails, but it reports {reported}, not {wanted}")

    def _follows(self, node: str, key: str, revision: int, length: int) -> None:
        """Check that a reported replica is on the node's disk."""
        rows, begun = self.node(node).rows, self._begins[revision]
        there = [rows.safe.positions.get(number, 0) for number in range(len(begun))]
        if any(has < end for has, end in zip(there, begun, strict=True)) or length > sum(there):
            detail = f"{node} applies step {revision}, but has {length}: {there} instead of {begun}"
            self.sim.broken("zone_follows", f"{key}: {detail}")
        self._has.add((node, key, revision))

    def _knowledge(self, key: str, one: ZonePartition, state: ClusterState) -> Knowledge | None:
        begun = self._begun.get(key, [])
        place = bisect_right(begun, state.epoch)
        if not place:
            return None
        new = one.pending[0].peers if one.pending else ()
        old = () if one.reached is None or (one.pending and one.pending[0].forced) else one.reached.peers
        living = [node for node in old or new if _is_alive(state.nodes[node])]
        revisions = one.revisions.stable, one.revisions.pending
        return Knowledge(begun[place - 1], revisions, old, new, living[0] if living else "")

    def _one_primary(self, key: str) -> None:
        """Check that at most one primary is confirmed between two resets."""
        views: dict[Knowledge, set[str]] = {}
        for node, knowledge in self._known_groups.items():
            if key in knowledge:
                views.setdefault(knowledge[key], set()).add(node)
        confirmed = [
            found
            for found, nodes in views.items()
            if found.primary and all(2 * len(nodes.intersection(group)) > len(group) for group in found.groups)
        ]
        for found in confirmed:
            others = [one for one in confirmed if one is not found and one.begun == found.begun]
            if others:
                self.sim.broken("two_primaries", f"{key}: {found} and {others[0]}")

    # --------------------------------------------------------------------------------------------- entries

    def applied(self, before: ClusterState, after: ClusterState, item: Entry, offset: int) -> None:
        """Check a decision."""
        command = item.command
        if before.zone_partitions is not after.zone_partitions:
            self._begins[after.epoch] = [partition.high for partition in self.sim.broker.topics[MUTATIONS]]
        if isinstance(command, MigrateTablets):
            for one in command.migrations:
                self._moves(one, before)
        if before.zone_partitions is after.zone_partitions:
            return
        match command:
            case SwitchStable():
                self._applies(f"{command.zone}/{command.partition}", before)
            case FinishCancel():
                self._ends(command, before, after)
            case CancelRebalance():
                self._cancelled(f"{command.zone}/{command.partition}", after)
            case RestartReplicas():
                self._restarts_begin(command, before, after.epoch)
        for key in sorted({*before.zone_partitions, *after.zone_partitions}):
            was, now = before.zone_partitions.get(key), after.zone_partitions.get(key)
            if was is now:
                continue
            if now is None:
                self._wishes.pop(key, None)
                self._restarts.pop(key, None)
                continue
            if was is None or isinstance(command, ResetPartitions):
                self._begun.setdefault(key, []).append(after.epoch)
                self._wishes.pop(key, None)
                self._restarts.pop(key, None)
            if isinstance(command, ResetPartitions):
                if command.mode == MANUAL:
                    self._excused[key] = after.epoch
                self._elsewhere.add(key)  # it may have more nodes than requested, or others
            if key in self._restarts and not isinstance(command, RestartReplicas):
                self._restart_goes_on(key, now, after, isinstance(command, TriggerRebalance))
            if isinstance(command, TriggerRebalance):
                self._elsewhere.discard(key)
                goal = now.planned or (now.pending[-1] if now.pending else None)
                self._wishes[key] = goal.nodes if goal is not None else ()
            if now.planned is not None and not now.pending:
                self.sim.broken("orphan_planned", f"{key}: {now}")
            self._fulfils(key, now)

    def _fulfils(self, key: str, now: ZonePartition) -> None:
        """Check that a partition without a pending step has the last requested placement."""
        wish = self._wishes.get(key)
        if not wish or now.pending:
            return
        del self._wishes[key]
        if now.stable is None or now.stable.nodes != wish:
            self.sim.broken("lost_trigger", f"{key} must get {wish}, but stays at {now.stable}")

    def _applies(self, key: str, before: ClusterState) -> None:
        """Check that a recorded step is applied."""
        one = before.zone_partitions[key]
        revision, step = one.revisions.pending, one.pending[0]
        old = None if step.forced else one.reached
        behind = set(() if one.cancel is not None else one.pending[-1].nodes)
        stays = one.cancel is None and not step.forced and not one.reduce and not one.append
        if stays and one.planned is not None and one.stable is not None:
            behind |= set(one.planned.nodes).intersection(one.stable.nodes)
        self._data(key, before, set(step.nodes), set(step.nodes).union(behind))
        for node in set(step.nodes) - set(() if old is None else old.nodes):
            if (node, key, revision) not in self._has:
                self.sim.broken("zone_gate", f"{key} went to {step}, but {node} has no replica")
        for peers in (() if old is None else old.peers), step.peers:
            having = [node for node in peers if self._kept.get(node, 0) >= revision]
            if peers and 2 * len(having) <= len(peers):
                self.sim.broken("zone_gate", f"{key} went to {step} of {revision}, which only {having} of {peers} have")
        self._applied.add((key, revision))

    def _cancelled(self, key: str, after: ClusterState) -> None:
        """Forget the request of a cancelled step, unless a step is planned."""
        self._cancels[key] = after.epoch
        if after.zone_partitions[key].planned is None:
            self._wishes.pop(key, None)

    def _ends(self, command: FinishCancel, before: ClusterState, after: ClusterState) -> None:
        """Check that a majority has left an undone step, and that it was not recorded as applied."""
        key = f"{command.zone}/{command.partition}"
        if command.result == "already_new":
            self._applies(key, before)
            return
        old, noted = before.zone_partitions[key].reached, self._cancels[key]
        assert old is not None, "the partition has a configuration to return to"
        self._data(key, before, {node for node in old.nodes if _is_alive(before.nodes[node])}, set(old.nodes))
        if (key, command.pending_revision) in self._applied:
            self.sim.broken("zone_cancel", f"{key} had applied the step of {command.pending_revision}")
        seen = [node for node in old.peers if self._seen.get(node, 0) >= noted]
        if 2 * len(seen) <= len(old.peers):
            self.sim.broken("zone_cancel", f"{key} reverted at {noted}, which only {seen} of {old.peers} have seen")
        now = after.zone_partitions[key]
        if now.stable is None or now.stable.nodes != old.nodes:
            self.sim.broken("zone_cancel", f"{key} reverted to {now.stable}, not to {old}")
        self._elsewhere.add(key)
        self._excused[key] = after.epoch
        self._restarts.pop(key, None)
        if not now.pending:
            self._wishes.pop(key, None)

    # -------------------------------------------------------------------------------------------- restarts

    def _restarts_begin(self, command: RestartReplicas, before: ClusterState, epoch: int) -> None:
        """Check that enough voters are up without the restarting replicas."""
        key = f"{command.zone}/{command.partition}"
        one, zone = before.zone_partitions[key], before.zones[command.zone]
        assert one.stable is not None, "the partition has a stable configuration"
        nodes = frozenset(command.nodes)
        left = [node for node in one.stable.peers if node not in nodes and _is_alive(before.nodes[node])]
        needed = 1 if zone.mode == HIGH_AVAILABILITY else min(zone.quorum, len(one.stable.peers))
        if len(left) < needed:
            self.sim.broken("zone_restart", f"{key} is restarted on {sorted(nodes)}, but only {left} are left")
        unmoved = key not in self._elsewhere and one.change >= max(zone.changed, before.changed.get("nodes", 0))
        all_alive = all(_is_alive(before.nodes[node]) for node in one.stable.nodes)
        self._restarts[key] = Restart(epoch, nodes, one.stable.nodes if unmoved and all_alive else None)
        self.sim.did["zone restart", "begun"] += 1

    def _restart_goes_on(self, key: str, now: ZonePartition, state: ClusterState, is_triggered: bool) -> None:
        """Check that a returning node has a new replica."""
        found = self._restarts[key]
        if now.reached is not None:
            found.out |= found.nodes.difference(now.reached.nodes)
        last = max(state.zones[now.zone].changed, state.changed.get("nodes", 0))
        if is_triggered or last > found.epoch:
            found.was = None
        if now.pending or now.stable is None:
            return
        del self._restarts[key]
        self.sim.did["zone restart", "over"] += 1
        back = found.nodes.intersection(now.stable.nodes)
        if now.reduce or now.append or (found.was is not None and now.stable.nodes != found.was):
            self.sim.broken("zone_restart", f"{key} stops after its restart of {found}: {now}")
        begun = {node for node, of, revision in self._has if of == key and revision > found.epoch}
        for name, tablets in in_order(state.tablets):
            if state.keyspaces[name.partition(".")[0]].replication.zone == now.zone:
                begun -= {one.node for one in tablets.replicas(now.number) if one.since <= found.epoch}
        if not back <= begun & found.out:
            self.sim.broken("zone_restart", f"{key} got {sorted(back)} back, but only {sorted(begun)} were restarted")

    # ------------------------------------------------------------------------------------------------ data

    def _moves(self, move: TabletMigration, before: ClusterState) -> None:
        """Check that a tablet moves from removed nodes to added nodes only."""
        zone = before.keyspaces[move.table.partition(".")[0]].replication.zone
        if not zone or move.kind in ("repair", "intranode_migration"):
            return
        one = before.zone_partitions[f"{zone}/{move.tablet}"]
        way = [step.nodes for step in (one.pending[:1] if one.cancel is None else ())]
        goes = set(way[0] if way else () if one.reached is None else one.reached.nodes)
        if move.to is not None and move.to.node not in goes:
            self.sim.broken("zone_data", f"{move} moves a tablet of {zone}/{move.tablet} outside of {sorted(goes)}")
        if move.from_ is not None and move.from_.node in goes:
            self.sim.broken("zone_data", f"{move} removes a tablet of {zone}/{move.tablet} from one of {sorted(goes)}")

    def _data(self, key: str, state: ClusterState, least: set[str], most: set[str]) -> None:
        """Check that a partition's tablets are settled on at least and at most these nodes."""
        zone, _, number = key.partition("/")
        for name, tablets in in_order(state.tablets):
            if state.keyspaces[name.partition(".")[0]].replication.zone == zone:
                tablet = tablets.tablet(int(number))
                there = {replica.node for replica in tablet.replicas}
                self.sim.did["zone data", "steps"] += 1
                if tablet.transition is not None or not least <= there <= most:
                    self.sim.broken("zone_data", f"{key} advances, but {name}/{number} is on {sorted(there)}: {tablet}")

    def found(self, key: Key, timestamp: int | None, level: Level, epoch: Epoch) -> None:
        """Count reads of registers in a zone's table that found a value."""
        self.sim.did["zone data", "registers"] += timestamp is not None and self._is_placed(key.keyspace)

    def _is_placed(self, space: str) -> bool:
        found = self.sim.log.state.keyspaces.get(space.partition(".")[0])
        return found is not None and found.replication.zone != ""

    # --------------------------------------------------------------------------------------------- at rest

    def quiet(self) -> None:
        """Check the data nodes, and count the CDC rows of zones' tables."""
        if not self.sim.shared["rebalances"]:
            return
        for partition in self.sim.broker.topics[CDC]:
            placed = sum(self._is_placed(record.value.keyspace) for record in partition.records[: partition.visible])
            self.sim.did["zone data", "cdc rows"] += placed
        for detail in _data_nodes(self.sim.log.state):
            self.sim.broken("data_nodes", detail)
        self._short(self.sim.log.state)

    def _short(self, state: ClusterState) -> None:
        """Check that each partition has the nodes that its zone requests. high_availability does not replace dead
        nodes.
        """
        for key, one in in_order(state.zone_partitions):
            zone = state.zones[one.zone]
            nodes = [state.nodes[node] for node in zone.nodes]
            dead = sum(not _is_alive(node) for node in nodes) if zone.mode == HIGH_AVAILABILITY else 0
            wanted = min(zone.replicas, sum(node.state != "left" for node in nodes)) - dead
            have = () if one.stable is None else one.stable.nodes
            rests = not one.pending and all(_is_alive(state.nodes[node]) for node in have)
            excused = self._excused.get(key, 0) > max(zone.changed, zone.liveness)
            if rests and not excused and len(have) < wanted:
                self.sim.broken("zone_short", f"{key} stays on {have}, but {zone.name} needs {wanted} of {zone.nodes}")


def _comes(node: str, one: ZonePartition) -> bool:
    step = one.pending[0]
    old = () if one.reached is None or step.forced else one.reached.nodes
    return one.cancel is None and node in step.nodes and node not in old


def _is_alive(node: Node) -> bool:
    return not node.down and node.state != "left"


def _data_nodes(state: ClusterState) -> Iterator[str]:
    """Yield errors of data nodes. The simulator's filters match every node."""
    for name, zone in in_order(state.zones):
        have = set(zone.nodes)
        for node, found in in_order(state.nodes):
            if found.state in ("left", "none") and node in have:
                yield f"{node} is {found.state}, but is a data node of {name}"
            elif found.state not in ("normal", "moving"):
                continue  # the end of the script checks its waiting conditions
            elif _is_alive(found) and node not in have and zone.scale_up != NEVER:
                yield f"{node} is alive, but not a data node of {name}"
            elif not _is_alive(found) and node in have and zone.scale_down != NEVER:
                yield f"{node} is down, but a data node of {name}"
