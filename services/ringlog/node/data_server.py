"""The node's gRPC side: reads, writes, repairs, streams and status of its registers, and entries of the log for peers.

The methods carry our own Avro records as bytes (``ringlog.wire.data``); gRPC brings connections, deadlines, flow
control and streams. A refusal is an answer with a code. A status other than OK means: the bytes are no message
(INVALID_ARGUMENT), or the node cannot say what became of a write (ABORTED).

Where the process has certificates (``ringlog.runtime.trust``), only who shows one of the cluster's is heard at all;
entries go to nodes only, and a stream to the node that its certificate names.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

import grpc

from ringlog.client.channels import listening, shown_node
from ringlog.client.peers import MESSAGE_BOUNDS
from ringlog.kernel.history import contradicts
from ringlog.kernel.values import Epoch, NodeId
from ringlog.node import checks, row_stream
from ringlog.node.cells import Excerpt
from ringlog.node.errors import NodeFailed
from ringlog.node.holder import Holder, NotReady, NotServed
from ringlog.node.holding import hold
from ringlog.node.pages import Body, grouped, sent
from ringlog.node.protocol import requests
from ringlog.node.register_host import RegisterHost
from ringlog.node.registers import Behind, RegisterFetch, Reply, read_reply, write_reply
from ringlog.node.store import RowVersion
from ringlog.node.taking import SILENCE_S, Watched
from ringlog.runtime.hosts import with_port
from ringlog.runtime.trust import Trust, current
from ringlog.wire.cells import Key, RegisterCell
from ringlog.wire.data import (
    BAD_STREAM,
    BEHIND,
    BUSY,
    FOREIGN_CERTIFICATE,
    FOREIGN_CLUSTER,
    NOT_READY,
    OTHER_HISTORY,
    PAGE_BYTES_MAX,
    SERVICE,
    WRONG_NODE,
    Cells,
    EntriesReply,
    EntriesRequest,
    ReadReply,
    ReadRequest,
    ReadRowsReply,
    ReadRowsRequest,
    RowsRequest,
    StatusReply,
    StatusRequest,
    StreamPage,
    StreamRequest,
    WriteReply,
    WriteRequest,
    pack,
    unpack,
)
from ringlog.wire.errors import WireError

T = TypeVar("T")
WORKERS = 48
CALLS_MAX = 1_024
"""Calls in hand and waiting; one more is refused as one too many."""
STREAMS_MAX = 4
STOP_S = 2.0
OPTIONS = (("grpc.so_reuseport", 0), *MESSAGE_BOUNDS)


class DataServer:
    """Serves ``host``'s registers, and streams of ``holder``'s rows.

    ``entries`` answers peers that are behind; ``named`` hears of epochs that are not here yet, and during ``hurry`` a
    request waits for one: the node's own reader of the log, which may rest, goes on.

    ``port`` 0, or one that is taken: any free one of ``address``. ``cluster_id`` gives the cluster that the node is in,
    empty while it does not know.
    """

    def __init__(
        self,
        host: RegisterHost,
        holder: Holder,
        cluster_id: Callable[[], str],
        address: str,
        port: int = 0,
        page_bytes: int = PAGE_BYTES_MAX,
        silence_s: float = SILENCE_S,
        *,
        entries: Callable[[EntriesRequest], EntriesReply] | None = None,
        named: Callable[[Epoch], object] = lambda _: None,
        hurry: Callable[[], AbstractContextManager[object]] = nullcontext,
        trust: Callable[[], Trust] = current,
    ) -> None:
        self._host = host
        self._holder = holder
        self._cluster_id = cluster_id
        self._page_bytes = page_bytes
        self._silence_s = silence_s
        self._entries_for = entries
        self._named = named
        self._hurry = hurry
        self._trust = trust
        self._streams = threading.BoundedSemaphore(STREAMS_MAX)
        self._server = grpc.server(
            ThreadPoolExecutor(WORKERS, thread_name_prefix="data"), options=OPTIONS, maximum_concurrent_rpcs=CALLS_MAX
        )
        handlers = {
            "Write": grpc.unary_unary_rpc_method_handler(self._write),
            "Repair": grpc.unary_unary_rpc_method_handler(self._write),
            "Read": grpc.unary_unary_rpc_method_handler(self._read),
            "ReadRows": grpc.unary_unary_rpc_method_handler(self._read_rows),
            "Stream": grpc.unary_stream_rpc_method_handler(self._stream),
            "StreamRows": grpc.unary_stream_rpc_method_handler(self._stream_rows),
            "Entries": grpc.unary_unary_rpc_method_handler(self._entries),
            "Status": grpc.unary_unary_rpc_method_handler(self._status),
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        self.port = self._bind(address, port)

    def start(self) -> None:
        """Begin to answer."""
        self._server.start()

    def stop(self, grace_s: float = STOP_S) -> None:
        """Take nothing new, and wait a moment for what is in hand."""
        self._server.stop(grace_s).wait()

    def _bind(self, address: str, port: int) -> int:
        for wanted in dict.fromkeys((port, 0)):
            if found := listening(self._server, with_port(address, wanted), self._trust):
                return found
        raise NodeFailed(f"cannot listen on {address}: no port is free")

    # -------------------------------------------------------------------------------------------- requests

    def _write(self, data: bytes, context: grpc.ServicerContext) -> bytes:
        request = _unpacked(WriteRequest, data, context)
        refused = self._misdirected(request.cluster_id, request.node) or checks.write_refusal(request)
        if refused:
            return pack(WriteReply(self._host.node, self._epoch(), refused))
        return pack(write_reply(self._host.value, self._answered(request, context)))

    def _read(self, data: bytes, context: grpc.ServicerContext) -> bytes:
        request = _unpacked(ReadRequest, data, context)
        refused = self._misdirected(request.cluster_id, request.node) or checks.read_refusal(request)
        if refused:
            return pack(ReadReply(self._host.node, self._epoch(), refused))
        return pack(read_reply(self._host.value, self._answered(request, context), request.digest))

    def _answered(self, request: WriteRequest | ReadRequest, context: grpc.ServicerContext) -> Reply | Behind:
        try:
            with self._hurried(request.epoch):
                found = self._host.answered(request)
        except NodeFailed as failed:
            unknown = "nobody knows whether it was written: " if isinstance(request, WriteRequest) else ""
            context.abort(grpc.StatusCode.ABORTED, f"{unknown}{failed}")
        if isinstance(found, Behind):
            self._named(request.epoch)
        return found

    def _read_rows(self, data: bytes, context: grpc.ServicerContext) -> bytes:
        request = _unpacked(ReadRowsRequest, data, context)
        refused = self._misdirected(request.cluster_id, request.node) or checks.rows_refusal(request)
        if refused:
            return pack(ReadRowsReply(self._host.node, self._epoch(), refused))
        with self._hurried(request.epoch):
            reply = hold(self._holder.changed, requests.answer(self._holder, request))
        if reply.epoch < request.epoch:
            self._named(request.epoch)
        return pack(reply)

    def _entries(self, data: bytes, context: grpc.ServicerContext) -> bytes:
        request = _unpacked(EntriesRequest, data, context)
        refused = self._misdirected(request.cluster_id, request.node) or self._disbelieved(shown_node(context))
        if refused or self._entries_for is None:
            return pack(EntriesReply(self._host.node, self._epoch(), refused or NOT_READY))
        return pack(self._entries_for(request))

    def _status(self, data: bytes, context: grpc.ServicerContext) -> bytes:
        request = _unpacked(StatusRequest, data, context)
        refused = self._misdirected(request.cluster_id, request.node)
        if refused:
            return pack(StatusReply(self._host.node, self._epoch(), refused))
        return pack(self._host.status())

    def _epoch(self) -> int:
        return self._host.value.state.epoch

    def _hurried(self, epoch: Epoch) -> AbstractContextManager[object]:
        """While a request may wait for ``epoch``."""
        return self._hurry() if self._epoch() < epoch else nullcontext()

    def _misdirected(self, cluster_id: str, node: str) -> str:
        """The code that refuses a message for somebody else."""
        mine = self._cluster_id()
        if mine and cluster_id != mine:
            return FOREIGN_CLUSTER
        return "" if node == self._host.node else WRONG_NODE

    def _disbelieved(self, shown: NodeId | None, asks: NodeId | None = None) -> str:
        """The code that refuses who shows a certificate of node ``shown``, and asks for node ``asks``: None, any."""
        if shown is None:
            return ""
        known = self._holder.state.nodes.get(shown)
        is_it = shown != "" and asks in (None, shown) and (known is None or known.state != "left")
        return "" if is_it else FOREIGN_CERTIFICATE

    # -------------------------------------------------------------------------------------------- streaming

    def _stream(self, data: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        request = _unpacked(StreamRequest, data, context)
        yield from self._watched(context, self._guarded(request, shown_node(context), lambda: self._cells(request)))

    def _stream_rows(self, data: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        request = _unpacked(RowsRequest, data, context)
        yield from self._watched(context, self._guarded(request, shown_node(context), lambda: self._rows(request)))

    def _watched(self, context: grpc.ServicerContext, messages: Iterator[bytes]) -> Iterator[bytes]:
        """The messages of a stream, as long as somebody takes them."""
        watched = Watched(context.cancel, self._silence_s)
        try:
            yield from watched.taken(messages)
        finally:
            watched.close()

    def _guarded(
        self, request: StreamRequest | RowsRequest, shown: NodeId | None, pages: Callable[[], Iterator[StreamPage]]
    ) -> Iterator[bytes]:
        """The messages of a stream, of which there are not too many at once."""
        refused = (
            self._misdirected(request.cluster_id, request.node)
            or self._disbelieved(shown, request.target)
            or checks.stream_refusal(request)
        )
        if not refused and contradicts(self._host.value.state, request.epoch, request.state_id):
            refused = OTHER_HISTORY
        if not refused and not self._streams.acquire(blocking=False):
            refused = BUSY
        if refused:
            yield pack(StreamPage(self._host.node, self._epoch(), refused))
            return
        try:
            for page in pages():
                yield pack(page)
        finally:
            self._streams.release()

    def _cells(self, request: StreamRequest) -> Iterator[StreamPage]:
        node = self._host.node
        found = self._host.snapshot(
            RegisterFetch(request.operation, request.epoch, node, request.replication, request.ranges)
        )
        if isinstance(found, Excerpt):
            yield from sent(node, self._epoch(), bodies(found.after(request.after), self._page_bytes))
        else:
            yield StreamPage(node, self._epoch(), BEHIND if isinstance(found, Behind) else found)

    def _rows(self, request: RowsRequest) -> Iterator[StreamPage]:
        node, positions = self._host.node, dict(request.positions)

        def page(after: RowVersion | None) -> tuple[RowVersion, ...]:
            whose = request.operation, request.replication, request.ranges
            return self._holder.page(*whose, positions, after, self._page_bytes)

        try:
            yield from sent(node, self._epoch(), row_stream.bodies(page, request.after))
        except NotReady as waiting:
            yield StreamPage(node, self._epoch(), NOT_READY, str(waiting))
        except NotServed as elsewhere:
            yield StreamPage(node, self._epoch(), BAD_STREAM, str(elsewhere))


def bodies(cells: Iterable[tuple[Key, RegisterCell]], page_bytes: int) -> Iterator[Body]:
    """The bodies of cells, which ascend."""
    for group in grouped(((one, len(one[0].name) + len(one[1].value)) for one in cells), page_bytes):
        yield pack(Cells(group)), len(group)


def _unpacked(record: type[T], data: bytes, context: grpc.ServicerContext) -> T:
    try:
        return unpack(record, data)
    except WireError as error:
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        raise  # abort has raised already; this is for the type checker
