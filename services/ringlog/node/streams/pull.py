"""The gaining side of streams over gRPC: ``ringlog.node.protocol.stream`` in a thread for each stream.

Every page is verified before it is kept: its checksum and count, and the ranges and order of its registers. At the end,
the checksum and the count of the whole call are verified.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sized
from contextlib import suppress
from functools import partial
from itertools import pairwise
from typing import Any, Protocol

import grpc

from ringlog.client.data.peers import Peers, Unreachable
from ringlog.client.participant.stream_attempts import StreamAttempts
from ringlog.kernel.history import state_id_at
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Epoch
from ringlog.node.checks import cell_refusal, key_refusal
from ringlog.node.hosts.register_host import RegisterHost
from ringlog.node.protocol.stream import AwaitRetry, EndPages, KeepPage, NextPage, StreamInterrupted, stream
from ringlog.node.registers.registers import RegisterFetch
from ringlog.node.rows.pages import Body, StreamBroken, verified_bodies
from ringlog.node.rows.replica import RowFetch
from ringlog.protocol.effects import FaultPoint, WallClock, run_steps
from ringlog.protocol.nodes.errors import NodeFailed
from ringlog.runtime.clock import Clock
from ringlog.runtime.logs import get_logger
from ringlog.wire.data import WRONG_NODE, Cells, Key, StreamPage, StreamRequest, pack, unpack
from ringlog.wire.errors import WireError

log = get_logger("ringlog.node")

RETRY_S = 0.2
CALL_S = 30.0
"""The deadline of one call, in seconds.

