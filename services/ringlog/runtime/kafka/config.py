"""The connection settings of all Kafka clients of a process: protocol, login and trusted certificates.

``RINGLOG_KAFKA_CONFIG`` names a ``client.properties`` file. Kafka's own tools accept the same file as
``--command-config``. Its options have Java's names or librdkafka's. A variable for an option overrides its line:
``RINGLOG_KAFKA_SASL_PASSWORD``. Without file and variables, clients use plain text and no login.

    security.protocol=SASL_SSL
    sasl.mechanism=SCRAM-SHA-512
    sasl.username=ringlog
    sasl.password=…
    ssl.ca.location=ca.pem

Ringlog connects with three libraries: librdkafka, aiokafka (in faust) and the Java client (in Spark). Each has its own
names for these options. So only options that all three support are accepted (``ringlog.runtime.kafka.options``), and
``Security`` translates them. Ringlog sets the behavior of its clients itself (acknowledgements, isolation, groups):
such an option is rejected, not ignored.

Invariants: every client is created with ``connection``, ``spark_options`` or ``Security``; a test of the sources checks
that. Secrets are in the file, in variables and in clients, never in an error, a log, a ``repr`` or a process argument.
A process reads the file once; restart it after a change of the password.
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
READER_GROUP = "ringlog-assigns-and-never-joins"
"""The consumer group that readers with assigned partitions name. The client library looks up its coordinator."""
SILENCE_MS = 6_000
"""Maximum time for a broker to answer a request or a new connection, in milliseconds.

After it, the client drops the connection and looks for the partition's leader. A machine that is cut off sends no
error, and the clients' own default is one minute.
"""
QUIET: Mapping[str, int] = {"log_level": 2}
"""librdkafka prints each failed connection attempt. Its errors contain the necessary information."""
TIMEOUTS: Mapping[str, int] = {"socket.timeout.ms": SILENCE_MS, "socket.connection.setup.timeout.ms": SILENCE_MS}


def connection(bootstrap_servers: str, security: Security | None = None) -> dict[str, Any]:
    """Return the first options of every confluent-kafka client. Raises BadKafkaConfig."""
    chosen = security if security is not None else current().security
    return {"bootstrap.servers": bootstrap_servers, **QUIET, **TIMEOUTS, **chosen.librdkafka()}


def spark_options(bootstrap_servers: str) -> dict[str, str]:
    """Return the first options of every source and sink of Spark's Kafka connector. Raises BadKafkaConfig."""
    found = {"bootstrap.servers": bootstrap_servers, **current().security.java()}
    return {f"kafka.{name}": value for name, value in found.items()}


def jvm_options() -> tuple[str, ...]:
    """Return the JVM options that its Kafka clients need for the login. Raises BadKafkaConfig."""
    oauth = current().security.oauth
    return () if oauth is None else oauth.jvm_options()


def current() -> KafkaConfig:
    """Return the configuration from this process's file and variables, or the default. Raises BadKafkaConfig."""
    path = os.environ.get(VARIABLE)
    return _read_once(str(Path(path).absolute()) if path else "", _variables())


def brokers_of_file() -> str:
    """Return the brokers named by the file in use; empty without a file.

    Variables without a file name no brokers. They may still need a file, which the broker's context then provides.
    Raises BadKafkaConfig.
    """
    return current().bootstrap if os.environ.get(VARIABLE) else ""


def use(path: Path) -> None:
    """Use the file in this process and its child processes. Raises BadKafkaConfig."""
    absolute = str(path.absolute())
    _read_once(absolute, _variables())
    os.environ[VARIABLE] = absolute


def use_none() -> None:
    """Remove the login from this process and its child processes."""
    for name in [name for name in os.environ if name.startswith(PREFIX)]:
        del os.environ[name]


def _variables() -> tuple[tuple[str, str], ...]:
    """Return the variables for options. An empty one counts as absent."""
    names = sorted(name for name in os.environ if name.startswith(PREFIX) and name != VARIABLE)
    return tuple((name, value) for name in names if (value := os.environ[name]))


@cache
def _read_once(path: str, variables: tuple[tuple[str, str], ...]) -> KafkaConfig:
    return read_kafka_config(Path(path) if path else None, variables)
