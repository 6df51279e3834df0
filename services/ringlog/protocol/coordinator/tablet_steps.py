"""The next steps of tablets in transition: advance, revert, finish a resize. Also the reports of nodes without rows.

Pure functions of the state and the nodes' reports, like ``coordinator.core`` for operations. One entry advances many
tablets. Each advances when its own gate is open and its own reports are present, and none waits for another.

A tablet reverts in these cases, if its stage allows it. A node is dead if it was declared down or has left:

- While it streams, its coming replica is dead, or a leaving replica that must send the rows.
- While it streams, too few living nodes know every row.
- While the new replicas are read, they serve it worse than the old ones would (``is_worse_off``). A move within a node
  does not revert for this reason.
- A node used up its tries in the tablet's session.

All other failures are retried, or ended by an operator with ``RevertTablets``.
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
from ringlog.kernel.tablets.gates import is_open, must_report, reporters, unmet_gate
from ringlog.kernel.tablets.groups import irreplaceable, is_dead, missed
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
"""Session to the reports about it, by node."""

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
    """Yield the commands that advance tablets now: at most one of each kind, and one for each resize.

    Args:
        stream_reports: well-formed reports.
        exhausted: sessions with a node that used up its tries, and the reason.
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
        # Only if the tablet cannot advance: reports that were made before the nodes died still count.
        elif reason := _unknowing(state, tablets.table, tablet):
            back.append(TabletRevert(tablets.table, tablet.index, reason))
    if back:
        yield RevertTablets(_fitting_steps(back))
    if on:
        yield AdvanceTablets(_fitting_steps(on), tuple(witnesses))
    yield from _resize_steps(state, witnesses, reports)


def _fitting_steps(steps: Sequence[S]) -> tuple[S, ...]:
    """Return the first steps that fit into one entry, by number and by bytes."""
    size = 0
    for count, step in enumerate(steps[:TABLETS_MAX]):
        size += _bytes_of(step)
        if count and size > STEPS_BYTES_MAX:
            return tuple(steps[:count])
    return tuple(steps[:TABLETS_MAX])


def _bytes_of(step: TabletAdvance | TabletRevert) -> int:
    """Return an upper bound of the bytes of a step in an entry: its texts, and allowances for numbers and lengths."""
    if isinstance(step, TabletRevert):
        return len(step.table.encode()) + len(step.reason.encode()) + 16
    reports = (len(one.node) + len(one.operation.encode()) + len(one.checksum) + 32 for one in step.reports)
    return len(step.table.encode()) + len(step.to) + sum(reports) + 24


def resize_steps(
    state: ClusterState, witnesses: Sequence[Witness], stream_reports: Iterable[StreamReport]
) -> Iterator[FinishResize]:
    """Yield the commands that would finish the decided resizes, including those that the state still rejects."""
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
    """Return why a tablet in transition must revert because of dead nodes; empty if it need not or cannot."""
    transition = tablet.transition
    assert transition is not None, "only a migrating tablet has a next stage"
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
    """Return the reports of a node that has no rows of tablets: its work in every session is done."""
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
    """Return why no node can ever report the rows of a tablet; empty if one may."""
    assert tablet.transition is not None, "only a migrating tablet has a next stage"
    if tablet.transition.stage not in STREAMING_STAGES:
        return ""
    dead = irreplaceable(tablet, state.nodes, is_anywhere(state, table))
    return f"too few live replicas have all rows; {_dead_names(state, dead)}" if dead else ""


def _dead_names(state: ClusterState, dead: Iterable[NodeId]) -> str:
    return f"dead: {', '.join(sorted(state.nodes[node].name for node in dead))}"


def _next(
    state: ClusterState, tablets: TabletMap, tablet: Tablet, acked: Mapping[NodeId, Epoch], reports: Reports
) -> TabletAdvance | None:
    """Return the step of a tablet whose gate is open and whose reports are present, or None."""
    transition = tablet.transition
    assert transition is not None, "only a migrating tablet has a next stage"
    anywhere = is_anywhere(state, tablets.table)
    if missed(tablet, state.nodes) or not is_open(unmet_gate(state, tablets, tablet, acked)):
        return None
    own = session(tablets.table, tablet.index, transition)
    done = reports.get(own, {})
    if own and any(node not in done for node in must_report(tablet, state.nodes, anywhere)):
        return None
    reported = tuple(done[node] for node in reporters(tablet, state.nodes, anywhere) if node in done) if own else ()
    return TabletAdvance(tablets.table, tablet.index, next_stage(transition), (), reported)
