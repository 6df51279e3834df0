"""The metadata service: nodes join or leave one at a time, their log copies are complete, and one copy always exists.

The log's decisions are compared with the nodes' acknowledgements and their disks. The number and location of the
members are computed here independently, by trying each exchange.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import product

from ringlog.kernel.commands.cluster.service import AdvanceService
from ringlog.kernel.commands.control.recovery import ForceState
from ringlog.kernel.commands.topology.movements import Assassinate
from ringlog.kernel.model.outcome import Entry
from ringlog.kernel.model.state import ClusterState, Node
from ringlog.kernel.operations.gates import leaving_node
from ringlog.kernel.operations.stages import REQUESTED, in_flight
from ringlog.kernel.values import Epoch, NodeId
from ringlog.wire.records import NodeAck
from ringlog_sim.actors.nodes.kept_log import DISK, KeptLog
from ringlog_sim.checks.base import Check
from ringlog_sim.devices.broker import METADATA
from ringlog_sim.simulation import Simulation

PATHS = (
    ("", "joining"),
    ("joining", "member"),
    ("joining", "leaving"),
    ("member", "leaving"),
    ("leaving", ""),
)
SIZES = ((2, 1), (5, 3), (100, 5), (10_000, 10))


class Members(Check):
    """One node at a time takes one step. A quorum knows a node before it finally joins or leaves the groups.

    A member has the log on its disk. A node leaves only after its replacement has joined.
    """

    def __init__(self, sim: Simulation) -> None:
        super().__init__(sim)
        self._acknowledged: dict[NodeId, Epoch] = {}
        self._offsets: dict[Epoch, int] = {}

    def applied(self, before: ClusterState, after: ClusterState, item: Entry, offset: int) -> None:
        """Check one more record of the true log."""
        self._offsets[after.epoch] = offset
        if after.recoveries and after.operations is not before.operations:
            self._held_by_recovery(before, after)
        if not after.service and not before.service:
            return
        for operation in in_flight(after):
            if operation.stage != REQUESTED and leaving_node(operation) in after.service:
                self._broken(after, f"{operation.id} advanced before its node left the metadata service")
        if isinstance(item.command, ForceState) or after.service is before.service:
            return
        readers = [name for name, one in after.service.items() if one.stage == "member"]
        if not readers and any(one.stage == "member" for one in before.service.values()):
            self._broken(after, "no read replica of the log is left")
        changed = {name for name in {*before.service, *after.service} if _stage(before, name) != _stage(after, name)}
        if len(changed) != 1:
            self._broken(after, f"{len(changed)} nodes change in one entry")
        (name,) = changed
        path = _stage(before, name), _stage(after, name)
        self.sim.did["members", f"{path[0] or 'none'} to {path[1] or 'none'}"] += 1
        if not isinstance(item.command, Assassinate):
            self._stepped(before, after, name, path)
        if isinstance(item.command, AdvanceService) and path == ("", "joining"):
            self._spread(before, name)
        if isinstance(item.command, AdvanceService) and path == ("member", "leaving"):
            fit = {node.id for node in _fit(before)}
            if len(fit & set(readers)) < min(_wanted(before), len(fit)):
                self._broken(after, f"{name} leaves, but only {len(readers)} read replicas are left")

    def _held_by_recovery(self, before: ClusterState, after: ClusterState) -> None:
        begun = {one.id for one in in_flight(after)} - set(before.operations)
        if begun and any(one.left is None for one in before.recoveries.values()):
            self._broken(after, f"{min(begun)} begins during a recovery")

    def _stepped(self, before: ClusterState, after: ClusterState, name: NodeId, path: tuple[str, str]) -> None:
        if path not in PATHS:
            self._broken(after, f"{name} goes from {path[0]!r} to {path[1]!r}")
        if sum(one.stage != "member" for one in after.service.values()) > 1:
            self._broken(after, "two nodes are joining or leaving")
        if path[0] not in ("joining", "leaving") or path[1] == "leaving":
            return
        since = before.service[name].since
        informed = {node for node in after.service if self._acknowledged.get(node, 0) >= since}
        recovers = any(one.left is None for one in before.recoveries.values())
        if after.service and 2 * len(informed) <= len(after.service) and not recovers:
            self._broken(after, f"{name} advances, but {len(informed)} of {len(after.service)} know epoch {since}")
        if path[1] == "member":
            self._has(after, name, since)
            if all(node.id != name for node in _fit(before)):
                self._broken(after, f"{name} becomes a member, but must not be one")

    def _spread(self, state: ClusterState, name: NodeId) -> None:
        """Check that an added node is where the fewest members are."""
        fit = _fit(state)
        members = [node for node in fit if node.id in state.service]
        if len(members) >= _wanted(state):
            return
        costs = {node.id: _unevenness([*members, node]) for node in fit if node.id not in state.service}
        if costs[name] > min(costs.values()):
            self._broken(state, f"{name} joins a rack that already has members")

    def acked(self, ack: NodeAck) -> None:
        """Check the node's log copy before it acknowledges an epoch."""
        self._acknowledged[ack.node] = max(ack.applied, self._acknowledged.get(ack.node, 0))
        state, node = self.sim.log.states[ack.applied], self.sim.shared["nodes"][ack.node]
        if ack.node in state.service and ack.node in node.row_replica.state.service:
            self._has(state, ack.node, ack.applied)

    def quiet(self) -> None:
        """Check the number and spread of the members, unless a node is still joining or leaving."""
        state = self.sim.log.state
        if not state.service:
            return
        self._check_newest_epoch_is_held(state)
        if any(one.stage != "member" for one in state.service.values()):
            return
        members, fit = [state.nodes[name] for name in sorted(state.service)], _fit(state)
        able = [node for node in members if node in fit]
        if len(able) < min(_wanted(state), len(fit)) or len(able) > max(_wanted(state), 1):
            self._broken(state, f"{_wanted(state)} of {len(fit)} suitable nodes must be members, {len(able)} are")
        others = [node for node in fit if node not in members]
        if fit and not state.service_goal.by_hand and _spreads_better(members, others):
            self._broken(state, "replacing one member would spread the members better")
        if fit and any(node not in fit and not node.down for node in members):
            self._broken(state, "an excluded or unsuitable node is a member")

    def _check_newest_epoch_is_held(self, state: ClusterState) -> None:
        """Check that every live member has the newest epoch, so that a recovery would begin with it."""
        nodes = self.sim.shared["nodes"]
        living = [name for name, one in state.service.items() if one.stage == "member" and nodes[name].starts]
        for name in living:
            self._has(state, name, state.epoch)

    def _has(self, state: ClusterState, name: NodeId, epoch: Epoch) -> None:
        """Check that the copy on the node's disk is the log up to that epoch."""
        node, sim = self.sim.shared["nodes"][name], self.sim
        if node.is_lost or epoch not in self._offsets:
            return
        kept: KeptLog | None = node.host.disk.get(DISK)
        if kept is None:
            self._broken(state, f"{name} must have epoch {epoch}, but has no copy of the log")
            return
        if kept.base.state.epoch > epoch:
            return
        begin, end = kept.base.position, self._offsets[epoch]
        log = [one for one in sim.broker.partition(METADATA).records if begin <= one.offset <= end]
        held = [one for one in kept.records if begin <= one.offset <= end]
        if [(one.offset, one.value) for one in log] != [(one.offset, one.data) for one in held]:
            self._broken(state, f"{name} must have epoch {epoch}, but has {len(held)} of {len(log)} records")

    def _broken(self, state: ClusterState, violation: str) -> None:
        self.sim.broken("members", f"epoch {state.epoch}: {violation}")


def _stage(state: ClusterState, name: NodeId) -> str:
    return state.service[name].stage if name in state.service else ""


def _fit(state: ClusterState) -> list[Node]:
    excluded = state.service_goal.excluded
    return [
        node
        for _, node in sorted(state.nodes.items())
        if node.state in ("normal", "moving") and not node.down and node.id not in excluded
    ]


def _wanted(state: ClusterState) -> int:
    if not state.service_goal.automatic:
        return state.service_goal.size
    owners = sum(node.state in ("normal", "moving") for node in state.nodes.values())
    return next(size for most, size in SIZES if owners <= most)


def _unevenness(nodes: Iterable[Node]) -> tuple[int, int]:
    some = list(nodes)
    centers, racks = Counter(one.datacenter for one in some), Counter((one.datacenter, one.rack) for one in some)
    return sum(n * n for n in centers.values()), sum(n * n for n in racks.values())


def _spreads_better(members: Sequence[Node], others: Sequence[Node]) -> bool:
    now = _unevenness(members)
    return any(
        _unevenness([come, *(one for one in members if one is not go)]) < now for come, go in product(others, members)
    )
