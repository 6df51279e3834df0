"""A client that requests streams without reading them does not block other clients for long. Over real gRPC."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from ringlog.kernel.operations.stages import WRITE_BOTH_READ_OLD
from ringlog.node.hosts.register_host import RegisterHost
from ringlog.node.rows.replica import RowReplica
from ringlog.node.servers.data_server import STREAMS_MAX, DataServer, SlowConsumerGuard
from ringlog.wire.data import BUSY, SERVICE, RowsRequest, StreamPage, pack, unpack
from ringlog.wire.records import Cell, encode_mutation
from tests.node.data_world import until
from tests.node.world import APPENDED, begin_join, cluster, name_of, step, write

STATE = cluster((-(2**62),), (0,), (2**62,))


@contextmanager
def source(folder: Path, silence_s: float) -> Iterator[tuple[grpc.Channel, bytes]]:
    """Yield a channel to node 1, which has more rows than any flow-control window, and the stream request."""
    state, operation = begin_join(STATE, 4, (-(2**62) - 2**61, 2**61, -(2**61)))
    while state.operations[operation].stage != WRITE_BOTH_READ_OLD:
        state = step(state, operation)
    row_replica = RowReplica(name_of(1))
    row_replica.adopt(state)
    row_replica.positions[0] = 40
    for number in range(60):
        mutation = write(f"c{number}", 1, cells=(Cell("note", b"x" * 500_000),))
        row_replica.admit(mutation, APPENDED, encode_mutation(mutation))
    found = state.operations[operation]
    ranges = tuple(sorted((s.start, s.end) for s in found.plan.sources if s.source == name_of(1)))
    request = RowsRequest(
        state.cluster_id, name_of(1), 1, "", name_of(4), operation, "simple:2", ranges, ((0, 40),), None
    )
    host = RegisterHost(name_of(1), folder)
    server = DataServer(host, row_replica, lambda: state.cluster_id, "127.0.0.1", silence_s=silence_s)
    server.start()
    try:
        options = [("grpc.http2.bdp_probe", 0)]  # Keep the flow-control window small.
        with grpc.insecure_channel(f"127.0.0.1:{server.port}", options=options) as channel:
            yield channel, pack(request)
    finally:
        server.stop(0.1)
        host.close()


def open_stream(channel: grpc.Channel, request: bytes) -> Any:
    """Open a stream without a deadline."""
    return channel.unary_stream(f"/{SERVICE}/StreamRows")(request)


def is_refused(stream: Any) -> bool:
    """Return whether the server refuses the stream by its first page. A stream that ended before this read had a slot:
    a slow machine may pause that long.
    """
    try:
        return bool(unpack(StreamPage, next(stream)).refused)
    except grpc.RpcError as ended:
        if ended.code() is not grpc.StatusCode.CANCELLED:
            raise
        return False


def test_unread_streams_release_their_slots(tmp_path: Path) -> None:
    with source(tmp_path, silence_s=0.5) as (channel, request):
        lazy = [open_stream(channel, request) for _ in range(STREAMS_MAX)]
        assert not any(map(is_refused, lazy))

        def are_free() -> bool:
            fresh = [open_stream(channel, request) for _ in range(STREAMS_MAX)]
            refused = list(map(is_refused, fresh))
            for stream in fresh:
                stream.cancel()
            return not any(refused)

        until(are_free, "all places to be free again")
        for stream in lazy:
            with pytest.raises(grpc.RpcError) as ended:
                list(stream)
            assert ended.value.code() is grpc.StatusCode.CANCELLED

        def is_read_whole() -> bool:
            """Return whether the stream is complete, or refused because cancelled streams still occupy slots or this
            test paused too long.
            """
            try:
                *_, last = open_stream(channel, request)
            except grpc.RpcError as ended:
                if ended.code() is not grpc.StatusCode.CANCELLED:
                    raise
                return False
            return unpack(StreamPage, last).is_end

        until(is_read_whole, "the admitted stream to end")


def test_one_stream_too_many_is_refused(tmp_path: Path) -> None:
    with source(tmp_path, silence_s=60.0) as (channel, request):
        lazy = [open_stream(channel, request) for _ in range(STREAMS_MAX)]
        assert not any(unpack(StreamPage, next(stream)).refused for stream in lazy)
        assert unpack(StreamPage, next(open_stream(channel, request))).refused == BUSY
        for stream in lazy:
            stream.cancel()


def test_a_stream_that_is_read_may_take_its_time(tmp_path: Path) -> None:
    """Each page arrives in time, but all pages together exceed the limit. The test repeats if the machine paused
    between two pages.
    """
    silence_s, tick = 3.0, threading.Event()
    with source(tmp_path, silence_s) as (channel, request):

        def is_read_whole() -> bool:
            pages, is_end, taken = 0, False, time.monotonic()
            try:
                for page in open_stream(channel, request):
                    pages, is_end, taken = pages + 1, unpack(StreamPage, page).is_end, time.monotonic()
                    tick.wait(0.25)
            except grpc.RpcError as ended:
                if ended.code() is not grpc.StatusCode.CANCELLED:
                    raise
                if time.monotonic() - taken < silence_s / 2:  # the client read its pages
                    raise
                return False
            assert is_end
            assert pages * 0.25 > silence_s
            return True

        until(is_read_whole, "the stream to be read slowly")


def test_a_call_ends_even_if_each_message_is_read() -> None:
    ended = threading.Event()
    watched = SlowConsumerGuard(ended.set, silence_s=60.0, most_s=0.05)
    assert list(watched.taken(iter([b"a", b"b"]))) == [b"a", b"b"]
    assert ended.wait(60)
    watched.close()


def test_a_finished_call_is_not_aborted() -> None:
    ended = threading.Event()
    watched = SlowConsumerGuard(ended.set, silence_s=0.05, most_s=0.05)
    watched.close()
    assert not ended.wait(0.3)
