"""What a compacted topic holds now: the keys whose last record has a value, as compaction would leave them."""

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
"""A call waits so long for more records even where the end is there, and every change topic is read at a take-over."""


def held(
    bootstrap_servers: str, topic: str, show: Callable[[bytes], V], look: Callable[[], None] = lambda: None
) -> dict[str, V]:
    """Read the topic's only partition, committed records, from its beginning to its present end: key to what ``show``
    makes of its value.

    ``look`` is called before each wait and may raise. Raises LogUnavailable if nothing comes for ``SILENCE_S``.
    """
    consumer = Consumer(reader_config(bootstrap_servers, "read_committed") | {"auto.offset.reset": "earliest"})
    found: dict[str, V] = {}
    moved = time.monotonic()
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        while True:
            look()
            messages = consumer.consume(RECORDS_MAX, POLL_S)
            if messages:
                moved = time.monotonic()
            elif time.monotonic() - moved >= SILENCE_S:
                raise LogUnavailable(f"{topic}: nothing came for {SILENCE_S:.0f} s", "is the broker up?")
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
        return  # the client tries again; if nothing comes of it, the silence ends the wait
    key = bytes(message.key() or b"").decode(errors="replace")
    value = message.value()
    if value is None:
        found.pop(key, None)
    else:
        found[key] = show(bytes(value))
