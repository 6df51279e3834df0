"""The thread of a role that needs nothing but what all have: performs the protocol that its row names."""

from __future__ import annotations

from ringlog.agents.contract import Acknowledge, Ended
from ringlog.agents.shells.role import RoleThread
from ringlog.kernel.values import Epoch
from ringlog.protocol.role import News
from ringlog.protocol.roles import Role
from ringlog.runtime.settings import Settings

NEWS_S = 5.0
"""How long it sleeps while nothing is folded."""


class PlainThread(RoleThread):
    """One instance of such a role."""

    def __init__(self, row: Role, settings: Settings, acknowledge: Acknowledge, ended: Ended) -> None:
        assert row.plain is not None, f"{row.name} has a shell of its own"
        self.role, self._protocol = row.name, row.plain
        super().__init__(settings, acknowledge, ended)

    def work(self) -> None:
        """Perform the protocol, for ever."""
        self.driver.handlers |= {News: lambda _: self._take_news()}
        self.driver.carry_out(self._protocol())

    def handled_epoch(self) -> Epoch:
        """The newest epoch that it has folded."""
        return self.replica.state.epoch

    def _take_news(self) -> None:
        for offset, _ in self.news(NEWS_S)[-1:]:
            self.acknowledge(offset)
