"""How tablets go on: which enter their next stage, which turn back, and what a node says of its part.

A pure function of the state and of what nodes have said, as ``coordinator_core`` is for operations: many tablets go on
with one entry, each as soon as its own gate and its own reports are there, and none waits for another.

A tablet turns back for the sake of the dead, as the log knows them (declared down, or left): until it has streamed,
if who comes or who leaves is dead, or if too few are alive to know every row; while the new replicas are read, if more
of these are dead than of those before. And it turns back when a node has tried the streams of its session as often as
it may. Everything else is tried again, or an operator's ``RevertTablets``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeVar

from ringlog.kernel.commands.placement.resizes import FinishResize, members, resize_session
from ringlog.kernel.commands.placement.tablets import (
    TABLETS_MAX,
    AdvanceTablets,
    RevertTablets,
    TabletAdvance,
    TabletRevert,
)
from ringlog.kernel.model.state import ClusterState, in_order
from ringlog.kernel.model.tablet_map import Tablet, TabletMap
from ringlog.kernel.tablets.gates import awaited, is_open, must_report, reporters
from ringlog.kernel.tablets.groups import is_dead, missed, unknowing
from ringlog.kernel.tablets.mutual_exclusion import is_anywhere, is_worse_off, transitions
from ringlog.kernel.tablets.resize import MERGE
from ringlog.kernel.tablets.stages import (
    STAGES,
    STREAMING_STAGES,
    WRITE_BOTH_READ_NEW,
    Giver,
    kind_of,
    leaving,
    next_stage,
    nodes_of,
    pending,
    session,
)
from ringlog.kernel.values import Command, Epoch, NodeId, StreamReport, Witness

NOTHING: Final = hashlib.sha256().hexdigest()
"""The checksum of no rows."""

Reports = Mapping[str, Mapping[NodeId, StreamReport]]
"""Session to who has reported its work."""

STEPS_BYTES_MAX: Final = 1_000_000
"""The most bytes of steps in one entry, half of an entry's limit. Acknowledgements take the other half."""
S = TypeVar("S", TabletAdvance, TabletRevert)

NO_EXHAUSTED_SESSIONS: Final[Mapping[str, str]] = {}


def tablet_steps(
    state: ClusterState,
    witnesses: Sequence[Witness],
    stream_reports: Iterable[StreamReport],
    exhausted: Mapping[str, str] = NO_EXHAUSTED_SESSIONS,
) -> Iterator[Command]:
    """The commands by which tablets go on now: at most one of each kind, and those that finish a resize.

    ``stream_reports``: sound reports. ``exhausted``: sessions whose streams were tried as often as they may be, and why
    that came to nothing.
    """
    acked = {one.node: min(one.applied, one.drained) for one in witnesses}
    reports = _by_session(stream_reports)
    back, on = [], []
    for tablets, transition in transitions(state):
        tablet = tablets.tablet(transition.tablet)
        tried = exhausted.get(session(tablets.table, tablet.index, transition), "")
        if reason := revert_reason(state, tablets.table, tablet) or (tried if STAGES[transition.stage].back else ""):
            back.append(TabletRevert(tablets.table, tablet.index, reason))
        elif (step := _next(state, tablets, tablet, acked, reports)) is not None:
            on.append(step)
        elif reason := _unknowing(state, tablets.table, tablet):
            back.append(TabletRevert(tablets.table, tablet.index, reason))
    if back:
        yield RevertTablets(_fitting_steps(back))
    if on:
        yield AdvanceTablets(_fitting_steps(on), tuple(witnesses))
    yield from _resize_steps(state, witnesses, reports)


def _fitting_steps(steps: Sequence[S]) -> tuple[S, ...]:
    """Return the first steps, as many as one entry carries by their number and by their bytes."""
    size = 0
    for count, step in enumerate(steps[:TABLETS_MAX]):
        size += _bytes_of(step)
        if count and size > STEPS_BYTES_MAX:
            return tuple(steps[:count])
    return tuple(steps[:TABLETS_MAX])


def _bytes_of(step: TabletAdvance | TabletRevert) -> int:
    """Return at least the bytes of a step in an entry: its texts, and what numbers and lengths take."""
    if isinstance(step, TabletRevert):
        return len(step.table.encode()) + len(step.reason.encode()) + 16
    reports = (len(one.node) + len(one.operation.encode()) + len(one.checksum) + 32 for one in step.reports)
    return len(step.table.encode()) + len(step.to) + sum(reports) + 24


