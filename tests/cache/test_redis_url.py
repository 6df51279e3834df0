"""Redis URLs: invalid URLs are refused by part, and error messages contain no secret."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ringlog.cache.redis_url import BadRedisUrl, RedisAddress, redis_address

SECRET = "the-secret"


@pytest.mark.parametrize(
    ("url", "hosts", "service", "options"),
    [
        ("redis://", (("localhost", 6379),), "", {}),
        ("redis://h", (("h", 6379),), "", {}),
        ("redis://:pw%40%2F@h:1/2", (("h", 1),), "", {"password": "pw@/", "db": 2}),
        ("rediss://me:pw@[::1]:1?db=3&ssl_cert_reqs=none", (("::1", 1),), "", {"db": 3, "ssl_cert_reqs": "none"}),
        ("redis+sentinel://h1,h2:5/main", (("h1", 26379), ("h2", 5)), "main", {}),
        ("redis+sentinel://me:pw@h1/main/1?client_name=us", (("h1", 26379),), "main", {"db": 1, "client_name": "us"}),
    ],
)
def test_a_url_is_parsed(
    url: str, hosts: tuple[tuple[str, int], ...], service: str, options: dict[str, object]
) -> None:
    found = redis_address(url)
    assert (found.hosts, found.service, found.encrypted) == (hosts, service, url.startswith("rediss"))
    assert found.options.items() >= options.items()
    assert found.options.keys() - options.keys() <= {"username", "password"}


def test_a_socket_has_a_path_and_no_host() -> None:
    found = redis_address("unix:///run/a%20b.sock?db=0&password=pw")
    assert (found.path, found.hosts, dict(found.options)) == ("/run/a b.sock", (), {"db": 0, "password": "pw"})


def test_sentinels_have_their_own_login_and_the_trust_of_the_servers(tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    ca.touch()
    url = f"rediss+sentinel://me:{SECRET}@h/main?sentinel_username=s&sentinel_password={SECRET}2&ssl_ca_certs={ca}"
    found = redis_address(url)
    assert dict(found.options) == {"username": "me", "password": SECRET, "ssl_ca_certs": str(ca)}
    assert dict(found.sentinel_options) == {"username": "s", "password": f"{SECRET}2", "ssl_ca_certs": str(ca)}
    assert SECRET not in repr(found)
    assert RedisAddress((), path="/a").hosts == ()


@pytest.mark.parametrize(
    ("url", "part", "rule"),
    [
        ("", "scheme", "one of redis"),
        (f"https://me:{SECRET}@h", "scheme", "redis+sentinel"),
        (f"redis://me:{SECRET}/x@h/0", "address", "%40"),
        (f"redis://me:{SECRET}#x@h/0", "address", "%40"),
        (f"redis://me:{SECRET}@h/0#x", "fragment", "%23"),
        (f"redis://me:12?{SECRET}@h/0", "address", "%40"),
        (f"redis://me:12/x?a=b&{SECRET}@h/0", "address", "%40"),
        ("redis://h:port", "address", "not a URL"),
        ("redis://h/main", "path", "an integer"),
        ("redis://h1,h2/0", "host", "redis+sentinel://"),
        ("unix://", "path", "the socket"),
        ("redis+sentinel://h", "path", "service name"),
        ("redis+sentinel://h/main/x", "path", "an integer"),
        ("redis+sentinel://h,,/main", "address", "not a URL"),
        (f"redis://h/0?decode_responses={SECRET}", "'decode_responses'", "not a supported option"),
        (f"redis://h/0?sentinel_password={SECRET}", "sentinel_password", "requires Sentinels"),
        ("redis://h/0?ssl_cert_reqs=none", "ssl_cert_reqs", "requires TLS"),
        ("rediss://h/0?ssl_cert_reqs=maybe", "ssl_cert_reqs", "required, optional"),
        ("rediss://h/0?ssl_ca_certs=/nowhere", "ssl_ca_certs", "cannot be read"),
        ("redis://h/0?socket_timeout=0", "socket_timeout", "above 0"),
        ("redis://h?db=1&db=2", "db", "given twice"),
        ("redis://h?max_connections=many", "max_connections", "an integer"),
        ("redis://h?protocol=4", "protocol", "2 or 3"),
        ("redis://h?socket_keepalive=perhaps", "socket_keepalive", "true or false"),
    ],
)
def test_an_invalid_url_is_refused_by_its_part(url: str, part: str, rule: str) -> None:
    with pytest.raises(BadRedisUrl) as refused:
        redis_address(url)
    assert str(refused.value).startswith(f"{part}: ")
    assert rule in str(refused.value)
    assert SECRET not in str(refused.value)
    assert refused.value.code == "bad_redis_url"


def test_a_reader_of_another_store_needs_no_redis() -> None:
    code = "import sys; sys.modules['redis'] = None; import ringlog.cache.reader"
    subprocess.run([sys.executable, "-c", code], check=True)
