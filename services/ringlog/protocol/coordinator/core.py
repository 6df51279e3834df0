"""What the coordinator asks for: the next step of operations and of CDC generations, as soon as its conditions hold.

A pure function of the state, the nodes' acknowledgements, how far the change topics are published, and the clock. Every
candidate is tried with the rule that the fold will apply (``decide``); only what would be accepted is proposed, so a
gate that is not met costs nothing, and a mistaken proposal could not advance anything either.

Request ids are a function of subject, step, ``since_epoch`` and command: an instance that takes over asks for the same
under the same id, and after a rejection the same step is asked for under a newer one.

The clock decides when to look again and where a new generation starts, never whether that is safe: the rule on horizons
does. Live writers lower their horizons while a generation is prepared, so the coordinator waits a little for that; a
dead writer's horizon is simply passed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
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
from ringlog.kernel.values import Command, Epoch, GenerationId, Micros
from ringlog.protocol.controller import TABLETS, Proposal, Rejection, decided_now, is_accepted, proposal_of
from ringlog.protocol.coordinator.ack_book import is_vouched_for
from ringlog.protocol.coordinator.tablet_steps import resize_steps, tablet_steps
from ringlog.protocol.coordinator.witnesses import complaints, reports_of, session_tries, valid_reports, witnesses_of
from ringlog.wire.records import NodeAck

ROLE = "coordinator"
SERVICE = "service"
"""The subject of the metadata service."""
SNAPSHOT = "snapshot"
"""The subject of snapshots."""
HORIZON_WAIT_US: Micros = 3_000_000
"""How long to wait for live writers to lower their horizons before the generation starts above them."""
UNWATCHED_MARGIN_US: Micros = 60_000_000
"""So long after the leeway a generation stays open that no writer came through: for brokers whose clocks are behind."""


@dataclass(frozen=True, slots=True)
class CoordinatorView:
    """What an instance knows.

    ``acks`` by node id; ``published``: the last epoch whose changes are in the change topics; ``complete_since``: when
    it first saw the data of ``prepared_in_full`` complete (0: long ago, so there is nothing to be patient for);
    ``said``: the nodes' last words, where ``acks`` has only what counts; ``unstored``: bytes of the entries since the
    newest mark of a snapshot.
    """

    state: ClusterState
    acks: Mapping[str, NodeAck]
    published: Epoch
    now: Micros
    complete_since: Micros = 0
    said: Mapping[str, NodeAck] | None = None
    unstored: int = 0


def propose(view: CoordinatorView) -> tuple[Proposal, ...]:
    """All that can go on now, in the order in which to ask."""
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
"""Refusals of a next step that are nothing but waiting; ``operation show`` says for whom."""


def rejections(view: CoordinatorView) -> tuple[Rejection, ...]:
    """What the coordinator does not even propose, since the log would refuse it, and what nodes have said wrongly."""
    found = []
    for operation in in_flight(view.state):
        for _, text in complaints(view.state, view.acks, operation, view.said):
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
    said = [report for node, ack in sorted(acks.items()) for report in valid_reports(state, node, ack)]
    return tuple(resize_steps(state, witnesses_of(state, acks), said))


def prepared_in_full(state: ClusterState) -> GenerationId | None:
    """The prepared generation of which every part is there."""
    prepared = state.prepared
    return prepared.id if prepared is not None and 0 < prepared.parts == len(prepared.received) else None


def awaits_publication(state: ClusterState) -> bool:
    """True while the last generation is committed and its publication not yet recorded: look often."""
    last = current(state)
    return last is not None and last.published is None


Steps = Iterator[tuple[str, Command]]
"""(subject, command)."""


def _operation_steps(view: CoordinatorView) -> Steps:
    for operation in in_flight(view.state):
        yield from _failures(view, operation)
        stage = next_stage(operation)
        assert stage is not None, "an operation in flight has a next stage"
        command = _next_step(view, operation, stage)
        if is_accepted(view.state, command):
            yield operation.id, command


def _next_step(view: CoordinatorView, operation: Operation, stage: str) -> AdvanceOperation:
    witnesses = witnesses_of(view.state, view.acks)
    return AdvanceOperation(operation.id, stage, witnesses, reports_of(view.state, view.acks, operation))


def _failures(view: CoordinatorView, operation: Operation) -> Steps:
    """Nodes that have asked for rows as often as they may: with that in the log an operator decides."""
    state = view.state
    most, since = setting(state, "stream_tries_max"), counts_from(operation)
    for node, ack in sorted(view.acks.items()):
        tries = [one for one in ack.tries if (one.operation, one.since) == (operation.id, since) and one.count >= most]
        if tries and is_vouched_for(ack, state):
            last = max(tries, key=lambda one: one.count)
            source = state.nodes[last.source].name if last.source in state.nodes else last.source
            reason = f"rows from {source}: {last.reason}"[:REASON_LENGTH_MAX]
            command = FailOperation(operation.id, reason, node, last.count, last.since)
            if is_accepted(state, command):
                yield operation.id, command


def _tablet_steps(view: CoordinatorView) -> Steps:
    state = view.state
    if any(tablets.transitions or tablets.resize is not None for tablets in state.tablets.values()):
        said = [report for node, ack in sorted(view.acks.items()) for report in valid_reports(state, node, ack)]
        for command in tablet_steps(state, witnesses_of(state, view.acks), said, _exhausted_sessions(view)):
            if is_accepted(state, command):
                yield TABLETS, command


def _exhausted_sessions(view: CoordinatorView) -> dict[str, str]:
    """Sessions of tablets that a node has tried as often as it may, and what it says of that."""
    state = view.state
    most, found = setting(state, "stream_tries_max"), dict[str, str]()
    for node, one in sorted(session_tries(state, view.acks), key=lambda row: (-row[1].count, row[0])):
        if one.count >= most:
            source = state.nodes[one.source].name if one.source in state.nodes else one.source
            reason = f"{state.nodes[node].name} tried {one.count} times to get rows from {source}: {one.reason}"
            found.setdefault(one.operation, reason[:REASON_LENGTH_MAX])
    return found


def _service_steps(view: CoordinatorView) -> Steps:
    """The next node into the metadata service, or out of it; only members are witnesses there."""
    state = view.state
    step = next_step(state)
    if step is not None:
        witnesses = tuple(one for one in witnesses_of(state, view.acks) if one.node in state.service)
        command = AdvanceService(step.node, step.to, witnesses if step.to in GATED else ())
        if is_accepted(state, command):
            yield SERVICE, command


def _generation_steps(view: CoordinatorView) -> Steps:
    state = view.state
    yield from _preparation_steps(view)
    yield from _request_for_tablets(state)
    last = current(state)
    if last is not None and last.published is None and view.published >= last.committed:
        yield last.id, PublishCdcGeneration(last.id)
    yield from _closing_steps(view)
    yield from _expiry_steps(view)


def _request_for_tablets(state: ClusterState) -> Steps:
    """A table in tablets was cut otherwise, or keeps a log now: a generation is begun, for all such tables at once."""
    if to_prepare(state) is None and not fits_tablets(state):
        # Any bits serve: the seed is part of the request's id, so who takes over must come to the same.
        seed = blake2b(state.state_id.encode(), digest_size=SEED_BYTES).digest()
        command = RequestCdcGeneration(seed, requester="")
        if is_accepted(state, command):
            yield TABLETS, command


def _closing_steps(view: CoordinatorView) -> Steps:
    """The oldest open generation closes: at once behind a writer; where no table has a log, when it is long over."""
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
    """The oldest generation whose rows are gone is marked; when the mark is in the change topics its streams go."""
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
    """The parts that are missing, or differ since the owners changed; when all are there, the commit."""
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
    state = view.state
    soonest, earliest, latest = start_of_next(state, view.now)
    if highest_horizon(state) >= soonest and 0 <= view.now - view.complete_since < HORIZON_WAIT_US:
        return
    # The validator refuses what lies too far ahead of its clock, and the refusal would stay while nothing else happens.
    if earliest > latest:
        return
    command = CommitCdcGeneration(generation, earliest, digest)
    if is_accepted(state, command):
        yield generation, command


def highest_horizon(state: ClusterState) -> Micros:
    """Where the writers' promises end."""
    return max((writer.horizon for _, writer in in_order(state.writers)), default=0)


def start_of_next(state: ClusterState, now: Micros) -> tuple[Micros, Micros, Micros]:
    """(soonest, earliest, latest) start of a generation that is complete now.

    ``soonest``: by the clock alone; ``earliest``: that is above all promises and the generation before, too;
    ``latest``: that the validator takes, and a little less, since its clock may be behind this one. Where the earliest
    is above the latest a clock was ahead: it waits until the clock is near, or an operator takes the time back.
    """
    last = current(state)
    lead = setting(state, "cdc_generation_lead_us")
    soonest = now + lead
    previous = last.timestamp if last is not None else 0
    earliest = max(soonest, highest_horizon(state) + 1, previous + 1, state.settled.until)
    return soonest, earliest, max(soonest, now + setting(state, "cdc_timestamp_ahead_max_us") - lead)
