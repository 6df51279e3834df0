"""One random run: a small cluster, some keyspaces, and movements that are asked for, moved on, cancelled and failed.

After each step the state is compared with the model, position by position.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from immutables import Map

from ringlog.kernel.commands.keyspaces import AlterKeyspace
from ringlog.kernel.commands.movements import Assassinate, Join, Leave, Move, Rebuild, Remove, Replace
from ringlog.kernel.commands.nodes import DeclareDown, DeclareUp
from ringlog.kernel.commands.operations import CancelOperation, FailOperation, RetryOperation
from ringlog.kernel.operations.gates import quorum
from ringlog.kernel.operations.stages import in_flight
from ringlog.kernel.outcome import Rejected
from ringlog.kernel.ownership.kinds import ENTIRE
from ringlog.kernel.ownership.placements import (
    canonical,
    group_at,
    new_placement,
    nodes_of,
    placement_of_keyspace,
    replications_in_use,
)
from ringlog.kernel.ownership.strategies import replication_key
from ringlog.kernel.ring.ranges import in_range
from ringlog.kernel.state import ClusterState, Keyspace, Node, Operation, RangeGroup
from ringlog.kernel.values import Command, DatacenterReplication, Replication
from tests.kernel.movements import quorums
from tests.kernel.movements.model import Model, Moving, Setting, natural
from tests.kernel.operations.drive import SEED, advance_of, applied, decided, with_generation

SPAN = 1_000
EXPECTED = {
    "range_locked",
    "plans_conflict",
    "replication_impossible",
    "too_few_replicas",
    "too_many_operations",
    "operations_in_flight",
}
"""What a request may be refused for, whatever the run."""


def replication_of(setting: Setting) -> Replication:
    if setting[0] == "simple":
        return Replication("simple", setting[1])
    if setting[0] == "entire":
        return Replication("entire", 0)
    local = [
        DatacenterReplication(name, len(wanted), wanted)
        if isinstance(wanted, tuple)
        else DatacenterReplication(name, wanted)
        for name, wanted in setting[1]
    ]
    return Replication("network", sum(one.factor for one in local), tuple(local))


def shape(ranges: Iterable[RangeGroup]) -> list[tuple[Any, ...]]:
    """Ranges without their epochs."""
    return [(group.start, group.end, nodes_of(group.read), nodes_of(group.write)) for group in ranges]


def members(group: RangeGroup) -> tuple[Any, ...]:
    """All but the order of its members, which another node's move may change."""
    return group.start, group.end, set(group.read), set(group.write), group.changed


