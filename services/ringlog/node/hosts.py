"""Under which names a node's HTTP side answers: those that its operator gave it, none that a stranger's DNS did.

A web page may point a name of its own at 127.0.0.1 once it is loaded (DNS rebinding); the browser then lets it read
what listens there, as if that were the page's own server. The ``Host`` header still has the page's name. So a process
that comes under another name than this machine's own or the node's address is refused.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
REFUSAL = json.dumps({"detail": "this server does not answer under that name: use the node's address"}).encode()

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Asgi = Callable[[Message, Receive, Send], Awaitable[None]]


class OwnHosts:
    """Passes on to ``app`` what is addressed to ``host`` or a name of the loopback; 403 for the rest."""

    def __init__(self, app: Asgi, host: str) -> None:
        self._app = app
        self._names = LOOPBACK | {name_of(host)}

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer, or pass on."""
        if scope["type"] not in ("http", "websocket") or self._is_own(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close"})
        else:
            head = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(REFUSAL))]
            await send({"type": "http.response.start", "status": 403, "headers": head})
            await send({"type": "http.response.body", "body": REFUSAL})

    def _is_own(self, scope: Message) -> bool:
        hosts = [value for name, value in scope["headers"] if name == b"host"]
        return len(hosts) == 1 and name_of(hosts[0].decode("latin-1")) in self._names


def name_of(host: str) -> str:
    """A ``Host`` header without its port."""
    name, colon, port = host.strip().lower().rpartition(":")
    found = name if colon and port.isdecimal() and (name.endswith("]") or ":" not in name) else host.strip().lower()
    return found.removesuffix(".")
