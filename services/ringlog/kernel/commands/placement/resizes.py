"""Splits and merges of tables, in two steps: a decision, and its finish.

A decision has the number after the last one of its table. Another decision replaces it, and ``none`` revokes it. Until
the finish every node with a replica prepares for it. The finish is one entry, on these conditions:

- No tablet of the table is in transition, and no operation is past ``requested``.
- **Split**: Each node with a replica, dead ones included, has acknowledged the decision and reported that it is ready
  (session ``table@number``). It can serve the halves from the entry on.
- **Merge**: Siblings are on the same shards, which the balancer arranges, and each node has acknowledged the decision.

A finish changes no groups, so requests that were planned before it stay correct. A later transition has its own gates,
which are also the barrier after the finish.

Source: ScyllaDB, ``tablet_resize_finalization``.
"""

from __future__ import annotations

from typing import Annotated, Final

from ringlog.kernel.commands.rules import registered
from ringlog.kernel.model.modes import ALL, UNPAUSED
from ringlog.kernel.model.outcome import Accepted, Decision, EntryContext, Rejected
from ringlog.kernel.model.principals import AGENT, OPERATOR
from ringlog.kernel.model.settings import setting
from ringlog.kernel.model.state import ClusterState, advance
from ringlog.kernel.model.tablet_map import Resize, TabletMap, with_resize
from ringlog.kernel.operations.gates import broken_report
from ringlog.kernel.operations.stages import REQUESTED, in_flight
from ringlog.kernel.tablets.resize import MERGE, NONE, SPLIT, merge, separated_pair, split
from ringlog.kernel.values import Before, Command, NodeId, StreamReport, Witness
from ringlog.kernel.zones.data import in_zone, zone_of

CODES: Final = {
    "cut_by_zone": "The table has exactly one tablet for each partition of its zone.",
    "no_resize": "No resize decision with this number is in progress for the table.",
    "not_ready": "A replica is not ready for the resize, or sibling tablets are on different nodes.",
    "resize_bounds": "The number of tablets would be outside the bounds of the table.",
    "stale_sequence": "The number does not follow the table's last resize decision.",
}


class DecideResize(Command):
    """Decide to split or merge the tablets of a table, or revoke the decision."""

    PAUSED_BY = ALL
    NEEDS = (OPERATOR,)

    table: Annotated[str, "Full name of the table: keyspace.table."]
    decision: Annotated[str, "split, merge or none (revoke the decision)."]
    sequence: Annotated[int, "Number of the decision: the number of the last decision plus 1."]


def decide_decide_resize(state: ClusterState, command: DecideResize, context: EntryContext) -> Decision:
    """Set the table's only decision."""
    tablets = _found(state, command.table)
    if isinstance(tablets, Rejected):
        return tablets
    if in_zone(state, command.table):
        why = f"has a tablet for each partition of zone {zone_of(state, command.table)}"
        return Rejected("cut_by_zone", f"table: {command.table} {why}")
    if command.decision not in (SPLIT, MERGE, NONE):
        return Rejected("bad_field", f"decision: {command.decision!r} must be split, merge or none")
    if command.sequence != tablets.sequence + 1:
        return Rejected("stale_sequence", f"sequence: the next is {tablets.sequence + 1}, not {command.sequence}")
    running = tablets.resize.decision if tablets.resize is not None else NONE
    if command.decision == running:
        return Rejected("resize_bounds", f"decision: the decision of {command.table} is already {running}")
    most = setting(state, "tablets_per_table_max")
    if command.decision == SPLIT and 2 * tablets.count > most:
        return Rejected("resize_bounds", f"decision: {2 * tablets.count:,} tablets are more than {most:,}")
    if command.decision == MERGE and tablets.count == 1:
        return Rejected("resize_bounds", "decision: a table with 1 tablet cannot merge")
    resize = None if command.decision == NONE else Resize(command.decision, command.sequence, context.epoch)
    decided = with_resize(tablets, resize, command.sequence)
    return Accepted(advance(state, context.epoch, tablets=state.tablets.set(command.table, decided)))


