"""The path through a scenario's log: the states that differ for the key, the gates between them, equivalent nodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from ringlog.kernel.model.state import ClusterState, Operation, RangeGroup
from ringlog.kernel.model.tablet_map import Tablet, TabletMap
from ringlog.kernel.movements.progress import unreported
from ringlog.kernel.operations.gates import REPORTED_STAGES, Gate, gaining_nodes, gate, missing
from ringlog.kernel.operations.stages import PREPARED, WRITE_BOTH_READ_OLD, has_reached, in_flight
from ringlog.kernel.ownership.placements import placement_key
from ringlog.kernel.ring.ranges import in_range
from ringlog.kernel.tablets.gates import gate as tablet_gate
from ringlog.kernel.tablets.gates import must_report
from ringlog.kernel.tablets.mutual_exclusion import is_anywhere
from ringlog.kernel.tablets.stages import session
from ringlog.kernel.values import StreamReport, Witness, replace
from ringlog.protocol.nodes.stream_work import placement_of_space, replicas_of_token, works_for_node
from tests.client.explorer.coordinators import Scenario

GateRule = Callable[[Gate, tuple[Witness, ...]], bool]


def gate_is_met(found: Gate, witnesses: tuple[Witness, ...]) -> bool:
    """Return whether the gate is met by the rule of the log."""
    return not missing(found, witnesses)


@dataclass(slots=True)
class _Growth:
    """Gates between two kept states, and the operations that leave a stage by reports."""

    gates: list[Gate] = field(default_factory=list)
    streaming: list[Operation] = field(default_factory=list)
    sessions: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    """Tablet sessions that end by the reports of these nodes."""


class Way:
    """The path of a scenario. ``log``: the distinct states; ``nodes``: all write replicas of the key; ``place``: epoch
    to index; ``floors``: for each state the index of the last passed gate; ``twins``: indexes of equivalent
    nodes.
    """

    def __init__(self, scenario: Scenario, rule: GateRule) -> None:
        self.scenario = scenario
        self.key = scenario.key
        self.rule = rule
        raw = scenario.log
        self.nodes = sorted({node.node for state in raw for node in self.group(state).write})
        kept = [0]
        for index in range(1, len(raw)):
            if self._look(raw[index]) != self._look(raw[kept[-1]]):
                kept.append(index)
        self.log = [raw[index] for index in kept]
        self.place = {state.epoch: index for index, state in enumerate(self.log)}
        self.growth = [self._growth(raw[a : b + 1]) for a, b in pairwise(kept)]
        self.floors = [self._floor(index) for index in range(len(self.log))]
        self.twins = self._twins()

    def group(self, state: ClusterState) -> RangeGroup:
        """Return the replica group of the key."""
        group = replicas_of_token(placement_of_space(state, self.key.keyspace), self.key.token)
        assert group is not None
        return group

    def tablet(self, state: ClusterState) -> tuple[TabletMap, Tablet] | None:
        """Return the tablet of the key if it is migrating."""
        tablets = placement_of_space(state, self.key.keyspace)
        if not isinstance(tablets, TabletMap):
            return None
        tablet = tablets.tablet(tablets.index_of(self.key.token))
        return (tablets, tablet) if tablet.transition is not None else None

    def _look(self, state: ClusterState) -> Any:
        """Return the parts of a state that concern the key."""
        group = self.group(state)
        streaming = [o.id for o in in_flight(state) if o.stage in REPORTED_STAGES and self._concerns(state, o.id)]
        down = [node for node in self.nodes if state.nodes[node].down]
        if self.scenario.keeps_others:
            streaming += [f"{o.id} {o.stage}" for o in in_flight(state) if has_reached(o, WRITE_BOTH_READ_OLD)]
        if (found := self.tablet(state)) is not None:
            streaming += [str(found[1].transition)]
        return group.read, group.write, streaming, down, state.keyspaces[self.key.keyspace.partition(".")[0]].made

    def _concerns(self, state: ClusterState, operation: str) -> bool:
        return any(self._covers(state, s.replication, s.start, s.end) for s in state.operations[operation].plan.sources)

    def _covers(self, state: ClusterState, replication: str, start: int, end: int) -> bool:
        placed = placement_key(state.keyspaces[self.key.keyspace])
        return replication == placed and in_range(self.key.token, start, end)

    def _growth(self, raw: tuple[ClusterState, ...]) -> _Growth:
        found = _Growth()
        for state, after in pairwise(raw):
            for operation in in_flight(state):
                following = after.operations[operation.id]
                if following.stage in (operation.stage, "cancelled") or operation.stage == PREPARED:
                    continue
                if operation.stage_epoch > raw[0].epoch:
                    continue  # Started and left between two kept states.
                asked = gate(state, operation)
                epoch = max(one.epoch for one in self.log if one.epoch <= asked.epoch)
                found.gates.append(replace(asked, epoch=epoch))
                found.streaming.append(operation)
            if (moving := self.tablet(state)) is not None:
                self._leaves(found, state, *moving, self.tablet(after))
        return found

    def _leaves(
        self,
        found: _Growth,
        state: ClusterState,
        tablets: TabletMap,
        tablet: Tablet,
        then: tuple[TabletMap, Tablet] | None,
    ) -> None:
        """Return how a tablet leaves its stage: by its gate and its reports, unless a reset restarts it."""
        now, later = tablet.transition, None if then is None else then[1].transition
        assert now is not None
        if later is not None and (later.started != now.started or later.stage == now.stage):
            return
        found.gates.append(tablet_gate(state, tablets, tablet))
        if name := session(tablets.table, tablet.index, now):
            found.sessions.append((name, must_report(tablet, state.nodes, is_anywhere(state, tablets.table))))

    def _floor(self, index: int) -> int:
        """Return the log position that all gates have passed when the state at ``index`` exists."""
        asked = [self.place[found.epoch] for growth in self.growth[index:] for found in growth.gates]
        return min(asked, default=len(self.log)) - 1

    def may_grow(self, length: int, acked: tuple[int, ...], reported: tuple[tuple[str, ...], ...]) -> bool:
        """Return whether the next state may follow, by the acknowledged index and the reports of each node."""
        growth = self.growth[length - 1]
        quick = self.log[length - 1].epoch
        witnesses = tuple(
            Witness(node, epoch, epoch)
            for node in sorted(self.log[0].nodes)
            for epoch in (self.log[acked[self.nodes.index(node)]].epoch if node in self.nodes else quick,)
        )
        for operation in growth.streaming:
            told = {node for node, names in zip(self.nodes, reported, strict=True) if operation.id in names}
            told.update(set(gaining_nodes(operation)).difference(self.nodes))
            if unreported(operation, [StreamReport(node, operation.id, 1, "00") for node in sorted(told)]):
                return False
        for name, wanted in growth.sessions:
            told = {node for node, names in zip(self.nodes, reported, strict=True) if name in names}
            if not told.issuperset(wanted):
                return False
        return all(self.rule(found, witnesses) for found in growth.gates)

    def is_dead(self, length: int, place: int) -> bool:
        """Return whether the node has stopped."""
        return not self.scenario.mistaken and self.log[length - 1].nodes[self.nodes[place]].down

    def dies(self, length: int) -> bool:
        """Return whether the next state declares a node down."""
        return any(
            self.log[length].nodes[node].down and not self.log[length - 1].nodes[node].down for node in self.nodes
        )

    def _twins(self) -> list[tuple[int, ...]]:
        """Return the groups of two or more equivalent nodes."""
        alike: dict[Any, list[int]] = {}
        for place, node in enumerate(self.nodes):
            alike.setdefault(self._signature(node), []).append(place)
        return [tuple(places) for places in alike.values() if len(places) > 1]

    def _signature(self, node: str) -> Any:
        member = [
            tuple(next((one.since for one in group if one.node == node), None) for group in (found.read, found.write))
            for found in map(self.group, self.log)
        ]
        needs = [
            (found.operation, found.stage, node in found.must, tuple(node in need.members for need in found.needs))
            for growth in self.growth
            for found in growth.gates
        ]
        streams = {
            (operation.id, source.start, source.end, source.source == node, source.target == node, source)
            for state in self.log
            for operation in in_flight(state)
            for source in operation.plan.sources
            if node in (source.source, source.target)
        }
        streams |= {
            (work.name, one.start, one.end, one.source == node, one.target == node, one)
            for state in self.log
            if self.tablet(state) is not None
            for other in self.nodes  # A source takes no part in the work of its target.
            for work in works_for_node(state, other).values()
            for one in work.sources
            if node in (one.source, one.target)
        }
        named = sorted(
            (name, start, end, gives, gets, source.source if gets else "", source.target if gives else "")
            for name, start, end, gives, gets, source in streams
        )
        down = [state.nodes[node].down for state in self.log]
        alone = node if any(gives for _, _, _, gives, *_ in named) or self.scenario.rows_travel else ""
        return repr((member, needs, named, down, self.log[0].nodes[node].datacenter, alone))
