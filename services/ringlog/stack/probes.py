"""Readiness checks of the broker, and of a server with TLS.

A killed broker opens its port long before its controller lets it lead a partition. Clients that rely on the port run
into time-outs. So the broker is ready only after it has acknowledged a record of a small probe topic with ``acks=all``.
If the broker requires authentication, the client's credential is stored first, and the record is sent with it.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
import sys
import time
from collections.abc import Callable
from urllib.request import urlopen

from ringlog.stack.log_in import CLIENT_USER, ITERATIONS, LogIn

PROBE_TOPIC = "ringlog-stack-probe"
_PROBE_CONFIG = {"retention.ms": "60000", "segment.ms": "60000"}
_STEP_S = 0.1
_CHECK_S = 8.0

_quiet = logging.Logger("ringlog.stack.probe", level=logging.CRITICAL)


def takes_connections(host: str, port: int) -> bool:
    """Return whether a process listens at this address."""
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=1.0):
        return True
    return False


def takes_records(bootstrap_servers: str, give_up: Callable[[], bool], log_in: LogIn | None = None) -> bool:
    """Wait until the broker acknowledges a record. Return False when ``give_up()`` is true.

    ``give_up`` is called about ten times a second. It is called less often while a request to the broker is pending.
    """
    from confluent_kafka import KafkaException, Producer
    from confluent_kafka.admin import (
        AdminClient,
        NewTopic,
        ScramCredentialInfo,
        ScramMechanism,
        UserScramCredentialUpsertion,
    )

    common: dict[str, str | int | float | bool] = {
        "bootstrap.servers": bootstrap_servers,
        "reconnect.backoff.max.ms": 100,
    }
    admin = AdminClient({**common, **({} if log_in is None else log_in.as_broker())}, logger=_quiet)
    while not give_up():
        try:
            if log_in is not None:
                how = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, ITERATIONS)
                wanted = UserScramCredentialUpsertion(CLIENT_USER, how, log_in.client.encode())
                admin.alter_user_scram_credentials([wanted], request_timeout=5.0)[CLIENT_USER].result()
            topics = admin.list_topics(timeout=2.0).topics
            if PROBE_TOPIC in topics:
                break
            created = admin.create_topics([NewTopic(PROBE_TOPIC, 1, 1, config=_PROBE_CONFIG)], request_timeout=5.0)
            created[PROBE_TOPIC].result()
        except KafkaException:
            # The broker is not reachable, or no broker may lead yet. ``give_up`` bounds the retries.
            continue

    taken: list[bool] = []
    options = {"acks": "all", "topic.metadata.refresh.fast.interval.ms": 100}
    own = {} if log_in is None else log_in.as_client()
    producer = Producer({**common, **options, **own}, logger=_quiet)
    while not give_up():
        producer.produce(PROBE_TOPIC, b"", on_delivery=lambda error, _message: taken.append(error is None))
        while not taken and not give_up():
            producer.poll(_STEP_S)
        if taken and taken.pop():
            return True
    producer.purge()
    return False


def answers(url: str) -> bool:
    """Return whether a GET of the URL succeeds. The certificate is not checked: a supervisor sends no secret."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with contextlib.suppress(OSError), urlopen(url, timeout=_CHECK_S, context=context):
        return True
    return False


def main() -> int:
    """Return 0 if the server at the URL in the first argument answers, or the broker at that address acknowledges a
    record, within eight seconds.
    """
    if sys.argv[1].startswith("https://"):
        return 0 if answers(sys.argv[1]) else 1
    end = time.monotonic() + _CHECK_S
    return 0 if takes_records(sys.argv[1], lambda: time.monotonic() > end) else 1


if __name__ == "__main__":
    sys.exit(main())
