"""The health and the metrics of a node, as pure functions of a sample (``NodeView``).

================  =====  ==============================================================================================
state             ready  when
================  =====  ==============================================================================================
``halted``        no     The node cannot continue: the log, its disk, or another process with the same identity.
``stopping``      no     The process was asked to stop.
``starting``      no     The node has not read the log to its end, or is not registered.
``left``          no     The node is no longer part of the cluster.
``catching_up``   no     After a restart: the node has not recovered its rows or registers, so it does not serve them.
``ready``         yes    The node answers at its epoch. The broker may be unavailable, and an operator may have
                         declared the node down.
================  =====  ==============================================================================================

The first row that applies is the state.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from ringlog.kernel.model.settings import setting
from ringlog.kernel.model.state import EMPTY_STATE, ClusterState
from ringlog.kernel.values import SECOND_US, Epoch, Micros, NodeId, Value, field
from ringlog.log.replicas.metrics import LogView, log_samples, process_samples
from ringlog.node.protocol.mutation_loop import TailItem
from ringlog.runtime.monitoring.health import Health
from ringlog.runtime.monitoring.metrics import Sample
from ringlog.wire.data import StatusReply
from ringlog.wire.records import FailedTries

SAMPLES_KEPT: Final = 8


class NodeView(Value):
    """A sample of a node.

    Attributes:
        state: The adopted state.
        failure: The reason why the node cannot continue, or an empty string.
        registers: None before the registers are served.
        copied: The newest epoch of a member's copy of the log.
        newest_epoch: The newest epoch that the log or a peer has shown.
        clock_ahead: See ``BrokerClock``, in microseconds.
    """

    node: NodeId
    log: LogView
    state: ClusterState = EMPTY_STATE
    now: Micros = 0
    caught_up: bool = False
    stopping: bool = False
    failure: str = ""
    registers: StatusReply | None = None
    acknowledged: Epoch = 0
    copied: Epoch | None = None
    rows: int = 0
    row_streams: int = 0
    mutations_behind: int | None = None
    clock_ahead: Micros | None = None
    tries: tuple[FailedTries, ...] = ()
    verdicts: Mapping[str, int] = field(default_factory=dict)
    disk: Mapping[str, int] = field(default_factory=dict)
    newest_epoch: Epoch = 0


def health_of(view: NodeView) -> Health:
    """Return the health of a node: its state, and the reason if it is not ready."""

    def is_in(state: str, why: str, is_ready: bool = False) -> Health:
        return Health(state, is_ready, why, view.state.epoch, view.log.behind)

    member = view.state.nodes.get(view.node)
    if view.failure or view.log.halted is not None:
        return is_in("halted", view.failure or view.log.halt)
    if view.stopping:
        return is_in("stopping", "the node stops")
    if view.state.epoch == 0 or member is None or view.registers is None:
        missing = "the node reads the metadata log" if view.state.epoch == 0 else "the node is not registered yet"
        return is_in("starting", "; ".join(filter(None, (missing, view.log.outage))))
    if member.state == "left":
        return is_in("left", "the node has left the cluster: replace it by a new node, or stop it")
    if not (view.caught_up and view.registers.ready):
        return is_in("catching_up", f"{_catches_up(view)}; until then it rejects reads")
    away = f"{view.log.outage}: the node serves at epoch {view.state.epoch}" if view.log.outage else ""
    down = f"declared down: {member.down_reason}" if member.down else ""
    return is_in("ready", "; ".join(filter(None, (away, down))), is_ready=True)


def _catches_up(view: NodeView) -> str:
    if view.caught_up:
        return "the node reads the log up to the epoch of its registers"
    left = "" if view.mutations_behind is None else f", {view.mutations_behind} records behind"
    return f"the node reads its earlier mutations again{left}"


def samples_of(view: NodeView) -> Iterator[Sample]:
    """Yield the metrics of a node."""
    yield from process_samples(view.now)
    yield from log_samples(view.log)
    yield Sample("ringlog_node_ready", health_of(view).is_ready)
    yield Sample("ringlog_node_acknowledged_epoch", view.acknowledged)
    yield Sample("ringlog_node_rows_epoch", view.state.epoch)
    yield Sample("ringlog_node_known_epoch", view.newest_epoch)
    yield Sample("ringlog_node_rows", view.rows)
    yield Sample("ringlog_node_streams", view.row_streams, ("rows",))
    if (registers := view.registers) is not None:
        yield Sample("ringlog_node_streams", registers.streams, ("registers",))
        yield Sample("ringlog_node_registers_epoch", registers.epoch)
        yield Sample("ringlog_node_registers", registers.cells)
        yield Sample("ringlog_node_registers_pending", registers.pending)
    most = setting(view.state, "stream_tries_max")
    yield Sample("ringlog_node_stream_tries", sum(one.count for one in view.tries))
    yield Sample("ringlog_node_streams_given_up", sum(one.count >= most for one in view.tries))
    yield from (Sample("ringlog_node_disk_bytes", size, (of,)) for of, size in view.disk.items())
    yield from (Sample("ringlog_node_writes", count, (verdict,)) for verdict, count in sorted(view.verdicts.items()))
    if view.mutations_behind is not None:
        yield Sample("ringlog_node_mutations_behind_records", view.mutations_behind)
    if view.copied is not None:
        yield Sample("ringlog_node_copy_epoch", view.copied)
    if view.clock_ahead is not None:
        yield Sample("ringlog_node_clock_ahead_seconds", view.clock_ahead / SECOND_US)


class BrokerClock:
    """An estimate of how far a node's clock is ahead of the broker's clock.

    It compares append times with the arrival of writes that were delivered immediately. These are the first records
    after an idle moment of a node that had read everything. Each estimate includes the delivery time, so the minimum of
    the last few is used.
    """

    def __init__(self) -> None:
        self._found: deque[Micros] = deque(maxlen=SAMPLES_KEPT)
        self._was_idle = False

    @property
    def ahead(self) -> Micros | None:
        """The estimate in microseconds, or None before the first one."""
        return min(tuple(self._found), default=None)

    def took(self, taken: Sequence[TailItem], is_current: bool, now: Micros) -> None:
        """Add the items that the mutations topic delivered just now.

        Args:
            is_current: True if the node has read everything before them.
        """
        if self._was_idle and taken and taken[0].value is not None and taken[0].time_ms > 0:
            self._found.append(now - taken[0].time_ms * 1_000)
        self._was_idle = is_current and not taken
