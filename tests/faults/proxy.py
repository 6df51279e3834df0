"""A TCP proxy with faults: latency, bandwidth limits, loss, a cut direction, resets, refused connections.

The proxy forwards bytes and does not know Kafka. It imitates the effects of a network on TCP. A lost packet is a pause
until the retransmission. A cut direction is silence without an error. A reset is an immediate error at both ends. TCP
hides changed, duplicate and reordered packets, so the proxy never produces them.

One thread with its own event loop serves all connections. Any thread may call ``shape`` and ``reset``, and they take
effect immediately, also for existing connections. A seeded source draws the delays.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
import threading
from pathlib import Path

from ringlog.kernel.values import Value

CHUNK = 16 * 1024
TICK_S = 0.02
"""The polling interval of a cut direction that waits for its repair."""
RETRANSMISSION_S = 0.2
"""The delay of a lost packet: the minimum retransmission timeout of Linux."""


class Shape(Value):
    """The faults of a link.

    ``latency_s``: one-way delay of each chunk; the next chunk leaves when this one has arrived. ``jitter_s``:
    additional uniform delay. ``bytes_per_s``: limit per connection and direction; 0: unlimited. ``loss``: probability
    of a retransmission per chunk. ``cut_up``, ``cut_down``: no bytes reach the server or the client. ``refuses``: new
    connections are closed immediately.
    """

    latency_s: float = 0.0
    jitter_s: float = 0.0
    bytes_per_s: int = 0
    loss: float = 0.0
    cut_up: bool = False
    cut_down: bool = False
    refuses: bool = False


CLEAN = Shape()


class Proxy:
    """Listens on ``port`` of 127.0.0.1, or on ``listening``, and forwards to ``upstream``: a port or a socket's path.

    Call ``start`` once and ``close`` once.
    """

    def __init__(self, port: int, upstream: int | Path, seed: int = 1, listening: socket.socket | None = None) -> None:
        self.port = port
        self._listening = listening
        self._upstream = upstream
        self._shape = CLEAN
        self._random = random.Random(seed)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"proxy-{port}", daemon=True)
        self._server: asyncio.Server | None = None
        self._closing = asyncio.Event()
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.connections = 0
        self.passed = 0

    def start(self) -> Proxy:
        """Start listening."""
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)
        return self

    def close(self) -> None:
        """Close all connections and end the thread."""
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def shape(self, shape: Shape) -> None:
        """Set the faults of the link."""
        self._shape = shape

    def heal(self) -> None:
        """Remove all faults; waiting bytes arrive."""
        self._shape = CLEAN

    @property
    def is_clean(self) -> bool:
        """True while the link has no fault."""
        return self._shape == CLEAN

    def reset(self) -> int:
        """Reset all connections at both ends and return their number."""

        async def now() -> int:
            count = len(self._writers) // 2
            for writer in tuple(self._writers):
                _reset(writer)
            return count

        return asyncio.run_coroutine_threadsafe(now(), self._loop).result(10)

    # ------------------------------------------------------------------------------------------ event loop

    async def _listen(self) -> None:
        listening = self._listening or socket.create_server(("127.0.0.1", self.port))
        self._server = await asyncio.start_server(self._accept, sock=listening, limit=CHUNK)

    async def _close(self) -> None:
        assert self._server is not None
        self._server.close()
        self._closing.set()
        for writer in tuple(self._writers):
            _reset(writer)
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._serve(reader, writer)
        finally:
            self._tasks.discard(task)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._shape.refuses:
            _reset(writer)
            return
        try:
            server_reader, server_writer = await self._connect()
        except OSError:
            _reset(writer)
            return
        self.connections += 1
        ends = {writer, server_writer}
        self._writers |= ends
        ways = [
            asyncio.create_task(self._pass(reader, server_writer, up=True)),
            asyncio.create_task(self._pass(server_reader, writer, up=False)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            self._writers -= ends
            for end in ends:
                end.close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if isinstance(self._upstream, Path):
            return await asyncio.open_unix_connection(self._upstream, limit=CHUNK)
        return await asyncio.open_connection("127.0.0.1", self._upstream, limit=CHUNK)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, up: bool) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK):
                await self._delay(len(data))
                while self._shape.cut_up if up else self._shape.cut_down:
                    await self._pause(TICK_S)
                writer.write(data)
                await writer.drain()
                self.passed += len(data)

    async def _delay(self, size: int) -> None:
        shape = self._shape
        seconds = shape.latency_s + self._random.random() * shape.jitter_s
        if shape.bytes_per_s:
            seconds += size / shape.bytes_per_s
        while shape.loss and self._random.random() < shape.loss:
            seconds += RETRANSMISSION_S
        if seconds:
            await self._pause(seconds)

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._closing.wait(), seconds)


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close so that the other end gets an error instead of an end; bytes in transit are dropped."""
    connection = writer.get_extra_info("socket")
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
