"""How a member of the metadata service keeps its copy of the log, and what waits for that.

=====================  ===============================================================================================
no member              waits to become one; what it has stays, and gets nothing
a member               opens what it has, or another beginning, and reads the log on from there
something comes        is on the disk before the epoch that it made may be acknowledged
the log goes not on    from there: it is away, or begins later by now. After a rest what there is then is looked at
=====================  ===============================================================================================

Source: CEP-21, members of the metadata service; decision 81.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Epoch, Micros, NodeId
from ringlog.node.identity import EPOCH_MAX
from ringlog.node.protocol.turn import MayAcknowledge, Rest
from ringlog.protocol.effects import Steps

POLL_INTERVAL: Final[Micros] = 200_000


class CopySide:
    """How far the copy of node ``node`` goes. ``acknowledged``: the epoch that the node acknowledged so far."""

    def __init__(self, node: NodeId, acknowledged: Epoch) -> None:
        self._node = node
        self._held = acknowledged

    def is_member(self, state: ClusterState) -> bool:
        """True while the node is in a group of the metadata service: it keeps the log."""
        return self._node in state.service

    def acknowledgeable(self, state: ClusterState) -> Epoch:
        """The newest epoch that a node may acknowledge under this state as far as its copy goes."""
        return self._held if self.is_member(state) else EPOCH_MAX

    def holds(self, epoch: Epoch) -> bool:
        """All up to that epoch is on the disk by now; True if that is news."""
        is_news, self._held = epoch > self._held, max(epoch, self._held)
        return is_news


@dataclass(frozen=True, slots=True)
class AwaitMember:
    """Wait until the node is a member."""


@dataclass(frozen=True, slots=True)
class OpenCopy:
    """Have the copy with which to go on in this log, in place of the one that was open. Outcome: False if the log
    cannot be read now; what was open stays so. The driver raises where the copy is of another history.
    """


@dataclass(frozen=True, slots=True)
class TakeRecords:
    """Have what has come on the disk; if nothing has, wait at most ``timeout``. Outcome: the epoch that the copy goes
    to, None if the log does not go on from there now.
    """

    timeout: Micros


@dataclass(frozen=True, slots=True)
class CloseCopy:
    """It gets nothing more, and nobody is answered from it."""


def keep_copy(side: CopySide, own: Callable[[], ClusterState]) -> Steps[None]:
    """For ever. ``own``: the newest state that the node's own log has shown."""
    while True:
        yield AwaitMember()
        if (yield OpenCopy()):
            while side.is_member(own()):
                epoch: Epoch | None = yield TakeRecords(POLL_INTERVAL)
                if epoch is None:
                    break
                if side.holds(epoch):
                    yield MayAcknowledge()
        if side.is_member(own()):
            yield Rest(POLL_INTERVAL)
        else:
            yield CloseCopy()
