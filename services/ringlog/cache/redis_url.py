"""A parser of Redis URLs, including Sentinel, with all checks that need no connection.

    redis://user:password@host:6379/0           rediss:// with TLS
    unix:///run/redis.sock?db=0
    redis+sentinel://user:password@host1:26379,host2:26379/mymaster/0?sentinel_password=…    rediss+sentinel:// with TLS

In a Sentinel URL, user name and password are those of the Redis servers; options contain those of the Sentinels.
Special characters in a user name or password are percent-encoded, for example ``%40``.

Invariant: errors and displayed URLs contain neither a password nor the value of an option.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import field
from types import MappingProxyType
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from ringlog.errors import RinglogError
from ringlog.kernel.values import HidingValue

SENTINEL_PORT = 26_379
PORT = 6_379
_SCHEMES = ("redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel")


class BadRedisUrl(RinglogError):
    """The URL of a Redis is not valid. The message names the part and its rule, and no secret."""

    code = "bad_redis_url"


class RedisAddress(HidingValue):
    """A parsed URL. ``hosts`` contains the server, or the Sentinels of ``service``; empty if ``path`` is a socket.

    ``options`` are redis-py's options for connections to the server, ``sentinel_options`` those to the Sentinels.
    """

    HIDDEN = ("options", "sentinel_options")

    hosts: tuple[tuple[str, int], ...]
    service: str = ""
    path: str = ""
    encrypted: bool = False
    options: Mapping[str, object] = field(default_factory=dict)
    sentinel_options: Mapping[str, object] = field(default_factory=dict)


def redis_address(url: str) -> RedisAddress:
    """Parse a URL. Raises BadRedisUrl."""
    try:
        parts = urlsplit(url)
        hosts = _hosts(parts)
    except ValueError as error:
        raise BadRedisUrl(_NO_URL) from error
    if parts.scheme not in _SCHEMES:
        raise BadRedisUrl(f"scheme: must be one of {', '.join(_SCHEMES)}")
    if parts.fragment:
        raise BadRedisUrl("fragment: write a # in a password as %23")
    is_sentinel, is_socket = parts.scheme.endswith("+sentinel"), parts.scheme == "unix"
    encrypted = parts.scheme.startswith("rediss")
    given = _options(parts.query, encrypted, is_sentinel)
    sentinel = {name.removeprefix("sentinel_"): given.pop(name) for name in _OF_SENTINELS if name in given}
    _take_login(parts, given)
    service = ""
    if is_socket:
        if not parts.path:
            raise BadRedisUrl("path: the path of the socket is missing")
    elif is_sentinel:
        service, _, number = parts.path.strip("/").partition("/")
        if not _SERVICE.fullmatch(service):
            raise BadRedisUrl(
                "path: must be the service name that the Sentinels watch, optionally followed by /DATABASE"
            )
        _take_database(number, given)
        trust = {name: value for name, value in given.items() if name.startswith("ssl_")}
        sentinel = {**trust, **sentinel}
    else:
        if len(hosts) > 1:
            raise BadRedisUrl("host: only redis+sentinel:// can have several hosts")
        _take_database(parts.path.strip("/"), given)
    default = SENTINEL_PORT if is_sentinel else PORT
    return RedisAddress(
        () if is_socket else tuple((host, port or default) for host, port in hosts),
        service,
        unquote(parts.path) if is_socket else "",
        encrypted,
        MappingProxyType(given),
        MappingProxyType(sentinel),
    )


def without_password(url: str) -> str:
    """Return the URL without secrets, for display."""
    shown = re.sub(r"\b(\w*(?:password|secret|token|key))=[^&]*", r"\1=…", url)
    return re.sub(r"^([\w+]+://[^/@:]*):.*@", r"\1:…@", shown)


def _hosts(parts: SplitResult) -> tuple[tuple[str, int], ...]:
    """Return the hosts with their ports, 0 for the default. Raises ValueError."""
    named = parts.netloc.rpartition("@")[2]
    if not named:
        return (("localhost", 0),)
    found = []
    for one in named.split(","):
        single = urlsplit(f"//{one}")
        if not single.hostname:
            raise ValueError("a host has no name")
        found.append((single.hostname, single.port or 0))
    return tuple(found)


def _take_login(parts: SplitResult, options: dict[str, object]) -> None:
    name, colon, password = parts.netloc.rpartition("@")[0].partition(":")
    for option, value in (("username", name), ("password", password if colon else "")):
        if value:
            options[option] = unquote(value)


def _take_database(text: str, options: dict[str, object]) -> None:
    if text:
        options.setdefault("db", _parsed("path", text, _number))


def _options(query: str, encrypted: bool, is_sentinel: bool) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        # an unescaped password may contain ? and &, so do not show the option
        if name not in _OPTIONS and "@" in query:
            raise BadRedisUrl(_NO_URL)
        if name not in _OPTIONS:
            raise BadRedisUrl(f"{name[:40]!r}: not a supported option; the options are {', '.join(sorted(_OPTIONS))}")
        if name in found:
            raise BadRedisUrl(f"{name}: given twice")
        if name.startswith("ssl_") and not encrypted:
            raise BadRedisUrl(f"{name}: requires TLS: rediss://, rediss+sentinel://")
        if name in _OF_SENTINELS and not is_sentinel:
            raise BadRedisUrl(f"{name}: requires Sentinels: redis+sentinel://")
        found[name] = _parsed(name, value, _OPTIONS[name])
    return found


def _parsed(name: str, value: str, parse: Callable[[str], object]) -> object:
    try:
        return parse(value)
    except ValueError as error:
        raise BadRedisUrl(f"{name}: {error}") from error


def _number(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,6}", text):
        raise ValueError("must be an integer of 0 or more")
    return int(text)


def _seconds(text: str) -> float:
    if not re.fullmatch(r"[0-9]{1,4}(?:\.[0-9]{1,3})?", text) or float(text) == 0:
        raise ValueError("must be a number of seconds above 0")
    return float(text)


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "false", "1", "0", "yes", "no"):
        raise ValueError("must be true or false")
    return text.lower() in ("true", "1", "yes")


def _certificates(text: str) -> str:
    if text not in ("required", "optional", "none"):
        raise ValueError("must be required, optional or none")
    return text


def _file(text: str) -> str:
    if "\0" in text or len(text) > 4_096 or not os.access(text, os.R_OK):
        raise ValueError("the file cannot be read")
    return text


def _protocol(text: str) -> int:
    if text not in ("2", "3"):
        raise ValueError("must be 2 or 3")
    return int(text)


_NO_URL = "address: not a URL; write special characters of a password as %40 and similar"
_SERVICE = re.compile(r"[\w.-]{1,200}")
_OF_SENTINELS = ("sentinel_username", "sentinel_password")
_OPTIONS: Mapping[str, Callable[[str], object]] = {
    "client_name": str,
    "db": _number,
    "health_check_interval": _number,
    "max_connections": _number,
    "password": str,
    "protocol": _protocol,
    "sentinel_password": str,
    "sentinel_username": str,
    "socket_connect_timeout": _seconds,
    "socket_keepalive": _flag,
    "socket_timeout": _seconds,
    "ssl_ca_certs": _file,
    "ssl_ca_path": _file,
    "ssl_cert_reqs": _certificates,
    "ssl_certfile": _file,
    "ssl_check_hostname": _flag,
    "ssl_ciphers": str,
    "ssl_keyfile": _file,
    "ssl_password": str,
    "username": str,
}
