"""The lifecycle of a node: the steps before its mutation loop, in order, and its load reports.

=====================  ===============================================================================================
Follow the log         From here on, the newest state contains everything that the log had when the process began.
Compare the disk       The log must contain everything that the disk has acknowledged and adopted. The folder must be
                       the newest one of this node.
Register               The node registers before any other process could know it.
Serve registers        Registers follow the log independently of the rows.
Open mutations         The node must catch up to the end that the topic has now.
Read mutations         Concurrently with acknowledgements, load reports, requests to peers
                       (``ringlog.node.protocol.peers``) and, if requested, joining the cluster.
=====================  ===============================================================================================

A node reports the load of its tablets once it has its rows again. ``ringlog.protocol.balancer.load_reports`` decides
when to send a report. Only the newest report counts, so a lost one is replaced by the next.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from ringlog.kernel.commands.topology.nodes import RegisterNode
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Command, Value
from ringlog.node.protocol.mutation_loop import MutationLoop, Spawn
from ringlog.node.rows.replica import RowReplica
from ringlog.protocol.balancer.load_reports import Amounts, LoadReportSchedule, Own, load_of
from ringlog.protocol.effects import Draw, Effect, Now, Steps, WallClock
from ringlog.protocol.nodes.joining import join, register
from ringlog.wire.records import NodeLoad


class AwaitLoads(Effect[None], Value):
    """Wait until a report may be due. The driver may end the wait earlier."""


class MeasureTablets(Effect[Amounts], Value):
    """Measure the tablets of this node under ``state``. Outcome: bytes of each tablet in ``own``."""

    state: ClusterState
    own: Own


class PublishLoad(Effect[None], Value):
    """Publish a report, without retries. No outcome."""

    load: NodeLoad


async def report_loads(row_replica: RowReplica) -> None:
    """Publish load reports on schedule, without end."""
    schedule = LoadReportSchedule(row_replica.node)
    while True:
        await AwaitLoads()
        state, now = row_replica.state, await Now()
        own = schedule.due(state, now) if row_replica.caught_up else None
        if own is not None:
            sizes = await MeasureTablets(state, own)
            schedule.sent(own, now)
            rates = row_replica.served.rates(state, own, now)
            with row_replica.lock:
                judged = dict(row_replica.positions)
            await PublishLoad(load_of(state, row_replica.node, own, sizes, await WallClock(), rates, judged))


PEERS = "peers"
"""The name of the steps that ask peers."""


class FollowLog(Effect[ClusterState], Value):
    """Start to fold the log. Outcome: a state that contains all entries that the log had."""


class CompareDisk(Effect[None], Value):
    """Compare the disk with ``state``, which is everything that the log has.

    The driver raises if the disk has entries that the log lacks, or if the folder is an older copy.
    """

    state: ClusterState


class ServeRegisters(Effect[None], Value):
    """Serve registers and let them follow the log, concurrently with these steps."""


class OpenedMutations(Value):
    """Begin and end offsets of the mutations topic by partition, at the time when it was opened."""

    begin: Mapping[int, int]
    ends: Mapping[int, int]


class OpenMutations(Effect[OpenedMutations], Value):
    """Read the mutations topic from the end of the node's rows. Outcome: OpenedMutations."""


async def run_lifecycle(
    me: RegisterNode,
    row_replica: RowReplica,
    draw: Draw,
    acks: Callable[[], Steps[None]],
    peers: Callable[[], Steps[None]],
    wish: Callable[[ClusterState], Steps[Command]] | None,
) -> None:
    """Run a node from its start, without end. Raises NodeFailed.

    Args:
        acks: Starts ``acks.acknowledge``.
        peers: Starts ``peers.ask_peers``.
        wish: Builds the join command, or None if the node is not to join.
    """
    # Compare before anything is registered or served: an outdated folder or log must not become visible to other nodes.
    await CompareDisk(await FollowLog())
    await register(me, draw)
    await ServeRegisters()
    opened = await OpenMutations()
    await Spawn("acks", acks)
    await Spawn("load", partial(report_loads, row_replica))
    await Spawn(PEERS, peers)
    if wish is not None:
        await Spawn("join", partial(join, me.id, wish, draw))
    await MutationLoop(row_replica, draw, opened.begin, opened.ends).run()
