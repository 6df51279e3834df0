"""One plan from its admission to its end, driven by the production rules through the fold.

The production coordinator, balancer and rebalancer decide each next step. Every node acknowledges at once and streams
nothing. Only broker, clock and nodes are replaced. Each applied entry gives a state, and each state is checked:

- Readers are also writers. Their number follows from the replication: of the old members as long as reads use these,
  later of the new ones.
- With nothing in flight, the live placement is the canonical one.
- A cancel before the point of no return restores placements, tokens, nodes and keyspaces of before the request. After
  that point, a cancel is rejected.

A violation is a ``Fault``: a defect of the plan or of a rule, independent of the quorums.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ringlog.kernel.balance.advice import advise
from ringlog.kernel.commands.placement.tablets import MigrateTablets
from ringlog.kernel.commands.topology.operations import CancelOperation
from ringlog.kernel.fold import fold
from ringlog.kernel.model.outcome import Outcome, OutcomeKind
from ringlog.kernel.model.state import ClusterState, Operation, Placement, in_order
from ringlog.kernel.operations.gates import leaving_node
from ringlog.kernel.operations.stages import POINT_OF_NO_RETURN, has_reached, in_flight, is_ended
from ringlog.kernel.ownership.kinds import strategy_of
from ringlog.kernel.ownership.placements import canonical, nodes_of, placement_key, replications_in_use
from ringlog.kernel.service import GONE, next_step
from ringlog.kernel.tablets.mutual_exclusion import is_draining
from ringlog.kernel.values import Command, Replication, StreamReport, Value
from ringlog.log.author import Author
from ringlog.protocol.coordinator.core import CoordinatorView
from ringlog.protocol.coordinator.core import propose as coordinated
from ringlog.protocol.coordinator.tablet_steps import tablet_reports
from ringlog.protocol.rebalancer.core import RebalancerView, propose
from ringlog.protocol.rebalancer.data_nodes import Timers, new_data_nodes, updated_timers
from ringlog.protocol.rebalancer.zone_groups import HAS, session
from ringlog.runtime.clock import ManualClock
from ringlog.runtime.draw import SeededDraw
from ringlog.wire.records import NodeAck

STEPS_MAX = 200
"""Rounds of the coordinator after which a running operation counts as stuck."""

AWAITS_TABLETS = "awaits_tablets"
"""The operation waits for tablets that cannot move: a zone's partition has no live majority, or no node is free."""
AWAITS_SERVICE = "awaits_service"
"""The operation waits for the metadata service: no other node can be a member, or most of its members are down."""

WAITS = {
    AWAITS_TABLETS: "they wait for tablets that cannot move: too few nodes are up",
    AWAITS_SERVICE: "they wait for the metadata service, which has no live majority or no other node to add",
}
"""Code of a fault that is not a defect of the plan, to the reason why the plan does not end."""

LATE_US = 1_800_000_000_000_000
SUBMITTER = "quorums"


class Fault(Value):
    """A violated invariant and its stage. ``code``: code of the rejection, if a command was rejected."""

    rule: str
    stage: str
    detail: str
    code: str = ""


class WalkStep(Value):
    """The state after one applied entry, and the operation in that state, None before its admission."""

    state: ClusterState
    operation: Operation | None

    @property
    def stage(self) -> str:
        """Return the operation's stage."""
        return self.operation.stage if self.operation is not None else "before"


class WalkWorld:
    """A state, and an author who appends to it. Clock and random bits are functions of that state, so it is
    repeatable.
    """

    def __init__(self, state: ClusterState) -> None:
        self.state = state
        self.draw = SeededDraw(state.state_id.encode("ascii"))
        self._clock = ManualClock(max(state.time, LATE_US))
        self._author = Author(SUBMITTER, self._clock, self.draw)

    def apply(self, command: Command) -> Outcome:
        """Append ``command``. Continue with the next state if it applied."""
        folded = fold(self.state, self._author.entry(self.state, command).entry)
        self.state = folded.state
        return folded.outcome

    def would(self, command: Command) -> tuple[ClusterState, Outcome]:
        """Return the result of ``apply`` without changing the world."""
        folded = fold(self.state, self._author.entry(self.state, command).entry)
        return folded.state, folded.outcome

    def coordinate(self) -> Iterator[Outcome]:
        """Run one round of the coordinator with all acknowledgements. Yield the outcome of each entry."""
        now = self._clock.now_us()
        view = CoordinatorView(self.state, acknowledgements(self.state, now), self.state.epoch, now)
        for proposal in coordinated(view):
            yield self.apply(proposal.command)


