"""Proposals of the coordinator: next steps of operations, tablets, CDC generations, the metadata service, snapshots.

``propose`` is a pure function of the state, the nodes' acknowledgements, the published epoch and the clock. It decides
each candidate with the rule that the fold applies (``decide``), and proposes only accepted ones. So an unmet gate costs
no request, and a wrong proposal has no effect.

The clock decides when to look again and where a new generation starts. Safety rests on the rule about horizons, not on
the clock. Live writers lower their horizons while a generation is prepared, and the coordinator waits a short time for
that. Then it places the start above all remaining horizons, so a dead writer does not block it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import blake2b

from ringlog.kernel.commands.cdc.expiry import ExpireCdcGeneration, ForgetCdcGeneration
from ringlog.kernel.commands.cdc.generations import (
    CloseCdcGeneration,
    CommitCdcGeneration,
    PublishCdcGeneration,
    RequestCdcGeneration,
    parts_of,
)
from ringlog.kernel.commands.cluster.service import AdvanceService
from ringlog.kernel.commands.cluster.snapshots import TakeSnapshot, is_due
from ringlog.kernel.commands.placement.resizes import FinishResize, members
from ringlog.kernel.commands.rules import REASON_LENGTH_MAX, SEED_BYTES
from ringlog.kernel.commands.topology.operations import AdvanceOperation, FailOperation
from ringlog.kernel.generations.describe import current, fits_tablets, generate_for, ranges_digest, to_prepare
from ringlog.kernel.generations.expiry import expires_at, has_log
from ringlog.kernel.model.outcome import Rejected
from ringlog.kernel.model.settings import leeway_at, setting
from ringlog.kernel.model.state import ClusterState, Operation, in_order
from ringlog.kernel.operations.gates import counts_from
from ringlog.kernel.operations.kinds import next_stage
from ringlog.kernel.operations.stages import in_flight
from ringlog.kernel.service import GATED, next_step
from ringlog.kernel.tablets.groups import is_dead
from ringlog.kernel.values import Command, Epoch, GenerationId, Micros, Value
from ringlog.protocol.controller import TABLETS, Proposal, Rejection, decided_now, is_accepted, proposal_of
from ringlog.protocol.coordinator.ack_book import matches_log
from ringlog.protocol.coordinator.tablet_steps import resize_steps, tablet_steps
from ringlog.protocol.coordinator.witnesses import complaints, reports_of, session_tries, valid_reports, witnesses_of
from ringlog.wire.records import NodeAck

ROLE = "coordinator"
SERVICE = "service"
"""The subject of commands about the metadata service."""
SNAPSHOT = "snapshot"
"""The subject of commands about snapshots."""
HORIZON_WAIT_US: Micros = 3_000_000
"""How long live writers get to lower their horizons. Then the generation starts above the remaining horizons."""
UNWATCHED_MARGIN_US: Micros = 60_000_000
"""How long beyond the allowed lateness a generation without a log stays open. For brokers with slow clocks."""


class CoordinatorView(Value):
    """The input of one round.

    ``acks``: the acknowledgements that count, by node id. ``published``: the last epoch in the change topics.
    ``complete_since``: when this instance first saw all data of the prepared generation; 0: long ago, so it does not
    wait for writers. ``latest_acks``: the last acknowledgement of each node, even if it does not count. ``unstored``:
    bytes of the entries since the newest mark of a snapshot.
    """

    state: ClusterState
    acks: Mapping[str, NodeAck]
    published: Epoch
    now: Micros
    complete_since: Micros = 0
    latest_acks: Mapping[str, NodeAck] | None = None
    unstored: int = 0


def propose(view: CoordinatorView) -> tuple[Proposal, ...]:
    """Return the commands that would be applied now, in the order of submission."""
    steps = [*_operation_steps(view), *_generation_steps(view), *_tablet_steps(view), *_service_steps(view)]
    if is_due(view.state, view.unstored):
        steps.append((SNAPSHOT, TakeSnapshot()))
    return tuple(proposal_of(ROLE, view.state, subject, command) for subject, command in steps)


WAITING_CODES = frozenset(
    {
        "awaits_decision",
        "awaits_service",
        "awaits_tablets",
        "gate_not_met",
        "generation_not_committed",
        "generation_not_published",
        "waits_its_turn",
    }
)
"""Codes of next steps that only need to wait. ``operation show`` lists the nodes that they wait for."""


def rejections(view: CoordinatorView) -> tuple[Rejection, ...]:
    """Return the next steps that the log would reject, and the mistakes of nodes.

    A resize is included only if a dead node has a replica of its table: otherwise the missing reports are still to
    come.
    """
    found = []
    for operation in in_flight(view.state):
        for _, text in complaints(view.state, view.acks, operation, view.latest_acks):
            found.append(Rejection(operation.id, AdvanceOperation.__name__, "bad_field", text))
        decision = decided_now(view.state, _next_step(view, operation, next_stage(operation) or ""))
        if isinstance(decision, Rejected) and decision.code not in WAITING_CODES:
            found.append(Rejection(operation.id, AdvanceOperation.__name__, decision.code, decision.detail))
    for command in resizes(view.state, view.acks):
        dead = any(is_dead(view.state.nodes[node]) for node in members(view.state.tablets[command.table]))
        decision = decided_now(view.state, command)
        if dead and isinstance(decision, Rejected):
            found.append(Rejection(command.table, FinishResize.__name__, decision.code, decision.detail))
    return tuple(found)


def resizes(state: ClusterState, acks: Mapping[str, NodeAck]) -> tuple[FinishResize, ...]:
    """Return the commands that would finish the decided resizes, with the nodes' acknowledgements and reports."""
    if all(tablets.resize is None for tablets in state.tablets.values()):
        return ()
    reports = [report for node, ack in sorted(acks.items()) for report in valid_reports(state, node, ack)]
    return tuple(resize_steps(state, witnesses_of(state, acks), reports))