def resize_steps(
    state: ClusterState, witnesses: Sequence[Witness], stream_reports: Iterable[StreamReport]
) -> Iterator[FinishResize]:
    """Return the commands that would finish the decided resizes, also those that the state still refuses."""
    return _resize_steps(state, witnesses, _by_session(stream_reports))


def _resize_steps(state: ClusterState, witnesses: Sequence[Witness], reports: Reports) -> Iterator[FinishResize]:
    for name, tablets in in_order(state.tablets):
        if tablets.resize is not None:
            ready = reports.get(resize_session(name, tablets.resize.sequence), {})
            reported = tuple(ready[node] for node in members(tablets) if node in ready)
            yield FinishResize(name, tablets.resize.sequence, tuple(witnesses), reported)


def _by_session(stream_reports: Iterable[StreamReport]) -> dict[str, dict[NodeId, StreamReport]]:
    reports: dict[str, dict[NodeId, StreamReport]] = {}
    for report in stream_reports:
        reports.setdefault(report.operation, {})[report.node] = report
    return reports


def revert_reason(state: ClusterState, table: str, tablet: Tablet) -> str:
    """Why a tablet in transition must turn back; empty if it need not, or cannot."""
    transition = tablet.transition
    assert transition is not None, "who is settled goes nowhere"
    stage = STAGES[transition.stage]
    if not stage.back:
        return ""
    dead = {node for node in (*nodes_of(tablet.replicas), *nodes_of(transition.next)) if is_dead(state.nodes[node])}
    if not dead:
        return ""
    if transition.stage == WRITE_BOTH_READ_NEW:
        is_back = is_worse_off(state, table, tablet) and not kind_of(transition).within_node
        return _dead_names(state, dead) if is_back else ""
    comes, goes = pending(tablet), leaving(tablet)
    ends = [comes.node] if comes is not None else []
    ends += [goes.node] if goes is not None and kind_of(transition).giver is Giver.LEAVING else []
    lost = dead.intersection(ends) if transition.stage in STREAMING_STAGES else set()
    return _dead_names(state, lost) if lost else ""


def tablet_reports(state: ClusterState, node: NodeId) -> tuple[StreamReport, ...]:
    """What a node reports that has no rows of tablets: the work of every session that it has a part in is done."""
    found = []
    for tablets, transition in transitions(state):
        own = session(tablets.table, transition.tablet, transition)
        tablet = tablets.tablet(transition.tablet)
        if not own or missed(tablet, state.nodes):
            continue
        if node in reporters(tablet, state.nodes, is_anywhere(state, tablets.table)):
            found.append(StreamReport(node, own, 0, NOTHING))
    for name, tablets in in_order(state.tablets):
        resize = tablets.resize
        if resize is not None and resize.decision != MERGE and node in members(tablets):
            found.append(StreamReport(node, resize_session(name, resize.sequence), 0, NOTHING))
    return tuple(found)


def _unknowing(state: ClusterState, table: str, tablet: Tablet) -> str:
    """Why nobody will ever report the rows of a tablet; empty if somebody may."""
    assert tablet.transition is not None, "who is settled goes nowhere"
    if tablet.transition.stage not in STREAMING_STAGES:
        return ""
    dead = unknowing(tablet, state.nodes, is_anywhere(state, table))
    return f"too few know every row; {_dead_names(state, dead)}" if dead else ""


def _dead_names(state: ClusterState, dead: Iterable[NodeId]) -> str:
    return f"dead: {', '.join(sorted(state.nodes[node].name for node in dead))}"


def _next(
    state: ClusterState, tablets: TabletMap, tablet: Tablet, acked: Mapping[NodeId, Epoch], reports: Reports
) -> TabletAdvance | None:
    """The step of a tablet whose gate is open and whose work is reported."""
    transition = tablet.transition
    assert transition is not None, "who is settled goes nowhere"
    anywhere = is_anywhere(state, tablets.table)
    if missed(tablet, state.nodes) or not is_open(awaited(state, tablets, tablet, acked)):
        return None
    own = session(tablets.table, tablet.index, transition)
    done = reports.get(own, {})
    if own and any(node not in done for node in must_report(tablet, state.nodes, anywhere)):
        return None
    reported = tuple(done[node] for node in reporters(tablet, state.nodes, anywhere) if node in done) if own else ()
    return TabletAdvance(tablets.table, tablet.index, next_stage(transition), (), reported)