class Run:
    """``counts``: what happened, by name. A *wide* run has many nodes in three racks, so that movements meet."""

    def __init__(self, seed: int, nodes_max: int = 8) -> None:
        self.draw = random.Random(seed)
        self.counts: dict[str, int] = {}
        self.model = Model({}, {}, {})
        self.groups_at: dict[str, list[tuple[str, RangeGroup]]] = {}
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
        places = {name: (node.datacenter, node.rack) for name, node in nodes.items()}
        self.model = Model(places, tokens, {})
        for number in range(self.draw.randint(1, 3)):
            self.model.keyspaces[f"ks{number}"] = self._setting()
        self.state = self._clustered(nodes)
        self.concurrency = self.draw.randint(1, 5)
        limit = {"operations_concurrent_max": self.concurrency}
        self.state = replace(self.state, settings=Map(limit))

    def _new_node(self, datacenter: str, rack: str = "") -> Node:
        self.next_node += 1
        name = f"n{self.next_node}"
        rack = rack or f"r{self.draw.randrange(self.racks[datacenter])}"
        return Node(name, name, f"{name}:1", datacenter, rack, 1, 12, "1", (), 1, "none", (), 1)

    def _free(self, tokens: dict[int, str], count: int) -> tuple[int, ...]:
        """Tokens that nobody has or asked for."""
        taken = {*tokens, *(token for moving in self.model.moving.values() for token in moving.add)}
        drawn: set[int] = set()
        while len(drawn) < count:
            drawn.update({self.draw.randrange(-SPAN, SPAN)} - taken)
        return tuple(sorted(drawn))

    def _setting(self) -> Setting:
        """A setting that the normal nodes can hold."""
        members = set(self.model.tokens.values())
        local: dict[str, list[str]] = {}
        for node in sorted(members):
            datacenter, rack = self.model.places[node]
            local.setdefault(datacenter, []).append(rack)
        if self.wide:
            return ("network", (("dc0", self.draw.randint(1, 3)),))
        kind = self.draw.choice(["simple", "network", "network", "network", "entire"])
        if kind == "entire" and self.draw.random() < 0.7:
            kind = "network"
        if kind == "simple":
            return ("simple", self.draw.randint(1, min(self.factor_max, len(members))))
        if kind == "entire":
            return ("entire",)
        wanted: list[tuple[str, Any]] = []
        for datacenter in sorted(self.draw.sample(sorted(local), self.draw.randint(1, len(local)))):
            racks = sorted(set(local[datacenter]))
            if self.draw.random() < 0.3:
                wanted.append((datacenter, tuple(sorted(self.draw.sample(racks, self.draw.randint(1, len(racks)))))))
            else:
                wanted.append((datacenter, self.draw.randint(1, min(3, self.factor_max, len(local[datacenter])))))
        return ("network", tuple(wanted))

    def _clustered(self, nodes: dict[str, Node]) -> ClusterState:
        owners = Map(self.model.tokens)
        settings = {name: replication_of(setting) for name, setting in self.model.keyspaces.items()}
        return ClusterState(
            cluster_id="c",
            epoch=10,
            nodes=Map(nodes),
            token_owners=owners,
            keyspaces=Map({name: Keyspace(name, setting, "v") for name, setting in settings.items()}),
            placements=Map({replication_key(one): new_placement(one, owners, nodes, 5) for one in settings.values()}),
        )

    # ------------------------------------------------------------------------------------------------------- steps

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
        self.model.places[node.id] = (node.datacenter, node.rack)
        return node.id

    def _request(self) -> None:
        idle = self._idle()
        kinds = ["join", "leave", "leave", "move", "replace", "replace", "remove", "rebuild", "alter", "assassinate"]
        kind = self.draw.choice(kinds[:6] if self.wide else kinds)
        if kind == "join" or not idle:
            if len(set(self.model.tokens.values())) >= self.nodes_max:
                return
            name = self._register(self.draw.choice(sorted(self.racks)))
            tokens = self._free(self.model.tokens, self.draw.randint(1, self.tokens_max))
            self._ask(Join(name, tokens, SEED), Moving("join", dict.fromkeys(tokens, name)))
            return
        name = self.draw.choice(idle)
        own = self.state.nodes[name].tokens
        if kind == "leave":
            self._ask(Leave(name), Moving(kind, {}, own))
        elif kind == "move":
            kept = tuple(self.draw.sample(own, self.draw.randrange(len(own))))
            tokens = (*kept, *self._free(self.model.tokens, self.draw.randint(1, 2)))
            gone = tuple(token for token in own if token not in kept)
            self._ask(Move(name, tokens, SEED), Moving(kind, dict.fromkeys(tokens, name), gone))
        elif kind == "replace":
            if self.draw.random() < 0.5:
                self._down(name)
            new = self._register(*self.model.places[name])
            self._ask(Replace(new, name), Moving(kind, dict.fromkeys(own, new)))
        elif kind in ("remove", "assassinate"):
            self._down(name)
            command = Remove(name) if kind == "remove" else Assassinate(name)
            self._ask(command, Moving(kind, {}, own))
        elif kind == "rebuild":
            self._ask(Rebuild(name), Moving(kind))
        else:
            keyspace = self.draw.choice(sorted(self.model.keyspaces))
            setting = self._setting()
            if setting != self.model.keyspaces[keyspace]:
                self._ask(AlterKeyspace(keyspace, replication_of(setting)), Moving(kind, {}, (), keyspace, setting))

    def _down(self, name: str) -> None:
        if not self.state.nodes[name].down:
            self.state = applied(self.state, DeclareDown(name, "test"))

    def _ask(self, command: Command, moving: Moving) -> None:
        """Ask for an operation; the model follows if it is admitted."""
        if moving.kind in ("leave", "remove", "assassinate") and set(self.model.tokens.values()) == {command.node}:
            return
        decision = decided(self.state, command)
        if isinstance(decision, Rejected):
            assert decision.code in EXPECTED, decision
            self._count(decision.code)
            if moving.kind in ("remove", "assassinate", "replace"):
                self._up()
            return
        self._count(moving.kind)
        before = self.state
        self.state = applied(self.state, command)
        new = [op for op in self.state.operations.values() if op.marks[0].epoch == self.state.epoch]
        if not new or new[0].stage == "finished":  # assassinated, or altered without any change of groups
            self.model.moving["now"] = moving
            self.model.finish("now")
            self._up()
            return
        self.model.moving[new[0].id] = moving
        self.groups_at[new[0].id] = [
            (lock.replication, group_at(before.placements[lock.replication], lock.end)) for lock in new[0].locks
        ]
        self._check_plan(before, new[0], moving)

    def _up(self) -> None:
        """Whoever is down and not part of an operation is up again, so that runs do not die out."""
        for name, node in sorted(self.state.nodes.items()):
            if node.down and node.state == "normal":
                self.state = applied(self.state, DeclareUp(name, ""))

    def _cancel(self, operation: Operation) -> None:
        fails = self.draw.random() < 0.3
        command = FailOperation(operation.id, "broken") if fails else CancelOperation(operation.id, "test")
        decision = decided(self.state, command)
        if operation.stage == "write_both_read_new":
            assert fails is not isinstance(decision, Rejected)
            if fails:
                self._decide(operation, command)
            return
        self.state = applied(self.state, command)
        self._count("cancelled")
        del self.model.moving[operation.id]
        for key, group in self.groups_at[operation.id]:
            now = group_at(self.state.placements[key], group.end)
            assert members(now) == members(group), "a cancel leaves no trace"
        self._up()

    def _decide(self, operation: Operation, failed: Command) -> None:
        """It stops where it is, whatever is acknowledged, until it is tried again."""
        before = self.state
        self.state = applied(self.state, failed)
        refused = decided(self.state, advance_of(self.state, operation.id))
        assert isinstance(refused, Rejected)
        assert refused.code == "awaits_decision"
        self.state = applied(self.state, RetryOperation(operation.id, "mended"))
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
        self.state = applied(self.state, command)
        stage = self.state.operations[operation.id].stage
        self.model.moving[operation.id].stage = stage
        if stage == "finished":
            self.model.finish(operation.id)
            self._up()
        self._count(f"{len(in_flight(self.state))} in flight")
        running = [op for op in in_flight(self.state) if op.stage != "requested"]
        assert len(running) <= self.concurrency

    # ------------------------------------------------------------------------------------------------------ checks

    def check(self) -> None:
        """The state is what the model says."""
        model, state = self.model, self.state
        assert dict(state.token_owners.items()) == model.tokens
        for keyspace in sorted(model.keyspaces):
            placement = placement_of_keyspace(state, keyspace)
            assert placement is not None
            assert placement.ends == tuple(group.end for group in placement.ranges)
            if ENTIRE.name not in placement.key:
                assert set(placement.ends) == model.ends()
            for group in placement.ranges:
                reads, writes = nodes_of(group.read), nodes_of(group.write)
                expected = model.groups(keyspace, group.end)
                assert (frozenset(reads), frozenset(writes)) == expected, (keyspace, group)
                assert len(set(reads)) == len(reads)
                assert len(set(writes)) == len(writes)
                assert set(reads) <= set(writes)

    def check_quiet(self) -> None:
        """Nothing is in flight: the live layout is the canonical one, in its order too."""
        assert set(self.state.placements) == {key for key, _ in replications_in_use(self.state)}
        for key, replication in replications_in_use(self.state):
            layout = canonical(replication, self.state.token_owners, self.state.nodes, 0)
            assert shape(self.state.placements[key].ranges) == shape(layout)
        for node in self.state.nodes.values():
            owned = tuple(sorted(token for token, owner in self.model.tokens.items() if owner == node.id))
            assert node.tokens == owned
            assert node.state in ("none", "normal", "left")
            assert (node.state == "normal") == bool(owned)

    def _check_plan(self, state: ClusterState, operation: Operation, moving: Moving) -> None:
        """Quorums of all views meet; rows come from the replica that gives way, or from a quorum."""
        plan, nodes = operation.plan, state.nodes
        changes: dict[tuple[str, int], tuple[set[str], set[str]]] = {}
        for change in plan.start.write_added:
            changes.setdefault((change.replication, change.end), (set(), set()))[0].add(change.node)
        for change in plan.finish.write_removed:
            changes.setdefault((change.replication, change.end), (set(), set()))[1].add(change.node)
        for (key, end), (added, removed) in changes.items():
            setting = self._setting_of(key, moving)
            old = natural(self.model.places, self.model.tokens, setting, end)
            new = (old - removed) | added
            for datacenter in {nodes[node].datacenter for node in old | new}:
                local = {node for node in old | new if nodes[node].datacenter == datacenter}
                quorums.check(frozenset(old & local), frozenset(new & local))
            quorums.check(old, new)
            for node in added:
                givers = {
                    s.source
                    for s in plan.sources
                    if (s.replication, s.target) == (key, node) and in_range(end, s.start, s.end)
                }
                assert givers <= old
                assert not any(nodes[giver].down for giver in givers)
                assert givers & removed or len(givers) >= len(old) - quorum(len(old)) + 1

    def _setting_of(self, key: str, moving: Moving) -> Setting:
        if moving.keyspace:
            return self.model.keyspaces[moving.keyspace]
        return next(s for s in self.model.keyspaces.values() if replication_key(replication_of(s)) == key)
