"""All of Ringlog on a Kafka with mandatory authentication, over the command line, like an operator.

Later commands, the agents, a node and the Spark job use the options from the creation of the cluster. No output, log or
argument of these processes contains the password. Clients may also log in with tokens of a user's function or of an
identity provider. The broker has Kafka's own validator of unsigned tokens; the test runs the provider.
"""

from __future__ import annotations

import base64
import json
import stat
import time
import urllib.parse
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AclOperation, AdminClient, NewTopic
from tests.system.cdc_world import PARTITIONS, write
from tests.system.guarded_kafka import PREFIX, Guarded, allow, kafka_tool
from tests.system.user import User

from ringlog.kernel.ring.murmur3 import compose
from ringlog.log.kafka.acls import BrokerUser
from ringlog.log.kafka.topics import TOPICS
from ringlog.protocol.roles import ROLES
from ringlog.runtime.kafka.config import QUIET, connection
from ringlog.runtime.kafka.options import read_kafka_config
from ringlog.wire.records import encode_mutation, mutation_key, mutation_partition

pytestmark = [pytest.mark.system, pytest.mark.slow]

TABLE = {
    "command": "CreateTable",
    "keyspace": "shop",
    "name": "orders",
    "columns": [
        {"name": "customer", "type": "text"},
        {"name": "number", "type": "bigint"},
        {"name": "amount", "type": "int"},
        {"name": "note", "type": "text"},
    ],
    "partition_key": ["customer"],
    "clustering_key": ["number"],
    "cdc": {"enabled": True},
}


def test_anonymous_clients_are_rejected(guarded: Guarded, user: User) -> None:
    anonymous = AdminClient({**QUIET, "bootstrap.servers": guarded.stack.bootstrap_servers})
    with pytest.raises(KafkaException):
        anonymous.create_topics([NewTopic(f"{PREFIX}open", 1, 1)])[f"{PREFIX}open"].result()
    user.run("cluster", "create", f"{PREFIX}none", "--bootstrap", guarded.users, status=1)
    assert f"the broker was {guarded.users}, set by --bootstrap" in user.told


