"""The gRPC server of a node: registers, rows, streams, status, and log entries for peers.

The methods carry Avro records as bytes (``ringlog.wire.data``); gRPC provides connections, deadlines, flow control and
streams. A refusal is an answer with a code. A status other than OK means that the bytes are not a valid message
(INVALID_ARGUMENT), or that the outcome of a write is unknown (ABORTED).

If the process has certificates (``ringlog.runtime.trust``), only clients with a certificate of the cluster are served.
Log entries are sent to nodes only, and a stream only to the node that its certificate names. Rows and registers are
read and written by principals with the role application in their keyspace, if the cluster has principals. A node that
has left is refused, and so is a revoked certificate, also in a running stream.

A streaming call is cancelled if its client reads no message for a while, or if the call lasts too long. Each call
occupies a thread and one of the few stream slots. A client without a deadline that stops reading would occupy both for
its lifetime. A cancelled client may call again from its last position.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Final, TypeVar

import grpc

from ringlog.client.data.peers import MESSAGE_BOUNDS, is_revoked, listening, shown_node, shown_principal
from ringlog.kernel.authorization import authorize_rows
from ringlog.kernel.history import contradicts
from ringlog.kernel.model.outcome import Rejected
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Epoch
from ringlog.node import checks
from ringlog.node.hosts.register_host import RegisterHost, run_request_steps
from ringlog.node.protocol import requests
from ringlog.node.registers.cells import CellSnapshot
from ringlog.node.registers.registers import Behind, RegisterFetch, Reply, read_reply, write_reply
from ringlog.node.rows import row_reads
from ringlog.node.rows.pages import Body, grouped, stream_messages
from ringlog.node.rows.replica import NotReady, NotServed, RowFetch, RowReplica, SourceBehind
from ringlog.node.streams import row_stream
from ringlog.protocol.nodes.errors import NodeFailed
from ringlog.runtime.logs import RateLimitedWarnings, get_logger
from ringlog.runtime.monitoring.open_connections import grpc_options
from ringlog.runtime.monitoring.scrape import with_port
from ringlog.runtime.trust import Trust, current
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
    EntriesReply,
    EntriesRequest,
    Key,
    ReadReply,
    ReadRequest,
    ReadRowsReply,
    ReadRowsRequest,
    Rows,
    RowsRequest,
    RowVersion,
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

SILENCE_S = 20.0
"""The longest time, in seconds, that one message may wait for the client."""
STREAM_S = 300.0
"""The longest duration of one call, in seconds. Calls of nodes are shorter."""


class SlowConsumerGuard:
    """Cancels one streaming call whose client stops reading.

    Args:
        cancel: Ends the call.
        most_s: The longest duration of the call, in seconds.
    """

    def __init__(self, cancel: Callable[[], object], silence_s: float = SILENCE_S, most_s: float = STREAM_S) -> None:
        self._cancel = cancel
        self._silence_s = silence_s
        self._ends = time.monotonic() + most_s
        self._waits_since: float | None = None
        self._is_closed = False
        self._lock = threading.Lock()
        self._arm(min(silence_s, most_s))

    def taken(self, messages: Iterator[bytes]) -> Iterator[bytes]:
        """Yield the messages and note since when each of them waits for the client."""
        for message in messages:
            self._waits_since = time.monotonic()
            yield message
            self._waits_since = None

    def close(self) -> None:
        """Stop watching: the call is over."""
        with self._lock:
            self._is_closed = True
            self._timer.cancel()

    def _arm(self, seconds: float) -> None:
        self._timer = threading.Timer(seconds, self._check_progress)
        self._timer.daemon = True
        self._timer.start()

    def _check_progress(self) -> None:
        with self._lock:
            if self._is_closed:
                return
            now, since = time.monotonic(), self._waits_since
            ends = self._ends if since is None else min(self._ends, since + self._silence_s)
            if now < ends:
                self._arm(min(ends - now, self._silence_s))
                return
        self._cancel()


T = TypeVar("T")
Addressed = WriteRequest | ReadRequest | ReadRowsRequest | StreamRequest | RowsRequest | EntriesRequest | StatusRequest
WORKERS = 48
CALLS_MAX = 1_024
"""The limit of running and queued calls. Further calls are rejected."""
STREAMS_MAX = 4
WAITING_MAX = WORKERS // 2
"""The limit of requests that wait for an epoch or a position. Further requests are answered without a wait."""
STOP_S = 2.0
OPTIONS = (("grpc.so_reuseport", 0), *MESSAGE_BOUNDS)


class DataServer:
    """Serves the registers of ``host`` and the rows of ``row_replica``.

    Args:
        cluster_id: Returns the cluster of the node, or an empty string while it is unknown.
        port: 0 selects a free port, as does a port that is in use.
        entries: Answers requests for log entries.
        named: Receives epochs that requests name and the node does not have.
        urgent: A context for requests that wait for an epoch. The reader of the log polls without pauses inside it.
    """

    def __init__(
        self,
        host: RegisterHost,
        row_replica: RowReplica,
        cluster_id: Callable[[], str],
        address: str,
        port: int = 0,
        page_bytes: int = PAGE_BYTES_MAX,
        silence_s: float = SILENCE_S,
        *,
        entries: Callable[[EntriesRequest], EntriesReply] | None = None,
        named: Callable[[Epoch], object] = lambda _: None,
        urgent: Callable[[], AbstractContextManager[object]] = nullcontext,
        trust: Callable[[], Trust] = current,
    ) -> None:
        self._host = host
        self._row_replica = row_replica
        self._cluster_id = cluster_id
        self._page_bytes = page_bytes
        self._silence_s = silence_s
        self._entries_for = entries
        self._named = named
        self._urgent = urgent
        self._trust = trust
        self._streams = threading.BoundedSemaphore(STREAMS_MAX)
        self._waiting = threading.BoundedSemaphore(WAITING_MAX)
        self._server = grpc.server(
            ThreadPoolExecutor(WORKERS, thread_name_prefix="data"),
            options=(*OPTIONS, *grpc_options()),
            maximum_concurrent_rpcs=CALLS_MAX,
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
        """Reject new calls and wait for running ones."""
        self._server.stop(grace_s).wait()

    def _bind(self, address: str, port: int) -> int:
        for wanted in dict.fromkeys((port, 0)):
            if found := listening(self._server, with_port(address, wanted), self._trust):
                return found
        raise NodeFailed(f"cannot listen on {address}: no port is free")

    # -------------------------------------------------------------------------------------------- requests

    def _write(self, data: bytes, context: grpc.ServicerContext) -> bytes:
        request = _unpacked(WriteRequest, data, context)
        refused = self._refusal(request, context) or checks.write_refusal(request)
        if refused:
            return pack(WriteReply(self._host.node, self._epoch(), refused))
        return pack(write_reply(self._host.value, self._answered(request, context)))

    def _read(self, data: bytes, context: grpc.ServicerContext) -> bytes:
        request = _unpacked(ReadRequest, data, context)
        refused = self._refusal(request, context) or checks.read_refusal(request)
        if refused:
            return pack(ReadReply(self._host.node, self._epoch(), refused))
        return pack(read_reply(self._host.value, self._answered(request, context), request.digest))

    def _answered(self, request: WriteRequest | ReadRequest, context: grpc.ServicerContext) -> Reply | Behind:
        try:
            with self._may_wait(request.epoch, self._epoch() < request.epoch) as may_wait:
                found = self._host.answered(request, may_wait, _authorizing(context, request.key.keyspace))
        except NodeFailed as failed:
            unknown = "the outcome of the write is unknown: " if isinstance(request, WriteRequest) else ""
            context.abort(grpc.StatusCode.ABORTED, f"{unknown}{failed}")
        # Pass on only plausible epochs: a forged one must not make this node ask its peers.
        if isinstance(found, Behind) and requests.is_within_reach(self._epoch(), request.epoch):
            self._named(request.epoch)
        return found

    def _read_rows(self, data: bytes, context: grpc.ServicerContext) -> bytes:
        request = _unpacked(ReadRowsRequest, data, context)
        refused = self._refusal(request, context) or checks.rows_refusal(request)
        if refused:
            return pack(ReadRowsReply(self._host.node, self._epoch(), refused))
        authorize = _authorizing(context, request.table)
        if rejected := authorize(self._row_replica.state):
            return self._rows_rejected(rejected)
        is_behind = self._epoch() < request.epoch or row_reads.is_behind(self._row_replica, request)
        with self._may_wait(request.epoch, is_behind) as may_wait:
            reply = run_request_steps(
                self._row_replica.changed, requests.answer_row_request(self._row_replica, request, may_wait)
            )
        if requests.is_within_reach(reply.epoch, request.epoch):
            self._named(request.epoch)
        # Check again: the state may have changed while the request waited.
        rejected = authorize(self._row_replica.state)
        return pack(reply) if rejected is None else self._rows_rejected(rejected)

    def _rows_rejected(self, rejected: Rejected) -> bytes:
        state = self._row_replica.state
        return pack(ReadRowsReply(self._host.node, state.epoch, rejected.code, detail=rejected.detail))

    def _entries(self, data: bytes, context: grpc.ServicerContext) -> bytes:
        request = _unpacked(EntriesRequest, data, context)
        refused = self._refusal(request, context) or FOREIGN_CERTIFICATE * (shown_node(context) == "")
        if refused or self._entries_for is None:
            return pack(EntriesReply(self._host.node, self._epoch(), refused or NOT_READY))
        return pack(self._entries_for(request))

    def _status(self, data: bytes, context: grpc.ServicerContext) -> bytes:
        request = _unpacked(StatusRequest, data, context)
        refused = self._refusal(request, context)
        if refused:
            return pack(StatusReply(self._host.node, self._epoch(), refused))
        return pack(self._host.status())

    def _epoch(self) -> int:
        return self._host.value.state.epoch

    @contextmanager
    def _may_wait(self, epoch: Epoch, is_behind: bool) -> Iterator[bool]:
        """Provide True while a request may wait for ``epoch`` or a position.

        Provide False if too many requests wait already, or True without a slot if the request does not need to wait.
        """
        if not is_behind:
            yield True
        elif not self._waiting.acquire(blocking=False):
            yield False
        else:
            try:
                with self._urgent() if requests.is_within_reach(self._epoch(), epoch) else nullcontext():
                    yield True
            finally:
                self._waiting.release()

    def _refusal(self, request: Addressed, context: grpc.ServicerContext) -> str:
        """Return the code that rejects a message for another node or cluster, or of a node that has left; else an
        empty string. Aborts the call of a client with a revoked certificate.
        """
        self._check_revocation(context)
        own_cluster = self._cluster_id()
        if own_cluster and request.cluster_id != own_cluster:
            return FOREIGN_CLUSTER
        if request.node != self._host.node:
            return WRONG_NODE
        sender = self._row_replica.state.nodes.get(shown_node(context) or "")
        if sender is None or sender.state != "left":
            return ""
        _note(FOREIGN_CERTIFICATE, context)
        return FOREIGN_CERTIFICATE

    def _check_revocation(self, context: grpc.ServicerContext) -> None:
        if is_revoked(context, self._trust()):
            _note("certificate_revoked", context)
            context.abort(grpc.StatusCode.PERMISSION_DENIED, "the certificate is revoked")

    # -------------------------------------------------------------------------------------------- streaming

    def _stream(self, data: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        request = _unpacked(StreamRequest, data, context)
        yield from self._guarded_call(context, self._guarded(request, context, lambda: self._cells(request)))

    def _stream_rows(self, data: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        request = _unpacked(RowsRequest, data, context)
        yield from self._guarded_call(context, self._guarded(request, context, lambda: self._rows(request)))

    def _guarded_call(self, context: grpc.ServicerContext, messages: Iterator[bytes]) -> Iterator[bytes]:
        """Yield the messages of a stream while the client reads them."""
        guard = SlowConsumerGuard(context.cancel, self._silence_s)
        try:
            yield from guard.taken(messages)
        finally:
            guard.close()

    def _guarded(
        self,
        request: StreamRequest | RowsRequest,
        context: grpc.ServicerContext,
        pages: Callable[[], Iterator[StreamPage]],
    ) -> Iterator[bytes]:
        """Yield the messages of a stream, or one refusal. Limits the number of concurrent streams."""
        refused = (
            self._refusal(request, context)
            or FOREIGN_CERTIFICATE * (shown_node(context) not in (None, request.target))
            or checks.stream_refusal(request)
        )
        state = self._host.value.state
        named = (request.epoch, request.state_id), (request.newest, request.newest_id)
        if not refused and any(contradicts(state, *one) for one in named):
            refused = OTHER_HISTORY
        if not refused and not self._streams.acquire(blocking=False):
            refused = BUSY
        if refused:
            yield pack(StreamPage(self._host.node, self._epoch(), refused))
            return
        try:
            for page in pages():
                self._check_revocation(context)
                yield pack(page)
        finally:
            self._streams.release()

    def _cells(self, request: StreamRequest) -> Iterator[StreamPage]:
        node = self._host.node
        fetch = RegisterFetch(request.operation, request.epoch, node, request.replication, request.ranges)
        found = self._host.snapshot(fetch, request.newest)
        if isinstance(found, CellSnapshot):
            yield from stream_messages(node, self._epoch(), bodies(found, request.after, self._page_bytes))
        else:
            yield StreamPage(node, self._epoch(), BEHIND if isinstance(found, Behind) else found)

    def _rows(self, request: RowsRequest) -> Iterator[StreamPage]:
        node, scope = self._host.node, (request.replication, request.ranges, request.positions)
        fetch = RowFetch(request.operation, request.epoch, node, *scope)

        def page(after: RowVersion | None) -> Rows:
            return self._row_replica.page(fetch, request.newest, after, self._page_bytes)

        try:
            yield from stream_messages(node, self._epoch(), row_stream.bodies(page, request.after))
        except SourceBehind as behind:
            yield StreamPage(node, self._epoch(), BEHIND, str(behind))
        except NotReady as waiting:
            yield StreamPage(node, self._epoch(), NOT_READY, str(waiting))
        except NotServed as elsewhere:
            yield StreamPage(node, self._epoch(), BAD_STREAM, str(elsewhere))


def bodies(found: CellSnapshot, after: Key | None, page_bytes: int) -> Iterator[Body]:
    """Yield page bodies of the cells that follow ``after``."""
    sizes = ((one, len(one[0].name) + len(one[1].value)) for one in found.after(after))
    for group in grouped(sizes, page_bytes):
        yield pack(found.page(group)), len(group)


_warnings: Final = RateLimitedWarnings(get_logger("ringlog.node"))


def _note(code: str, context: grpc.ServicerContext, why: str = "") -> None:
    """Log a refused call with the address of the peer, at a bounded rate."""
    _warnings.warn("call_refused", code=code, peer=context.peer(), why=why)


def _authorizing(context: grpc.ServicerContext, name: str) -> requests.Authorize:
    """Return the check of a client's rights to a keyspace, or to the keyspace of a table. It passes without TLS."""
    principal, keyspace = shown_principal(context), name.partition(".")[0]

    def authorize(state: ClusterState) -> Rejected | None:
        rejected = None if principal is None else authorize_rows(state, principal, keyspace)
        if rejected is not None:
            _note(rejected.code, context, rejected.detail)
        return rejected

    return authorize


def _unpacked(record: type[T], data: bytes, context: grpc.ServicerContext) -> T:
    try:
        return unpack(record, data)
    except WireError as error:
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        raise  # abort has raised; for the type checker
