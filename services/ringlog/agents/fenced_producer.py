"""A transactional producer with a fixed id: the fence of a role.

``initialise`` aborts the open transactions of the id's previous holder, and shuts that holder out at the broker
permanently. The previous holder gets ``Superseded`` from its next transaction. A transaction is written completely or
not at all, and read-committed readers never see a part of it.

A transaction may have more records than the client's queue takes. Then the producer waits until the queue has room. The
queue is short on purpose: its records must be sent within ``DELIVERY_TIMEOUT_S``, so that an unavailable broker is
noticed. With a long queue, a large transaction would fail on a healthy broker. The time limit of the whole transaction
(``timeout_s``) goes to the broker, which aborts older ones.

A record that is rejected for its size is rejected at each attempt. So the producer does not retry, and
``RecordTooLarge`` names the record.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from ringlog.agents.exits import Superseded
from ringlog.kernel.values import Value
from ringlog.log.errors import LogUnavailable
from ringlog.log.kafka.producer import TOO_LARGE, producer_config, too_large

TRANSACTION_TIMEOUT_S = 10.0
DELIVERY_TIMEOUT_S = 10.0
ATTEMPTS_MAX = 5
QUEUE_RECORDS_MAX = 10_000
QUEUE_KIB_MAX = 64 * 1024
RECORD_BYTES_MOST = 32 * 1024 * 1024
"""A limit above that of any topic. So the topic decides which record is too large, not the client."""

POLL_S = 0.1
_FENCED = (KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH)


class TransactionRecord(Value):
    """One record of a transaction, for partition 0. ``value`` None is a tombstone."""

    topic: str
    key: bytes | None
    value: bytes | None

    @property
    def size(self) -> int:
        """Bytes of key and value."""
        return len(self.key or b"") + len(self.value or b"")


class FencedProducer:
    """The port of ``agents.ports`` on Kafka, for one thread. ``timeout_s``: the time limit of a transaction."""

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
        """Take the id, and shut out its previous holder. Raises LogUnavailable, Superseded."""
        self._retry(lambda: self._producer.init_transactions(TRANSACTION_TIMEOUT_S))

    def commit(self, records: Iterable[TransactionRecord]) -> None:
        """Write all records in one transaction, and wait until it is committed. See ``agents.ports``.

        Also raises RecordTooLarge if a record can never be written. Then no record is.
        """
        assert iter(records) is not records, "records can be iterated again for each attempt"
        if self._superseded is not None:
            raise self._superseded
        for _ in range(ATTEMPTS_MAX):
            self._refused = None
            try:
                self._producer.begin_transaction()
                for record in records:
                    self._produce(record)
                self._retry(lambda: self._producer.commit_transaction(TRANSACTION_TIMEOUT_S))
                return
            except KafkaException as exception:
                error = exception.args[0]
                # After an error that needs an abort, the client rejects further records with _STATE.
                if not (error.txn_requires_abort() or error.code() == KafkaError._STATE):
                    raise self._failed(error) from exception
                self._retry(lambda: self._producer.abort_transaction(TRANSACTION_TIMEOUT_S))
                if self._refused is not None:
                    raise _too_large(self._refused) from exception
            except Exception:
                # Abort at once. Otherwise readers of the topics would wait for the transaction's time limit.
                with suppress(KafkaException):
                    self._producer.abort_transaction(TRANSACTION_TIMEOUT_S)
                raise
        raise LogUnavailable(
            f"{self._id}: no transaction was committed in {ATTEMPTS_MAX} attempts", "check that the broker is up"
        )

    def _produce(self, record: TransactionRecord) -> None:
        """Pass one record to the client, as soon as its queue has room.

        If the broker accepts none, the queued records fail after ``DELIVERY_TIMEOUT_S``, and end the wait.
        """

        def delivered(error: KafkaError | None, _message: Message) -> None:
            # The broker rejects a batch as a whole. The largest of its records is the likely cause, so name that one.
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

    def _retry(self, step: Any) -> None:
        """Repeat a step while the client reports that a repetition is safe."""
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
        """Return the exception for a failed step: Superseded if the broker fenced the id, else LogUnavailable."""
        # After a fatal error, each call only reports _FATAL. The start of a transaction raises the original error.
        if error.code() == KafkaError._FATAL:
            try:
                self._producer.begin_transaction()
            except KafkaException as exception:
                error = exception.args[0]
        if error.code() in _FENCED:
            self._superseded = Superseded(f"the broker has fenced {self._id}: another instance took over")
            return self._superseded
        return LogUnavailable(f"{self._id}: {error.str()}", "the outcome of the transaction is unknown")


def _too_large(record: TransactionRecord) -> Exception:
    return too_large(record.topic, record.key, record.size)
