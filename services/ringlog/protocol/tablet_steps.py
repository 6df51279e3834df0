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
from typing import Final

from ringlog.kernel.commands.resizes import FinishResize, members, resize_session
from ringlog.kernel.commands.tablets import (
    TABLETS_MAX,
    AdvanceTablets,
    RevertTablets,
    TabletAdvance,
    TabletRevert,
)
from ringlog.kernel.state import ClusterState, in_order
from ringlog.kernel.tablets.gates import awaited, is_open, must_report, reporters
from ringlog.kernel.tablets.groups import is_dead, missed, unknowing
from ringlog.kernel.tablets.map import Tablet, TabletMap
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
from ringlog.kernel.tablets.track import is_anywhere, transitions
from ringlog.kernel.values import Command, Epoch, NodeId, StreamReport, Witness

NOTHING: Final = hashlib.sha256().hexdigest()
"""The checksum of no rows."""

Reports = Mapping[str, Mapping[NodeId, StreamReport]]
"""Session to who has reported its work."""

NONE_IN_VAIN: Final[Mapping[str, str]] = {}


def tablet_steps(
    state: ClusterState,
    witnesses: Sequence[Witness],
    said: Iterable[StreamReport],
    in_vain: Mapping[str, str] = NONE_IN_VAIN,
) -> Iterator[Command]:
    """The commands by which tablets go on now: at most one of each kind, and those that finish a resize.

    ``said``: sound reports. ``in_vain``: sessions whose streams were tried as often as they may be, and why that came
    to nothing.
    """
    acked = {one.node: min(one.applied, one.drained) for one in witnesses}
    reports: dict[str, dict[NodeId, StreamReport]] = {}
    for report in said:
        reports.setdefault(report.operation, {})[report.node] = report
    back, on = [], []
    for tablets, transition in transitions(state):
        tablet = tablets.tablet(transition.tablet)
        tried = in_vain.get(session(tablets.table, tablet.index, transition), "")
        if reason := why_back(state, tablet) or (tried if STAGES[transition.stage].back else ""):
            back.append(TabletRevert(tablets.table, tablet.index, reason))
        elif (step := _next(state, tablets, tablet, acked, reports)) is not None:
            on.append(step)
        elif reason := _unknowing(state, tablets.table, tablet):
            back.append(TabletRevert(tablets.table, tablet.index, reason))
    if back:
        yield RevertTablets(tuple(back[:TABLETS_MAX]))
    if on:
        yield AdvanceTablets(tuple(on[:TABLETS_MAX]), tuple(witnesses))
    for name, tablets in in_order(state.tablets):
        if tablets.resize is not None:
            ready = reports.get(resize_session(name, tablets.resize.sequence), {})
            told = tuple(ready[node] for node in members(tablets) if node in ready)
            yield FinishResize(name, tablets.resize.sequence, tuple(witnesses), told)


def why_back(state: ClusterState, tablet: Tablet) -> str:
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
        more = len(dead.intersection(nodes_of(transition.next))) - len(dead.intersection(nodes_of(tablet.replicas)))
        return _told(state, dead) if more > 0 and not kind_of(transition).within_node else ""
    comes, goes = pending(tablet), leaving(tablet)
    ends = [comes.node] if comes is not None else []
    ends += [goes.node] if goes is not None and kind_of(transition).giver is Giver.LEAVING else []
    lost = dead.intersection(ends) if transition.stage in STREAMING_STAGES else set()
    return _told(state, lost) if lost else ""


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
    return f"too few know every row; {_told(state, dead)}" if dead else ""


def _told(state: ClusterState, dead: Iterable[NodeId]) -> str:
    return f"dead: {', '.join(sorted(state.nodes[node].name for node in dead))}"


def _next(
    state: ClusterState, tablets: TabletMap, tablet: Tablet, acked: Mapping[NodeId, Epoch], reports: Reports
) -> TabletAdvance | None:
    """The step of a tablet whose gate is open and whose work is reported."""
    transition = tablet.transition
    assert transition is not None, "who is settled goes nowhere"
    anywhere = is_anywhere(state, tablets.table)
    if missed(tablet, state.nodes) or not is_open(awaited(tablets, tablet, state.nodes, acked, anywhere)):
        return None
    own = session(tablets.table, tablet.index, transition)
    done = reports.get(own, {})
    if own and any(node not in done for node in must_report(tablet, state.nodes, anywhere)):
        return None
    told = tuple(done[node] for node in reporters(tablet, state.nodes, anywhere) if node in done) if own else ()
    return TabletAdvance(tablets.table, tablet.index, next_stage(transition), (), told)
