"""How a process reaches its Kafka: the protocol, who it is, whom it trusts; for every client of the process alike.

The file that ``RINGLOG_KAFKA_CONFIG`` names is a ``client.properties`` as Kafka's own tools take it by
``--command-config``, in Java's spelling or librdkafka's. Without it everything is plain text and nobody logs in.

    security.protocol=SASL_SSL
    sasl.mechanism=SCRAM-SHA-512
    sasl.username=ringlog
    sasl.password=…
    ssl.ca.location=ca.pem

Three libraries talk to the broker for Ringlog: librdkafka, aiokafka (under faust) and the Java client (in Spark). Each
spells these options in its own way, so the file holds only what can be said to all three, and ``Security`` says it.
What a client does (acknowledgements, isolation, groups) is Ringlog's own: such an option is refused, not ignored.

Invariants: no client is made without ``connection``, ``spark_options`` or ``Security`` (a test of the sources looks for
others); a secret is in the file and in the clients, never in an error, a log, a ``repr`` or an argument of a process.
The file is read once by a process: who changes a password starts the process again.
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from ringlog.runtime.properties import BadPropertyLine, Property, read_properties

VARIABLE = "RINGLOG_KAFKA_CONFIG"
SILENCE_MS = 6_000
"""How long a broker may say nothing to a request, or to a new connection, before a client lets go of it and looks who
leads instead. Where a machine is cut off nobody says that it is gone; clients by themselves wait for a minute.
"""
PATIENCE: Mapping[str, int] = {"socket.timeout.ms": SILENCE_MS, "socket.connection.setup.timeout.ms": SILENCE_MS}
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
"""Mechanism to Java's module that logs in with a name and a password."""


class BadKafkaConfig(Exception):
    """The file cannot be used. The message names file, line and rule, and no value of a secret."""

    code = "bad_kafka_config"


@dataclass(frozen=True, slots=True)
class Security:
    """What the file says. ``ca``, ``certificate``, ``key``: paths of PEM files; the last two may be the same.

    ``host_checked``: the broker's certificate must name the host that was asked for.
    """

    protocol: str = "PLAINTEXT"
    mechanism: str = ""
    username: str = ""
    password: str = field(default="", repr=False)
    ca: str = ""
    certificate: str = ""
    key: str = ""
    key_password: str = field(default="", repr=False)
    host_checked: bool = True

    @property
    def encrypted(self) -> bool:
        """Is it TLS?"""
        return self.protocol.endswith("SSL")

    @property
    def logs_in(self) -> bool:
        """Does the client log in with a name and a password?"""
        return self.protocol.startswith("SASL")

    def as_user(self, protocol: str, mechanism: str, username: str, password: str) -> Security:
        """The same trust, under another name; raises BadKafkaConfig for a protocol that knows no names."""
        if protocol not in PROTOCOLS or not protocol.startswith("SASL"):
            raise BadKafkaConfig(f"protocol {protocol!r} has no log-in: SASL_SSL or SASL_PLAINTEXT")
        return replace(self, protocol=protocol, mechanism=mechanism, username=username, password=password)

    def librdkafka(self) -> dict[str, Any]:
        """For confluent-kafka."""
        found: dict[str, Any] = {} if self.protocol == "PLAINTEXT" else {"security.protocol": self.protocol}
        if self.logs_in:
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
        """For Java's clients. Raises BadKafkaConfig where Java cannot say it."""
        found: dict[str, str] = {} if self.protocol == "PLAINTEXT" else {"security.protocol": self.protocol}
        if self.logs_in:
            found |= {"sasl.mechanism": self.mechanism, "sasl.jaas.config": self._jaas()}
        if self.encrypted:
            if self.ca:
                found |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": self.ca}
            if self.certificate != self.key:
                raise BadKafkaConfig(
                    "Java's client, which Spark has, takes certificate and key from one file: put both into one PEM "
                    "file and name it by ssl.keystore.location, with ssl.keystore.type=PEM"
                )
            if self.key:
                found |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": self.key}
            if self.key_password:
                found["ssl.key.password"] = self.key_password
            found["ssl.endpoint.identification.algorithm"] = "https" if self.host_checked else ""
        return found

    def ssl_context(self) -> ssl.SSLContext | None:
        """For clients on Python's own TLS, aiokafka among them; None without TLS. Raises BadKafkaConfig."""
        if not self.encrypted:
            return None
        try:
            context = ssl.create_default_context(cafile=self.ca or None)
            context.check_hostname = self.host_checked
            if self.certificate:
                context.load_cert_chain(self.certificate, self.key or None, self.key_password or None)
        except (OSError, ValueError) as error:  # SSLError is an OSError
            files = ", ".join(filter(None, dict.fromkeys((self.ca, self.certificate, self.key))))
            raise BadKafkaConfig(f"{files}: not what TLS takes: {getattr(error, 'reason', None) or error}") from error
        return context

    def _jaas(self) -> str:
        name, password = (text.replace("\\", "\\\\").replace('"', '\\"') for text in (self.username, self.password))
        return f'{MODULES[self.mechanism]} required username="{name}" password="{password}";'


