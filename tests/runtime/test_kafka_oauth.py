"""Tokens instead of a password: passed to all three libraries, refused by line and rule, and never shown."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from aiokafka.errors import KafkaConnectionError
from faust import OAuthCredentials

from ringlog.agents.app import credentials
from ringlog.runtime.kafka import oauth as kafka_oauth
from ringlog.runtime.kafka.config import VARIABLE, jvm_options, use, use_none
from ringlog.runtime.kafka.oauth import ALLOWED_URLS, MODULE, OIDC_HANDLER, NoToken, OAuth
from ringlog.runtime.kafka.options import read_kafka_config
from ringlog.runtime.kafka.security import BadKafkaConfig, Security

SECRET = 'the-"secret"'
QUOTED = SECRET.replace('"', '\\"')
ENDPOINT = "https://id.example/realms/x/token"
BEGIN = ("security.protocol=SASL_SSL", "sasl.mechanism=OAUTHBEARER")
OIDC = ("sasl.oauthbearer.client.id=me", f"sasl.oauthbearer.client.secret={SECRET}")
URL = f"sasl.oauthbearer.token.endpoint.url={ENDPOINT}"
HERE = "tests.runtime.test_kafka_oauth"


@contextmanager
def _provider(answer: bytes) -> Iterator[str]:
    """Serve this answer to every request."""

    class Answering(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    with _serving(Answering) as endpoint:
        yield endpoint


@contextmanager
def _serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/token"
        server.shutdown()


def read(folder: Path, *lines: str) -> Security:
    path = folder / "client.properties"
    path.write_text("\n".join((*BEGIN, *lines)) + "\n", encoding="utf-8")
    path.chmod(0o600)
    return read_kafka_config(path).security


@pytest.mark.parametrize(
    "lines",
    [
        (*OIDC, "sasl.oauthbearer.method=OIDC", "sasl.oauthbearer.scope=kafka"),
        (
            f"sasl.login.callback.handler.class={kafka_oauth.OIDC_HANDLERS[1]}",
            f"sasl.jaas.config={MODULE} required clientId=me clientSecret='{SECRET}' scope=kafka;",
        ),
    ],
    ids=["librdkafka", "java"],
)
def test_oidc_in_either_spelling_reaches_all_three_libraries(tmp_path: Path, lines: tuple[str, ...]) -> None:
    found = read(tmp_path, URL, *lines)
    assert found.oauth == OAuth(ENDPOINT, "me", SECRET, "kafka")
    assert (
        found.librdkafka().items()
        >= {
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.token.endpoint.url": ENDPOINT,
            "sasl.oauthbearer.client.id": "me",
            "sasl.oauthbearer.client.secret": SECRET,
            "sasl.oauthbearer.scope": "kafka",
        }.items()
    )
    assert (
        found.java().items()
        >= {
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.login.callback.handler.class": OIDC_HANDLER,
            "sasl.oauthbearer.token.endpoint.url": ENDPOINT,
            "sasl.jaas.config": f'{MODULE} required clientId="me" clientSecret="{QUOTED}" scope="kafka";',
        }.items()
    )
    assert isinstance(credentials(found), OAuthCredentials)
    assert SECRET not in repr(found)
    assert found.as_user("SASL_SSL", "SCRAM-SHA-256", "writer", "its own").oauth is None


def test_a_jvm_starts_with_permission_to_call_the_provider(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "")
    read(tmp_path, URL, *OIDC)
    use(tmp_path / "client.properties")
    assert jvm_options() == (f"-D{ALLOWED_URLS}={ENDPOINT}",)
    use_none()
    assert jvm_options() == ()


def refuse() -> Any:
    raise RuntimeError(SECRET)


def old() -> tuple[str, float]:
    return "a.b.c", time.time() - 1


def junk() -> str:
    return SECRET


def not_one() -> tuple[str, float]:
    return f"{SECRET} with spaces", time.time() + 60


CALLS: list[int] = []


def counted() -> tuple[str, float]:
    CALLS.append(1)
    return f"token-{len(CALLS)}", time.time() + 10_000


def test_a_token_function_is_called_once_per_token_lifetime(tmp_path: Path) -> None:
    CALLS.clear()
    found = read(tmp_path, f"ringlog.oauth.hook={HERE}:counted")
    value, ends = found.librdkafka()["oauth_cb"]("")
    assert (value, ends > time.time()) == ("token-1", True)
    spoken = credentials(found)
    assert isinstance(spoken, OAuthCredentials)
    assert {asyncio.run(spoken.oauth_cb.token()) for _ in range(3)} == {"token-2"}, "a client requests its own token"
    with pytest.raises(BadKafkaConfig, match="a Java class"):
        found.java()
    handled = read(
        tmp_path, f"ringlog.oauth.hook={HERE}:counted", "sasl.login.callback.handler.class=com.example.Ours$Tokens"
    )
    assert handled.java()["sasl.login.callback.handler.class"] == "com.example.Ours$Tokens"
    assert handled.java()["sasl.jaas.config"] == f"{MODULE} required;"


def test_a_clock_that_was_a_year_ahead_invalidates_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    CALLS.clear()
    year_s, passed_s = 365 * 86_400, [0.0]
    wall, steady = time.time, time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: steady() + passed_s[0])
    source = OAuth(hook=f"{HERE}:counted").source()
    with monkeypatch.context() as ahead:
        ahead.setattr(time, "time", lambda: wall() + year_s)
        assert source().value == "token-1"
    assert source().value == "token-1"
    passed_s[0] = 9_000.0
    assert source().value == "token-2", "four fifths of its lifetime have passed"


@pytest.mark.parametrize("name", ["refuse", "old", "junk", "not_one"])
def test_an_invalid_token_of_a_function_is_not_shown(tmp_path: Path, name: str) -> None:
    found = read(tmp_path, f"ringlog.oauth.hook={HERE}:{name}")
    with pytest.raises(NoToken) as refused:
        found.librdkafka()["oauth_cb"]("")
    assert SECRET not in f"{refused.value}{refused.value.__cause__}"
    spoken = credentials(found)
    assert isinstance(spoken, OAuthCredentials)
    with pytest.raises(KafkaConnectionError):
        asyncio.run(spoken.oauth_cb.token())


def test_a_missing_function_is_reported(tmp_path: Path) -> None:
    for name in ("nowhere_at_all:token", f"{HERE}:nothing"):
        found = read(tmp_path, f"ringlog.oauth.hook={name}")
        for made in (found.librdkafka, lambda found=found: credentials(found)):
            with pytest.raises(BadKafkaConfig, match=f"{name} cannot be imported"):
                made()


@pytest.mark.parametrize(
    ("lines", "where", "rule"),
    [
        ((), "line 2: sasl.mechanism", "set sasl.oauthbearer"),
        (OIDC, "line 2: sasl.mechanism", ".client.secret, or ringlog.oauth.hook"),
        ((*OIDC, "sasl.oauthbearer.token.endpoint.url=http://id.example/"), "line 5: sasl.oauthbearer.token", "https"),
        ((*OIDC, f"sasl.oauthbearer.token.endpoint.url=https://me:{SECRET}@h/"), "line 5: sasl.oauth", "https"),
        (("sasl.oauthbearer.method=default",), "line 3: sasl.oauthbearer.method", "must be oidc"),
        (("sasl.oauthbearer.config=x",), "line 3: sasl.oauthbearer.config", "by token"),
        (("sasl.username=me",), "line 3: sasl.username", "has no effect with sasl.mechanism OAUTHBEARER"),
        (("ringlog.oauth.hook=nothing",), "line 3: ringlog.oauth.hook", "MODULE:FUNCTION"),
        (("ringlog.oauth.hook=a:b", *OIDC), "line 4: sasl.oauthbearer.client.id", "returns the tokens"),
        (("sasl.login.callback.handler.class=com.example.A",), "line 3: sasl.login", "also need ringlog.oauth.hook"),
        (("ringlog.oauth.hook=a:b", "sasl.login.callback.handler.class=a b"), "line 4: sasl.login", "name of a class"),
        (
            (URL, f"sasl.jaas.config={MODULE} required user={SECRET};"),
            "line 4: sasl.jaas.config",
            "without other options",
        ),
        ((URL, "sasl.jaas.config=a.B required clientId=a clientSecret=b;"), "line 4: sasl.jaas.config", "module of"),
    ],
)
def test_an_invalid_line_is_refused(tmp_path: Path, lines: tuple[str, ...], where: str, rule: str) -> None:
    with pytest.raises(BadKafkaConfig) as refused:
        read(tmp_path, *lines)
    assert where in str(refused.value)
    assert rule in str(refused.value)
    assert SECRET not in str(refused.value)


def test_token_options_are_ignored_for_another_mechanism(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text("security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\nringlog.oauth.hook=a:b\n")
    with pytest.raises(BadKafkaConfig, match=r"line 3: ringlog\.oauth\.hook: it has no effect with"):
        read_kafka_config(path)


@pytest.mark.parametrize(
    ("answer", "ends"),
    [
        ({"access_token": "a.b.c", "expires_in": 60}, True),
        ({"access_token": "a." + base64.urlsafe_b64encode(b'{"exp": 9999999999}').decode().rstrip("=") + "."}, True),
        ({"access_token": "a.b.c"}, False),
        ({"access_token": "opaque"}, False),
        ({"access_token": f"{SECRET} x", "expires_in": 60}, False),
        ({"access_token": 7, "expires_in": 60}, False),
        ({"access_token": "a.b.c", "expires_in": "soon"}, False),
        ({"access_token": "a.b.c", "expires_in": -1}, False),
        ({"access_token": "a.b.c", "expires_in": float("inf")}, False),
        (["access_token"], False),
        ({}, False),
    ],
)
def test_a_provider_answer_is_a_token_with_an_expiry_or_none(answer: object, ends: bool) -> None:
    with _provider(json.dumps(answer).encode()) as endpoint:
        source = OAuth(endpoint, "me", SECRET).source()
        if ends:
            assert source().ends > time.time()
            assert source() is source(), "the token is kept"
        else:
            with pytest.raises(NoToken) as refused:
                source()
            assert SECRET not in str(refused.value)


def test_redirects_of_a_provider_are_not_followed() -> None:
    """A redirect would forward the secret."""
    asked: list[str] = []

    class Leading(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(self.path)
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(302)
            self.send_header("Location", "/other")
            self.end_headers()

        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(404)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    with _serving(Leading) as endpoint, pytest.raises(NoToken, match="answers 302"):
        OAuth(endpoint, "me", SECRET).source()()
    assert asked == ["/token"]


def test_an_unreachable_provider_gives_no_token() -> None:
    with pytest.raises(NoToken, match="does not answer"):
        OAuth("http://127.0.0.1:1/token", "me", SECRET).source()()