def acknowledgements(state: ClusterState, at: int) -> dict[str, NodeAck]:
    """Return the acknowledgements of healthy nodes: all applied, and zero streamed rows for each operation in flight.

    Nodes that were declared down send none.
    """
    flying = in_flight(state)
    return {
        node: NodeAck(
            cluster_id=state.cluster_id,
            node=node,
            incarnation=SUBMITTER,
            applied=state.epoch,
            drained=state.epoch,
            reports=(
                *(StreamReport(node, operation.id, 0, "00") for operation in flying),
                *tablet_reports(state, node),
            ),
            rows=0,
            at=at,
            state_id=state.state_id,
        )
        for node, found in state.nodes.items()
        if not found.down
    }


def drive(world: WalkWorld, request: Command) -> tuple[tuple[WalkStep, ...], Fault | None]:
    """Request an operation and drive it to its end. Return the step before it and one step for each entry.

    A request that is done at once has two steps, both without an operation.
    """
    before = world.state
    steps = [WalkStep(before, None)]
    outcome = world.apply(request)
    if outcome.kind is not OutcomeKind.APPLIED:
        return tuple(steps), Fault("admitted", "before", f"{outcome.code}: {outcome.detail}", outcome.code)
    begun = [name for name in sorted(world.state.operations) if name not in before.operations]
    if not begun:
        return (*steps, WalkStep(world.state, None)), None
    assert len(begun) == 1, "a request begins one operation"
    steps.append(WalkStep(world.state, world.state.operations[begun[0]]))
    for _ in range(STEPS_MAX):
        if is_ended(world.state.operations[begun[0]]):
            return tuple(steps), None
        stopped = True
        for outcome in world.coordinate():
            stopped = False
            if outcome.kind is not OutcomeKind.APPLIED:
                detail = f"{outcome.code}: {outcome.detail}"
                return tuple(steps), Fault("advances", steps[-1].stage, detail, outcome.code)
            steps.append(WalkStep(world.state, world.state.operations[begun[0]]))
        if stopped and not _drained(world, steps, begun[0]):
            break
    if is_draining(world.state, world.state.operations[begun[0]]):
        return tuple(steps), Fault("ends", steps[-1].stage, "its node still has tablets", AWAITS_TABLETS)
    if leaving_node(world.state.operations[begun[0]]) in world.state.service and not has_live_majority(world.state):
        return tuple(steps), Fault("ends", steps[-1].stage, "its node is still a member", AWAITS_SERVICE)
    return tuple(steps), Fault(
        "ends", steps[-1].stage, "every node has acknowledged, but the operation does not continue"
    )


def has_live_majority(state: ClusterState) -> bool:
    """Return True if the next step of the metadata service leads to a write group with a live majority."""
    step = next_step(state)
    if step is None:
        return False
    group = [state.nodes[node] for node in {*state.service, step.node} if (node, step.to) != (step.node, GONE)]
    return not group or 2 * sum(not node.down for node in group) > len(group)


def _drained(world: WalkWorld, steps: list[WalkStep], name: str) -> bool:
    """Begin the moves of balancer and rebalancer off a leaving node. Return False if there are none."""
    if not is_draining(world.state, world.state.operations[name]):
        return False
    moves = advise(world.state, {}).moves
    commands: list[Command] = [MigrateTablets(moves)] if moves else []
    begun = False
    for command in (*commands, *rebalanced(world.state)):
        if world.apply(command).kind is OutcomeKind.APPLIED:
            begun = True
            steps.append(WalkStep(world.state, world.state.operations[name]))
    return begun


def rebalanced(state: ClusterState) -> tuple[Command, ...]:
    """Return the rebalancer's commands: every timer has expired, and every node that is up follows its partitions."""
    reports = {
        session(one, HAS): {
            node: StreamReport(node, session(one, HAS), 0, "00")
            for node in one.pending[0].nodes
            if not state.nodes[node].down
        }
        for one in state.zone_partitions.values()
        if one.pending
    }
    data_nodes = new_data_nodes(updated_timers(Timers(), state), state, max(state.time, LATE_US) + LATE_US)
    return tuple(one.command for one in propose(RebalancerView(state, reports, data_nodes)))


# -------------------------------------------------------------------------------------------------- invariants