def prepared_in_full(state: ClusterState) -> GenerationId | None:
    """Return the prepared generation if all of its parts are in the state."""
    prepared = state.prepared
    return prepared.id if prepared is not None and 0 < prepared.parts == len(prepared.received) else None


def awaits_publication(state: ClusterState) -> bool:
    """Return whether the last generation is committed but not recorded as published. Then the coordinator polls."""
    last = current(state)
    return last is not None and last.published is None


Steps = Iterator[tuple[str, Command]]
"""(subject, command)."""


def _operation_steps(view: CoordinatorView) -> Steps:
    """Yield the failures and the next step of each operation in flight."""
    for operation in in_flight(view.state):
        yield from _failures(view, operation)
        stage = next_stage(operation)
        assert stage is not None, "an operation in flight has a next stage"
        command = _next_step(view, operation, stage)
        if is_accepted(view.state, command):
            yield operation.id, command


def _next_step(view: CoordinatorView, operation: Operation, stage: str) -> AdvanceOperation:
    """Return the command that would move an operation to ``stage``, with the present witnesses and reports."""
    witnesses = witnesses_of(view.state, view.acks)
    return AdvanceOperation(operation.id, stage, witnesses, reports_of(view.state, view.acks, operation))


def _failures(view: CoordinatorView, operation: Operation) -> Steps:
    """Yield the failure of each node that used up its tries to get rows. In the log it waits for an operator."""
    state = view.state
    most, since = setting(state, "stream_tries_max"), counts_from(operation)
    for node, ack in sorted(view.acks.items()):
        tries = [one for one in ack.tries if (one.operation, one.since) == (operation.id, since) and one.count >= most]
        if tries and matches_log(ack, state):
            last = max(tries, key=lambda one: one.count)
            source = state.nodes[last.source].name if last.source in state.nodes else last.source
            reason = f"rows from {source}: {last.reason}"[:REASON_LENGTH_MAX]
            command = FailOperation(operation.id, reason, node, last.count, last.since)
            if is_accepted(state, command):
                yield operation.id, command


def _tablet_steps(view: CoordinatorView) -> Steps:
    state = view.state
    if any(tablets.transitions or tablets.resize is not None for tablets in state.tablets.values()):
        reports = [report for node, ack in sorted(view.acks.items()) for report in valid_reports(state, node, ack)]
        for command in tablet_steps(state, witnesses_of(state, view.acks), reports, _exhausted_sessions(view)):
            if is_accepted(state, command):
                yield TABLETS, command


def _exhausted_sessions(view: CoordinatorView) -> dict[str, str]:
    """Return the sessions of tablets with a node that used up its tries, and the reason of the node with most tries."""
    state = view.state
    most, found = setting(state, "stream_tries_max"), dict[str, str]()
    for node, one in sorted(session_tries(state, view.acks), key=lambda row: (-row[1].count, row[0])):
        if one.count >= most:
            source = state.nodes[one.source].name if one.source in state.nodes else one.source
            reason = f"{state.nodes[node].name} tried {one.count} times to get rows from {source}: {one.reason}"
            found.setdefault(one.operation, reason[:REASON_LENGTH_MAX])
    return found


def _service_steps(view: CoordinatorView) -> Steps:
    """Yield the next step of a node into or out of the metadata service. Only members are witnesses of it."""
    state = view.state
    step = next_step(state)
    if step is not None:
        witnesses = tuple(one for one in witnesses_of(state, view.acks) if one.node in state.service)
        command = AdvanceService(step.node, step.to, witnesses if step.to in GATED else ())
        if is_accepted(state, command):
            yield SERVICE, command


