"""Pruning of past table versions and past allowed lateness: the coordinator's proposals and their evidence.

A reader needs a version to validate writes that were appended while the version counted. Readers are nodes, which read
the mutations topic, and CDC writers, whose progress is in the state. No reader can fetch a write below the beginning of
the topic, but a node may have fetched one before it was deleted. So each member must report that it has validated all
records below the beginning (``NodeLoad.judged``). A member that restarts continues at its own position, and refuses to
start if the topic begins above it.

The evidence uses no clock of an agent, writer or validator. The beginning of a topic and the position of a node only
move forward. Times are those of brokers: the append time of the topic's first record or, while the topic is empty, that
of the newest load report. The validation watermark is not evidence, since a wrong clock may have put it far ahead.
``SLACK_US`` is for brokers whose clocks differ. It assumes that append times are out of order by no more than that.

Source: decisions 54, rule 7, and 152.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from ringlog.kernel.commands.cdc.verdicts import SettleVerdicts
from ringlog.kernel.model.state import NO_MEMBER, ClusterState
from ringlog.kernel.schema.table_versions import pruned
from ringlog.kernel.values import Micros, NodeId, Value
from ringlog.wire.records import NodeLoad

SLACK_US: Final[Micros] = 3_600_000_000
"""One hour."""

Positions = Mapping[int, int]
"""Partition of the mutations topic to an offset."""


class TopicBeginning(Value):
    """The first offset of each partition. ``since``: no later read returns a record with an earlier append time; None:
    unknown.
    """

    offsets: Positions
    since: Micros | None


def validated_positions(loads: Iterable[NodeLoad]) -> dict[NodeId, Positions]:
    """Return the positions in each node's last report."""
    return {load.node: {each.partition: each.offset for each in load.judged} for load in loads}


def next_pruning(
    state: ClusterState, beginning: TopicBeginning, judged: Mapping[NodeId, Positions]
) -> SettleVerdicts | str | None:
    """Return the command to propose; a text: the reason to wait; None: there is nothing to prune.

    Args:
        state: the newest state.
        beginning: the beginning of the mutations topic, read before ``judged``.
        judged: offsets by node. The node has validated every record below them.
    """
    since = state.settled.until if beginning.since is None else min(beginning.since, state.settled.until)
    below = since - SLACK_US
    if below <= state.settled.forgotten or not _prunes(state, below):
        return None
    if beginning.since is None:
        return "the mutations topic is empty, and no load report shows the broker's time"
    for node in sorted(state.nodes.values(), key=lambda one: one.name):
        if node.state in NO_MEMBER:
            continue
        reported = judged.get(node.id, {})
        if any(reported.get(partition, 0) < offset for partition, offset in beginning.offsets.items()):
            return f"{node.name} has not reported that it validated all records below the topic's beginning"
    return SettleVerdicts(1, forget_below=below)


def _prunes(state: ClusterState, below: Micros) -> bool:
    return pruned(state.table_lives, below) != state.table_lives or any(
        one.until <= below for one in state.settled.leeways
    )