PLAIN = Security()


@dataclass(frozen=True, slots=True)
class KafkaConfig:
    """A file's content; ``bootstrap``: the brokers that it names, may be empty."""

    security: Security = PLAIN
    bootstrap: str = ""


def connection(bootstrap_servers: str, security: Security | None = None) -> dict[str, Any]:
    """What every client of confluent-kafka begins with. Raises BadKafkaConfig."""
    chosen = security if security is not None else current().security
    return {"bootstrap.servers": bootstrap_servers, **PATIENCE, **chosen.librdkafka()}


def spark_options(bootstrap_servers: str) -> dict[str, str]:
    """What every source and sink of Spark's Kafka connector begins with. Raises BadKafkaConfig."""
    found = {"bootstrap.servers": bootstrap_servers, **current().security.java()}
    return {f"kafka.{name}": value for name, value in found.items()}


def current() -> KafkaConfig:
    """What this process's file says, what is true without one else. Raises BadKafkaConfig."""
    path = os.environ.get(VARIABLE)
    return _read_once(str(Path(path).absolute())) if path else KafkaConfig()


def use(path: Path) -> None:
    """Have this process, and those that it starts, use the file. Raises BadKafkaConfig."""
    absolute = str(path.absolute())
    _read_once(absolute)
    os.environ[VARIABLE] = absolute


@cache
def _read_once(path: str) -> KafkaConfig:
    return read_kafka_config(Path(path))


def read_kafka_config(path: Path) -> KafkaConfig:
    """The file, checked as far as it can be without a broker. Raises BadKafkaConfig."""
    try:
        lines = read_properties(path.read_text(encoding="utf-8"))
    except BadPropertyLine as bad:
        raise BadKafkaConfig(f"{path}, line {bad.number}: {bad.rule}") from bad
    except UnicodeDecodeError as error:
        raise BadKafkaConfig(f"{path}: not text in UTF-8") from error
    except OSError as error:
        raise BadKafkaConfig(f"{path} cannot be read: {error.strerror or error}") from error
    reader = _Reader(path, {line.name: line for line in lines})
    return reader.config()


