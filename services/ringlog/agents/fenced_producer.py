"""A transactional producer with a fixed id: the fence of a role.

``initialise`` ends every transaction that an earlier holder of the id left open and shuts that holder out at the broker
for ever; the earlier one learns of it as ``Superseded`` at its next transaction. A transaction is written whole or not
at all, and read-committed readers never see a part of it.

A transaction may have more records than the client's queue takes: a full queue is waited for, a piece at a time. The
queue is short on purpose. What waits in it must be sent within ``DELIVERY_TIMEOUT_S``, so that a broker that is away
is noticed; a queue of any length would make a large transaction fail on a healthy one. How long the whole may take
(``timeout_s``) is given to the broker, which ends what is older.

A record that is refused for its size is refused for ever: no attempt is repeated, and ``RecordTooLarge`` names it.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from ringlog.agents.exits import Superseded
from ringlog.log.errors import LogUnavailable
from ringlog.log.kafka.producer import TOO_LARGE, producer_config, too_large

TRANSACTION_TIMEOUT_S = 10.0
DELIVERY_TIMEOUT_S = 10.0
ATTEMPTS_MAX = 5
QUEUE_RECORDS_MAX = 10_000
QUEUE_KIB_MAX = 64 * 1024
RECORD_BYTES_MOST = 32 * 1024 * 1024
"""Above any limit that a topic may be given: which record is too large is the topic's to say, not the client's."""

POLL_S = 0.1
_FENCED = (KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH)


@dataclass(frozen=True, slots=True)
class TransactionRecord:
    """One record of a transaction; ``value`` None is a tombstone. Partition 0."""

    topic: str
    key: bytes | None
    value: bytes | None

    @property
    def size(self) -> int:
        """Bytes of key and value."""
        return len(self.key or b"") + len(self.value or b"")


class FencedProducer:
    """The port ``agents.ports`` on Kafka; a transaction may take ``timeout_s``. For use by one thread."""

    def __init__(self, bootstrap_servers: str, transactional_id: str, timeout_s: float = TRANSACTION_TIMEOUT_S) -> None:
        config: dict[str, Any] = producer_config(bootstrap_servers, transactional_id, DELIVERY_TIMEOUT_S)
        config |= {
            "transactional.id": transactional_id,
            "transaction.timeout.ms": round(timeout_s * 1000),
            "queue.buffering.max.messages": QUEUE_RECORDS_MAX,
            "queue.buffering.max.kbytes": QUEUE_KIB_MAX,
            "message.max.bytes": RECORD_BYTES_MOST,
        }
        self._producer = Producer(config)
        self._id = transactional_id
        self._refused: TransactionRecord | None = None
        self._superseded: Superseded | None = None

    def initialise(self) -> None:
        """Take the id; the instance that held it is shut out. Raises LogUnavailable, Superseded."""
        self._insist(lambda: self._producer.init_transactions(TRANSACTION_TIMEOUT_S))

    def commit(self, records: Iterable[TransactionRecord]) -> None:
        """Write all of them in one transaction and wait until it is committed; see ``agents.ports``.

        Raises RecordTooLarge, too, if a record can never be written: none is then.
        """
        assert iter(records) is not records, "each attempt iterates them anew"
        if self._superseded is not None:
            raise self._superseded
        for _ in range(ATTEMPTS_MAX):
            self._refused = None
            try:
                self._producer.begin_transaction()
                for record in records:
                    self._produce(record)
                self._insist(lambda: self._producer.commit_transaction(TRANSACTION_TIMEOUT_S))
                return
            except KafkaException as exception:
                error = exception.args[0]
                if not (error.txn_requires_abort() or error.code() == KafkaError._STATE):
                    raise self._failed(error) from exception
                self._insist(lambda: self._producer.abort_transaction(TRANSACTION_TIMEOUT_S))
                if self._refused is not None:
                    raise _too_large(self._refused) from exception
            except Exception:
                # Nobody waits for the time-out of a transaction that is given up here.
                with suppress(KafkaException):
                    self._producer.abort_transaction(TRANSACTION_TIMEOUT_S)
                raise
        raise LogUnavailable(
            f"{self._id}: no transaction was committed in {ATTEMPTS_MAX} attempts", "is the broker up?"
        )

    def _produce(self, record: TransactionRecord) -> None:
        """Hand one record over, as soon as there is room. A broker that takes none fails those before it in time."""

        def delivered(error: KafkaError | None, _message: Message) -> None:
            # A batch is refused as a whole: the largest of its records is the one to name.
            if error is not None and error.code() in TOO_LARGE:
                self._refused = max(record, self._refused or record, key=lambda one: one.size)

        while True:
            try:
                self._producer.produce(record.topic, record.value, record.key, partition=0, on_delivery=delivered)
                return
            except BufferError:
                self._producer.poll(POLL_S)
            except KafkaException as exception:
                if exception.args[0].code() in TOO_LARGE:
                    raise _too_large(record) from exception
                raise

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
        if error.code() == KafkaError._FATAL:  # a record is refused since the client has ended; a transaction says why
            try:
                self._producer.begin_transaction()
            except KafkaException as exception:
                error = exception.args[0]
        if error.code() in _FENCED:
            self._superseded = Superseded(f"the broker has fenced {self._id}: another instance took over")
            return self._superseded
        return LogUnavailable(f"{self._id}: {error.str()}", "the transaction's outcome is unknown")


def _too_large(record: TransactionRecord) -> Exception:
    return too_large(record.topic, record.key, record.size)
