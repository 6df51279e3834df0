"""The lifecycle of a node: the steps before its first turn, in order, and its reports of load.

=====================  ===============================================================================================
the log is followed    from here on the newest state has all that the log had when the process began
the disk is compared   the log must have what the disk says was acknowledged and adopted; the folder must be the newest
the node registers     before any other process could know of it
registers are served   they follow the log at their own pace
mutations are opened   the node must catch up with the end that the topic had then
turns                  along with acknowledgements, loads, questions to peers (``ringlog.node.protocol.peers``), and, if
                       requested, joining the cluster
=====================  ===============================================================================================

A node reports the load of its tablets once it has its rows again. ``ringlog.protocol.balancer.load_reports`` says when
a report is due. The newest one counts, so a lost one is replaced by the next.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ringlog.kernel.commands.topology.nodes import RegisterNode
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Command
from ringlog.node.protocol.joining import join, register
from ringlog.node.protocol.turn import Spawn, Turns
from ringlog.node.rows.replica import RowReplica
from ringlog.protocol.balancer.load_reports import Amounts, LoadReportSchedule, Own, load_of
from ringlog.protocol.effects import Draw, Now, Steps, WallClock
from ringlog.wire.records import NodeLoad


@dataclass(frozen=True, slots=True)
class AwaitLoads:
    """Wait until a report may be due; the driver may end the wait sooner."""


@dataclass(frozen=True, slots=True)
class MeasureTablets:
    """Outcome: how many bytes the node holds of each of its ``own`` tablets, under ``state``."""

    state: ClusterState
    own: Own


@dataclass(frozen=True, slots=True)
class PublishLoad:
    """Publish the report, once. No outcome."""

    load: NodeLoad


def report_loads(row_replica: RowReplica) -> Steps[None]:
    """Report what is due, for ever."""
    schedule = LoadReportSchedule(row_replica.node)
    while True:
        yield AwaitLoads()
        state, now = row_replica.state, (yield Now())
        own = schedule.due(state, now) if row_replica.caught_up else None
        if own is not None:
            sizes: Amounts = yield MeasureTablets(state, own)
            schedule.sent(own, now)
            rates = row_replica.served.rates(state, now)
            with row_replica.lock:
                judged = dict(row_replica.positions)
            yield PublishLoad(load_of(state, row_replica.node, own, sizes, (yield WallClock()), rates, judged))


PEERS = "peers"
"""The name of the steps that ask peers."""


@dataclass(frozen=True, slots=True)
class FollowLog:
    """Begin to fold the log, for as long as it takes. Outcome: a state that has all that was in it."""


@dataclass(frozen=True, slots=True)
class CompareDisk:
    """The driver raises if the disk has what the log, of which this is the state, does not have, or has no more."""

    state: ClusterState


@dataclass(frozen=True, slots=True)
class ServeRegisters:
    """Have the registers follow the log, beside these steps, and answer."""


@dataclass(frozen=True, slots=True)
class OpenedMutations:
    """Offsets of the mutations topic by partition: where it begins, and where it ended when it was opened."""

    begin: Mapping[int, int]
    ends: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class OpenMutations:
    """Read the mutations topic from where the node's rows end. Outcome: OpenedMutations."""


def run_lifecycle(
    me: RegisterNode,
    row_replica: RowReplica,
    draw: Draw,
    acks: Steps[None],
    peers: Steps[None],
    wish: Callable[[ClusterState], Steps[Command]] | None,
) -> Steps[None]:
    """From the start on, for ever. ``acks``, ``peers``: steps of the modules of these names; ``wish``: with what the
    node joins, if it is to. Raises NodeFailed.
    """
    yield CompareDisk((yield FollowLog()))
    yield from register(me, draw)
    yield ServeRegisters()
    opened: OpenedMutations = yield OpenMutations()
    yield Spawn("acks", acks)
    yield Spawn("load", report_loads(row_replica))
    yield Spawn(PEERS, peers)
    if wish is not None:
        yield Spawn("join", join(me.id, wish, draw))
    yield from Turns(row_replica, draw, opened.begin, opened.ends).run()
