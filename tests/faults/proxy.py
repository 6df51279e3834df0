"""A TCP proxy that spoils a connection on order: latency, bandwidth, loss, one direction cut, resets, a closed door.

It works on bytes and knows nothing of Kafka. What a network does to TCP is what it does here: a lost packet is a pause
(the sender repeats it), a cut direction is silence (nobody is told), a reset is an error for both ends at once.
Bytes are never changed, doubled or reordered, since TCP would not hand those on either.

One thread with an event loop of its own serves all connections; ``shape`` and ``reset`` may be called from any thread
and count at once for connections that exist, too. Delays are drawn from a seeded source.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
import threading
from dataclasses import dataclass
from pathlib import Path

CHUNK = 16 * 1024
TICK_S = 0.02
"""How often a cut direction looks whether it is healed."""
RETRANSMISSION_S = 0.2
"""How long a lost packet takes: the least time-out after which Linux repeats one."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What a link does to the bytes that pass.

    ``latency_s`` one way (of each chunk: the next one leaves when this one has arrived); ``jitter_s`` on top, uniform;
    ``bytes_per_s`` per connection and direction, 0: unbounded; ``loss``: probability that a chunk has to be sent again;
    ``cut_up``, ``cut_down``: nothing passes to the server, to the client; ``refuses``: new connections are closed at
    once.
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
    """Listens on ``port`` of 127.0.0.1, or on ``listening``, and passes on to ``upstream``, a port or a socket's path.

    ``start`` once, ``close`` once.
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
        """Begin to listen."""
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)
        return self

    def close(self) -> None:
        """End every connection and the thread."""
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def shape(self, shape: Shape) -> None:
        """From now on the link is like this."""
        self._shape = shape

    def heal(self) -> None:
        """From now on the link is clean; what waits in it arrives."""
        self._shape = CLEAN

    @property
    def is_clean(self) -> bool:
        """True while nothing is spoilt."""
        return self._shape == CLEAN

    def reset(self) -> int:
        """End all connections with a reset for both ends; returns how many connections there were."""

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
    """Close so that the other end gets an error, not an end: what was under way is dropped."""
    connection = writer.get_extra_info("socket")
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