def faults(steps: Sequence[WalkStep]) -> Iterator[Fault]:
    """Yield every invariant violation in the steps."""
    seen: tuple[object, str] | None = None
    for step in steps:
        if (step.state.placements, step.stage) != seen:
            yield from _wrong_groups(step, steps)
            seen = (step.state.placements, step.stage)
    for step in (steps[0], steps[-1]):
        yield from _not_canonical(step)


def cancels(steps: Sequence[WalkStep]) -> Iterator[Fault | None]:
    """Yield one item for each tried cancel: its remaining traces as a fault, None if it restored everything."""
    before = steps[0].state
    for step in steps[1:]:
        operation = step.operation
        if operation is None or is_ended(operation):
            continue
        after, outcome = WalkWorld(step.state).would(CancelOperation(operation.id, "tried"))
        if has_reached(operation, POINT_OF_NO_RETURN):
            refused = outcome.code == "past_point_of_no_return"
            yield None if refused else Fault("cancel", step.stage, f"not rejected: {outcome.kind.value}")
        elif outcome.code == "past_point_of_no_return" and step.state.tablets is not before.tablets:
            yield None  # a new node has tablets by now
        elif outcome.kind is not OutcomeKind.APPLIED:
            yield Fault("cancel", step.stage, f"{outcome.code}: {outcome.detail}")
        else:
            parts = ("placements", "token_owners", "nodes", "keyspaces", "schema_version")
            left = [part for part in parts if getattr(after, part) != getattr(before, part)]
            yield Fault("cancel", step.stage, f"leaves changes in {', '.join(left)}") if left else None


def _wrong_groups(step: WalkStep, steps: Sequence[WalkStep]) -> Iterator[Fault]:
    operation = step.operation
    is_late = step is steps[-1] or (operation is not None and has_reached(operation, POINT_OF_NO_RETURN))
    expected_of = steps[-1].state if is_late else steps[0].state
    seen: set[str] = set()
    for name, keyspace in in_order(step.state.keyspaces):
        key = placement_key(keyspace)
        if key in seen or not strategy_of(keyspace.replication).in_ring:
            continue
        seen.add(key)
        expected = readers_of(expected_of.keyspaces[name].replication, expected_of)
        for group in step.state.placements[key].ranges:
            where = f"{key} ({group.start}, {group.end}]"
            reads, writes = nodes_of(group.read), nodes_of(group.write)
            if not set(reads) <= set(writes):
                yield Fault("reads within writes", step.stage, f"{where}: {_names(step.state, reads)} read")
            if len(set(reads)) != len(reads) or len(reads) != expected:
                found = _names(step.state, reads)
                yield Fault("number of readers", step.stage, f"{where}: {found} nodes read, expected {expected}")


def readers_of(replication: Replication, state: ClusterState) -> int:
    """Return the number of replicas of a range, limited by the nodes that own tokens.

    A strategy with another count must be added here.
    """
    members = [state.nodes[node] for node in set(state.token_owners.values())]
    strategy = strategy_of(replication)
    assert strategy.in_ring, f"{replication.strategy} is not a strategy of the ring"
    if strategy.is_everywhere:
        return len(members)
    if strategy.is_anywhere:
        return min(replication.factor, len(members))
    count = 0
    for local in replication.datacenters:
        racks = [node.rack for node in members if node.datacenter == local.datacenter]
        count += len(set(racks) & set(local.racks)) if local.racks else min(local.factor, len(racks))
    return count


def _not_canonical(step: WalkStep) -> Iterator[Fault]:
    state = step.state
    if in_flight(state):
        return
    settings = replications_in_use(state)
    if set(state.placements) != {key for key, _ in settings}:
        there = ", ".join(sorted(state.placements))
        yield Fault("canonical without operations", step.stage, f"there are placements {there}")
    for key, replication in settings:
        if _shape(state.placements[key]) != _shape_of_canonical(state, replication):
            yield Fault("canonical without operations", step.stage, f"{key}: the live placement differs")


def _shape(placement: Placement) -> list[tuple[object, ...]]:
    return [(g.start, g.end, nodes_of(g.read), nodes_of(g.write)) for g in placement.ranges]


def _shape_of_canonical(state: ClusterState, replication: Replication) -> list[tuple[object, ...]]:
    layout = canonical(replication, state.token_owners, state.nodes, 0)
    return [(g.start, g.end, nodes_of(g.read), nodes_of(g.write)) for g in layout]


def _names(state: ClusterState, nodes: Sequence[str]) -> str:
    return ", ".join(state.nodes[node].name for node in nodes) or "no node"
