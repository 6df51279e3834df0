"""A read of the present contents of a compacted topic: the keys whose last record has a value."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from ringlog.log.errors import LogUnavailable
from ringlog.log.kafka.adapter import reader_config
from ringlog.log.reading import SILENCE_S

V = TypeVar("V")

RECORDS_MAX = 5_000
POLL_S = 0.02
"""Seconds that a call waits for more records, even at the end of the topic. A take-over reads every change topic."""


def read_compacted(
    bootstrap_servers: str, topic: str, show: Callable[[bytes], V], check: Callable[[], None] = lambda: None
) -> dict[str, V]:
    """Read the committed records of a one-partition topic up to its present end. Return key to decoded value.

    Args:
        show: Decodes a value.
        check: Called before each wait. May raise.

    Raises:
        LogUnavailable: No record arrived for ``SILENCE_S``.
    """
    consumer = Consumer(reader_config(bootstrap_servers, "read_committed") | {"auto.offset.reset": "earliest"})
    found: dict[str, V] = {}
    moved = time.monotonic()
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        while True:
            check()
            messages = consumer.consume(RECORDS_MAX, POLL_S)
            if messages:
                moved = time.monotonic()
            elif time.monotonic() - moved >= SILENCE_S:
                raise LogUnavailable(f"{topic}: no record arrived for {SILENCE_S:.0f} s", "check that the broker is up")
            for message in messages:
                if _is_end(message):
                    return found
                _take(message, show, found)
    finally:
        consumer.close()


def _is_end(message: Message) -> bool:
    error = message.error()
    return error is not None and error.code() == KafkaError._PARTITION_EOF


def _take(message: Message, show: Callable[[bytes], V], found: dict[str, V]) -> None:
    if message.error() is not None:
        return  # the client retries; if that fails, the silence ends the wait
    key = bytes(message.key() or b"").decode(errors="replace")
    value = message.value()
    if value is None:
        found.pop(key, None)
    else:
        found[key] = show(bytes(value))
