"""The port ``ringlog.agents.transactions`` on the simulated broker."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ringlog.agents.exits import Superseded
from ringlog.log.errors import LogUnavailable
from ringlog.sim.broker import Fenced, SimBroker
from ringlog.sim.world import SimHost, Unanswered, Work

NO_ANSWER = "nobody knows what became of it"


class SimTransactions:
    """Transactions of a process on ``host``, which all go to partition 0 of ``topic``: pairs of key and value."""

    def __init__(self, broker: SimBroker, host: SimHost, transactional_id: str, topic: str) -> None:
        self._broker = broker
        self._host = host
        self._id = transactional_id
        self._topic = topic
        self._epoch = 0

    def initialise(self) -> Work:
        """Take the id; see there."""
        try:
            self._epoch = yield from self._broker.initialise(self._host, self._id)
        except Unanswered:
            raise LogUnavailable(f"{self._id}: no answer", NO_ANSWER) from None

    def commit(self, records: Iterable[tuple[str, Any]]) -> Work:
        """Write all of them or nothing; see there."""
        return self._commit(tuple(records))

    def _commit(self, values: tuple[tuple[str, Any], ...]) -> Work:
        try:
            yield from self._broker.transact(self._host, self._id, self._epoch, self._topic, values)
        except Fenced:
            raise Superseded(f"{self._id}: another instance took over") from None
        except Unanswered:
            raise LogUnavailable(f"{self._id}: no answer", NO_ANSWER) from None
