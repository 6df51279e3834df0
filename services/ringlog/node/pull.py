"""The gaining node's side of a stream: pull each range from its source, page by page, until it is all on the own disk.

Every page is checked before it is kept: its sum and count, ascending registers above what is here already, all of them
of the ranges that were asked for; at the end the sum and count over the whole call. A stream that breaks, whichever
side was killed, goes on after the last page that is on the disk. ``ringlog.node.protocol.stream`` says how often it is
tried.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from typing import Any

import grpc

from ringlog.client.peers import Peers, Unreachable
from ringlog.kernel.history import state_id_at
from ringlog.node.checks import cell_refusal, key_refusal
from ringlog.node.errors import NodeFailed
from ringlog.node.pages import Body, StreamBroken, received
from ringlog.node.protocol.stream import Again, AskAgain, PullMissing, stream
from ringlog.node.register_host import RegisterHost
from ringlog.node.registers import RegisterFetch
from ringlog.node.tries import Tries
from ringlog.protocol.effects import At, Steps, WallClock, carry_out
from ringlog.runtime.clock import Clock
from ringlog.runtime.logs import get_logger
from ringlog.wire.cells import Key, RegisterCell
from ringlog.wire.data import WRONG_NODE, Cells, StreamPage, StreamRequest, pack, unpack
from ringlog.wire.errors import WireError

log = get_logger("ringlog.node")

RETRY_S = 0.2
CALL_S = 30.0
"""One call's time. What has come by then is kept, and the next call goes on from there; only a call that brings nothing
was in vain."""


STREAM_ERRORS = (StreamBroken, Unreachable, WireError, grpc.RpcError, ValueError)
"""Why a stream has to be asked for again; a channel that is closed raises a ValueError."""


def pulled(
    steps: Steps[None],
    once: Callable[[], None],
    mark: Callable[[], object],
    stopping: threading.Event,
    clock: Clock,
    **about: str,
) -> None:
    """Perform ``stream`` in the thread that asks. ``once``: one call, which raises one of ``STREAM_ERRORS`` if another
    one is needed; ``mark``: how far it has come; ``about``: what the stream is, for the log.
    """
    said = ""

    def attempt() -> AskAgain | None:
        nonlocal said
        before = mark()
        try:
            once()
        except STREAM_ERRORS as error:
            in_time = not isinstance(error, grpc.Call) or error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED
            broken = AskAgain(
                str(error.details() if isinstance(error, grpc.Call) else error), not in_time and mark() != before
            )
            if broken.why != said and not broken.got_on:
                said = broken.why
                log.info("stream waits", reason=said, **about)
            return broken
        return None

    handlers: dict[type, Callable[[Any], Any]] = {
        At: lambda _: None,
        WallClock: lambda _: clock.now_us(),
        PullMissing: lambda _: attempt(),
        Again: lambda effect: stopping.wait(RETRY_S if effect.seconds is None else effect.seconds),
    }
    carry_out(steps, lambda effect: handlers[type(effect)](effect))


class Puller:
    """Fetches what a node's registers wait for, one thread for each stream. ``start`` when there may be new ones."""

    def __init__(self, host: RegisterHost, peers: Peers, tries: Tries, clock: Clock) -> None:
        self._host = host
        self._peers = peers
        self._tries = tries
        self._clock = clock
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._threads: dict[RegisterFetch, threading.Thread] = {}

    def start(self) -> None:
        """Begin with the streams that are waited for and not under way."""
        with self._lock:
            self._threads = {fetch: thread for fetch, thread in self._threads.items() if thread.is_alive()}
            for fetch in self._host.value.fetching:
                if fetch not in self._threads:
                    thread = threading.Thread(target=self._pull, args=(fetch,), name="pull", daemon=True)
                    self._threads[fetch] = thread
                    thread.start()

    def stop(self) -> None:
        """End all streams, and the connections."""
        self._stopping.set()
        self._peers.close()
        with self._lock:
            threads = tuple(self._threads.values())
        for thread in threads:
            thread.join(CALL_S)

    def _pull(self, fetch: RegisterFetch) -> None:
        host, about = self._host, {"source": fetch.source, "operation": fetch.operation}
        steps = stream(
            fetch,
            self._tries,
            lambda: not self._stopping.is_set() and fetch in host.value.fetching,
            lambda: host.value.state,
        )

        def once() -> None:
            count = self._once(fetch)
            log.info("cells streamed", cells=count, **about)

        with suppress(NodeFailed):  # the node's main loop says why
            pulled(steps, once, lambda: host.mark(fetch), self._stopping, self._clock, **about)

    def _once(self, fetch: RegisterFetch) -> int:
        """One call; the number of cells that came by it. Raises StreamBroken."""
        total = 0
        try:
            for body in received(self._pages(fetch), fetch.source):
                cells = cells_of(body, self._host.mark(fetch))
                if self._stopping.is_set() or not self._host.receive_page(fetch, cells):
                    raise StreamBroken("nobody wants it any more, or cells of other ranges came")
                total += len(cells)
        except StreamBroken as broken:
            if broken.code == WRONG_NODE:
                self._peers.forget(fetch.source)
            raise
        self._host.receive_end(fetch)
        return total

    def _pages(self, fetch: RegisterFetch) -> Iterator[StreamPage]:
        value = self._host.value
        request = StreamRequest(
            value.state.cluster_id,
            fetch.source,
            fetch.epoch,
            state_id_at(value.state, fetch.epoch),
            self._host.node,
            fetch.operation,
            fetch.replication,
            fetch.ranges,
            self._host.mark(fetch),
        )
        for data in self._peers.stream(fetch.source, "Stream", pack(request), CALL_S):
            yield unpack(StreamPage, data)


def cells_of(body: Body, after: Key | None) -> dict[Key, RegisterCell]:
    """The cells of a page that follows ``after``; raises StreamBroken, WireError."""
    data, count = body
    cells = unpack(Cells, data).cells
    if not cells or len(cells) != count:
        raise StreamBroken(f"a page of {count} cells has {len(cells)}")
    keys = [key for key, _ in cells]
    refused = {key_refusal(key) or cell_refusal(cell) for key, cell in cells} - {""}
    if refused:
        raise StreamBroken(f"a page has what no replica takes: {', '.join(sorted(refused))}")
    if any(one >= other for one, other in pairwise(keys if after is None else (after, *keys))):
        raise StreamBroken("a page has registers that do not ascend")
    return dict(cells)