class FinishResize(Command):
    """Perform a split or merge."""

    PAUSED_BY = UNPAUSED
    NEEDS = (AGENT,)

    table: Annotated[str, "Full name of the table: keyspace.table."]
    sequence: Annotated[int, "Number of the decision."]
    witnesses: Annotated[tuple[Witness, ...], "Acknowledgements of the decision.", Before(())] = ()
    reports: Annotated[
        tuple[StreamReport, ...], "Reports of the nodes that are ready. Their operation is table@number.", Before(())
    ] = ()


def decide_finish_resize(state: ClusterState, command: FinishResize, context: EntryContext) -> Decision:
    """Cut the table as decided, and remove the decision."""
    tablets = _found(state, command.table)
    if isinstance(tablets, Rejected):
        return tablets
    resize = tablets.resize
    if resize is None or resize.sequence != command.sequence:
        running = "no resize" if resize is None else f"{resize.decision} {resize.sequence}"
        return Rejected("no_resize", f"sequence: {command.table} has {running} in progress, not {command.sequence}")
    for operation in in_flight(state):
        if operation.stage != REQUESTED:
            return Rejected("operations_in_flight", f"table: {operation.id} is in {operation.stage}")
    if tablets.transitions:
        first = min(tablets.transitions)
        stage = tablets.transitions[first].stage
        return Rejected("tablet_in_transition", f"table: {command.table}/{first} is in {stage}")
    if (refused := _not_ready(state, tablets, resize, command)) is not None:
        return refused
    made = (split if resize.decision == SPLIT else merge)(tablets, context.epoch)
    assert made.resize is None, "the decision has been executed"
    assert made.sequence == tablets.sequence, "the next decision has the number after this one"
    return Accepted(advance(state, context.epoch, tablets=state.tablets.set(command.table, made)))


def members(tablets: TabletMap) -> tuple[NodeId, ...]:
    """Return the nodes that have a replica of a table, sorted."""
    return tuple(sorted(node for node, count in zip(tablets.nodes, tablets.held, strict=True) if count))


def resize_session(table: str, sequence: int) -> str:
    """Return the session that reports of ready nodes name."""
    return f"{table}@{sequence}"


def _not_ready(state: ClusterState, tablets: TabletMap, resize: Resize, command: FinishResize) -> Rejected | None:
    for witness in command.witnesses:
        if isinstance(unknown := registered(state, witness.node, "witnesses"), Rejected):
            return unknown
        if not (0 <= witness.applied <= state.epoch and 0 <= witness.drained <= state.epoch):
            return Rejected("bad_field", f"witnesses: epochs of {witness.node} must lie between 0 and {state.epoch}")
    who = members(tablets)
    seen = {one.node for one in command.witnesses if min(one.applied, one.drained) >= resize.epoch}
    if behind := [state.nodes[node].name for node in who if node not in seen]:
        return Rejected("gate_not_met", f"witnesses: {', '.join(behind)} must acknowledge epoch {resize.epoch}")
    own = resize_session(command.table, resize.sequence)
    for report in command.reports:
        if report.operation != own or report.node not in who:
            return Rejected("bad_field", f"reports: {report.node} ({report.operation}) is not part of {own}")
        if (broken := broken_report(report)) is not None:
            return Rejected("bad_field", f"reports: the report of {report.node} is malformed: {broken}")
    if resize.decision == MERGE:
        pair = separated_pair(tablets)
        why = "" if pair is None else f"{command.table}/{pair.index} and /{pair.index + 1} are on different shards"
    else:
        ready = {report.node for report in command.reports}
        why = ", ".join(state.nodes[node].name for node in who if node not in ready)
    return Rejected("not_ready", f"reports: {why}") if why else None


def _found(state: ClusterState, table: str) -> TabletMap | Rejected:
    if table not in state.tables:
        return Rejected("unknown_table", f"table: there is no table {table}")
    tablets = state.tablets.get(table)
    return tablets if tablets is not None else Rejected("no_tablets", f"table: {table} has no tablets of its own")
