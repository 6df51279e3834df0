"""The interfaces between the parts of an agent: a role's worker, and a producer of transactions.

The faust app and a worker know only ``RoleWorker``, so neither imports the other.

``TransactionalProducer`` has a fixed id, which is the fence of a role. Its two adapters,
``ringlog.agents.fenced_producer`` on Kafka and ``ringlog_sim.actors.role`` on the simulated broker, pass one suite
(``tests/system/test_transactions_conformance.py``):

- a transaction is in its topics completely or not at all, in its order, and readers see nothing of an open one;
- an instance that takes the id shuts out the previous one for ever, and ends its open transactions;
- a transaction whose records cannot all be written leaves nothing;
- without an answer the outcome is unknown, but the transaction is there completely or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

from ringlog.agents.exits import End
from ringlog.agents.monitoring.health_view import RoleView


class RoleWorker(Protocol):
    """What a role does with its records, in threads of its own."""

    def start(self) -> None:
        """Take the role over, then work."""
        ...

    def offer(self, offset: int, value: bytes | None) -> bool:
        """One record of the role's topic, in offset order. False: the worker has read it by itself, or will, and may
        have acknowledged it already.
        """
        ...

    def seen(self) -> RoleView:
        """A look at it, from any thread; waits for nothing."""
        ...

    def stop(self) -> None:
        """Stop, and return when no thread works any more."""
        ...


Acknowledge = Callable[[int], None]
Ended = Callable[[End], None]
MakeWorker = Callable[[Acknowledge, Ended], RoleWorker]
"""Makes a worker; it calls the first when all up to an offset is answered, the second when it ends by itself."""


Record_contra = TypeVar("Record_contra", contravariant=True)
Done_co = TypeVar("Done_co", covariant=True)


class TransactionalProducer(Protocol[Record_contra, Done_co]):
    """For one process. ``Done_co``: None after the work, or steps that perform it."""

    def initialise(self) -> Done_co:
        """Take the id; the instance that held it is shut out. Raises LogUnavailable, Superseded."""
        ...

    def commit(self, records: Iterable[Record_contra]) -> Done_co:
        """Write all of them in one transaction. Each attempt iterates ``records`` anew.

        Raises Superseded if another holds the id now, LogUnavailable if the outcome is unknown; this producer is then
        of no use any more. What ``records`` raises ends the transaction without effect.
        """
        ...