def test_a_wrong_password_is_named_as_the_reason_and_not_shown(guarded: Guarded, user: User, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.properties"
    wrong.write_text(guarded.login.read_text().replace(guarded.secrets[1], "not-the-password"))
    wrong.chmod(0o600)
    where = ["--bootstrap", guarded.users, "--kafka-config", str(wrong)]
    user.run("cluster", "create", f"{PREFIX}none", *where, status=1)
    assert "cause: " in user.told
    assert "uthentication" in user.told
    assert "not-the-password" not in user.told


def test_a_login_without_the_right_to_delete_deletes_no_cluster(guarded: Guarded, user: User) -> None:
    name = f"{PREFIX}{uuid.uuid4().hex[:8]}"
    where = ["--bootstrap", guarded.users, "--kafka-config", str(guarded.login)]
    cluster_id = json.loads(user.run("cluster", "create", name, *where, "--json"))["cluster_id"]
    acls = ["cluster", "acls", "--cluster", name, "--for", "node", "--user", "node", "--apply"]
    user.run(*acls, "--kafka-config", str(guarded.admin))
    words = ["cluster", "delete", name, "--yes-delete", cluster_id]
    user.run(*words, *where[:3], str(guarded.logins[BrokerUser.node]), status=1)
    assert "topic_denied: this login may not look up topic" in user.told
    allow(guarded, "node", f"{name}.", AclOperation.DESCRIBE)
    user.run(*words, *where[:3], str(guarded.logins[BrokerUser.node]), status=1)
    assert "no_right_to_delete: this login may not delete" in user.told
    deleted = json.loads(user.run(*words, "--json"))
    assert len(deleted["topics"]) == len(TOPICS), "no topic was deleted"


@pytest.mark.soak("the wrong password that is named as the reason")
def test_a_certificate_that_is_not_trusted_is_named_as_the_reason(guarded: Guarded, user: User, tmp_path: Path) -> None:
    trusting = tmp_path / "trusting.properties"
    lines = guarded.tls_login.read_text().splitlines()
    trusting.write_text("\n".join(line for line in lines if not line.startswith("ssl.ca")))
    trusting.chmod(0o600)
    user.run("cluster", "create", f"{PREFIX}none", "--kafka-config", str(trusting), status=1)
    assert f"set by bootstrap.servers of {trusting}" in user.told
    assert "certificate" in user.told


def _without_password(guarded: Guarded, user: User, folder: Path) -> Path:
    """Return the options file of the TLS listener with the password in a variable."""
    found = folder / "without.properties"
    lines = guarded.tls_login.read_text().splitlines()
    kept = [line for line in lines if not line.startswith(("sasl.password", "ssl.ca"))]
    found.write_text("\n".join(kept) + f"\nssl.ca.location={guarded.tls_login.parent / 'broker.pem'}\n")
    user.set("RINGLOG_KAFKA_SASL_PASSWORD", guarded.secrets[1])
    return found


def test_a_password_may_come_from_a_variable(guarded: Guarded, user: User, tmp_path: Path) -> None:
    """Commands log in by librdkafka, the agent by aiokafka."""
    name, file = f"{PREFIX}{uuid.uuid4().hex[:8]}", _without_password(guarded, user, tmp_path)
    user.run("cluster", "create", name, "--kafka-config", str(file))
    user.begin("agent", "validator")
    user.run("submit", '{"command": "Noop"}')
    _check_secrecy(guarded, user, tmp_path)
    user.set("RINGLOG_KAFKA_ACKS", "a-secret-by-mistake")
    for words in (("keyspace", "list"), ("agent", "validator")):
        user.run(*words, status=1)
    assert user.told.count("bad_kafka_config: RINGLOG_KAFKA_ACKS: acks: not a connection option") == 2
    assert "a-secret-by-mistake" not in user.told


@pytest.mark.soak("the test before it, with what Java is given in tests/runtime/test_kafka_config.py")
def test_everything_works_with_a_login_over_tls(guarded: Guarded, user: User, tmp_path: Path) -> None:
    name, file = f"{PREFIX}{uuid.uuid4().hex[:8]}", _without_password(guarded, user, tmp_path)
    user.run("cluster", "create", name, "--kafka-config", str(file))
    _settle(user, tmp_path)
    _write(guarded, name, 20)
    job = ["cdc", "run", "--checkpoint", str(tmp_path / "checkpoint"), "--stop-when-idle", "--trigger-seconds", "0"]
    user.run(*job, "--java-options", "-XX:TieredStopAtLevel=1")
    changes = user.run("cdc", "tail", "--json", "--until-end").splitlines()
    assert len(changes) == 20
    audited = json.loads(user.run("audit", "--json", "--written", "20"))
    assert audited
    assert len(json.loads(user.run("agents", "status", "--json"))) == len(ROLES)
    user.run("cdc", "status")
    _check_secrecy(guarded, user, tmp_path)


def _settle(user: User, folder: Path) -> None:
    """Start agents, join a node and create a table."""
    user.begin("agents")
    user.join_node("--data", str(folder / "node"))
    _schema(user)


def _schema(user: User) -> None:
    user.run("keyspace", "create", "shop", "--factor", "1")
    user.run("submit", json.dumps(TABLE))


def _check_secrecy(guarded: Guarded, user: User, folder: Path) -> None:
    """Check that no output, log or argument contains a password, and that stored files are private."""
    printed = user.told + user.logs() + user.command_lines()
    assert [word for word in guarded.secrets if word in printed] == []
    kept = [*(folder / "ringlog").rglob("*"), *(folder / "node").rglob("*")]
    assert len(kept) >= 3
    assert [
        path for path in kept if path.is_file() for word in guarded.secrets if word.encode() in path.read_bytes()
    ] == []
    assert [str(path) for path in kept if stat.S_IMODE(path.stat().st_mode) & 0o077] == []


def _write(guarded: Guarded, cluster: str, count: int) -> None:
    security = read_kafka_config(guarded.tls_login).security
    producer = Producer(connection(guarded.tls, security) | {"enable.idempotence": True})
    for number in range(count):
        mutation = write(f"customer {number % 3}", number)
        key = mutation_key("shop", "orders", compose([part or b"" for part in mutation.partition_key]))
        producer.produce(f"{cluster}.mutations", encode_mutation(mutation), key, mutation_partition(key, PARTITIONS))
    assert producer.flush(60) == 0


CLIENT, SECRET = "ringlog client", 'the "secret" of it'
SECRET_VARIABLE = "RINGLOG_KAFKA_SASL_OAUTHBEARER_CLIENT_SECRET"
HOOK = """
import time
from tests.system.test_kafka_login import made

def token():
    return made(time.time() + 600), time.time() + 600
"""


def made(ends: float) -> str:
    """Return an unsigned token for Ringlog's user."""
    claims = {"sub": "ringlog", "iat": time.time(), "exp": ends, "scope": "kafka", "jti": uuid.uuid4().hex}
    parts = (base64.urlsafe_b64encode(json.dumps(one).encode()).decode() for one in ({"alg": "none"}, claims))
    return ".".join(part.rstrip("=") for part in parts) + "."


class Provider(BaseHTTPRequestHandler):
    """Grants a token for the client's id and secret, and records each request and its outcome."""

    asked: list[tuple[str, bool]]

    def do_POST(self) -> None:
        shown = base64.b64decode(self.headers.get("Authorization", "").removeprefix("Basic ")).decode()
        form = urllib.parse.parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        is_ours = [urllib.parse.unquote_plus(one) for one in shown.split(":", 1)] == [CLIENT, SECRET]
        is_ours = is_ours and form == {"grant_type": ["client_credentials"], "scope": ["kafka"]}
        body = {"access_token": made(time.time() + 600), "expires_in": 600, "token_type": "Bearer"} if is_ours else {}
        self.asked.append((self.headers.get("User-Agent", ""), is_ours))
        data = json.dumps(body).encode()
        self.send_response(200 if is_ours else 401)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@contextmanager
def provider() -> Iterator[tuple[str, list[tuple[str, bool]]]]:
    """Return its address, and the recorded requests."""
    asked: list[tuple[str, bool]] = []
    handler = type("Noting", (Provider,), {"asked": asked})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/token", asked
        server.shutdown()


def _lives(user: User, guarded: Guarded, file: Path) -> None:
    """Run commands by librdkafka and an agent by aiokafka."""
    name = f"{PREFIX}{uuid.uuid4().hex[:8]}"
    user.run("cluster", "create", name, "--bootstrap", guarded.tokens, "--kafka-config", str(file))
    user.begin("agent", "validator")
    user.run("submit", '{"command": "Noop"}')


def test_tokens_of_a_function(guarded: Guarded, user: User, tmp_path: Path) -> None:
    (tmp_path / "our_tokens.py").write_text(HOOK)
    user.set("PYTHONPATH", f"{tmp_path}:{user.variable('PYTHONPATH')}")
    file = tmp_path / "client.properties"
    lines = "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=OAUTHBEARER\nringlog.oauth.hook=our_tokens:{}\n"
    file.write_text(lines.format("token"))
    _lives(user, guarded, file)
    file.write_text(lines.format("nothing"))
    user.run("node", "list", status=1)
    assert "bad_kafka_config: ringlog.oauth.hook: our_tokens:nothing cannot be imported" in user.told


def test_tokens_of_an_identity_provider(guarded: Guarded, user: User, tmp_path: Path) -> None:
    """Its secret is in a variable; the Java client uses the options that Ringlog derives from it."""
    with provider() as (address, asked):
        lines = ["security.protocol=SASL_PLAINTEXT", "sasl.mechanism=OAUTHBEARER", "sasl.oauthbearer.scope=kafka"]
        lines += [f"sasl.oauthbearer.client.id={CLIENT}", f"sasl.oauthbearer.token.endpoint.url={address}"]
        file = tmp_path / "client.properties"
        file.write_text("\n".join(lines))
        user.set(SECRET_VARIABLE, SECRET)
        _lives(user, guarded, file)
        assert any(who.startswith("Python") for who, _ in asked), "the agent requested it for aiokafka"
        assert SECRET not in user.told + user.logs() + user.command_lines()
        _check_java(guarded, file, tmp_path)
        assert any(who.startswith("Java") for who, _ in asked)
        assert [who for who, was_given in asked if not was_given] == []


def _check_java(guarded: Guarded, file: Path, folder: Path) -> None:
    """Check that Java gets a token. Java rejects unsigned tokens, and this broker has no others, so the test ends
    there.
    """
    properties = folder / "java.properties"
    security = read_kafka_config(file, [(SECRET_VARIABLE, SECRET)]).security
    assert security.oauth is not None
    escaped = {name: value.replace("\\", "\\\\") for name, value in security.java().items()}
    properties.write_text("".join(f"{name}={value}\n" for name, value in escaped.items()))
    words = ["--bootstrap-server", guarded.tokens, "--command-config", str(properties)]
    words += ["--describe", "--entity-type", "topics"]
    ended = kafka_tool("kafka.admin.ConfigCommand", *words, options=security.oauth.jvm_options())
    assert "Malformed JWT provided" in ended.stderr
    assert SECRET not in ended.stdout + ended.stderr
