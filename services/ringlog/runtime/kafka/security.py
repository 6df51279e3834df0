"""The security settings of Kafka clients, translated for librdkafka, aiokafka and the Java client.

Invariant: secrets are in the value and in the clients, never in an error, a log or a ``repr``.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from ringlog.errors import RinglogError
from ringlog.kernel.values import HidingValue, replace
from ringlog.runtime.kafka.oauth import OAuth

T = TypeVar("T")

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
"""Mechanism to Java's login module with user name and password."""


class BadKafkaConfig(RinglogError):
    """The file is not valid. The message names file, line and rule, and no value of a secret."""

    code = "bad_kafka_config"


class Security(HidingValue):
    """Security settings of a connection. ``ca``, ``certificate`` and ``key`` are paths of PEM files; the last two may
    be equal.

    ``host_checked``: the broker's certificate must name the requested host. ``oauth`` replaces user name and password
    under OAUTHBEARER.
    """

    HIDDEN = ("password", "key_password")

    protocol: str = "PLAINTEXT"
    mechanism: str = ""
    username: str = ""
    password: str = ""
    ca: str = ""
    certificate: str = ""
    key: str = ""
    key_password: str = ""
    host_checked: bool = True
    oauth: OAuth | None = None

    @property
    def encrypted(self) -> bool:
        """True if the connection uses TLS."""
        return self.protocol.endswith("SSL")

    @property
    def logs_in(self) -> bool:
        """True if the client logs in."""
        return self.protocol.startswith("SASL")

    def as_user(self, protocol: str, mechanism: str, username: str, password: str) -> Security:
        """Return the same settings with another login. Raises BadKafkaConfig for a protocol without login."""
        if protocol not in PROTOCOLS or not protocol.startswith("SASL"):
            raise BadKafkaConfig(f"protocol {protocol!r} has no login: use SASL_SSL or SASL_PLAINTEXT")
        return replace(self, protocol=protocol, mechanism=mechanism, username=username, password=password, oauth=None)

    def librdkafka(self) -> dict[str, Any]:
        """Return the options for confluent-kafka. Raises BadKafkaConfig."""
        found: dict[str, Any] = {} if self.protocol == "PLAINTEXT" else {"security.protocol": self.protocol}
        if self.oauth is not None:
            found |= _supported(self.oauth.librdkafka)
        elif self.logs_in:
            login = {"sasl.mechanism": self.mechanism, "sasl.username": self.username, "sasl.password": self.password}
            found |= login
        if self.encrypted:
            named = {
                "ssl.ca.location": self.ca,
                "ssl.certificate.location": self.certificate,
                "ssl.key.location": self.key,
                "ssl.key.password": self.key_password,
            }
            found |= {name: value for name, value in named.items() if value}
            found["ssl.endpoint.identification.algorithm"] = "https" if self.host_checked else "none"
        return found

    def java(self) -> dict[str, str]:
        """Return the options for Java clients. Raises BadKafkaConfig if Java does not support them."""
        found: dict[str, str] = {} if self.protocol == "PLAINTEXT" else {"security.protocol": self.protocol}
        if self.oauth is not None:
            found |= _supported(partial(self.oauth.java, _quoted))
        elif self.logs_in:
            found |= {"sasl.mechanism": self.mechanism, "sasl.jaas.config": self._jaas()}
        if self.encrypted:
            if self.ca:
                found |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": self.ca}
            if self.certificate != self.key:
                raise BadKafkaConfig(
                    "the Java client, which Spark uses, reads certificate and key from one file: put both into one "
                    "PEM file and set ssl.keystore.location to it, with ssl.keystore.type=PEM"
                )
            if self.key:
                found |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": self.key}
            if self.key_password:
                found["ssl.key.password"] = self.key_password
            found["ssl.endpoint.identification.algorithm"] = "https" if self.host_checked else ""
        return found

    def ssl_context(self) -> ssl.SSLContext | None:
        """Return a context for clients with Python's TLS, such as aiokafka. None without TLS. Raises BadKafkaConfig."""
        if not self.encrypted:
            return None
        try:
            context = ssl.create_default_context(cafile=self.ca or None)
            context.check_hostname = self.host_checked
            if self.certificate:
                context.load_cert_chain(self.certificate, self.key or None, self.key_password or None)
        except (OSError, ValueError) as error:  # SSLError is an OSError
            files = ", ".join(filter(None, dict.fromkeys((self.ca, self.certificate, self.key))))
            raise BadKafkaConfig(f"{files}: not usable for TLS: {getattr(error, 'reason', None) or error}") from error
        return context

    def _jaas(self) -> str:
        name, password = _quoted(self.username), _quoted(self.password)
        return f'{MODULES[self.mechanism]} required username="{name}" password="{password}";'


def _quoted(text: str) -> str:
    """Escape a text for a quoted value in a JAAS configuration."""
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _supported(options: Callable[[], dict[str, T]]) -> dict[str, T]:
    try:
        return options()
    except ValueError as error:
        raise BadKafkaConfig(str(error)) from error


PLAIN = Security()
