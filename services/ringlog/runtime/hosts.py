"""Under which names a server of ours answers: those that its operator gave it, none that a stranger's DNS did.

A web page may point a name of its own at 127.0.0.1 once it is loaded (DNS rebinding); the browser then lets it read
what listens there, as if that were the page's own server. The ``Host`` header still has the page's name. So a process
that comes under another name than this machine's own or the server's address is refused. A server that listens on every
address was opened to others by its operator, who knows their names.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})
ANYWHERE: Final = frozenset({"0.0.0.0", "::", "[::]"})
REFUSAL: Final = json.dumps({"detail": "this server does not answer under that name: use the node's address"}).encode()


def is_own(hosts: Sequence[str], *own: str) -> bool:
    """True if a request with these ``Host`` headers is for the server that has the names ``own``."""
    if ANYWHERE.intersection(own):
        return True
    return len(hosts) == 1 and name_of(hosts[0]) in LOOPBACK.union(map(name_of, own))


def with_port(host: str, port: int) -> str:
    """``host:port``, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def name_of(host: str) -> str:
    """A ``Host`` header without its port."""
    name, colon, port = host.strip().lower().rpartition(":")
    found = name if colon and port.isdecimal() and (name.endswith("]") or ":" not in name) else host.strip().lower()
    return found.removesuffix(".")
