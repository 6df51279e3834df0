"""A broker with mandatory authentication, and a Ringlog user with exactly the required ACLs.

Its listeners are USERS (SASL_PLAINTEXT with SCRAM-SHA-512), TLS (SASL_SSL with PLAIN and the broker's own certificate)
and TOKENS (SASL_PLAINTEXT with OAUTHBEARER; Kafka's own validator accepts unsigned tokens). The broker uses a separate
listener for itself. The stack's plain listener also exists, but its clients are anonymous and may write only to the
stack's probe topic.
"""

from __future__ import annotations

import secrets
import subprocess
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from tests.ending import taking_down

from ringlog.kernel.values import Value
from ringlog.log.kafka.acls import BrokerUser
from ringlog.runtime.kafka.config import connection
from ringlog.runtime.kafka.options import read_kafka_config
from ringlog.runtime.kafka.security import Security
from ringlog.stack import Stack, StackInfo
from ringlog.stack.artifacts import jars
from ringlog.stack.broker import new_cluster_id
from ringlog.stack.java import BROKER, archive_options, find_java
from ringlog.stack.layout import StackLayout, StackSettings, write_settings
from ringlog.stack.probes import PROBE_TOPIC
from ringlog.stack.processes import HOST, choose

PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
UNSIGNED = (
    "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required "
    'unsecuredLoginStringClaim_sub="broker";'
)
"""The broker's own login, which it never uses; with it Kafka accepts unsigned tokens."""
STORE_PASSWORD = "of-the-store"
WAIT_S = 60.0
OWN = ("kafka", "ringlog")
"""Users that may also log in by PLAIN: the super user, and a user with all permissions of Ringlog."""
RIGHTS = (
    (ResourceType.TOPIC, ""),
    (ResourceType.GROUP, ""),
    (ResourceType.GROUP, "ringlog"),
    (ResourceType.GROUP, "spark-kafka"),
    (ResourceType.TRANSACTIONAL_ID, ""),
)
"""Kind and prefix of the resources for Ringlog's user; an empty prefix means the prefix of the clusters."""


PREFIX = "co."
"""The prefix of the names of clusters that the users may use."""


class Guarded(Value):
    """The broker. ``login`` and ``tls_login``: option files for its two listeners; ``secrets``: texts that no output
    may contain.

    ``admin``: options of the super user, over TLS; ``logins``: options of the users per kind, by SCRAM. ``log``: the
    broker's log.
    """

    stack: StackInfo
    users: str
    tls: str
    tokens: str
    login: Path
    tls_login: Path
    secrets: tuple[str, ...]
    admin: Path
    logins: dict[BrokerUser, Path]
    log: Path

    def super_client(self) -> AdminClient:
        """Return a client of the super user."""
        return AdminClient(connection(self.tls, read_kafka_config(self.admin).security))

    def login_of(self, kind: BrokerUser) -> dict[str, str]:
        """Return the options of a client of a kind."""
        return connection(self.users, read_kafka_config(self.logins[kind]).security)

    def run_tool(self, program: str, *words: str) -> str:
        """Run a tool of Kafka as the super user, and return its output."""
        properties = self.admin.with_name("tool.properties")
        options = read_kafka_config(self.admin).security.java()
        properties.write_text("".join(f"{name}={value}\n" for name, value in options.items()))
        ended = kafka_tool(program, "--bootstrap-server", self.tls, "--command-config", str(properties), *words)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout


