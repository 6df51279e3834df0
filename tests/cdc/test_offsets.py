"""The job and log readers replace a Kafka client that has wrong metadata and repeat the request with a new client.

The clients are stubs: a real client gets wrong metadata only if its broker is killed at the right moment.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from ringlog.log.errors import LogUnavailable
from ringlog.log.kafka import adapter as kafka
from ringlog.log.kafka.adapter import STALE_METADATA_ERRORS, KafkaLog
from ringlog_cdc.topics import source
from ringlog_cdc.topics.source import Offsets

MISBELIEVED = pytest.mark.parametrize("code", [*STALE_METADATA_ERRORS, KafkaError._TIMED_OUT])
TRIES = 3


class Clients:
    """A client factory; clients before the last answer with ``code``, and the last one too for its first ``TRIES``
    requests.
    """

    def __init__(self, code: int) -> None:
        self.code = code
        self.made = 0
        self.asked = 0

    def __call__(self, *_: object) -> Clients:
        self.made += 1
        return self

    def answer(self) -> None:
        self.asked += 1
        if (self.made == 1 and self.code in STALE_METADATA_ERRORS) or self.asked < TRIES:
            raise KafkaException(KafkaError(self.code))

    def get_watermark_offsets(self, *_: object, **_options: object) -> tuple[int, int]:
        self.answer()
        return 3, 7

    def topic_of_four_partitions(self, *_: object, **_options: object) -> Any:
        self.answer()
        return SimpleNamespace(topics={"t": SimpleNamespace(error=None, partitions=range(4))})

    def list_topics(self, *_: object, **_options: object) -> Any:
        raise KafkaException(KafkaError(KafkaError._TRANSPORT))

    def close(self) -> None:
        """Do nothing; there is nothing to close."""


def _made(code: int) -> int:
    """Return the number of clients until an answer."""
    return TRIES if code in STALE_METADATA_ERRORS else 1


@MISBELIEVED
def test_the_job_replaces_its_client(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    clients = Clients(code)
    monkeypatch.setattr(source, "Consumer", clients)
    monkeypatch.setattr(source, "LOOK_AGAIN_S", 0.0)
    monkeypatch.setattr(Clients, "list_topics", Clients.topic_of_four_partitions)
    assert Offsets("127.0.0.1:1").partitions("t") == 4
    assert (clients.asked, clients.made) == (TRIES, _made(code))


@MISBELIEVED
def test_a_log_replaces_its_client(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    clients = Clients(code)
    monkeypatch.setattr(kafka, "Consumer", clients)
    monkeypatch.setattr(kafka, "LOOK_AGAIN_S", 0.0)
    assert KafkaLog("127.0.0.1:1", "c").end_offset(60.0) == 7
    assert (clients.asked, clients.made) == (TRIES, _made(code))


def test_without_an_answer_the_client_error_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "Consumer", Clients(KafkaError._TIMED_OUT))
    with pytest.raises(LogUnavailable, match="cannot read the offsets of t"):
        Offsets("127.0.0.1:1", patience_s=0.0).partitions("t")
