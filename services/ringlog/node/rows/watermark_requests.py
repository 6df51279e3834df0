"""Writes that wait until they can be judged, and the settled time that a node asks for.

Records of a partition are judged in their order: behind one that is held all others wait, too. Nothing is judged before
the log promises any settled time. The time is raised a lead ahead while records come, so that none waits; an idle node
lets it lie, and then a schema change counts at once.

The first to ask is enough, so what all nodes ask for costs about two entries for each lead, however many they are: each
begins at a moment of its own, by its id, and those that ask before they hear of the first ask for the same time. That
time is a multiple of a step of the lead; of equal ones the fold takes one.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from ringlog.kernel.commands.cdc.verdicts import SettleVerdicts
from ringlog.kernel.model.settings import setting
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Micros, NodeId

STEPS = 8
"""Of a lead: nodes that ask within one ask for one time, and begin to ask within one."""
WAITING_MAX = 20_000
"""Records that may wait before a node stops reading more."""

T = TypeVar("T")


class UnsettledRecords(Generic[T]):
    """Records by partition, in their order."""

    def __init__(self) -> None:
        self._queues: dict[int, deque[T]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def add(self, items: Iterable[tuple[int, T]]) -> None:
        """More records: of a partition each."""
        for partition, item in items:
            self._queues.setdefault(partition, deque()).append(item)

    def work_off(self, carry_out: Callable[[int, T], bool]) -> list[T]:
        """Carry out what can be; the first one of each partition that cannot, for which ``carry_out`` says False."""
        held = []
        for partition, queue in sorted(self._queues.items()):
            while queue:
                if not carry_out(partition, queue[0]):
                    held.append(queue[0])
                    break
                queue.popleft()
        return held


def next_settled(
    state: ClusterState, now: Micros, needed: Micros | None, is_active: bool, node: NodeId
) -> SettleVerdicts | None:
    """What ``node`` asks for now, or None if the settled time serves.

    ``needed``: the time above which a record that is held wants it; ``is_active``: records have come lately.
    """
    settled, lead = state.settled.until, setting(state, "verdicts_lead_us")
    step = lead // STEPS
    ahead = (now + lead) // step * step
    if needed is not None and needed >= settled:
        return SettleVerdicts(max(ahead, needed + 1))
    own_turn = lead // 2 - zlib.crc32(node.encode()) % step
    return SettleVerdicts(ahead) if is_active and settled - now < own_turn else None
