"""Diagnosis of a broker that does not answer: wrong address, unknown name, rejected login or certificate.

A failed request only reports that no broker was found. The client library reports the cause through a separate error
callback. So the diagnosis makes one request with a new client and collects these errors.
"""

from __future__ import annotations

import os

from confluent_kafka import Consumer, KafkaError, KafkaException

from ringlog.log.errors import LoginRefused
from ringlog.runtime.kafka.config import READER_GROUP, VARIABLE, connection, current

ASK_S = 3.0
TELL_S = 0.2
_ASIDE = ("_ALL_BROKERS_DOWN", "_TIMED_OUT")
_SILENT = "no Kafka broker answers at this address"
_TEMPORARY = ("Local: ", "acquire SASL")
"""In failed logins that may succeed later: the connection broke during the login, or a token server is away."""
_NO_LOG_IN = (
    "no Kafka broker answers a client without login or TLS; "
    "if the broker requires them, pass --kafka-config FILE or set RINGLOG_KAFKA_CONFIG"
)


def connection_failure(bootstrap_servers: str) -> str:
    """Return the reason, in the library's words if it reports one; empty if the broker answers.

    Raises BadKafkaConfig.
    """
    return diagnose(bootstrap_servers)[0]


def reject_refused_login(bootstrap_servers: str, timeout_s: float = ASK_S) -> str:
    """Return why the broker gives no answer, as ``connection_failure``. Raises LoginRefused if it refuses the login."""
    why, is_refused = diagnose(bootstrap_servers, timeout_s)
    if is_refused:
        file = os.environ.get(VARIABLE)
        raise LoginRefused(why, f"check user name and password in {file}" if file else "pass --kafka-config FILE")
    return why


def diagnose(bootstrap_servers: str, timeout_s: float = ASK_S) -> tuple[str, bool]:
    """Return (why the broker gives no answer, whether it refuses the login). Raises BadKafkaConfig."""
    told: dict[str, str] = {}

    def tell(error: KafkaError) -> None:
        if error.name() not in _ASIDE:
            told[error.name()] = error.str()

    options = connection(bootstrap_servers) | {"group.id": READER_GROUP, "log_level": 0, "error_cb": tell}
    try:
        consumer = Consumer(options)
    except KafkaException as error:  # for example, an invalid TLS file
        return str(error.args[0].str()), False
    try:
        consumer.list_topics(timeout=timeout_s)
        return "", False
    except KafkaException:
        consumer.poll(TELL_S)
    finally:
        consumer.close()
    # Prefer a rejection: a broken connection is often only its consequence.
    first = next((told[name] for name in ("_AUTHENTICATION", "_SSL", "_RESOLVE") if name in told), "")
    security = current().security
    # A broker with a login closes the connection of a client without one, and the library reports nothing.
    silent = _SILENT if security.logs_in or security.encrypted else _NO_LOG_IN
    refusal = told.get("_AUTHENTICATION", "")
    is_refused = bool(refusal) and not any(sign in refusal for sign in _TEMPORARY)
    return first or next(iter(told.values()), silent), is_refused