def kafka_tool(program: str, *words: str, options: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    """Run a tool of Kafka with the broker's archive of classes. ``options``: further options of Java."""
    java = find_java()
    assert java is not None
    command = [java.path, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", *archive_options(BROKER), *options]
    command += ["-cp", ":".join(map(str, jars("kafka"))), program, *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


@contextmanager
def guarded_kafka(folder: Path) -> Iterator[Guarded]:
    """Return the broker, with permissions for clusters with the name prefix ``PREFIX``."""
    plain, controller, inner, users, tls, tokens = choose(6)
    data, names = folder / "data", (*OWN, *(kind.value for kind in BrokerUser))
    words = {name: secrets.token_urlsafe(12) for name in names}
    layout = StackLayout(data)
    data.mkdir()
    keystore, certificate = _certificate(folder)
    write_settings(layout, StackSettings(new_cluster_id(), plain, controller, profile="quick", request=0))
    ports = {"PLAINTEXT": plain, "CONTROLLER": controller, "INNER": inner, "USERS": users, "TLS": tls, "TOKENS": tokens}
    lines = _broker_lines(ports, words, keystore)
    layout.own_properties.write_text("".join(f"{name}={value}\n" for name, value in lines.items()), encoding="utf-8")
    login, tls_login = folder / "client.properties", folder / "tls.properties"
    _write_login(login, "ringlog", words)
    logins = {kind: folder / f"user-{kind.value}.properties" for kind in BrokerUser}
    for kind, path in logins.items():
        _write_login(path, kind.value, words)
    admin = folder / "admin.properties"
    for path, name in ((tls_login, "ringlog"), (admin, "kafka")):
        path.write_text(
            f"bootstrap.servers={HOST}:{tls}\nsecurity.protocol=SASL_SSL\nsasl.mechanism=PLAIN\nsasl.username={name}\n"
            f"sasl.password={words[name]}\nssl.ca.location={certificate.name}\n",
            encoding="utf-8",
        )
        path.chmod(0o600)
    with taking_down(Stack(data)) as own:
        # The stack waits for its probe record, which needs a permission that is granted during the start.
        with ThreadPoolExecutor(1) as pool:
            starting = pool.submit(own.up)
            _give_rights(f"{HOST}:{inner}", words)
            info = starting.result()
        addresses = f"{HOST}:{users}", f"{HOST}:{tls}", f"{HOST}:{tokens}"
        yield Guarded(info, *addresses, login, tls_login, tuple(words.values()), admin, logins, layout.log("broker"))


def allow(guarded: Guarded, user: str, prefix: str, operation: AclOperation) -> None:
    """Permit an operation on all topics with a prefix."""
    rule = _binding(ResourceType.TOPIC, prefix, f"User:{user}", operation)
    client = guarded.super_client()
    for future in client.create_acls([rule]).values():
        future.result(WAIT_S)


def _write_login(path: Path, user: str, words: dict[str, str]) -> None:
    jaas = f'{SCRAM_MODULE} required username="{user}" password="{words[user]}";'
    lines = f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-512\nsasl.jaas.config=\\\n  {jaas}\n"
    path.write_text(lines, encoding="utf-8")
    path.chmod(0o600)


def _broker_lines(ports: dict[str, int], words: dict[str, str], keystore: Path) -> dict[str, str]:
    kinds = {"PLAINTEXT": "PLAINTEXT", "TLS": "SASL_SSL"}
    known = " ".join(f'user_{name}="{password}"' for name, password in words.items() if name in OWN)
    plain = f'{PLAIN_MODULE} required username="kafka" password="{words["kafka"]}" {known};'
    own = {
        f"listener.name.{name}.{option}": value
        for name in ("controller", "inner", "tls")
        for option, value in (("sasl.enabled.mechanisms", "PLAIN"), ("plain.sasl.jaas.config", plain))
    }
    return own | {
        "listeners": ",".join(f"{name}://{HOST}:{port}" for name, port in ports.items()),
        "advertised.listeners": ",".join(f"{n}://{HOST}:{port}" for n, port in ports.items() if n != "CONTROLLER"),
        "listener.security.protocol.map": ",".join(f"{n}:{kinds.get(n, 'SASL_PLAINTEXT')}" for n in ports),
        "inter.broker.listener.name": "INNER",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "sasl.mechanism.controller.protocol": "PLAIN",
        "listener.name.users.sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "listener.name.users.scram-sha-512.sasl.jaas.config": f"{SCRAM_MODULE} required;",
        "listener.name.tokens.sasl.enabled.mechanisms": "OAUTHBEARER",
        "listener.name.tokens.oauthbearer.sasl.jaas.config": UNSIGNED,
        "listener.name.tls.ssl.keystore.type": "PKCS12",
        "listener.name.tls.ssl.keystore.location": str(keystore),
        "listener.name.tls.ssl.keystore.password": STORE_PASSWORD,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:kafka",
    }


def _certificate(folder: Path) -> tuple[Path, Path]:
    """Create a keystore for the broker; return its certificate for the clients."""
    java = find_java()
    assert java is not None
    keytool, store = str(Path(java.path).with_name("keytool")), folder / "broker.p12"
    place = ["-alias", "broker", "-keystore", str(store), "-storetype", "PKCS12", "-storepass", STORE_PASSWORD]
    whom = ["-keyalg", "RSA", "-validity", "2", "-dname", "CN=broker", "-ext", f"san=ip:{HOST}"]
    subprocess.run([keytool, "-genkeypair", *place, *whom], check=True, capture_output=True)
    told = subprocess.run([keytool, "-exportcert", "-rfc", *place], check=True, capture_output=True)
    certificate = folder / "broker.pem"
    certificate.write_bytes(told.stdout)
    return store, certificate


def _give_rights(inner: str, words: dict[str, str]) -> None:
    """Create Ringlog's user, its permissions and the permission of the probe, as the broker's own user. Wait for the
    broker.
    """
    admin = AdminClient(connection(inner, Security().as_user("SASL_PLAINTEXT", "PLAIN", "kafka", words["kafka"])))
    ours = [_binding(kind, begins or PREFIX, "User:ringlog", AclOperation.ALL) for kind, begins in RIGHTS]
    ours.append(_binding(ResourceType.BROKER, "kafka-cluster", "User:ringlog", AclOperation.DESCRIBE, exact=True))
    probe = _binding(ResourceType.TOPIC, PROBE_TOPIC, "User:ANONYMOUS", AclOperation.ALL, exact=True)
    kind = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4_096)
    users = [UserScramCredentialUpsertion(name, kind, word.encode()) for name, word in words.items() if name != "kafka"]
    tick = threading.Event()
    for _ in range(int(WAIT_S)):
        try:
            for future in admin.create_acls([*ours, probe], request_timeout=2).values():
                future.result()
            for future in admin.alter_user_scram_credentials(users, request_timeout=2).values():
                future.result()
        except KafkaException:
            tick.wait(1)
        else:
            return
    raise AssertionError(f"the broker granted no ACLs within {WAIT_S:.0f} s")


def _binding(
    kind: ResourceType, name: str, principal: str, operation: AclOperation, *, exact: bool = False
) -> AclBinding:
    pattern = ResourcePatternType.LITERAL if exact else ResourcePatternType.PREFIXED
    return AclBinding(kind, name, pattern, principal, "*", operation, AclPermissionType.ALLOW)
