"""A node's HTTP side answers under names of its own only (``ringlog.runtime.hosts`` says why), and only those who show
a token (``ringlog.runtime.tokens``).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any

from ringlog.runtime.hosts import REFUSAL, is_own
from ringlog.runtime.scrape import HEALTH
from ringlog.runtime.tokens import CHALLENGE, NO_TOKEN, is_admitted

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Asgi = Callable[[Message, Receive, Send], Awaitable[None]]
ADMITTED = "ringlog.admitted"
"""In the scope of a request: whether it shows a token."""


class Doorkeeper:
    """Passes on to ``app`` what is addressed to one of ``hosts`` or a name of the loopback, and shows one of the
    ``tokens`` of that moment; 403 and 401 for the rest, but for ``/health``, which is passed on without a token, too.
    """

    def __init__(self, app: Asgi, hosts: Sequence[str], tokens: Callable[[], Sequence[str]] = tuple) -> None:
        self._app = app
        self._hosts = hosts
        self._tokens = tokens

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer, or pass on."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        scope[ADMITTED] = is_admitted(_said(scope, b"authorization"), self._tokens())
        if not is_own(_said(scope, b"host"), *self._hosts):
            await _refuse(scope, send, 403, REFUSAL)
        elif not scope[ADMITTED] and scope["path"] != HEALTH:
            await _refuse(scope, send, 401, NO_TOKEN, (b"www-authenticate", CHALLENGE.encode()))
        else:
            await self._app(scope, receive, send)


def _said(scope: Message, header: bytes) -> list[str]:
    return [value.decode("latin-1") for name, value in scope["headers"] if name == header]


async def _refuse(scope: Message, send: Send, status: int, body: bytes, *headers: tuple[bytes, bytes]) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close"})
        return
    head = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), *headers]
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": body})