class _Reader:
    """Turns lines into a config; every refusal names its line."""

    def __init__(self, path: Path, lines: Mapping[str, Property]) -> None:
        self._path = path
        self._lines = lines

    def config(self) -> KafkaConfig:
        for line in self._lines.values():
            if line.name not in _KNOWN:
                self._refuse(line.name, _why_not(line.name))
        self._only("client.dns.lookup", "use_all_dns_ips")
        return KafkaConfig(self._security(), self._text("bootstrap.servers"))

    def _security(self) -> Security:
        protocol = self._text("security.protocol").upper() or "PLAINTEXT"
        if protocol not in PROTOCOLS:
            self._refuse("security.protocol", f"one of {', '.join(PROTOCOLS)}")
        found = Security(protocol=protocol)
        for family, wanted in (("sasl.", found.logs_in), ("ssl.", found.encrypted)):
            for name in self._lines:
                if name.startswith(family) and not wanted:
                    self._refuse(name, f"it says nothing under security.protocol {protocol}")
        if found.logs_in:
            found = self._login(found)
        return self._trust(found) if found.encrypted else found

    def _login(self, found: Security) -> Security:
        names = ("sasl.mechanism", "sasl.mechanisms")
        mechanism = (self._text(names[0]) or self._text(names[1])).upper()
        if mechanism not in MODULES:
            said = next((name for name in names if name in self._lines), "security.protocol")
            self._refuse(said, f"sasl.mechanism is one of {', '.join(MODULES)}")
        if "sasl.jaas.config" in self._lines:
            if "sasl.username" in self._lines or "sasl.password" in self._lines:
                self._refuse("sasl.jaas.config", "it has the name and the password, so no other line may")
            username, password = self._jaas(mechanism)
        else:
            username, password = self._text("sasl.username"), self._text("sasl.password")
        if not username or not password:
            self._refuse("security.protocol", "sasl.username and sasl.password (or sasl.jaas.config) must be given")
        return replace(found, mechanism=mechanism, username=username, password=password)

    def _jaas(self, mechanism: str) -> tuple[str, str]:
        matched = _JAAS.fullmatch(self._text("sasl.jaas.config"))
        options = {} if matched is None else _jaas_options(matched["options"])
        if matched is None or options is None or options.keys() != {"username", "password"}:
            self._refuse("sasl.jaas.config", 'MODULE required username="…" password="…"; and nothing else')
        if matched["module"] != MODULES[mechanism]:
            self._refuse("sasl.jaas.config", f"the module of {mechanism} is {MODULES[mechanism]}")
        return options["username"], options["password"]

    def _trust(self, found: Security) -> Security:
        ca = self._pem("ssl.ca.location") or self._store("ssl.truststore")
        store = self._store("ssl.keystore")
        certificate = self._pem("ssl.certificate.location") or store
        key = self._pem("ssl.key.location") or store
        if bool(certificate) != bool(key):
            given = "ssl.certificate.location" if certificate else "ssl.key.location"
            self._refuse(given, "certificate and key belong together")
        checked = self._text("ssl.endpoint.identification.algorithm", "https").lower()
        if checked not in ("https", "none", ""):
            self._refuse("ssl.endpoint.identification.algorithm", "https, or none")
        return replace(
            found,
            ca=ca,
            certificate=certificate,
            key=key,
            key_password=self._text("ssl.key.password"),
            host_checked=checked == "https",
        )

    def _store(self, kind: str) -> str:
        location, type_ = f"{kind}.location", f"{kind}.type"
        if (location in self._lines or type_ in self._lines) and self._text(type_).upper() != "PEM":
            said = location if location in self._lines else type_
            self._refuse(said, f"only PEM files are read here: convert it, and give {type_}=PEM")
        return self._pem(location)

    def _pem(self, name: str) -> str:
        """The path of a file that can be read; relative ones begin at the folder of the config."""
        given = self._text(name)
        if not given:
            return ""
        path = self._path.absolute().parent / given
        try:
            readable = path.is_file() and os.access(path, os.R_OK)
        except OSError:  # a name that is too long
            readable = False
        if not readable:
            self._refuse(name, f"{path} is no file that can be read")
        return str(path)

    def _only(self, name: str, value: str) -> None:
        if self._text(name, value) != value:
            self._refuse(name, f"only {value}")

    def _text(self, name: str, default: str = "") -> str:
        line = self._lines.get(name)
        return default if line is None else line.value

    def _refuse(self, name: str, rule: str) -> NoReturn:
        line = self._lines.get(name)
        place = f"{self._path}, line {line.number}: " if line is not None else f"{self._path}: "
        raise BadKafkaConfig(f"{place}{name}: {rule}")


_KNOWN = frozenset(
    {
        "bootstrap.servers",
        "client.dns.lookup",
        "sasl.jaas.config",
        "sasl.mechanism",
        "sasl.mechanisms",
        "sasl.password",
        "sasl.username",
        "security.protocol",
        "ssl.ca.location",
        "ssl.certificate.location",
        "ssl.endpoint.identification.algorithm",
        "ssl.key.location",
        "ssl.key.password",
        "ssl.keystore.location",
        "ssl.keystore.type",
        "ssl.truststore.location",
        "ssl.truststore.type",
    }
)
_JAAS = re.compile(r"\s*(?P<module>[\w.$]+)\s+required(?P<options>(?:\s.*)?);\s*", re.DOTALL)
_QUOTED = r"""(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([\w.@+-]+))"""
_JAAS_OPTION = re.compile(rf"\s*(\w+)\s*=\s*{_QUOTED}(?=\s|$)", re.DOTALL)


def _jaas_options(text: str) -> dict[str, str] | None:
    """Options of a login module; None for what is none, or given twice."""
    found: dict[str, str] = {}
    at = 0
    while text[at:].strip():
        matched = _JAAS_OPTION.match(text, at)
        if matched is None or matched[1] in found:
            return None
        value = next(group for group in matched.groups()[1:] if group is not None)
        found[matched[1]] = re.sub(r"\\(.)", r"\1", value, flags=re.DOTALL)
        at = matched.end()
    return found


def _why_not(name: str) -> str:
    """Why an option is refused."""
    for begins, why in _REFUSED.items():
        if name.startswith(begins):
            return why
    return "no option of the connection; what clients do, Ringlog sets itself: take the line out"


_REFUSED: Mapping[str, str] = {
    "sasl.": f"the log-in is by name and password: {', '.join(MODULES)}",
    "ssl.truststore.": "trust is given as a PEM file: ssl.ca.location, or ssl.truststore.type=PEM",
    "ssl.keystore.": "the client's certificate and key are given as a PEM file: ssl.keystore.type=PEM",
    "ssl.": "not an option that all three of Ringlog's Kafka clients have",
    "enable.ssl.certificate.verification": "certificates are always verified: give ssl.ca.location",
}
