"""Tablets move: commands start, advance and revert their transitions.

One entry moves many tablets, each by its own rules; one rejected tablet rejects the entry. The stages, with their
readers, writers and successors, are rows of ``tablets.stages``; the gates are those of ``tablets.gates``.

- **MigrateTablets** begins transitions. The source is the replica that leaves, the target the new one:

  ===================  =======================================================================================
  migration            from a living replica to a node without one, in the same datacenter; in the same rack if
                       racks are named, else in one that has fewer replicas of the tablet (when the source
                       drains: in any)
  intranode_migration  from one shard of a node to another
  rebuild, rebuild_v2  the source is dead: the others know its rows. Without a source: one replica more, without
                       a target: one fewer, if the keyspace's replication asks for it
  repair               no source and no target
  ===================  =======================================================================================

  A tablet of a zone moves from nodes that its partition leaves to nodes that it goes to (``zones.data``), in any rack;
  the partition also decides on one replica more or fewer.

- **AdvanceTablets** moves tablets to the next stage, or settles them. The witnesses of the entry count for each tablet.
- **RevertTablets** reverts tablets, as far as the stages allow. From ``write_both_read_new`` it does so only if the new
  replicas serve the tablet worse than the old ones would, and never within a node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, Final, TypeVar

from ringlog.kernel.commands.rules import REASON_LENGTH_MAX, bad_witnesses
from ringlog.kernel.model.modes import REPAIRS, UNPAUSED
from ringlog.kernel.model.outcome import Accepted, Decision, EntryContext, Rejected
from ringlog.kernel.model.principals import AGENT, OPERATOR
from ringlog.kernel.model.state import ClusterState, advance
from ringlog.kernel.model.tablet_map import Tablet, TabletMap, TabletReplica
from ringlog.kernel.movements.tablet_admission import refused_migration
from ringlog.kernel.operations.gates import broken_report, explain
from ringlog.kernel.tablets.gates import is_open, must_report, reporters, unmet_gate
from ringlog.kernel.tablets.groups import missed
from ringlog.kernel.tablets.mutual_exclusion import is_anywhere, is_worse_off, may_begin
from ringlog.kernel.tablets.stages import (
    ASKED,
    STAGES,
    WRITE_BOTH_READ_NEW,
    kind_of,
    next_stage,
    session,
)
from ringlog.kernel.tablets.steps import Step, begun, entered, stepped
from ringlog.kernel.tablets.streaming import Streams
from ringlog.kernel.values import Before, Command, Epoch, NodeId, StreamReport, Value, Witness

CODES: Final = {
    "awaits_tablets": "Tablets are migrating, or a leaving node still has tablets.",
    "drain_impossible": "No other shard can take the tablets of the leaving node.",
    "holds_replica": "The node has a replica of the tablet.",
    "no_tablets": "The table has no tablets: its keyspace has another kind of placement.",
    "not_a_replica": "The shard does not have a replica of the tablet.",
    "not_in_transition": "The tablet is not migrating.",
    "other_datacenter": "A tablet replica must stay in its datacenter.",
    "outside_of_partition": "The zone partition of the tablet does not move to this node, or does not leave it.",
    "plan_outdated": "Another balancer is the active instance now.",
    "rack_full": "The target rack would have more replicas of the tablet than the source rack.",
    "rack_pinned": "The replication names the rack of each replica.",
    "replicas_as_wanted": "The move would change the number of replicas that the replication requires.",
    "streaming_limit": "The maximum number of streams is in progress.",
    "tablet_in_transition": "The tablet is migrating.",
    "unknown_shard": "The node does not have the shard.",
    "unknown_tablet": "The table does not have a tablet with this number.",
}

TABLETS_MAX: Final = 4_096
"""The most tablets that one entry moves."""


BALANCER: Final = "balancer"
"""The role whose plans belong to a term."""


class Shard(Value):
    """A shard of a node."""

    node: Annotated[str, "Id of the node."]
    shard: Annotated[int, "Number of the shard."]


class TabletMigration(Value):
    """The migration of one tablet."""

    table: Annotated[str, "Full name of the table: keyspace.table."]
    tablet: Annotated[int, "Number of the tablet."]
    kind: Annotated[str, "migration, intranode_migration, rebuild, rebuild_v2 or repair."]
    from_: Annotated[Shard | None, "Shard whose replica is removed. Null: none.", Before(None)] = None
    to: Annotated[Shard | None, "Shard that gets a new replica. Null: none.", Before(None)] = None


class TabletAdvance(Value):
    """The next stage of a tablet."""

    table: Annotated[str, "Full name of the table: keyspace.table."]
    tablet: Annotated[int, "Number of the tablet."]
    to: Annotated[str, "Next stage. After the last stage: settled."]
    witnesses: Annotated[tuple[Witness, ...], "Acknowledgements in addition to the command's own.", Before(())] = ()
    reports: Annotated[
        tuple[StreamReport, ...],
        "Reports of work in the current stage. Their operation is the session.",
        Before(()),
    ] = ()


class TabletRevert(Value):
    """The reversal of one tablet's transition."""

    table: Annotated[str, "Full name of the table: keyspace.table."]
    tablet: Annotated[int, "Number of the tablet."]
    reason: Annotated[str, "Reason, in free text."]


