"""An acknowledged producer (``acks=all``) that keeps order and has its own thread for acknowledgements.

It is idempotent, except for topics whose records count once anyway. An acknowledgement means that every in-sync copy
has the record. A failure means that the outcome is unknown: the record may be in the topic, or may still arrive until
``delivery_timeout_s`` has passed.

After a fatal error a new client replaces the inner one. The new client has another producer id, so the broker cannot
deduplicate its retries. Therefore, the writers that use this module make every record identifiable by its content.

One request is in flight at a time. Records that are produced meanwhile travel together in the next one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from ringlog.kernel.values import Value
from ringlog.log.errors import LogError, LogUnavailable, RecordTooLarge
from ringlog.log.kafka.topics import RECORD_BYTES_MAX, TOPICS
from ringlog.runtime.kafka.config import connection
from ringlog.runtime.logs import get_logger

POLL_S = 0.1
GIVE_UP_S = 1.0
ANY_PARTITION = -1
TOO_LARGE = (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE)
"""Errors of the client or a broker for a record that is too large. Unlike all other failures, they are definite."""

_LIMIT = "max.message.bytes"
REFUSED = "_error"
"""Key of the error that the client stores in one record of a batch."""
FRAMING_BYTES = 1_024
"""Upper bound of the bytes that the broker's format adds to a record that travels alone."""

log = get_logger(__name__)
Delivery = Callable[[KafkaError | None, Message], None]


class Delivered(Value):
    """The location of an acknowledged record.

    ``time_ms`` is the broker's time if the topic has append times, else the author's.
    """

    topic: str
    partition: int
    offset: int
    time_ms: int = 0


def producer_config(
    bootstrap_servers: str, client_id: str, delivery_timeout_s: float, is_idempotent: bool = True
) -> dict[str, Any]:
    """Return the settings of a producer that keeps order and does not lose acknowledged records.

    A producer that is not idempotent may send a record twice, so use it only for topics whose records count once. An
    idempotent one has at most five *records* in flight per partition, not five requests. While more records wait, its
    thread polls the kernel in a loop. That used up to half of a validator's processor time.
    """
    return {
        **connection(bootstrap_servers),
        "client.id": client_id,
        "enable.idempotence": is_idempotent,
        "acks": "all",
        "linger.ms": 0,
        "max.in.flight.requests.per.connection": 1,
        "message.timeout.ms": round(delivery_timeout_s * 1000),
        "message.max.bytes": 2 * RECORD_BYTES_MAX,
        "retry.backoff.ms": 20,
        "retry.backoff.max.ms": 500,
        "reconnect.backoff.ms": 20,
        "reconnect.backoff.max.ms": 500,
        "socket.nagle.disable": True,
        "allow.auto.create.topics": False,
    }


def too_large(topic: str, key: bytes | None, size: int) -> RecordTooLarge:
    """Return the error for a record that exceeds the size limit of ``topic``, with a hint for the operator."""
    fixed = any(_LIMIT in spec.required and topic.endswith(f".{spec.suffix}") for spec in TOPICS)
    if fixed and size + FRAMING_BYTES > RECORD_BYTES_MAX:
        return RecordTooLarge(topic, key, size, f"a record of this topic has at most {RECORD_BYTES_MAX:,} bytes")
    wanted = max(RECORD_BYTES_MAX, size + FRAMING_BYTES)
    change = f"--entity-type topics --entity-name {topic} --add-config {_LIMIT}={wanted}"
    mend = f"kafka-configs.sh --bootstrap-server HOST --alter {change}"
    return RecordTooLarge(topic, key, size, f"raise the limit of the topic, then restart: {mend}")


def _failure(topic: str, key: bytes | None, size: int, error: KafkaError) -> LogError:
    """Return the error for a record that was not acknowledged."""
    if error.code() in TOO_LARGE:
        return too_large(topic, key, size)
    return LogUnavailable(f"{topic}: not acknowledged: {error.str()}", "the outcome is unknown")


def _refusal(topic: str, key: bytes | None, size: int, error: KafkaError) -> LogError:
    """Return the error for a record that this process's own client rejected."""
    if error.code() in TOO_LARGE:
        return too_large(topic, key, size)
    if error.code() == KafkaError._QUEUE_FULL:
        return _full(topic)
    return LogUnavailable(f"{topic}: not sent: {error.str()}", "the outcome is unknown")


def _full(topic: str) -> LogUnavailable:
    return LogUnavailable(f"{topic}: the send queue is full", "check that the broker is up")


def _closed(topic: str) -> LogUnavailable:
    return LogUnavailable(f"{topic}: not sent: this producer is closed")


class _JointResult:
    """One future for records that were sent together and are answered one by one.

    If the size limit rejects several records, the error names the smallest: all larger ones are rejected, too.
    """

    def __init__(self, topic: str, count: int) -> None:
        self.future: Future[None] = Future()
        self.future.set_running_or_notify_cancel()
        self._topic = topic
        self._left = count
        self._failed: LogError | None = None
        self._lock = threading.Lock()
        if not count:
            self.future.set_result(None)

    def delivered(self, error: KafkaError | None, message: Message) -> None:
        """Handle the client's answer to one record."""
        self.answered(None if error is None else _failure(self._topic, None, len(message.value() or b""), error))

    def answered(self, failure: LogError | None) -> None:
        """Count one answer, and complete the future at the last one."""
        with self._lock:
            self._left -= 1
            if failure is not None:
                self._failed = failure if self._failed is None else _worse(self._failed, failure)
            if self._left:
                return
        self.future.set_result(None) if self._failed is None else self.future.set_exception(self._failed)


