"""Maintenance of the log copy by a member of the metadata service.

=====================  ===============================================================================================
Not a member           Wait to become one. Keep the existing copy, but do not extend it.
Member                 Open the copy, or begin a new one, and read the log from there.
Records arrive         Write them to disk before the node may acknowledge the epoch that they create.
Reading fails          The log is unavailable or now begins later. Pause, then open the copy again.
=====================  ===============================================================================================

Invariant: a member acknowledges an epoch only if its copy on disk contains it.

Source: CEP-21, members of the metadata service; decision 81.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ringlog.client.participant.folder import EPOCH_MAX
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Epoch, Micros, NodeId, Value
from ringlog.node.protocol.mutation_loop import MayAcknowledge, Sleep
from ringlog.protocol.effects import Effect

POLL_INTERVAL: Final[Micros] = 200_000
"""The longest wait for records, and the pause after a failure, in microseconds."""


class CopyProgress:
    """The progress of the copy of one node.

    Args:
        acknowledged: The newest epoch that the node has acknowledged.
    """

    def __init__(self, node: NodeId, acknowledged: Epoch) -> None:
        self._node = node
        self._copied_epoch = acknowledged

    def is_member(self, state: ClusterState) -> bool:
        """Return True while the node belongs to a group of the metadata service."""
        return self._node in state.service

    def acknowledgeable(self, state: ClusterState) -> Epoch:
        """Return the newest epoch that the copy allows the node to acknowledge under ``state``."""
        return self._copied_epoch if self.is_member(state) else EPOCH_MAX

    def record_copied(self, epoch: Epoch) -> bool:
        """Record that the copy on disk contains ``epoch``. Return True if that is progress."""
        is_news, self._copied_epoch = epoch > self._copied_epoch, max(epoch, self._copied_epoch)
        return is_news


class AwaitMember(Effect[None], Value):
    """Wait until the node is a member."""


class OpenCopy(Effect[bool], Value):
    """Open the copy that continues this log, and replace the open one.

    Outcome: False if the log cannot be read now; the previous copy then stays open. The driver raises if the copy
    belongs to a different history.
    """


class AppendRecords(Effect[Epoch | None], Value):
    """Write new log records to the copy on disk, and wait at most ``timeout`` for them.

    Outcome: the newest epoch of the copy, or None if the log does not continue it now.
    """

    timeout: Micros


class CloseCopy(Effect[None], Value):
    """Close the copy. It is no longer extended and no longer serves peers."""


async def keep_copy(side: CopyProgress, own: Callable[[], ClusterState]) -> None:
    """Maintain the copy, without end.

    Args:
        own: Returns the newest state that the node folded from the log.
    """
    while True:
        await AwaitMember()
        if await OpenCopy():
            while side.is_member(own()):
                epoch = await AppendRecords(POLL_INTERVAL)
                if epoch is None:
                    break
                if side.record_copied(epoch):
                    await MayAcknowledge()
        if side.is_member(own()):
            await Sleep(POLL_INTERVAL)
        else:
            await CloseCopy()