N = TypeVar("N", TabletMigration, TabletAdvance, TabletRevert)
Rule = Callable[[ClusterState, TabletMap, Tablet, N], Step | Rejected]


def _each(state: ClusterState, field: str, wanted: tuple[N, ...], context: EntryContext, rule: Rule[N]) -> Decision:
    """Return the state after ``rule`` has given the step of each of these tablets, or its first rejection."""
    if not 1 <= len(wanted) <= TABLETS_MAX:
        return Rejected("bad_field", f"{field}: must be between 1 and {TABLETS_MAX:,} tablets, not {len(wanted):,}")
    steps: dict[str, dict[int, Step]] = {}
    for one in wanted:
        found = _found(state, field, one)
        if isinstance(found, Rejected):
            return found
        tablets, tablet = found
        of_table = steps.setdefault(tablets.table, {})
        if tablet.index in of_table:
            return Rejected("bad_field", f"{field}: {one.table}/{one.tablet} is named twice")
        step = rule(state, tablets, tablet, one)
        if isinstance(step, Rejected):
            return Rejected(step.code, f"{field}: {one.table}/{one.tablet}: {step.detail}")
        of_table[tablet.index] = step
    assert sum(map(len, steps.values())) == len(wanted), "each tablet takes one step"
    after = state.tablets.update({name: stepped(state.tablets[name], made) for name, made in steps.items()})
    return Accepted(advance(state, context.epoch, tablets=after))


def _found(state: ClusterState, field: str, one: N) -> tuple[TabletMap, Tablet] | Rejected:
    if one.table not in state.tables:
        return Rejected("unknown_table", f"{field}: there is no table {one.table}")
    tablets = state.tablets.get(one.table)
    if tablets is None:
        options = state.tables[one.table].tablets
        why = "has no tablets" if options is None else f"shares the tablets of {options.base}; move those"
        return Rejected("no_tablets", f"{field}: {one.table} {why}")
    if not 0 <= one.tablet < tablets.count:
        return Rejected("unknown_tablet", f"{field}: {one.table} has tablets 0 to {tablets.count - 1}, no {one.tablet}")
    return tablets, tablets.tablet(one.tablet)


# ------------------------------------------------------------------------------------------------------- migrate


class MigrateTablets(Command):
    """Start transitions of tablets."""

    PAUSED_BY = REPAIRS
    NEEDS = (OPERATOR,)

    migrations: Annotated[tuple[TabletMigration, ...], "Migrations, at most one for each tablet."]
    term: Annotated[int, "Term of the balancer that planned the migrations. 0: an operator did.", Before(0)] = 0


def decide_migrate_tablets(state: ClusterState, command: MigrateTablets, context: EntryContext) -> Decision:
    """Put each tablet into the first stage of its kind. Nothing else changes yet."""
    acting = state.terms.get(BALANCER)
    if command.term and (acting is None or acting.term != command.term):
        who = "no balancer is active" if acting is None else f"{acting.instance} is active in term {acting.term}"
        return Rejected("plan_outdated", f"term: the moves were planned in term {command.term}, {who}")
    if (busy := may_begin(state)) is not None:
        return busy
    return _each(state, "migrations", command.migrations, context, _beginning(Streams(state), context.epoch))


