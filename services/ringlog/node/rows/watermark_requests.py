"""Records that wait for validation, and requests for a later validation watermark (``settled``).

Records of a partition are validated in order, so a record that has to wait blocks all later ones of its partition.
Nothing is validated before the log has a watermark. While records arrive, nodes keep the watermark ahead of them by a
lead, so that none has to wait. An idle node stops raising it, so that a schema change takes effect immediately.

The first request serves all nodes. Two rules keep the cost at about two entries for each lead, for any number of nodes.
Each node asks at a different moment, derived from its id. Nodes that ask before they see the first request ask for the
same time, a multiple of a fraction of the lead. The fold applies only one of equal requests.
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
"""The fractions of a lead. Nodes that ask within one of them ask for the same time, and all begin to ask within one."""
WAITING_MAX = 20_000
"""The limit of waiting records. Beyond it a node reads no further records."""

T = TypeVar("T")


class WaitingRecords(Generic[T]):
    """Waiting records by partition, in order."""

    def __init__(self) -> None:
        self._queues: dict[int, deque[T]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def add(self, items: Iterable[tuple[int, T]]) -> None:
        """Append records, each with its partition."""
        for partition, item in items:
            self._queues.setdefault(partition, deque()).append(item)

    def process(self, carry_out: Callable[[int, T], bool]) -> list[T]:
        """Process records in order until one has to wait. Return the first waiting record of each partition.

        Args:
            carry_out: Processes a record, or returns False if it has to wait.
        """
        held = []
        for partition, queue in sorted(self._queues.items()):
            while queue:
                if not carry_out(partition, queue[0]):
                    held.append(queue[0])
                    break
                queue.popleft()
        return held


def next_watermark_request(
    state: ClusterState, now: Micros, needed: Micros | None, is_active: bool, node: NodeId
) -> SettleVerdicts | None:
    """Return the watermark request that ``node`` should send now, or None.

    Args:
        needed: The watermark must be above this time to validate a waiting record.
        is_active: True if records have arrived recently.
    """
    settled, lead = state.settled.until, setting(state, "verdicts_lead_us")
    step = lead // STEPS
    ahead = (now + lead) // step * step
    if needed is not None and needed >= settled:
        return SettleVerdicts(max(ahead, needed + 1))
    own_turn = lead // 2 - zlib.crc32(node.encode()) % step
    return SettleVerdicts(ahead) if is_active and settled - now < own_turn else None
