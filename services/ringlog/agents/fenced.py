"""A transactional producer with a fixed id: the fence of a role.

``initialise`` ends every transaction that an earlier holder of the id left open and shuts that holder out at the broker
for ever; the earlier one learns of it as ``Superseded`` at its next transaction. A transaction is written whole or not
at all, and read-committed readers never see a part of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from ringlog.agents.exits import Superseded
from ringlog.log.errors import LogUnavailable
from ringlog.log.producer import producer_config

TRANSACTION_TIMEOUT_S = 10.0
ATTEMPTS_MAX = 5
_FENCED = (KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH)


@dataclass(frozen=True, slots=True)
class Written:
    """One record of a transaction; ``value`` None is a tombstone. Partition 0."""

    topic: str
    key: bytes | None
    value: bytes | None


class FencedProducer:
    """Writes transactions under ``transactional_id``. For use by one thread."""

    def __init__(self, bootstrap_servers: str, transactional_id: str) -> None:
        config: dict[str, Any] = producer_config(bootstrap_servers, transactional_id, TRANSACTION_TIMEOUT_S)
        config |= {
            "transactional.id": transactional_id,
            "transaction.timeout.ms": round(TRANSACTION_TIMEOUT_S * 1000),
        }
        self._producer = Producer(config)
        self._id = transactional_id

    def initialise(self) -> None:
        """Take the id; whoever held it is shut out. Raises LogUnavailable, Superseded."""
        self._insist(lambda: self._producer.init_transactions(TRANSACTION_TIMEOUT_S))

    def commit(self, records: Sequence[Written]) -> None:
        """Write all of them in one transaction and wait until it is committed.

        Raises Superseded if another holds the id now, LogUnavailable if the outcome is unknown; this producer is then
        of no use any more.
        """
        for _ in range(ATTEMPTS_MAX):
            try:
                self._producer.begin_transaction()
                for record in records:
                    self._producer.produce(record.topic, record.value, record.key, partition=0)
                self._insist(lambda: self._producer.commit_transaction(TRANSACTION_TIMEOUT_S))
                return
            except KafkaException as exception:
                error = exception.args[0]
                if not error.txn_requires_abort():
                    raise self._failed(error) from exception
                self._insist(lambda: self._producer.abort_transaction(TRANSACTION_TIMEOUT_S))
        raise LogUnavailable(
            f"{self._id}: no transaction was committed in {ATTEMPTS_MAX} attempts", "is the broker up?"
        )

    def _insist(self, step: Any) -> None:
        """Repeat a step while the client says that repeating it is safe."""
        for attempt in range(ATTEMPTS_MAX):
            try:
                step()
                return
            except KafkaException as exception:
                error = exception.args[0]
                if error.retriable() and attempt + 1 < ATTEMPTS_MAX:
                    continue
                if error.txn_requires_abort():
                    raise
                raise self._failed(error) from exception

    def _failed(self, error: KafkaError) -> Exception:
        if error.code() in _FENCED:
            return Superseded(f"the broker has fenced {self._id}: another instance took over")
        return LogUnavailable(f"{self._id}: {error.str()}", "the transaction's outcome is unknown")
