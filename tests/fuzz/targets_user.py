"""Fuzz targets for files that a user stores for the command line: known clusters, stacks and Kafka logins."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from ringlog.cache.redis_url import BadRedisUrl, redis_address, without_password
from ringlog.kernel.values import asdict
from ringlog.operator.imports.mapping import plan_of
from ringlog.operator.imports.recording import BadSource, read_recording
from ringlog.runtime import certificates
from ringlog.runtime.context import ClusterContext, stored_clusters
from ringlog.runtime.kafka.oauth import NoToken, token_in
from ringlog.runtime.kafka.options import read_kafka_config
from ringlog.runtime.kafka.security import BadKafkaConfig
from ringlog.runtime.trust import BadTrustConfig, TrustFile
from ringlog.stack.commands import addresses
from tests.fuzz.mutate import of_json
from tests.fuzz.targets import Target

TESTDATA = Path(__file__).parents[1] / "testdata"
_CONTEXT = ClusterContext(
    "b:1", "shop", "redis://:pw@r/0", "/etc/client.properties", "00000001-0000-4000-8000-000000000003"
)
_LOGIN = b"""# ours
security.protocol = SASL_SSL
sasl.mechanism: SCRAM-SHA-512
sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required \\
  username="me" password='a\\\\b\\u00e4';
ssl.endpoint.identification.algorithm=
"""
_TOKENS = b"""security.protocol=SASL_SSL
sasl.mechanism=OAUTHBEARER
sasl.oauthbearer.token.endpoint.url=https://id.example/token
sasl.jaas.config=org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required \\
  clientId="me" clientSecret='x' scope=a;
"""
_TRUST = b"# ours\ntoken.file = token\ntls.ca=\n"


@cache
def _home() -> Path:
    """Return a state folder of a user, for this process."""
    kept = tempfile.TemporaryDirectory(prefix="ringlog-fuzz-")
    _KEPT.append(kept)
    (Path(kept.name) / "ringlog").mkdir()
    return Path(kept.name)


_KEPT: list[tempfile.TemporaryDirectory[str]] = []


def _at_home(name: str, data: bytes, use: Callable[[], object]) -> None:
    path = _home() / "ringlog" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("XDG_STATE_HOME", str(_home()))
        use()


def contexts(data: bytes) -> None:
    """Read the clusters known to a user."""
    _at_home("context.json", data, stored_clusters)


def stacks(data: bytes) -> None:
    """Read the folders of a user's stacks."""
    _at_home("stacks.json", data, addresses)


def logins(data: bytes) -> None:
    """Read a ``client.properties`` file."""
    path = _home() / "client.properties"
    path.write_bytes(data)
    path.chmod(0o600)
    read_kafka_config(path).security.java()


def redis_urls(data: bytes) -> None:
    """Parse a Redis URL. The text for messages must not contain the password."""
    url = data.decode("utf-8", "replace")
    without_password(url)
    found = redis_address(url)
    assert found.hosts or found.path


def tokens(data: bytes) -> None:
    """Read the answer of an identity provider."""
    assert token_in(data).ends > 0


def trusts(data: bytes) -> None:
    """Read a ``trust.properties`` file next to a token."""
    path, token = _home() / "trust.properties", _home() / "token"
    path.write_bytes(data)
    token.write_text("a-token-of-many-letters", encoding="utf-8")
    token.chmod(0o600)
    TrustFile(path).now()


def imports(data: bytes) -> None:
    """Make a plan of a recorded cluster of Cassandra."""
    plan_of(read_recording(data.decode("utf-8", "replace")))


def _recorded_cluster() -> tuple[bytes, ...]:
    """Return a recording with at most two rows of each table."""
    whole = json.loads((TESTDATA / "imports" / "cassandra-5.0.json").read_text(encoding="utf-8"))
    rows = {table: found[:2] for table, found in whole["rows"].items()}
    return (json.dumps({"kind": whole["kind"], "rows": rows}).encode(),)


TARGETS = (
    Target(
        "imports",
        ("operator.imports.recording.read_recording",),
        imports,
        (BadSource,),
        _recorded_cluster,
        of_json,
    ),
    Target(
        "contexts",
        ("runtime.context.stored_clusters",),
        contexts,
        (),
        lambda: (
            json.dumps({"current": 0, "clusters": [asdict(_CONTEXT)]}).encode(),
            b'{"bootstrap": "b", "cluster": "c", "redis": "r"}',
        ),
        of_json,
    ),
    Target("stacks", ("stack.commands._recorded",), stacks, (), lambda: (b'["/nowhere/a", "b"]',), of_json),
    Target("logins", (), logins, (BadKafkaConfig,), lambda: (_LOGIN, _TOKENS)),
    Target(
        "redis_urls",
        (),
        redis_urls,
        (BadRedisUrl,),
        lambda: (
            b"redis+sentinel://me:p%40w@h1,[::1]:5/main/0?sentinel_password=x&ssl_cert_reqs=none",
            b"rediss://me:pw@h:1/2?ssl_check_hostname=false",
            b"unix:///a%20b?db=0&socket_timeout=0.5",
        ),
    ),
    Target(
        "tokens",
        ("runtime.kafka.oauth._end_of", "runtime.kafka.oauth.token_in"),
        tokens,
        (NoToken,),
        lambda: (b'{"access_token": "a.b.c", "expires_in": 300}', b'{"access_token": "a.eyJleHAiOiA5OTk5OTk5OTk5fQ."}'),
        of_json,
    ),
    Target("trusts", (), trusts, (BadTrustConfig,), lambda: (_TRUST,)),
    Target(
        "revoked_certificates",
        ("runtime.certificates.parse_revoked",),
        lambda data: certificates.parse_revoked(data.decode("latin-1")),
        (ValueError,),
        lambda: (b"5F3C90A1  # stolen\nn1.nodes.ringlog\n",),
    ),
)
