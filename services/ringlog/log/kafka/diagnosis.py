"""Diagnosis of a broker that does not answer: wrong address, unknown name, rejected login or certificate.

A failed request only reports that no broker was found. The client library reports the cause through a separate error
callback. So the diagnosis makes one request with a new client and collects these errors.
"""

from __future__ import annotations

from confluent_kafka import Consumer, KafkaError, KafkaException

from ringlog.runtime.kafka.config import connection, current

ASK_S = 3.0
TELL_S = 0.2
_ASIDE = ("_ALL_BROKERS_DOWN", "_TIMED_OUT")
_SILENT = "no Kafka broker answers at this address"
_NO_LOG_IN = (
    "no Kafka broker answers a client without login or TLS; "
    "if the broker requires them, pass --kafka-config FILE or set RINGLOG_KAFKA_CONFIG"
)


def why_no_answer(bootstrap_servers: str) -> str:
    """Return the reason, in the library's words if it reports one; empty if the broker answers.

    Raises BadKafkaConfig.
    """
    told: dict[str, str] = {}

    def tell(error: KafkaError) -> None:
        if error.name() not in _ASIDE:
            told[error.name()] = error.str()

    options = connection(bootstrap_servers) | {"group.id": "ringlog-diagnosis", "log_level": 0, "error_cb": tell}
    try:
        consumer = Consumer(options)
    except KafkaException as error:  # for example, an invalid TLS file
        return str(error.args[0].str())
    try:
        consumer.list_topics(timeout=ASK_S)
        return ""
    except KafkaException:
        consumer.poll(TELL_S)
    finally:
        consumer.close()
    # Prefer a rejection: a broken connection is often only its consequence.
    first = next((told[name] for name in ("_AUTHENTICATION", "_SSL", "_RESOLVE") if name in told), "")
    security = current().security
    # A broker with a login closes the connection of a client without one, and the library reports nothing.
    silent = _SILENT if security.logs_in or security.encrypted else _NO_LOG_IN
    return first or next(iter(told.values()), silent)