def _worse(one: LogError, other: LogError) -> LogError:
    """Return the failure to raise of two: the smallest record that is too large, else the first failure."""
    refused = [error for error in (one, other) if isinstance(error, RecordTooLarge)]
    return min(refused, key=lambda error: error.size) if refused else one


class AckedProducer:
    """A producer that reports the outcome of each record. Safe from threads."""

    def __init__(
        self,
        bootstrap_servers: str,
        client_id: str = "ringlog",
        delivery_timeout_s: float = 10.0,
        is_idempotent: bool = True,
    ) -> None:
        self._config = producer_config(bootstrap_servers, client_id, delivery_timeout_s, is_idempotent)
        self._lock = threading.Lock()
        self._producer = Producer(self._config)
        self._closed = False
        self._closing = threading.Event()
        self._poller = threading.Thread(target=self._poll, name=f"{client_id}-acks", daemon=True)
        self._poller.start()

    def send(
        self, topic: str, value: bytes | None, *, key: bytes | None = None, partition: int | None = None
    ) -> Future[Delivered]:
        """Send one record. The future contains its location or error, and cannot be cancelled.

        Args:
            partition: None: the client chooses by key.

        Raises:
            LogUnavailable: The local queue is full, or this producer is closed. From the future: the outcome is
                unknown.
            RecordTooLarge: The record exceeds the limit of the client or, from the future, of the topic.
        """
        future: Future[Delivered] = Future()
        # Mark the future as running, so that cancel() has no effect. Otherwise set_result() would raise in the thread
        # that serves all acknowledgements.
        future.set_running_or_notify_cancel()
        wanted = ANY_PARTITION if partition is None else partition
        size = len(key or b"") + len(value or b"")

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is None:
                place = message.partition() or 0, message.offset() or 0
                future.set_result(Delivered(topic, *place, message.timestamp()[1]))
            else:
                future.set_exception(_failure(topic, key, size, error))

        self._produce(topic, value, key, wanted, delivered)
        return future

    def send_all(self, topic: str, values: Sequence[bytes]) -> Future[None]:
        """Send records to partition 0 in this order. The one future fails if any record fails, as in ``send``.

        The client gets them in one call, because each separate call wakes its thread. If the client rejects a record,
        later records may still be in flight.
        """
        together = _JointResult(topic, len(values))
        records: list[dict[str, Any]] = [{"value": value} for value in values]
        none: LogError | None = None
        with self._lock:
            producer = self._producer
            try:
                if not self._closed:
                    producer.produce_batch(topic, records, partition=0, on_delivery=together.delivered)
                else:
                    none = _closed(topic)
            except (BufferError, KafkaException) as refused:  # the call failed before the first record
                none = LogUnavailable(f"{topic}: not sent: {refused}", "the outcome is unknown")
        # Complete futures outside of the lock: their callbacks may call send().
        is_broken = False
        for record in records:
            if none is not None:
                together.answered(none)
            elif (error := record.get(REFUSED)) is not None:
                is_broken |= error.fatal() or error.code() == KafkaError._FATAL
                together.answered(_refusal(topic, None, len(record["value"]), error))
        if is_broken:
            self._replace(producer)
        return together.future

    def _produce(self, topic: str, value: bytes | None, key: bytes | None, place: int, delivered: Delivery) -> None:
        with self._lock:
            if self._closed:
                raise _closed(topic)
            producer = self._producer
            try:
                producer.produce(topic, value=value, key=key, partition=place, on_delivery=delivered)
                return
            except BufferError as error:
                raise _full(topic) from error
            except KafkaException as error:
                refused = error
        why: KafkaError = refused.args[0]
        if why.fatal() or why.code() == KafkaError._FATAL:
            self._replace(producer)
        raise _refusal(topic, key, len(key or b"") + len(value or b""), why) from refused

    def flush(self, timeout_s: float) -> int:
        """Wait for all answers. Return the number of records without an answer at the deadline."""
        return int(self._producer.flush(timeout_s))

    def close(self, timeout_s: float = 5.0) -> None:
        """Wait up to ``timeout_s`` for open records, then stop. Every record sent before has its answer afterwards."""
        with self._lock:
            self._closed = True
            producer = self._producer
        if not _answered(producer, timeout_s):
            _give_up(producer, timeout_s)
        self._closing.set()
        self._poller.join(timeout_s)

    def _replace(self, broken: Producer) -> None:
        """Create a new client with another producer id, and fail every record that the broken client holds."""
        with self._lock:
            if self._producer is not broken:
                return
            self._producer = Producer(self._config)
        _give_up(broken, GIVE_UP_S)

    def _poll(self) -> None:
        """Serve acknowledgements. The client reports a fatal error here or at the next record."""
        while not self._closing.is_set():
            producer = self._producer
            try:
                producer.poll(POLL_S)
            except KafkaException as error:
                log.warning("producer_replaced", why=error.args[0].str())
                self._replace(producer)


def _answered(producer: Producer, timeout_s: float) -> bool:
    """Return True if all records are answered in time. A fatal error of the client counts as False."""
    try:
        return int(producer.flush(timeout_s)) == 0
    except KafkaException:
        return False


def _give_up(producer: Producer, timeout_s: float) -> None:
    """Drop the records that the client holds, so that each gets a failure."""
    producer.purge()
    # The first wait may end with a fatal error, so wait a second time.
    _ = _answered(producer, timeout_s) or _answered(producer, timeout_s)
