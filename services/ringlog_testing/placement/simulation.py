"""Random movements of a ring in memory: requests, stages and cancels in random order, several in flight.

Production code decides everything: commands, the fold, the coordinator and the choice of tokens. Every node
acknowledges at once and streams nothing. After each entry the state is compared with the independent model
(``ringlog_testing.placement.movements``), which reads the same entries and shares no placement code.

The run is a function of its options: the same seed gives the same log.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from ringlog.kernel.commands.cluster.cluster import ChangeSettings, InitializeCluster
from ringlog.kernel.commands.schema.keyspaces import AlterKeyspace, CreateKeyspace
from ringlog.kernel.commands.topology.movements import Leave, Rebuild, Remove, Replace
from ringlog.kernel.commands.topology.nodes import DeclareDown, DeclareUp, RegisterNode
from ringlog.kernel.commands.topology.operations import CancelOperation
from ringlog.kernel.model.outcome import Outcome, OutcomeKind
from ringlog.kernel.model.state import EMPTY_STATE, ClusterState, Node, in_order
from ringlog.kernel.operations.stages import in_flight
from ringlog.kernel.values import Command, DatacenterReplication, Replication, Value
from ringlog.operator.intents.json_commands import from_json
from ringlog.protocol.coordinator.core import CoordinatorView, propose
from ringlog.runtime.clock import ManualClock
from ringlog.runtime.draw import draw_uuid
from ringlog_testing.placement.comparison import owner_faults, placement_faults, shares, unsafe_groups
from ringlog_testing.placement.movements import Movements
from ringlog_testing.quorums.walk import LATE_US, WalkWorld, acknowledgements

KINDS = ("join", "join", "leave", "move", "replace", "remove", "rebuild", "alter")
"""Two kinds add a node for each two that remove one."""
CANCELS = 0.08
"""The probability that a step is a cancel."""
FAULTS_MAX = 10
STEPS_PER_MOVEMENT = 500
"""A run with more steps does not end: movements wait for each other, or every request is refused."""


class PlacementOptions(NamedTuple):
    """A ring: ``nodes`` at first, at most twice as many later, with ``tokens`` each, in ``racks`` of each datacenter.

    ``factor``: of SimpleStrategy, and of each datacenter under NetworkTopologyStrategy. ``parallel``: the most
    movements in flight. ``movements``: the number of requests.
    """

    factor: int = 3
    nodes: int = 6
    racks: int = 3
    datacenters: int = 1
    tokens: int = 4
    parallel: int = 3
    movements: int = 50
    seed: int = 0


class BadOptions(Exception):
    """The options contradict each other. ``code`` is stable."""

    code = "bad_option"


class PlacementFault(Value):
    """The differences that an entry caused. ``command``: its name."""

    epoch: int
    command: str
    details: tuple[str, ...]


class _Entry(NamedTuple):
    command: object


class _Log:
    """The part of the log that the model reads: the newest entry and the state before it."""

    def __init__(self) -> None:
        self.entries: dict[int, _Entry | None] = {}
        self.states: dict[int, ClusterState] = {}

    def add(self, before: ClusterState, after: ClusterState, command: Command, is_applied: bool) -> None:
        self.entries = {after.epoch: _Entry(command) if is_applied else None}
        self.states = {before.epoch: before, after.epoch: after}


class PlacementRun:
    """One run. ``counts``: of movements and cancels by kind. ``refusals``: of requests by code.

    ``states``: number of compared states. ``worst``: by placement, the largest share of a node relative to the mean,
    over all states without a movement in flight.
    """

    def __init__(self, options: PlacementOptions) -> None:
        if options.nodes < options.factor * options.datacenters:
            raise BadOptions(f"{options.nodes} nodes cannot have {options.factor} replicas in each datacenter")
        self.options = options
        self.counts: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()
        self.states = 0
        self.worst: dict[str, float] = {}
        self.fault: PlacementFault | None = None
        self._draw = random.Random(f"placement/{options.seed}")
        self._world = WalkWorld(EMPTY_STATE)
        self._clock = ManualClock(LATE_US)
        self._log = _Log()
        self._model = Movements(self._log)
        self._named = 0

    @property
    def state(self) -> ClusterState:
        """Return the newest state."""
        return self._world.state

    def run(self, report: Callable[[int], None] = lambda _: None) -> PlacementFault | None:
        """Run until all movements have ended, or until the first fault. ``report``: called with the requests so far."""
        requested = 0
        for step in self._steps():
            if self.fault is not None:
                break
            if step is not None:
                requested += 1
                report(requested)
        return self.fault

    # --------------------------------------------------------------------------------------------- steps

    def _steps(self) -> Iterator[str | None]:
        """Perform the run. Yield after each step, with the kind of a requested movement."""
        options = self.options
        self._apply(InitializeCluster("placement"))
        self._apply(ChangeSettings((("operations_concurrent_max", options.parallel),)))
        for _ in range(options.nodes):
            self._require(self._join())
            yield from self._ended()
        for name, replication in self._settings(options.factor):
            self._require(self._apply(CreateKeyspace(name, replication)))
        left = options.movements
        for _ in range(STEPS_PER_MOVEMENT * (options.movements + 1)):
            flying = in_flight(self.state)
            if not left and not flying:
                return
            dice = self._draw.random()
            if left and (not flying or (len(flying) < options.parallel and dice > 0.6)):
                kind = self._request()
                left -= kind is not None
                yield kind
            elif flying and dice < CANCELS:
                self._count("cancel", self._apply(CancelOperation(self._draw.choice(flying).id, "random")))
                self._declare_up()
                yield None
            elif not self._advance():
                break
            else:
                yield None
        self.fault = self.fault or PlacementFault(self.state.epoch, "", ("the movements in flight do not end",))

    def _ended(self) -> Iterator[None]:
        """Advance until nothing is in flight."""
        while in_flight(self.state) and self._advance():
            yield None

    def _advance(self) -> bool:
        """Apply one of the coordinator's proposals. Return False if it has none that applies."""
        now = self._clock.now_us()
        view = CoordinatorView(self.state, acknowledgements(self.state, now), self.state.epoch, now)
        proposals = list(propose(view))
        self._draw.shuffle(proposals)
        if any(self._apply(one.command).kind is OutcomeKind.APPLIED for one in proposals):
            self._declare_up()
            return True
        return False

    def _apply(self, command: Command) -> Outcome:
        before = self.state
        outcome = self._world.apply(command)
        if self.state.epoch > before.epoch:
            self._log.add(before, self.state, command, outcome.kind is OutcomeKind.APPLIED)
            self._model.upto(self.state.epoch)
            self._compare(type(command).__name__)
        return outcome

    def _compare(self, command: str) -> None:
        self.states += 1
        state = self.state
        found = tuple(
            chain(placement_faults(state, self._model), owner_faults(state, self._model), unsafe_groups(state))
        )
        if found and self.fault is None:
            self.fault = PlacementFault(state.epoch, command, found[:FAULTS_MAX])
        if not in_flight(state):
            for share in shares(state):
                self.worst[share.key] = max(share.most / share.mean, self.worst.get(share.key, 1.0))

    # ------------------------------------------------------------------------------------------ requests

    def _request(self) -> str | None:
        """Request a random movement. Return its kind, or None if it is refused.

        A ring that has doubled does not grow, one that is small does not shrink.
        """
        idle = [node for _, node in in_order(self.state.nodes) if node.state == "normal" and not node.down]
        kind = self._draw.choice(KINDS)
        if len(idle) <= self.options.factor * self.options.datacenters:
            kind = "join"
        if kind == "join" and len(self._members()) >= 2 * self.options.nodes:
            kind = "leave"
        is_begun = self._count(kind, self._requested(kind, idle))
        self._declare_up()
        return kind if is_begun else None

    def _requested(self, kind: str, idle: Sequence[Node]) -> Outcome:
        if kind == "join":
            return self._join()
        if kind == "alter":
            name = self._draw.choice(sorted(self.state.keyspaces))
            now = self.state.keyspaces[name].replication
            about = range(max(1, self.options.factor - 1), self.options.factor + 2)
            others = [setting for factor in about if (setting := dict(self._settings(factor))[name]) != now]
            return self._apply(AlterKeyspace(name, self._draw.choice(others)))
        node = self._draw.choice(idle)
        if kind == "leave":
            return self._apply(Leave(node.id))
        if kind == "rebuild":
            return self._apply(Rebuild(node.id))
        if kind == "move":
            kept = self._draw.sample(node.tokens, self._draw.randrange(len(node.tokens)))
            new = (self._draw.randrange(-(2**63), 2**63) for _ in range(len(node.tokens) - len(kept)))
            return self._ask({"command": "Move", "node": node.id, "tokens": sorted({*kept, *new})})
        if kind == "replace":
            if self._draw.random() < 0.5:
                self._apply(DeclareDown(node.id, "random"))
            return self._apply(Replace(self._register(node.datacenter, node.rack), node.id))
        self._apply(DeclareDown(node.id, "random"))
        return self._apply(Remove(node.id))

    def _join(self) -> Outcome:
        """Join a node in the rack with the fewest nodes."""
        options = self.options
        used = Counter((node.datacenter, node.rack) for _, node in in_order(self.state.nodes) if node.tokens)
        racks = ((f"dc{dc + 1}", f"r{rack + 1}") for rack in range(options.racks) for dc in range(options.datacenters))
        place = min(racks, key=lambda one: used[one])
        return self._ask({"command": "Join", "node": self._register(*place), "num_tokens": options.tokens})

    def _register(self, datacenter: str, rack: str) -> str:
        """Return a registered node of a rack without tokens, if there is one, else a new one."""
        for _, spare in in_order(self.state.nodes):
            if (spare.state, spare.datacenter, spare.rack) == ("none", datacenter, rack) and not spare.down:
                return spare.id
        self._named += 1
        node = draw_uuid(self._world.draw)
        name = f"n{self._named}"
        self._apply(RegisterNode(name, node, f"{name}.local:1", datacenter, rack, 1, 12, "any", ("any",), capacity=1))
        return node

    def _ask(self, value: dict[str, object]) -> Outcome:
        command = from_json(self.state, value, self._world.draw)
        assert not hasattr(command, "detail"), command
        return self._apply(command)

    def _declare_up(self) -> None:
        """Declare dead nodes without a movement up again, so that the ring does not run out of nodes."""
        for _, node in in_order(self.state.nodes):
            if node.down and node.state == "normal":
                self._apply(DeclareUp(node.id, "random"))

    def _settings(self, factor: int) -> Iterable[tuple[str, Replication]]:
        """Return the keyspaces with a number of replicas: one for each strategy that counts them."""
        names = (f"dc{number + 1}" for number in range(self.options.datacenters))
        each = tuple(DatacenterReplication(name, factor) for name in names)
        network = Replication("network", factor * len(each), each)
        return ("simple", Replication("simple", factor)), ("network", network)

    def _members(self) -> set[str]:
        return set(self.state.token_owners.values())

    def _count(self, kind: str, outcome: Outcome) -> bool:
        """Count an outcome. Return whether it is an applied command."""
        is_applied = outcome.kind is OutcomeKind.APPLIED
        (self.counts if is_applied else self.refusals)[kind if is_applied else outcome.code] += 1
        return is_applied

    @staticmethod
    def _require(outcome: Outcome) -> None:
        if outcome.kind is not OutcomeKind.APPLIED:
            raise BadOptions(f"{outcome.code}: {outcome.detail}")
