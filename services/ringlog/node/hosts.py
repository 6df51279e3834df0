"""A node's HTTP side answers under names of its own only: ``ringlog.runtime.hosts`` says why."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from ringlog.runtime.hosts import REFUSAL, is_own

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Asgi = Callable[[Message, Receive, Send], Awaitable[None]]


class OwnHosts:
    """Passes on to ``app`` what is addressed to ``host`` or a name of the loopback; 403 for the rest."""

    def __init__(self, app: Asgi, host: str) -> None:
        self._app = app
        self._host = host

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
        hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        return is_own(hosts, self._host)
