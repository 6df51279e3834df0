"""Zones for tests: nodes named by letters, partitions of a zone, and commands of groups and operators."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ringlog.kernel.commands.placement.rebalances import (
    CancelRebalance,
    FinishCancel,
    ResetPartitions,
    RestartReplicas,
    SwitchStable,
    TriggerRebalance,
    ZoneCopy,
)
from ringlog.kernel.commands.placement.zones import CreateZone, SetDataNodes
from ringlog.kernel.commands.topology.nodes import DeclareDown, RegisterNode
from ringlog.kernel.fold import fold
from ringlog.kernel.invariants.check import violations
from ringlog.kernel.model.outcome import OutcomeKind
from ringlog.kernel.model.state import ClusterState, advance
from ringlog.kernel.model.zones import ZonePartition, ZoneStep, partition_key
from ringlog.kernel.values import Command, replace
from ringlog.protocol.nodes.groups import Step
from tests.kernel.entries import applied, entry, founded, node
from tests.kernel.tablets.clusters import normal


class NoRows:
    """Replicas without data, for tests of node reports. They follow each request immediately."""

    def has_caught_up(self, partition: ZonePartition) -> bool:
        """Return True."""
        return True

    def failure(self) -> int | None:
        """Return None."""
        return None

    def log_length(self, partition: ZonePartition) -> int:
        """Return 0."""
        return 0

    def retain_steps(self, steps: Collection[Step]) -> None:
        """Do nothing, because no step runs."""


def letter(name: str, **changes: Any) -> RegisterNode:
    """Return the registration of node A, B, …, each in its own rack."""
    return replace(node(ord(name) - 64), name=name, rack=f"r{name}", **changes)


def joined(state: ClusterState, letters: str, **changes: Any) -> ClusterState:
    """Return the state with further joined nodes."""
    return normal(state, *(letter(name, **changes) for name in letters))


def left(state: ClusterState, letters: str) -> ClusterState:
    """Return the state with these nodes removed permanently."""
    nodes = {node: replace(state.nodes[node], state="left", tokens=()) for node in ids(letters)}
    owners = {token: node for token, node in state.token_owners.items() if node not in nodes}
    return advance(state, state.epoch, nodes=state.nodes.update(nodes), token_owners=type(state.token_owners)(owners))


def ids(letters: str) -> tuple[str, ...]:
    """Return node ids in the order of their letters."""
    return tuple(letter(name).id for name in letters)


def step(peers: str, learners: str = "", **marks: bool) -> ZoneStep:
    return ZoneStep(ids(peers), ids(learners), **marks)


def with_zone(letters: str, **values: Any) -> ClusterState:
    """Return zone ``z`` on these nodes, with one partition by default."""
    state = joined(founded(), letters)
    return applied(state, CreateZone("z", ids(letters), **{"partitions": 1, **values}))


def partition(state: ClusterState, number: int = 0) -> ZonePartition:
    return state.zone_partitions[partition_key("z", number)]


def shown(step: ZoneStep | None) -> str:
    """Return a step as ``ABC/D``: peers and learners."""
    if step is None:
        return "-"
    letters = ["".join(chr(int(name[:8], 16) + 64) for name in group) for group in (step.peers, step.learners)]
    return "/".join(part for part in letters if part)


def tried(state: ClusterState, command: Command) -> tuple[ClusterState, str]:
    """Return the state after a command and the code of its rejection. Check the next state."""
    folded = fold(state, entry(state, command))
    assert folded.outcome.kind in (OutcomeKind.APPLIED, OutcomeKind.REFUSED), folded.outcome
    assert folded.outcome.code != "broken_rule", folded.outcome
    assert violations(folded.state, state) == ()
    if folded.outcome.kind is OutcomeKind.REFUSED:
        assert folded.state is state, "the state is unchanged"
    return folded.state, folded.outcome.code


def done(state: ClusterState, *commands: Command) -> ClusterState:
    """Return the state after commands, and assert that each one applies."""
    for command in commands:
        state, code = tried(state, command)
        assert code == "", code
    return state


def trigger(state: ClusterState, cause: int | None = None) -> TriggerRebalance:
    return TriggerRebalance("z", state.epoch if cause is None else cause)


def moved(state: ClusterState, letters: str) -> ClusterState:
    """Return the state after a change of the data nodes and a trigger. New nodes join first."""
    state = joined(state, "".join(name for name in letters if name not in state.node_names))
    state = done(state, SetDataNodes("z", ids(letters), state.epoch))
    return done(state, trigger(state))


def switch(state: ClusterState, number: int = 0, **changes: Any) -> SwitchStable:
    """Return the report of a group that has applied its next step."""
    one = partition(state, number)
    head = one.pending[0] if one.pending else one.stable
    assert head is not None
    return replace(SwitchStable("z", number, head.nodes, head.learners, one.revisions), **changes)


def settled(state: ClusterState, number: int = 0) -> tuple[ClusterState, list[str]]:
    """Apply steps until none is pending. Return the state and the reached configurations."""
    seen = []
    while partition(state, number).pending:
        state = done(state, switch(state, number))
        seen.append(shown(partition(state, number).reached))
    return state, seen


def cancel(state: ClusterState, revision: int | None = None) -> CancelRebalance:
    return CancelRebalance("z", 0, partition(state).revisions.pending if revision is None else revision)


def answer(state: ClusterState, result: str) -> FinishCancel:
    return FinishCancel("z", 0, partition(state).revisions.pending, result)


def down(letters: str) -> list[Command]:
    return [DeclareDown(name, "burnt") for name in ids(letters)]


def reset(state: ClusterState, logs: dict[str, int], mode: str = "manual", **changes: Any) -> ResetPartitions:
    """Return a reset of partition 0, with the log lengths of these nodes."""
    copies = tuple(ZoneCopy(0, ids(name)[0], length) for name, length in sorted(logs.items()))
    return replace(ResetPartitions("z", (0,), mode, state.epoch, copies), **changes)


def restart(state: ClusterState, letters: str) -> RestartReplicas:
    """Return a restart of these replicas of partition 0."""
    return RestartReplicas("z", 0, ids(letters), state.epoch)


def to(state: ClusterState, letters: str) -> ClusterState:
    """Return the state after a change of the data nodes and a trigger."""
    state = done(state, SetDataNodes("z", ids(letters), state.epoch))
    return done(state, trigger(state))