Pages received by then are kept, and the next call continues after them. Only a call without any page counts as failed.
"""
STREAM_ERRORS = (StreamBroken, Unreachable, WireError, grpc.RpcError, ValueError)
"""Errors after which a stream is requested again. A closed channel raises ValueError."""


class Pull(Protocol):
    """The content-specific part of a stream.

    ``pages`` performs one call and yields the pages after those that were kept. It raises one of ``STREAM_ERRORS`` if
    another call is needed. ``keep`` and ``end`` perform ``KeepPage`` and ``EndPages``.
    """

    def pages(self) -> Iterator[Sized]: ...
    def keep(self, page: Any) -> bool: ...
    def end(self) -> object: ...


class Puller:
    """Performs ``stream`` for all streams of registers that a node waits for, in a thread for each.

    All threads end when ``stopping`` is set.
    """

    def __init__(
        self, host: RegisterHost, peers: Peers, tries: StreamAttempts, clock: Clock, stopping: threading.Event
    ) -> None:
        self._host = host
        self._peers = peers
        self._tries = tries
        self._clock = clock
        self._stopping = stopping
        self._lock = threading.Lock()
        self._threads: dict[RegisterFetch, threading.Thread] = {}

    def start(self) -> None:
        """Start the streams that are needed and not running. Call it after each adopted epoch."""
        with self._lock:
            self._threads = {fetch: thread for fetch, thread in self._threads.items() if thread.is_alive()}
            for fetch in self._host.value.fetching:
                if fetch not in self._threads:
                    thread = threading.Thread(target=self._pull, args=(fetch,), name="pull", daemon=True)
                    self._threads[fetch] = thread
                    thread.start()

    def stop(self) -> None:
        """End all streams and connections."""
        self._stopping.set()
        self._peers.close()
        with self._lock:
            threads = tuple(self._threads.values())
        for thread in threads:
            thread.join(CALL_S)

    def _pull(self, fetch: RegisterFetch) -> None:
        host = self._host
        pull = _CellPull(host, self._peers, fetch)
        with suppress(NodeFailed):  # the node's main loop reports it
            self.run_stream(fetch, pull, lambda: fetch in host.value.fetching, lambda: host.value.state, fetch.source)

    def run_stream(
        self,
        fetch: RegisterFetch | RowFetch,
        pull: Pull,
        wanted: Callable[[], bool],
        state: Callable[[], ClusterState],
        source: str,
    ) -> None:
        """Perform ``stream`` in the calling thread.

        Args:
            source: The name of the source in log messages.
        """
        stopping, about = self._stopping, {"source": source, "operation": fetch.operation}
        reported = ""
        pages: Iterator[Sized] = iter(())

        def next_page(effect: NextPage) -> StreamInterrupted | Sized:
            nonlocal pages
            if effect.is_first:
                pages = pull.pages()
            try:
                return next(pages, ())
            except STREAM_ERRORS as error:
                if isinstance(error, StreamBroken) and error.code == WRONG_NODE:
                    # Another node answers at this address: the connection is stale.
                    self._peers.forget(fetch.source)
                is_late = isinstance(error, grpc.Call) and error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
                return StreamInterrupted(str(error.details() if isinstance(error, grpc.Call) else error), is_late)

        def again(effect: AwaitRetry) -> None:
            nonlocal reported
            if effect.why not in ("", reported):
                reported = effect.why
                log.info("stream waits", reason=reported, **about)
            stopping.wait(RETRY_S if effect.seconds is None else effect.seconds)

        def ended() -> None:
            kept = pull.end()
            log.info("streamed", kept=kept, **about)

        handlers: dict[type, Callable[[Any], Any]] = {
            FaultPoint: lambda _: None,
            WallClock: lambda _: self._clock.now_us(),
            NextPage: next_page,
            KeepPage: lambda effect: pull.keep(effect.page),
            EndPages: lambda _: ended(),
            AwaitRetry: again,
        }
        steps = stream(fetch, self._tries, lambda: not stopping.is_set() and wanted(), state)
        run_steps(steps, lambda effect: handlers[type(effect)](effect))


class _CellPull:
    def __init__(self, host: RegisterHost, peers: Peers, fetch: RegisterFetch) -> None:
        self._host = host
        self._peers = peers
        self._fetch = fetch
        self._newest = self._named()
        self.mark = partial(host.mark, fetch)
        self.end = partial(host.receive_end, fetch)

    def keep(self, page: Cells) -> bool:
        """Keep a page, for ``KeepPage``.

        If the page is rejected, the next call requires the source to have this node's present epoch.
        """
        if self._host.receive_page(self._fetch, page):
            return True
        self._newest = self._named()
        return False

    def _named(self) -> tuple[Epoch, str]:
        state = self._host.value.state
        return state.epoch, state.state_id

    def pages(self) -> Iterator[Cells]:
        fetch, state = self._fetch, self._host.value.state
        request = StreamRequest(
            state.cluster_id,
            fetch.source,
            fetch.epoch,
            state_id_at(state, fetch.epoch),
            self._host.node,
            fetch.operation,
            fetch.replication,
            fetch.ranges,
            self.mark(),
            *self._newest,
        )
        messages = self._peers.stream(fetch.source, "Stream", pack(request), CALL_S)
        for body in verified_bodies((unpack(StreamPage, data) for data in messages), fetch.source):
            yield cells_of(body, self.mark())


def cells_of(body: Body, after: Key | None) -> Cells:
    """Decode and verify the cells of a page that follows ``after``. Raises StreamBroken, WireError."""
    data, count = body
    found = unpack(Cells, data)
    cells = found.cells
    if not cells or len(cells) != count:
        raise StreamBroken(f"a page of {count} cells has {len(cells)}")
    keys = [key for key, _ in cells]
    refused = {key_refusal(key) or cell_refusal(cell) for key, cell in cells} - {""}
    if refused:
        raise StreamBroken(f"a page has registers that replicas reject: {', '.join(sorted(refused))}")
    if any(one >= other for one, other in pairwise(keys if after is None else (after, *keys))):
        raise StreamBroken("a page has registers that do not ascend")
    if sorted({key.keyspace for key in keys}) != [space for space, _ in found.made]:
        raise StreamBroken("a page does not say when the spaces of its registers were made")
    return found
