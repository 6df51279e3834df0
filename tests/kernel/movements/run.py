"""One random run: a small cluster with keyspaces, and operations that start, advance, are cancelled and fail.

After each step the run compares the state with the simulator's record of the log.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

from immutables import Map

from ringlog.kernel.commands.schema.keyspaces import AlterKeyspace
from ringlog.kernel.commands.topology.movements import Assassinate, Join, Leave, Move, Rebuild, Remove, Replace
from ringlog.kernel.commands.topology.nodes import DeclareDown, DeclareUp
from ringlog.kernel.commands.topology.operations import CancelOperation, FailOperation, RetryOperation
from ringlog.kernel.model.outcome import Rejected
from ringlog.kernel.model.state import ClusterState, Node, Operation, RangeGroup
from ringlog.kernel.model.tables import Keyspace
from ringlog.kernel.operations.stages import in_flight
from ringlog.kernel.ownership.placements import (
    canonical,
    new_placement,
    nodes_of,
    placement_of_keyspace,
    replications_in_use,
)
from ringlog.kernel.ownership.strategies import replication_key
from ringlog.kernel.values import Command, Replication, replace
from ringlog_sim.checks.ring.operations import lock_faults, source_faults
from ringlog_sim.checks.ring.quorums import smallest_quorums
from ringlog_testing.placement.comparison import owner_faults, placement_faults
from ringlog_testing.placement.layout import replicas
from ringlog_testing.placement.movements import Movements, SeenMovement
from tests.kernel.movements.clusters import ENTIRE, network, simple
from tests.kernel.operations.driver import SEED, advance_of, applied, decided, with_generation

SPAN = 1_000
EXPECTED = {
    "range_locked",
    "plans_conflict",
    "replication_impossible",
    "too_few_replicas",
    "too_many_operations",
    "operations_in_flight",
}
"""Rejection codes that are valid in any run."""


MEMBERS_MAX = 7
"""Larger groups have too many combinations."""


def shape(ranges: Iterable[RangeGroup]) -> list[tuple[Any, ...]]:
    """Return the ranges without their epochs."""
    return [(group.start, group.end, nodes_of(group.read), nodes_of(group.write)) for group in ranges]


def views_meet(old: frozenset[str], new: frozenset[str]) -> None:
    """Assert that quorums of views at most one apart intersect. Only the sizes of the groups matter.

    Views 0 to 3 are: before, after start, after middle, after finish. A write needs a quorum of the old and of the new
    group of its view.
    """
    if old and new and old != new and len(old | new) <= MEMBERS_MAX:
        _views_meet(len(old & new), len(old - new), len(new - old))


@cache
def _views_meet(common: int, leaving: int, entering: int) -> None:
    both = tuple(f"b{number}" for number in range(common))
    old = both + tuple(f"l{number}" for number in range(leaving))
    new = both + tuple(f"e{number}" for number in range(entering))
    all_ = frozenset(old + new)
    reads = [smallest_quorums((group,), all_) for group in (old, old, new, new)]
    writes = [smallest_quorums(groups, all_) for groups in ((old,), (old, new), (old, new), (new,))]
    for one in range(4):
        for other in range(max(0, one - 1), min(4, one + 2)):
            assert all(r & w for r in reads[one] for w in writes[other]), (old, new, one, other)


@dataclass
class Applied:
    """An entry of the run's log."""

    command: Command


@dataclass
class RunLog:
    """Applied entries and states by epoch."""

    entries: dict[int, Applied]
    states: dict[int, ClusterState]


