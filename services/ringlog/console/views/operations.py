"""Operations: stages, barriers, missing nodes, progress with an estimate, and the commands that end a wait."""

from __future__ import annotations

from statistics import median
from typing import Any, Final

from ringlog.console.moments import ViewInput
from ringlog.console.views.levels import BAD, IDLE, OK, WARN, paged
from ringlog.kernel.model.state import ClusterState, Operation
from ringlog.kernel.operations.gates import gate, missing
from ringlog.kernel.operations.kinds import kind_of
from ringlog.kernel.operations.stages import CANCELLED, FINISHED, POINT_OF_NO_RETURN, has_reached, in_flight, is_ended
from ringlog.kernel.values import Micros
from ringlog.operator.views import views
from ringlog.operator.views.words import subject
from ringlog.protocol.coordinator.witnesses import witnesses_of

Json = dict[str, Any]
ADVISED_MAX: Final = 5
"""Operations in flight whose remedies are computed. Each remedy is tried on the state."""


def operations(moment: ViewInput) -> Json:
    """Return operations in flight and recently ended, the newest first, and the chosen one."""
    state = moment.state
    found = sorted(state.operations.values(), key=lambda one: (is_ended(one), -one.marks[0].epoch))
    wanted = moment.query.get("operation", "")
    advised = {one.id for one in in_flight(state)[:ADVISED_MAX]} | {wanted}
    page = paged(found, moment.query)
    rows = [_row(moment, one, advises=one.id in advised) for one in page["rows"]]
    chosen = state.operations.get(wanted)
    return {
        "in_flight": len(in_flight(state)),
        "operations": page | {"rows": rows},
        "operation": None if chosen is None else _row(moment, chosen, advises=True),
        "requests": [views.request(one) for one in sorted(state.requests.values(), key=lambda one: -one.epoch)[:20]],
        "locks": len(views.locks(state)),
    }


def _row(moment: ViewInput, found: Operation, *, advises: bool) -> Json:
    state, live = moment.state, moment.live
    view = views.operation(
        state, found, live.acks, moment.now, moment.rejected_nodes, live.last_reports, advises=advises
    )
    view.pop("tokens")
    stages = kind_of(found).stages
    last = found.marks[-1]
    ended = is_ended(found)
    places = [stages.index(mark.stage) for mark in found.marks if mark.stage in stages]
    elapsed = (last.at if ended else moment.now) - found.marks[0].at
    barrier = None if ended else _barrier(moment, found)
    silent = {one["node"] for one in view.get("silent", ())} | {*view.get("down", ())}
    level = IDLE if found.stage == CANCELLED else OK
    if not ended:
        level = BAD if view["awaits_decision"] or silent else WARN if view["waits_for_nodes"] else OK
    return view | {
        "subject": subject(view),
        "level": level,
        "ended": ended,
        "done": max(places, default=0),
        "stages_total": len(stages) - 1,
        "next_stages": [] if ended else [*stages[stages.index(found.stage) + 1 :]] if found.stage in stages else [],
        "elapsed_us": max(elapsed, 0),
        "stage_us": max(moment.now - last.at, 0) if not ended else 0,
        "remaining_us": None if ended or silent else remaining(state, found, moment.now),
        "barrier": barrier,
        "cancellable": not ended and not has_reached(found, POINT_OF_NO_RETURN),
    }


def _barrier(moment: ViewInput, found: Operation) -> Json | None:
    """Return the number of nodes that the stage asks for an acknowledgement, and those without one."""
    here = gate(moment.state, found)
    if not here.needs and not here.must:
        return None
    lacking = missing(here, witnesses_of(moment.state, moment.live.acks))
    asked = {node for need in here.needs for node in need.members} | {*here.must}
    name = moment.state.nodes
    return {
        "epoch": here.epoch,
        "asked": len(asked),
        "missing": sorted(name[node].name for node in lacking if node in name),
    }


def remaining(state: ClusterState, found: Operation, now: Micros) -> Micros | None:
    """Return the estimated time to the end; None without an ended operation of the same kind, or if it is over.

    The estimate is the median duration of these operations from the present stage to their end, less the time that this
    stage already took.
    """
    spans = []
    for other in state.operations.values():
        ends = {mark.stage: mark.at for mark in other.marks}
        if other.kind == found.kind and FINISHED in ends and found.stage in ends:
            spans.append(ends[FINISHED] - ends[found.stage])
    if not spans:
        return None
    left = round(median(spans)) - max(now - found.marks[-1].at, 0)
    return left if left > 0 else None
