"""The stream of server-sent events: one event for each epoch, whose id is the epoch.

A reader that reconnects with ``Last-Event-ID`` continues after that epoch, also after a restart of the console. Events
that are older than the window are read from the log.

Invariants: a stream has each epoch after its start exactly once, in order, or it ends. At most ``STREAMS_MAX`` streams
are open. A reader that does not read for ``SLOW_S`` loses its stream.

Source: WHATWG HTML, "Server-sent events".
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import aclosing, suppress
from functools import partial
from typing import Any, Final

from ringlog.console.access import Receive, Send
from ringlog.console.hub import EpochEvent, EpochHub
from ringlog.errors import RinglogError
from ringlog.kernel.values import Epoch, asdict

STREAMS_MAX: Final = 64
SLOW_S: Final = 10.0
HEARTBEAT_S: Final = 2.0


class EventStreams:
    """The open streams.

    Args:
        status: Returns the body of the event ``reports``, which is sent every ``HEARTBEAT_S``.
    """

    def __init__(self, hub: EpochHub, status: Callable[[], dict[str, Any]]) -> None:
        self._hub = hub
        self._status = status
        self.open = 0

    async def serve(self, receive: Receive, send: Send, since: Epoch) -> None:
        """Send the events after an epoch until the reader disconnects. The caller has checked ``is_full``."""
        self.open += 1
        gone = asyncio.create_task(_disconnected(receive))
        sending = asyncio.create_task(self._send(send, since))
        try:
            await asyncio.wait({gone, sending}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.open -= 1
            for task in (gone, sending):
                task.cancel()
            with suppress(asyncio.CancelledError, TimeoutError, RinglogError):
                await sending

    @property
    def is_full(self) -> bool:
        """Whether no further stream may be opened."""
        return self.open >= STREAMS_MAX

    async def _send(self, send: Send, since: Epoch) -> None:
        async def put(text: str, more: bool = True) -> None:
            async with asyncio.timeout(SLOW_S):
                await send({"type": "http.response.body", "body": text.encode(), "more_body": more})

        headers = [
            (b"content-type", b"text/event-stream"),
            (b"x-accel-buffering", b"no"),
            (b"cache-control", b"no-store"),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await put(f"retry: 1000\n{_event('reports', self._status())}")
        hub, cursor = self._hub, since
        while not hub.is_closed:
            if (found := hub.after(cursor)) is None:
                async with aclosing(hub.old_events(cursor)) as old:
                    async for event in old:
                        await put(_epoch(event))
                        cursor = event.epoch
                continue
            if found:
                await put("".join(map(_epoch, found)))
                cursor = found[-1].epoch
                continue
            if not await hub.wait(partial(_is_later, hub, cursor), HEARTBEAT_S):
                await put(_event("reports", self._status()))
        await put("", more=False)


def _is_later(hub: EpochHub, epoch: Epoch) -> bool:
    return hub.state.epoch > epoch


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _event(name: str, value: dict[str, Any]) -> str:
    return f"event: {name}\ndata: {json.dumps(value)}\n\n"


def _epoch(event: EpochEvent) -> str:
    return f"id: {event.epoch}\n{_event('epoch', asdict(event))}"
