"""How a process reaches its Kafka: the protocol, who it is, whom it trusts; for every client of the process alike.

The file that ``RINGLOG_KAFKA_CONFIG`` names is a ``client.properties`` as Kafka's own tools take it by
``--command-config``, in Java's spelling or librdkafka's. A variable for each option goes before its line:
``RINGLOG_KAFKA_SASL_PASSWORD``. Without any of them everything is plain text and nobody logs in.

    security.protocol=SASL_SSL
    sasl.mechanism=SCRAM-SHA-512
    sasl.username=ringlog
    sasl.password=…
    ssl.ca.location=ca.pem

Three libraries talk to the broker for Ringlog: librdkafka, aiokafka (under faust) and the Java client (in Spark). Each
spells these options in its own way, so only what can be said to all three is taken (``kafka_options``), and
``Security`` says it.
What a client does (acknowledgements, isolation, groups) is Ringlog's own: such an option is refused, not ignored.

Invariants: no client is made without ``connection``, ``spark_options`` or ``Security`` (a test of the sources looks for
others); a secret is in file, variable and clients, never in an error, a log, a ``repr`` or an argument of a process.
The file is read once by a process: who changes a password starts the process again.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from ringlog.runtime.kafka.options import PREFIX, KafkaConfig, read_kafka_config
from ringlog.runtime.kafka.security import Security

VARIABLE = "RINGLOG_KAFKA_CONFIG"
SILENCE_MS = 6_000
"""How long a broker may say nothing to a request, or to a new connection, before a client lets go of it and looks who
leads instead. Where a machine is cut off nobody says that it is gone; clients by themselves wait for a minute.
"""
QUIET: Mapping[str, int] = {"log_level": 2}
"""librdkafka prints each failed attempt to connect; what a client needs to know, its errors say."""
TIMEOUTS: Mapping[str, int] = {"socket.timeout.ms": SILENCE_MS, "socket.connection.setup.timeout.ms": SILENCE_MS}


def connection(bootstrap_servers: str, security: Security | None = None) -> dict[str, Any]:
    """What every client of confluent-kafka begins with. Raises BadKafkaConfig."""
    chosen = security if security is not None else current().security
    return {"bootstrap.servers": bootstrap_servers, **QUIET, **TIMEOUTS, **chosen.librdkafka()}


def spark_options(bootstrap_servers: str) -> dict[str, str]:
    """What every source and sink of Spark's Kafka connector begins with. Raises BadKafkaConfig."""
    found = {"bootstrap.servers": bootstrap_servers, **current().security.java()}
    return {f"kafka.{name}": value for name, value in found.items()}


def jvm_options() -> tuple[str, ...]:
    """What a JVM must be started with, for the clients in it to log in. Raises BadKafkaConfig."""
    oauth = current().security.oauth
    return () if oauth is None else oauth.jvm_options()


def current() -> KafkaConfig:
    """What this process's file and variables say, what is true without them else. Raises BadKafkaConfig."""
    path = os.environ.get(VARIABLE)
    return _read_once(str(Path(path).absolute()) if path else "", _variables())


def brokers_of_file() -> str:
    """The brokers that the file in use names; what variables say may still want a file, which goes with the broker.

    Raises BadKafkaConfig.
    """
    return current().bootstrap if os.environ.get(VARIABLE) else ""


def use(path: Path) -> None:
    """Have this process, and those that it starts, use the file. Raises BadKafkaConfig."""
    absolute = str(path.absolute())
    _read_once(absolute, _variables())
    os.environ[VARIABLE] = absolute


def use_none() -> None:
    """Have this process, and those that it starts, log in nowhere."""
    for name in [name for name in os.environ if name.startswith(PREFIX)]:
        del os.environ[name]


def _variables() -> tuple[tuple[str, str], ...]:
    """One for each option; an empty one says nothing."""
    names = sorted(name for name in os.environ if name.startswith(PREFIX) and name != VARIABLE)
    return tuple((name, value) for name in names if (value := os.environ[name]))


@cache
def _read_once(path: str, variables: tuple[tuple[str, str], ...]) -> KafkaConfig:
    return read_kafka_config(Path(path) if path else None, variables)
