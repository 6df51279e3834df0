"""The interfaces between the parts of an agent: a role's worker, and a transactional producer.

The faust app and a worker know only ``RoleWorker``, so neither imports the other.

``TransactionalProducer`` has a fixed id, which is the fence of a role. It has two adapters,
``ringlog.agents.fenced_producer`` on Kafka and ``ringlog_sim.actors.role`` on the simulated broker. Both pass one suite
(``tests/system/test_transactions_conformance.py``):

- A transaction is in its topics completely or not at all, in its order. Readers see nothing of an open one.
- An instance that takes the id shuts out the previous one permanently, and ends its open transactions.
- If one record of a transaction cannot be written, none is.
- Without an answer the outcome is unknown, but the transaction is still complete or absent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

from ringlog.agents.exits import End
from ringlog.agents.monitoring.health_view import RoleView


class RoleWorker(Protocol):
    """The work of a role, in threads of the worker."""

    def start(self) -> None:
        """Take the role over, then work."""
        ...

    def add_record(self, offset: int, value: bytes | None) -> bool:
        """Pass one record of the role's topic, in offset order.

        Returns False if the worker has read the record itself, or will. It may have acknowledged the record already.
        """
        ...

    def seen(self) -> RoleView:
        """Return a view of the role, without blocking. Callable from any thread."""
        ...

    def stop(self) -> None:
        """Stop, and return when all threads have ended."""
        ...


Acknowledge = Callable[[int], None]
Ended = Callable[[End], None]
MakeWorker = Callable[[Acknowledge, Ended], RoleWorker]
"""Makes a worker. It calls Acknowledge when all records up to an offset are answered, and Ended when it ends itself."""


Record_contra = TypeVar("Record_contra", contravariant=True)
Done_co = TypeVar("Done_co", covariant=True)


class TransactionalProducer(Protocol[Record_contra, Done_co]):
    """A producer for one process. ``Done_co``: None after the work, or steps that perform it."""

    def initialise(self) -> Done_co:
        """Take the id, and shut out its previous holder. Raises LogUnavailable, Superseded."""
        ...

    def commit(self, records: Iterable[Record_contra]) -> Done_co:
        """Write all records in one transaction. Each attempt iterates ``records`` again.

        Raises Superseded if another instance holds the id, LogUnavailable if the outcome is unknown. After either, the
        producer is unusable. An exception of ``records`` ends the transaction without effect.
        """
        ...