def _beginning(running: Streams, epoch: Epoch) -> Rule[TabletMigration]:
    """Return the rule of one migration, given the ``running`` streams."""

    def rule(state: ClusterState, tablets: TabletMap, tablet: Tablet, one: TabletMigration) -> Step | Rejected:
        wanted = _wanted(tablet, one)
        if isinstance(wanted, Rejected):
            return wanted
        step = begun(one.kind, tablet, wanted, epoch)
        return refused_migration(state, tablets, tablet, step, running) or step

    return rule


def admissible(
    state: ClusterState, migrations: Iterable[TabletMigration]
) -> tuple[tuple[TabletMigration, ...], tuple[tuple[TabletMigration, Rejected], ...]]:
    """Return the migrations that may start together now, at most ``TABLETS_MAX``, and the rejected ones.

    Each migration is of another tablet.
    """
    busy, rule = may_begin(state), _beginning(Streams(state), state.epoch + 1)
    good: list[TabletMigration] = []
    refused: list[tuple[TabletMigration, Rejected]] = []
    for one in migrations:
        if len(good) == TABLETS_MAX:
            break
        found = busy or _found(state, "migrations", one)
        step = found if isinstance(found, Rejected) else rule(state, *found, one)
        if isinstance(step, Rejected):
            refused.append((one, step))
        else:
            good.append(one)
    return tuple(good), tuple(refused)


def _wanted(tablet: Tablet, one: TabletMigration) -> tuple[TabletReplica, ...] | Rejected:
    """Return the replicas that a migration asks for. The new replica has the position of the one that leaves."""
    if tablet.transition is not None:
        return Rejected(
            "tablet_in_transition", f"the tablet is in {tablet.transition.stage} of a {tablet.transition.kind}"
        )
    if one.kind not in ASKED:
        return Rejected("bad_field", f"kind: {one.kind!r} is none of {', '.join(ASKED)}")
    there = [(replica.node, replica.shard) for replica in tablet.replicas]
    source = None if one.from_ is None else (one.from_.node, one.from_.shard)
    if source is not None and source not in there:
        return Rejected("not_a_replica", f"from: shard {source[1]} of {source[0]} has no replica")
    if one.to is not None and one.to.shard < 0:
        return Rejected("bad_field", f"to: shard {one.to.shard} must be 0 or above")
    if one.to is not None and one.to.node in [node for node, _ in there if source is None or node != source[0]]:
        return Rejected("holds_replica", f"to: {one.to.node} has a replica")
    new = () if one.to is None else (TabletReplica(one.to.node, one.to.shard, 0),)
    if source is None:
        return (*tablet.replicas, *new)
    place = there.index(source)
    return (*tablet.replicas[:place], *new, *tablet.replicas[place + 1 :])


# ------------------------------------------------------------------------------------------------------- advance


class AdvanceTablets(Command):
    """Move tablets to their next stages."""

    PAUSED_BY = UNPAUSED
    NEEDS = (AGENT,)

    tablets: Annotated[tuple[TabletAdvance, ...], "Tablets to advance, each once."]
    witnesses: Annotated[tuple[Witness, ...], "Acknowledgements that count for each tablet.", Before(())] = ()


def decide_advance_tablets(state: ClusterState, command: AdvanceTablets, context: EntryContext) -> Decision:
    """Move each tablet to its next stage, if acknowledgements and reports meet the conditions of the present one."""
    common = _acknowledged(state, command.witnesses)
    if isinstance(common, Rejected):
        return common

    def rule(state: ClusterState, tablets: TabletMap, tablet: Tablet, one: TabletAdvance) -> Step | Rejected:
        transition = tablet.transition
        if transition is None:
            return Rejected("not_in_transition", "the tablet is not migrating")
        expected = next_stage(transition)
        if one.to != expected:
            return Rejected("wrong_stage", f"the tablet is in {transition.stage}, next is {expected}, not {one.to!r}")
        own = _acknowledged(state, one.witnesses)
        if isinstance(own, Rejected):
            return own
        acked = {**common, **{node: max(epoch, common.get(node, 0)) for node, epoch in own.items()}} if own else common
        unmet = unmet_gate(state, tablets, tablet, acked)
        if not is_open(unmet):
            return Rejected("gate_not_met", explain(unmet, (), state.nodes))
        return _unreported(state, tablets, tablet, one.reports) or entered(tablet, one.to, context.epoch)

    return _each(state, "tablets", command.tablets, context, rule)


