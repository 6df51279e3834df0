"""A node's reports of its tablets' load, once it holds again what it held: ``ringlog.protocol.load_reports`` says when
one is due. The newest one counts, so one that is lost is followed by the next.
"""

from __future__ import annotations

from dataclasses import dataclass

from ringlog.kernel.state import ClusterState
from ringlog.node.holder import Holder
from ringlog.protocol.effects import Now, Steps, WallClock
from ringlog.protocol.load_reports import Amounts, LoadDue, Own, load_of
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


def report_loads(holder: Holder) -> Steps[None]:
    """Report what is due, for ever."""
    due = LoadDue(holder.node)
    while True:
        yield AwaitLoads()
        state, now = holder.state, (yield Now())
        own = due.due(state, now) if holder.caught_up else None
        if own is not None:
            sizes: Amounts = yield MeasureTablets(state, own)
            due.sent(own, now)
            rates = holder.served.rates(state, now)
            yield PublishLoad(load_of(state, holder.node, own, sizes, (yield WallClock()), rates))
