"""Commands and an agent log in by tokens: those of a function of the user's, and those of an identity provider.

The broker has Kafka's own validator of tokens that nobody signed; the provider is a server of this test's.
"""

from __future__ import annotations

import base64
import json
import subprocess
import time
import urllib.parse
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from tests.system.guarded_kafka import PREFIX, Guarded
from tests.system.user import User

from ringlog.runtime.kafka.options import read_kafka_config
from ringlog.stack.artifacts import jars
from ringlog.stack.java import find_java

pytestmark = [pytest.mark.system, pytest.mark.slow]
CLIENT, SECRET = "ringlog client", 'the "secret" of it'
SECRET_VARIABLE = "RINGLOG_KAFKA_SASL_OAUTHBEARER_CLIENT_SECRET"
HOOK = """
import time
from tests.system.test_kafka_tokens import made

def token():
    return made(time.time() + 600), time.time() + 600
"""


def made(ends: float) -> str:
    """A token that nobody signed, for Ringlog's user."""
    claims = {"sub": "ringlog", "iat": time.time(), "exp": ends, "scope": "kafka", "jti": uuid.uuid4().hex}
    parts = (base64.urlsafe_b64encode(json.dumps(one).encode()).decode() for one in ({"alg": "none"}, claims))
    return ".".join(part.rstrip("=") for part in parts) + "."


class Provider(BaseHTTPRequestHandler):
    """Gives a token to who shows the client's id and secret, and notes who asked and whether it was given."""

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
        """Says nothing."""


@contextmanager
def provider() -> Iterator[tuple[str, list[tuple[str, bool]]]]:
    """Its address, and who asked."""
    asked: list[tuple[str, bool]] = []
    handler = type("Noting", (Provider,), {"asked": asked})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/token", asked
        server.shutdown()


def _lives(user: User, guarded: Guarded, file: Path) -> None:
    """Commands by librdkafka, an agent by aiokafka, too."""
    name = f"{PREFIX}{uuid.uuid4().hex[:8]}"
    user.run("cluster", "found", name, "--bootstrap", guarded.tokens, "--kafka-config", str(file))
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
    """Its secret is in a variable; Java's client asks with what it is given of it."""
    with provider() as (address, asked):
        lines = ["security.protocol=SASL_PLAINTEXT", "sasl.mechanism=OAUTHBEARER", "sasl.oauthbearer.scope=kafka"]
        lines += [f"sasl.oauthbearer.client.id={CLIENT}", f"sasl.oauthbearer.token.endpoint.url={address}"]
        file = tmp_path / "client.properties"
        file.write_text("\n".join(lines))
        user.set(SECRET_VARIABLE, SECRET)
        _lives(user, guarded, file)
        assert any(who.startswith("Python") for who, _ in asked), "the agent asked for aiokafka"
        assert SECRET not in user.told + user.logs() + user.command_lines()
        _check_java(guarded, file, tmp_path)
        assert any(who.startswith("Java") for who, _ in asked)
        assert [who for who, was_given in asked if not was_given] == []


def _check_java(guarded: Guarded, file: Path, folder: Path) -> None:
    """It is given a token; Java itself takes none that nobody signed, and this broker no other: so far it goes here."""
    java, properties = find_java(), folder / "java.properties"
    assert java is not None
    security = read_kafka_config(file, [(SECRET_VARIABLE, SECRET)]).security
    assert security.oauth is not None
    escaped = {name: value.replace("\\", "\\\\") for name, value in security.java().items()}
    properties.write_text("".join(f"{name}={value}\n" for name, value in escaped.items()))
    command = [java.path, *security.oauth.jvm_options(), "-cp", ":".join(map(str, jars("kafka")))]
    command += ["kafka.admin.ConfigCommand", "--bootstrap-server", guarded.tokens, "--command-config", str(properties)]
    command += ["--describe", "--entity-type", "topics"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "Malformed JWT provided" in ended.stderr
    assert SECRET not in ended.stdout + ended.stderr
