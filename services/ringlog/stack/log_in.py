"""Authentication at the stack's broker, whose port every user of this machine can reach.

Clients log in as ``ringlog`` with SCRAM. The password is in ``client.properties`` of the stack's private folder, in the
format of Kafka's tools and ``RINGLOG_KAFKA_CONFIG``. With SCRAM, client and server prove that they know the password
without sending it. So a process of another user that listens at the port while the broker is down learns nothing.

The broker connects to its controller, and to itself, with PLAIN. Each start generates a new password for that and
stores it in ``server.properties``. ``up`` uses it to store the credential of ``ringlog``.

Invariant: ``up`` sends the PLAIN password only after it has verified that the broker's own process listens at the port.
Otherwise a process of another user could listen there while the broker starts, read the password, and release the port.
If the broker ends before ``up`` has connected, its password is already useless, because the next start generates
another one.
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
"""Kafka's minimum. A random password of 256 bits needs no more."""
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
        """Return librdkafka options for clients of the stack."""
        return _options(SCRAM, CLIENT_USER, self.client)

    def as_broker(self) -> dict[str, str]:
        """Return librdkafka options for the user that stores the client's credential."""
        return _options(PLAIN, BROKER_USER, self.broker)


def listener_properties(settings: StackSettings) -> dict[str, str]:
    """Return the broker's listener settings, with a new password for its own connections."""
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
    """Return whether the broker was last started with the authentication of this module.

    It was not if a release without authentication started it, or if the user's own settings override the listeners.
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
    """Write the login file of clients with a new password, unless it exists."""
    if not layout.client_properties.exists():
        password = secrets.token_hex(_PASSWORD_BYTES)
        options = {"protocol": PROTOCOL, "mechanism": SCRAM, "module": _SCRAM_MODULE, "user": CLIENT_USER}
        write_private(layout.client_properties, _CLIENT_FILE.format(**options, password=password))


def read_log_in(layout: StackLayout) -> LogIn:
    """Return the passwords of a broker with authentication. Raises StackError ``bad_settings``."""
    return LogIn(client=_password_in(layout.client_properties), broker=_password_in(layout.server_properties))


def _password_in(path: Path) -> str:
    try:
        found = _PASSWORD.search(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        found = None
    if found is None:
        again = "Delete it, then run: ringlog stack down, and: ringlog stack up"
        raise StackError("bad_settings", f"{path} does not contain the password of the stack.", again)
    return found[1]


def _options(mechanism: str, user: str, password: str) -> dict[str, str]:
    return {
        "security.protocol": PROTOCOL,
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": password,
    }
