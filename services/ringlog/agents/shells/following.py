"""What the threads of roles share whose topic is the metadata log: faust says who works, the replica reads.

The replica of such a role folds each entry in any case. That faust brings them, too, once cost such an agent two thirds
of its processor time. So faust rests (``ringlog.agents.app``), and is shown now and then how far the role is.
"""

from __future__ import annotations

from ringlog.agents.shells.role import RoleThread


class FollowingThread(RoleThread):
    """One instance of such a role."""

    _passed = 0

    def offer(self, offset: int, value: bytes | None) -> bool:  # noqa: ARG002
        """The replica has read it, or will."""
        return False

    def passed(self, position: int) -> None:
        """The role has done its work for everything before ``position``."""
        if position > self._passed:
            self._passed = position
            self.acknowledge(position - 1)
