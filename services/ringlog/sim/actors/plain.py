"""A role that needs nothing but what all have, on the simulated world: performs the protocol that its row names."""

from __future__ import annotations

from collections.abc import Callable

from ringlog.protocol.effects import Steps
from ringlog.protocol.role import Accept, News
from ringlog.protocol.roles import Role
from ringlog.sim.actors.role import NEWS_US, Worker
from ringlog.sim.replica import Step


def plain_worker(row: Role) -> type[Worker]:
    """The worker of a role without a shell of its own."""
    assert row.plain is not None, f"{row.name} has a worker of its own"
    protocol: Callable[[], Steps[None]] = row.plain

    class PlainWorker(Worker):
        """One instance of such a role."""

        role = row.name

        def work(self) -> Step:
            """Perform the protocol, for ever."""
            self.replica.at_once |= {Accept: lambda _: None}
            self.replica.in_time |= {News: self._news}
            return self.replica.perform(protocol())

        def _news(self, _: News) -> Step:
            yield self.replica.changed, NEWS_US

    return PlainWorker
