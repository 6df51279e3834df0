"""When a cluster is quiet: nothing is left to do, and what still waits says what for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ringlog.kernel.changes import EpochChange
from ringlog.kernel.operations.failures import stopped_by
from ringlog.kernel.operations.gates import REPORTED_STAGES, gaining_nodes, gate
from ringlog.kernel.operations.stages import in_flight
from ringlog.kernel.state import ClusterState, Operation
from ringlog.sim.broker import CHANGES
from ringlog.sim.memo import cached_change

if TYPE_CHECKING:
    from ringlog.sim.actors.node import SimNode
    from ringlog.sim.run import Run


def helpless(operation: Operation, nodes: Mapping[str, SimNode]) -> bool:
    """True if somebody who is to get or to give rows does not run and never will: only a cancel ends it."""
    giving = operation.plan.sources if operation.stage in REPORTED_STAGES else ()
    wanted = (*gaining_nodes(operation), *(source.source for source in giving))
    return any(node not in nodes or not nodes[node].lives for node in wanted)


def waits_for_lost(state: ClusterState, operation: Operation, nodes: Mapping[str, SimNode]) -> bool:
    """True if no quorum of some group is left that could acknowledge: whoever runs it must decide what to give up."""
    living = {node for node, found in nodes.items() if found.lives}
    return any(len(living.intersection(need.members)) < need.need for need in gate(state, operation).needs)


def what_is_not_done(run: Run) -> list[str]:
    """Sentences, one for each thing that is still to come; empty if the cluster is at rest."""
    sim = run.sim
    state = sim.log.state
    undone = []
    if state.epoch == 0:
        undone.append("nobody founded the cluster")
    for replica in sim.replicas:
        if replica.lives() and replica.state.epoch != state.epoch:
            undone.append(f"{replica.name} is at epoch {replica.state.epoch}, the log at {state.epoch}")
    for operation in in_flight(state):
        if stopped_by(operation):
            continue  # it may wait for ever: nobody has decided
        if not helpless(operation, run.by_id) and not waits_for_lost(state, operation, run.by_id):
            undone.append(f"{operation.id} is in {operation.stage}")
    if run.operator.unfinished:
        undone.append(f"{run.operator.unfinished} questions of the operator have no answer")
    undone += run.job.unfinished() + run.job.open_generations() + run.consumer.unfinished()
    if run.producer.unfinished:
        undone.append(f"{run.producer.unfinished} bursts are not written")
    last = next((record for record in reversed(sim.broker.partition(CHANGES).records) if record.key == "epochs"), None)
    published = last and cached_change(last.value)
    if not isinstance(published, EpochChange) or published.epoch != state.epoch:
        undone.append(f"{published and published} is published last, the log is at epoch {state.epoch}")
    stamp = sim.cache.stored_stamp()
    if stamp is None or stamp.epoch != state.epoch:
        undone.append(f"the cache has epoch {stamp.epoch if stamp else 0}, the log {state.epoch}")
    for node in run.nodes.values():
        if node.lives and node.holder.state.epoch != state.epoch:
            undone.append(f"{node.name} serves epoch {node.holder.state.epoch}, the log is at {state.epoch}")
        if node.lives and node.registers.acknowledgeable() != state.epoch:
            undone.append(f"{node.name} has writes below {state.epoch} in hand, or does not serve it yet")
    return undone
