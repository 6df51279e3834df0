"""The log-in at the stack's broker, which every user of this machine can connect to.

Clients log in as ``ringlog`` with SCRAM. The password lies in ``client.properties`` of the stack's private folder, in
the form that Kafka's own tools and ``RINGLOG_KAFKA_CONFIG`` take. SCRAM proves the password to both sides and sends it
to neither: another user's process that listens at the port while the broker is down learns nothing.

The broker connects to its controller, and to itself, with PLAIN and a password of that start alone, which is in
``server.properties``. ``up`` uses it to store the credential of ``ringlog``. PLAIN sends the password, so ``up`` first
checks that the broker's own process listens at the port. Otherwise another user's process could listen there while the
broker starts, read the password, and leave the port to the broker. Should the broker end before ``up`` has connected,
its password is worth nothing: the next start makes another one.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass, field
from pathlib import Path

from ringlog.files import write_private
from ringlog.stack.errors import StackError
from ringlog.stack.layout import StackLayout, StackSettings
from ringlog.stack.processes import HOST

CLIENTS, CONTROLLER = "CLIENTS", "CONTROLLER"
"""Names of the broker's listeners."""
PROTOCOL, SCRAM, PLAIN = "SASL_PLAINTEXT", "SCRAM-SHA-256", "PLAIN"
CLIENT_USER, BROKER_USER = "ringlog", "broker"
ITERATIONS = 4096
"""Kafka's least; a random password of 256 bits needs no more."""
_SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
_PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
_PASSWORD = re.compile(r' password="([0-9a-f]{64})"')
_PASSWORD_BYTES = 32
_CLIENT_FILE = """\
# The log-in at the broker of this stack: for ringlog --kafka-config, and for Kafka's tools (--command-config).
# To change the password, delete this file, run `ringlog stack up`, and restart what uses it.
security.protocol={protocol}
sasl.mechanism={mechanism}
sasl.jaas.config={module} required username="{user}" password="{password}";
"""


@dataclass(frozen=True, slots=True)
class LogIn:
    """The two passwords of a running broker."""

    client: str = field(repr=False)
    broker: str = field(repr=False)

    def as_client(self) -> dict[str, str]:
        """Options of librdkafka for what every client of the stack is."""
        return _options(SCRAM, CLIENT_USER, self.client)

    def as_broker(self) -> dict[str, str]:
        """Options of librdkafka for the user that stores the client's credential."""
        return _options(PLAIN, BROKER_USER, self.broker)


def listener_properties(settings: StackSettings) -> dict[str, str]:
    """Return the broker's settings for its listeners, with a new password for its own connections."""
    broker, controller = f"{HOST}:{settings.broker_port}", f"{HOST}:{settings.controller_port}"
    password = secrets.token_hex(_PASSWORD_BYTES)
    known = f'username="{BROKER_USER}" password="{password}" user_{BROKER_USER}="{password}"'
    plain = f"{_PLAIN_MODULE} required {known};"
    return {
        "listeners": f"{CLIENTS}://{broker},{CONTROLLER}://{controller}",
        "advertised.listeners": f"{CLIENTS}://{broker}",
        "listener.security.protocol.map": f"{CLIENTS}:{PROTOCOL},{CONTROLLER}:{PROTOCOL}",
        "inter.broker.listener.name": CLIENTS,
        "controller.listener.names": CONTROLLER,
        "sasl.mechanism.inter.broker.protocol": PLAIN,
        "sasl.mechanism.controller.protocol": PLAIN,
        "listener.name.clients.sasl.enabled.mechanisms": f"{SCRAM},{PLAIN}",
        "listener.name.clients.scram-sha-256.sasl.jaas.config": f"{_SCRAM_MODULE} required;",
        "listener.name.clients.plain.sasl.jaas.config": plain,
        "listener.name.controller.sasl.enabled.mechanisms": PLAIN,
        "listener.name.controller.plain.sasl.jaas.config": plain,
    }


def has_log_in(layout: StackLayout, settings: StackSettings) -> bool:
    """Return whether the broker, as it was last started, has the log-in of this module at its port.

    It has none if it was started by a release without log-in, or if the user's own settings say so.
    """
    try:
        lines = layout.server_properties.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return False
    found = dict(line.split("=", 1) for line in lines if "=" in line)
    listener = f"{CLIENTS}://{HOST}:{settings.broker_port}"
    return listener in found.get("listeners", "").split(",") and f"{CLIENTS}:{PROTOCOL}" in found.get(
        "listener.security.protocol.map", ""
    ).split(",")


def make_client_file(layout: StackLayout) -> None:
    """Write the clients' log-in with a new password, unless there is one."""
    if not layout.client_properties.exists():
        password = secrets.token_hex(_PASSWORD_BYTES)
        options = {"protocol": PROTOCOL, "mechanism": SCRAM, "module": _SCRAM_MODULE, "user": CLIENT_USER}
        write_private(layout.client_properties, _CLIENT_FILE.format(**options, password=password))


def read_log_in(layout: StackLayout) -> LogIn:
    """Return the passwords of a broker that has a log-in. Raises StackError ``bad_settings``."""
    return LogIn(client=_password_in(layout.client_properties), broker=_password_in(layout.server_properties))


def _password_in(path: Path) -> str:
    try:
        found = _PASSWORD.search(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        found = None
    if found is None:
        again = "Delete it, then run: ringlog stack down, and: ringlog stack up"
        raise StackError("bad_settings", f"{path} does not hold the password of the stack.", again)
    return found[1]


def _options(mechanism: str, user: str, password: str) -> dict[str, str]:
    return {
        "security.protocol": PROTOCOL,
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": password,
    }
