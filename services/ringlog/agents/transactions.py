"""A producer of transactions with a fixed id, which is the fence of a role: a port.

Two adapters, ``agents.fenced`` on Kafka and ``sim.transactions`` on the simulated broker, pass one suite
(``tests/system/test_transactions_conformance.py``):

- a transaction is in its topics whole or not at all, in its order, and readers see nothing of one that is open;
- who takes the id shuts out for ever the one that had it, and ends what that one left open;
- a transaction whose records cannot all be had leaves nothing;
- without an answer nobody knows whether it is there, but it is there as a whole if it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

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
