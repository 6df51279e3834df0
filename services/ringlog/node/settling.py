"""Writes that wait until they can be judged, and the settled time that a node asks for.

Records of a partition are judged in their order: behind one that is held all others wait, too. Nothing is judged before
the log promises any settled time. The time is raised a lead ahead while records come, so that none waits; an idle node
lets it lie, and then a schema change counts at once. All nodes ask for the same time; the first to ask is enough.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from ringlog.kernel.commands.verdicts import SettleVerdicts
from ringlog.kernel.settings import setting
from ringlog.kernel.state import ClusterState
from ringlog.kernel.values import Micros

WAITING_MAX = 20_000
"""Records that may wait before a node stops reading more."""

T = TypeVar("T")


class Waiting(Generic[T]):
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


def next_settled(state: ClusterState, now: Micros, needed: Micros | None, is_active: bool) -> SettleVerdicts | None:
    """What to ask for now, or None if the settled time serves.

    ``needed``: the time above which a record that is held wants it; ``is_active``: records have come lately.
    """
    settled, lead = state.settled.until, setting(state, "verdicts_lead_us")
    if needed is not None and needed >= settled:
        return SettleVerdicts(max(now + lead, needed + 1))
    if is_active and settled - now < lead // 2:
        return SettleVerdicts(max(now + lead, settled + 1))
    return None
