"""The producer without a broker: what is sent gets an answer, whenever it is sent."""

from __future__ import annotations

import pytest

from ringlog.log.errors import LogUnavailable
from ringlog.log.producer import AckedProducer

NOBODY = "127.0.0.1:1"
DEADLINE_S = 20.0


def test_a_closed_producer_refuses_at_once() -> None:
    producer = AckedProducer(NOBODY, delivery_timeout_s=0.2)
    producer.close(0.1)
    with pytest.raises(LogUnavailable, match="closed"):
        producer.send("topic", b"late", partition=0)


def test_closing_answers_what_was_sent_before() -> None:
    producer = AckedProducer(NOBODY, delivery_timeout_s=30.0)
    future = producer.send("topic", b"early", partition=0)
    producer.close(0.1)
    with pytest.raises(LogUnavailable, match="not acknowledged"):
        future.result(DEADLINE_S)