def _generation_steps(view: CoordinatorView) -> Steps:
    """Yield the steps of CDC generations: preparation, commit, publication, close, expiry."""
    state = view.state
    yield from _preparation_steps(view)
    yield from _request_for_tablets(state)
    last = current(state)
    if last is not None and last.published is None and view.published >= last.committed:
        yield last.id, PublishCdcGeneration(last.id)
    yield from _closing_steps(view)
    yield from _expiry_steps(view)


def _request_for_tablets(state: ClusterState) -> Steps:
    """Yield the request for a generation that fits the present tablets, for all tables at once.

    It is needed after a split, a merge or a drop, and when a table in tablets starts to keep a log.
    """
    if to_prepare(state) is None and not fits_tablets(state):
        # Any seed will do, but it is part of the request id. So it comes from the state: an instance that takes over
        # must make the same request.
        seed = blake2b(state.state_id.encode(), digest_size=SEED_BYTES).digest()
        command = RequestCdcGeneration(seed, requester="")
        if is_accepted(state, command):
            yield TABLETS, command


def _closing_steps(view: CoordinatorView) -> Steps:
    """Yield the close of the oldest open generation.

    The rule of the log waits for all live writers. If no table kept a log, no writer may ever come. Then the generation
    closes after the allowed lateness and a margin.
    """
    state = view.state
    open_ones = [found for found in state.generations if found.closed is None]
    if len(open_ones) < 2:
        return
    oldest, following = open_ones[:2]
    over = following.timestamp + leeway_at(state, following) + UNWATCHED_MARGIN_US
    watched = any(writer.low_watermark >= following.timestamp for _, writer in in_order(state.writers))
    command = CloseCdcGeneration(oldest.id, closed_at=view.now)
    if (watched or has_log(state, oldest) or view.now > over) and is_accepted(state, command):
        yield oldest.id, command


def _expiry_steps(view: CoordinatorView) -> Steps:
    """Yield the steps that remove a generation whose last row has expired: the mark, later its streams.

    The streams stay until the mark is published, so that consumers of the change topics learn of it first.
    """
    state = view.state
    for found, following in zip(state.generations, state.generations[1:], strict=False):
        if found.closed is None:
            return
        if found.expired is None:
            end = expires_at(state, found, following)
            if end is not None and end <= view.now and view.published >= found.closed:
                yield found.id, ExpireCdcGeneration(found.id, view.now)
                return
        elif found.forgotten is None and view.published >= found.expired:
            yield found.id, ForgetCdcGeneration(found.id)


def _preparation_steps(view: CoordinatorView) -> Steps:
    """Yield the missing parts of the wanted generation, or the commit if none is missing.

    Owners may have changed since a part was received. Then the part differs, and counts as missing.
    """
    wanted = to_prepare(view.state)
    if wanted is None:
        return
    generation, seed = wanted
    ranges = generate_for(view.state, seed)
    parts = parts_of(generation, ranges)
    prepared = view.state.prepared
    received = dict(prepared.received) if prepared is not None and prepared.parts == len(parts) else {}
    missing = [part for part in parts if received.get(part.part) != part.ranges]
    yield from ((generation, part) for part in missing)
    if not missing:
        yield from _commit(view, generation, ranges_digest(ranges))


def _commit(view: CoordinatorView, generation: GenerationId, digest: str) -> Steps:
    """Yield the commit of a complete generation, at the earliest allowed start."""
    state = view.state
    soonest, earliest, latest = start_of_next(state, view.now)
    if highest_horizon(state) >= soonest and 0 <= view.now - view.complete_since < HORIZON_WAIT_US:
        return
    # The validator rejects a timestamp too far ahead of its clock. While nothing else happens the epoch is the same, so
    # a later request would have the same id and get the same rejection.
    if earliest > latest:
        return
    command = CommitCdcGeneration(generation, earliest, digest)
    if is_accepted(state, command):
        yield generation, command


def highest_horizon(state: ClusterState) -> Micros:
    """Return the highest horizon of all writers; 0 without writers."""
    return max((writer.horizon for _, writer in in_order(state.writers)), default=0)


def start_of_next(state: ClusterState, now: Micros) -> tuple[Micros, Micros, Micros]:
    """Return (soonest, earliest, latest) start of a generation that is complete now.

    ``soonest`` follows from the clock and the lead time alone. ``earliest`` is also above all horizons and the previous
    generation, and not below the validation watermark. ``latest`` is the limit of the validator, minus the lead time
    because its clock may be behind.

    If the latest start is below the earliest, some clock was ahead. The commit waits for the clock, or an operator
    lowers the time.
    """
    last = current(state)
    lead = setting(state, "cdc_generation_lead_us")
    soonest = now + lead
    previous = last.timestamp if last is not None else 0
    earliest = max(soonest, highest_horizon(state) + 1, previous + 1, state.settled.until)
    return soonest, earliest, max(soonest, now + setting(state, "cdc_timestamp_ahead_max_us") - lead)