def _acknowledged(state: ClusterState, witnesses: tuple[Witness, ...]) -> dict[NodeId, Epoch] | Rejected:
    """Return the epoch that each witness has applied and drained."""
    if (refused := bad_witnesses(state, witnesses)) is not None:
        return refused
    found: dict[NodeId, Epoch] = {}
    for witness in witnesses:
        found[witness.node] = max(found.get(witness.node, 0), min(witness.applied, witness.drained))
    return found


def _unreported(
    state: ClusterState, tablets: TabletMap, tablet: Tablet, reports: tuple[StreamReport, ...]
) -> Rejected | None:
    """Reject reports of a stage's work that are late or malformed, and missing reports."""
    transition = tablet.transition
    assert transition is not None, "only a migrating tablet has work"
    open_now = session(tablets.table, tablet.index, transition)
    wanted = reporters(tablet, state.nodes, is_anywhere(state, tablets.table)) if open_now else ()
    for report in reports:
        if not open_now or report.operation != open_now or report.node not in wanted:
            return Rejected("bad_field", f"reports: {report.node} ({report.operation}) has no work in {open_now!r}")
        if (broken := broken_report(report)) is not None:
            return Rejected("bad_field", f"reports: the report of {report.node} is malformed: {broken}")
    if lost := missed(tablet, state.nodes):
        names = ", ".join(sorted(state.nodes[node].name for node in lost))
        return Rejected("gate_not_met", f"reports: too few live replicas have all rows; dead: {names}")
    told = {report.node for report in reports}
    if len(told) < len(reports):
        return Rejected("bad_field", "reports: a node reports once")
    must = must_report(tablet, state.nodes, is_anywhere(state, tablets.table)) if open_now else ()
    if silent := [state.nodes[node].name for node in must if node not in told]:
        return Rejected("gate_not_met", f"reports: {', '.join(silent)} must report the work of session {open_now}")
    return None


# -------------------------------------------------------------------------------------------------------- revert


class RevertTablets(Command):
    """Revert transitions of tablets. The tablets keep their present replicas."""

    PAUSED_BY = UNPAUSED
    NEEDS = (OPERATOR,)

    tablets: Annotated[tuple[TabletRevert, ...], "Tablets to revert, each once."]


def decide_revert_tablets(state: ClusterState, command: RevertTablets, context: EntryContext) -> Decision:
    """Revert each tablet. A repair ends, and counts as failed."""

    def rule(state: ClusterState, tablets: TabletMap, tablet: Tablet, one: TabletRevert) -> Step | Rejected:
        transition = tablet.transition
        if transition is None:
            return Rejected("not_in_transition", "the tablet is not migrating")
        if not 1 <= len(one.reason) <= REASON_LENGTH_MAX:
            return Rejected("bad_field", f"reason: must be 1 to {REASON_LENGTH_MAX} characters")
        back = STAGES[transition.stage].back
        if not back:
            return Rejected("past_point_of_no_return", f"a tablet in {transition.stage} cannot be reverted")
        if transition.stage == WRITE_BOTH_READ_NEW:
            if kind_of(transition).within_node:
                return Rejected(
                    "past_point_of_no_return", "a move within a node cannot be reverted after its shard serves reads"
                )
            if not is_worse_off(state, tablets.table, tablet):
                return Rejected(
                    "past_point_of_no_return",
                    "the new replicas serve reads, and as many of them are alive as of the old ones",
                )
        return entered(tablet, back, context.epoch, one.reason)

    return _each(state, "tablets", command.tablets, context, rule)