class Run:
    """A random run. ``counts`` counts events by name. A *wide* run has many nodes in three racks, so operations
    interact.
    """

    def __init__(self, seed: int, nodes_max: int = 8) -> None:
        self.draw = random.Random(seed)
        self.counts: dict[str, int] = {}
        self.log = RunLog({}, {})
        self.record = Movements(self.log)
        self.next_node = 0
        self.wide = self.draw.random() < 0.3
        datacenters = [f"dc{number}" for number in range(1 if self.wide else self.draw.choice([1, 1, 2, 3]))]
        self.racks = {name: 3 if self.wide else self.draw.randint(1, 3) for name in datacenters}
        self.nodes_max = self.draw.choice([2 * nodes_max, 3 * nodes_max] if self.wide else [nodes_max, 2 * nodes_max])
        self.tokens_max = 1 if self.wide else self.draw.choice([1, 3])
        self.factor_max = self.draw.choice([2, 4])
        nodes: dict[str, Node] = {}
        tokens: dict[int, str] = {}
        for number in range(self.draw.randint(self.nodes_max // 2, self.nodes_max - 1)):
            node = self._new_node(datacenters[number % len(datacenters)])
            own = self._free(tokens, self.draw.randint(1, self.tokens_max))
            nodes[node.id] = replace(node, state="normal", tokens=own)
            tokens |= dict.fromkeys(own, node.id)
        keyspaces: dict[str, Replication] = {}
        places = {name: (node.datacenter, node.rack) for name, node in nodes.items()}
        self.record.owners, self.record.places = tokens, places
        for number in range(self.draw.randint(1, 3)):
            keyspaces[f"ks{number}"] = self._setting()
        self.state = self._clustered(nodes, tokens, keyspaces)
        self.record.begin(self.state.epoch, tokens, places, keyspaces, since=5)
        self.concurrency = self.draw.randint(1, 5)
        limit = {"operations_concurrent_max": self.concurrency}
        self.state = self.log.states[self.state.epoch] = replace(self.state, settings=Map(limit))

    def _new_node(self, datacenter: str, rack: str = "") -> Node:
        self.next_node += 1
        name = f"n{self.next_node}"
        rack = rack or f"r{self.draw.randrange(self.racks[datacenter])}"
        return Node(name, name, f"{name}:1", datacenter, rack, 1, 12, "1", (), 1, "none", (), 1)

    def _free(self, tokens: dict[int, str], count: int) -> tuple[int, ...]:
        """Return free tokens."""
        taken = {*tokens, *(token for move in self.record.flying.values() for token in move.tokens)}
        drawn: set[int] = set()
        while len(drawn) < count:
            drawn.update({self.draw.randrange(-SPAN, SPAN)} - taken)
        return tuple(sorted(drawn))

    def _setting(self) -> Replication:
        """Return a replication setting that the normal nodes can satisfy."""
        members = set(self.record.owners.values())
        local: dict[str, list[str]] = {}
        for node in sorted(members):
            datacenter, rack = self.record.places[node]
            local.setdefault(datacenter, []).append(rack)
        if self.wide:
            return network(dc0=self.draw.randint(1, 3))
        kind = self.draw.choice(["simple", "network", "network", "network", "entire"])
        if kind == "entire" and self.draw.random() < 0.7:
            kind = "network"
        if kind == "simple":
            return simple(self.draw.randint(1, min(self.factor_max, len(members))))
        if kind == "entire":
            return ENTIRE
        wanted: dict[str, int | tuple[str, ...]] = {}
        for datacenter in sorted(self.draw.sample(sorted(local), self.draw.randint(1, len(local)))):
            racks = sorted(set(local[datacenter]))
            if self.draw.random() < 0.3:
                wanted[datacenter] = tuple(sorted(self.draw.sample(racks, self.draw.randint(1, len(racks)))))
            else:
                wanted[datacenter] = self.draw.randint(1, min(3, self.factor_max, len(local[datacenter])))
        return network(**wanted)

    def _clustered(
        self, nodes: dict[str, Node], tokens: dict[int, str], keyspaces: dict[str, Replication]
    ) -> ClusterState:
        owners = Map(tokens)
        return ClusterState(
            cluster_id="c",
            epoch=10,
            nodes=Map(nodes),
            token_owners=owners,
            keyspaces=Map({name: Keyspace(name, setting, "v") for name, setting in keyspaces.items()}),
            placements=Map({replication_key(one): new_placement(one, owners, nodes, 5) for one in keyspaces.values()}),
        )

    # Steps

    def go(self, steps: int) -> None:
        self.check()
        for _ in range(steps):
            self.step()
            self.check()
        while flying := in_flight(self.state):
            self._advance(self.draw.choice(flying))
            self.check()
        self.check_quiet()

    def step(self) -> None:
        flying = in_flight(self.state)
        dice = self.draw.random()
        if not flying or dice < (0.6 if self.wide else 0.35):
            self._request()
        elif dice > 0.93:
            self._cancel(self.draw.choice(flying))
        else:
            self._advance(self.draw.choice(flying))

    def _count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    def _idle(self) -> list[str]:
        return sorted(name for name, node in self.state.nodes.items() if node.state == "normal")

    def _register(self, datacenter: str, rack: str = "") -> str:
        node = self._new_node(datacenter, rack)
        self.state = replace(self.state, nodes=self.state.nodes.set(node.id, node))
        self.record.places[node.id] = (node.datacenter, node.rack)
        self.record.standing[node.id] = "none"
        return node.id

    def _apply(self, command: Command) -> None:
        """Apply the next entry of the log."""
        self.state = applied(self.state, command)
        self.log.entries[self.state.epoch] = Applied(command)
        self.log.states[self.state.epoch] = self.state
        self.record.upto(self.state.epoch)

    def _request(self) -> None:
        idle = self._idle()
        kinds = ["join", "leave", "leave", "move", "replace", "replace", "remove", "rebuild", "alter", "assassinate"]
        kind = self.draw.choice(kinds[:6] if self.wide else kinds)
        if kind == "join" or not idle:
            if len(set(self.record.owners.values())) >= self.nodes_max:
                return
            name = self._register(self.draw.choice(sorted(self.racks)))
            tokens = self._free(self.record.owners, self.draw.randint(1, self.tokens_max))
            self._ask(Join(name, tokens, SEED))
            return
        name = self.draw.choice(idle)
        own = self.state.nodes[name].tokens
        if kind == "leave":
            self._ask(Leave(name))
        elif kind == "move":
            kept = tuple(self.draw.sample(own, self.draw.randrange(len(own))))
            tokens = (*kept, *self._free(self.record.owners, self.draw.randint(1, 2)))
            self._ask(Move(name, tokens, SEED))
        elif kind == "replace":
            if self.draw.random() < 0.5:
                self._down(name)
            new = self._register(*self.record.places[name])
            self._ask(Replace(new, name))
        elif kind in ("remove", "assassinate"):
            self._down(name)
            self._ask(Remove(name) if kind == "remove" else Assassinate(name))
        elif kind == "rebuild":
            self._ask(Rebuild(name))
        else:
            keyspace = self.draw.choice(sorted(self.record.keyspaces))
            setting = self._setting()
            if setting != self.record.keyspaces[keyspace]:
                self._ask(AlterKeyspace(keyspace, setting))

    def _down(self, name: str) -> None:
        if not self.state.nodes[name].down:
            self._apply(DeclareDown(name, "test"))

    def _ask(self, command: Command) -> None:
        """Request an operation."""
        kind = type(command).__name__.removesuffix("Keyspace").lower()
        ends_a_node = isinstance(command, Leave | Remove | Assassinate)
        if ends_a_node and set(self.record.owners.values()) == {command.node}:
            return
        decision = decided(self.state, command)
        if isinstance(decision, Rejected):
            assert decision.code in EXPECTED, decision
            self._count(decision.code)
            if kind in ("remove", "assassinate", "replace"):
                self._up()
            return
        self._count(kind)
        self._apply(command)
        new = [op for op in self.state.operations.values() if op.marks[0].epoch == self.state.epoch]
        if not new or new[0].stage == "finished":  # assassinated, or altered without a change of groups
            self._up()
            return
        self._check_plan(new[0], self.record.flying[new[0].id])

    def _up(self) -> None:
        """Declare nodes without an operation up again, so that the run does not end early."""
        for name, node in sorted(self.state.nodes.items()):
            if node.down and node.state == "normal":
                self._apply(DeclareUp(name, ""))

    def _cancel(self, operation: Operation) -> None:
        fails = self.draw.random() < 0.3
        command = FailOperation(operation.id, "broken") if fails else CancelOperation(operation.id, "test")
        decision = decided(self.state, command)
        if operation.stage == "write_both_read_new":
            assert fails is not isinstance(decision, Rejected)
            if fails:
                self._decide(operation, command)
            return
        self._apply(command)
        self._count("cancelled")
        self._up()

    def _decide(self, operation: Operation, failed: Command) -> None:
        """Assert that a failed operation does not advance before its retry."""
        before = self.state
        self._apply(failed)
        refused = decided(self.state, advance_of(self.state, operation.id))
        assert isinstance(refused, Rejected)
        assert refused.code == "awaits_decision"
        self._apply(RetryOperation(operation.id, "mended"))
        assert (self.state.placements, self.state.nodes) == (before.placements, before.nodes)
        self._count("tried again")

    def _advance(self, operation: Operation) -> None:
        if operation.stage == "commit_cdc_generation":
            self.state = with_generation(self.state, operation)
        command = advance_of(self.state, operation.id)
        decision = decided(self.state, command)
        if isinstance(decision, Rejected):
            assert decision.code == "waits_its_turn", decision
            assert operation.stage == "requested"
            self._count("waited")
            return
        self._apply(command)
        if self.state.operations[operation.id].stage == "finished":
            self._up()
        self._count(f"{len(in_flight(self.state))} in flight")
        running = [op for op in in_flight(self.state) if op.stage != "requested"]
        assert len(running) <= self.concurrency

    # Checks

    def check(self) -> None:
        """Assert that the state equals the record."""
        record, state = self.record, self.state
        faults = [*owner_faults(state, record), *placement_faults(state, record)]
        assert not faults, faults[0]
        if len(record.flying) > 1:
            self._check_overlap()
        for keyspace in sorted(record.keyspaces):
            placement = placement_of_keyspace(state, keyspace)
            assert placement is not None
            assert placement.key == record.key(keyspace)
            for group in placement.ranges:
                reads, writes = nodes_of(group.read), nodes_of(group.write)
                assert len(set(reads)) == len(reads)
                assert len(set(writes)) == len(writes)
                assert set(reads) <= set(writes)

    def _check_overlap(self) -> None:
        """Assert that no two operations change the members of one range."""
        record = self.record
        for keyspace, setting in sorted(record.keyspaces.items()):
            for end in record.layouts[record.key(keyspace)]:
                old = set(replicas(setting, record.owners, record.places, end))
                changing = []
                for move in record.flying.values():
                    then = move.setting if move.setting is not None and move.keyspace == keyspace else setting
                    if set(replicas(then, move.map(record.owners), record.places, end)) != old:
                        changing.append(move.id)
                assert len(changing) <= 1, f"{changing} change {end} of {keyspace} at the same time"

    def check_quiet(self) -> None:
        """Assert that the live layout is canonical, including its order, with no operation in flight."""
        assert set(self.state.placements) == {key for key, _ in replications_in_use(self.state)}
        for key, replication in replications_in_use(self.state):
            layout = canonical(replication, self.state.token_owners, self.state.nodes, 0)
            assert shape(self.state.placements[key].ranges) == shape(layout)
        for node in self.state.nodes.values():
            assert node.state in ("none", "normal", "left")
            assert node.state == self.record.standing[node.id]
            assert (node.state == "normal") == bool(node.tokens)

    def _check_plan(self, operation: Operation, move: SeenMovement) -> None:
        """Assert that the plan replaces the members of the record, quorums intersect, and rows come from a quorum."""
        changes: dict[tuple[str, int], tuple[set[str], set[str]]] = {}
        for change in operation.plan.start.write_added:
            changes.setdefault((change.replication, change.end), (set(), set()))[0].add(change.node)
        for change in operation.plan.finish.write_removed:
            changes.setdefault((change.replication, change.end), (set(), set()))[1].add(change.node)
        expected = {
            (one.key, one.end): (set(one.new) - set(one.old), set(one.old) - set(one.new)) for one in move.exchanges
        }
        assert changes == expected
        faults = [*source_faults(self.record, operation, move), *lock_faults(self.record, operation, move)]
        assert not faults, faults[0]
        for one in move.exchanges:
            old, new = frozenset(one.old), frozenset(one.new)
            views_meet(old, new)
            for datacenter in {self.record.places[node][0] for node in old | new}:
                local = frozenset(node for node in old | new if self.record.places[node][0] == datacenter)
                views_meet(old & local, new & local)
