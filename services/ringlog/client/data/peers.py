"""gRPC connections to data nodes: addresses, one channel for each node, and calls that never block the caller.

A node that does not answer, or answers for another node, is looked up again before the next call, because it may have
been restarted elsewhere. With certificates (``ringlog.runtime.trust``), this process sends requests to a node only
after the node has shown a certificate with the expected id. Without certificates all traffic is plain text, and peers
have no identity.

The directory contains the addresses that nodes registered. Another program may listen there now. So a lookup has one
deadline in total, reads a bounded response, and accepts it only from the expected node.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import grpc

from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import NodeId
from ringlog.runtime.certificates import serial_of
from ringlog.runtime.trust import (
    CertificateOfAnotherNode,
    Trust,
    current,
    name_of_node,
    node_of_names,
    principal_of_names,
)
from ringlog.wire.data import MESSAGE_BYTES_MAX, SERVICE


def listening(server: grpc.Server, place: str, trust: Callable[[], Trust]) -> int:
    """Open a port of a server at ``host:port``, for clients with a certificate of the cluster.

    Returns the port, or 0 if it cannot be opened. Each new connection uses the current certificate.
    """
    try:
        if not trust().encrypts:
            return int(server.add_insecure_port(place))
        credentials = grpc.dynamic_ssl_server_credentials(_shown(trust()), lambda: _shown(trust()), True)
        return int(server.add_secure_port(place, credentials))
    except RuntimeError:
        return 0


def _shown(trust: Trust) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(trust.key, trust.certificate)], trust.ca)


def channel_to(target: str, name: str, trust: Trust, options: tuple[tuple[str, Any], ...]) -> grpc.Channel:
    """Return a channel to ``host:port`` that requires a server certificate with this dNSName."""
    if not trust.encrypts:
        return grpc.insecure_channel(target, options=options)
    credentials = grpc.ssl_channel_credentials(trust.ca, trust.key, trust.certificate)
    return grpc.secure_channel(target, credentials, (*options, ("grpc.ssl_target_name_override", name)))


def shown_node(context: grpc.ServicerContext) -> NodeId | None:
    """Return the node named by the client's certificate: an empty string if it names none, None without TLS."""
    names = _shown_names(context)
    return None if names is None else _identity(names)[0]


def shown_principal(context: grpc.ServicerContext) -> str | None:
    """Return the principal named by the client's certificate: an empty string if it names none, None without TLS."""
    names = _shown_names(context)
    return None if names is None else _identity(names)[1]


def _shown_names(context: grpc.ServicerContext) -> tuple[bytes, ...] | None:
    shown = context.auth_context()
    if shown.get("transport_security_type", [b""])[0] not in (b"ssl", b"tls"):
        return None
    return tuple(shown.get("peer_dns", ()))


@lru_cache(maxsize=1_024)
def _identity(dns_names: tuple[bytes, ...]) -> tuple[NodeId, str]:
    """Return the node and the principal of a certificate, which a connection repeats in each call."""
    names = tuple(name.decode("latin-1") for name in dns_names)
    try:
        return node_of_names(names), principal_of_names(names)
    except CertificateOfAnotherNode:
        return "", ""


def is_revoked(context: grpc.ServicerContext, trust: Trust) -> bool:
    """Return True if the client's certificate is revoked."""
    if not trust.revoked:
        return False
    shown = context.auth_context()
    names = [name.decode("latin-1") for name in shown.get("peer_dns", ())]
    return any(trust.refuses(_serial(pem), names) for pem in shown.get("x509_pem_cert", ()))


@lru_cache(maxsize=1_024)
def _serial(pem: bytes) -> int:
    """Return the serial number of a certificate, which a connection repeats in each call."""
    return serial_of(ssl.PEM_cert_to_DER_cert(pem.decode("ascii")))


LOOKUP_S = 1.0
LOOKUPS_MAX = 8
PORT_MAX = 65_535
STATUS_BYTES_MAX = 64 * 1024
MESSAGE_BOUNDS = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
)
"""Message size limits of both sides of a call."""
OPTIONS = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # Despite its name, gRPC uses this option as the timeout of a connection with its TLS handshake.
    ("grpc.min_reconnect_backoff_ms", 5_000),
    *MESSAGE_BOUNDS,
)

Answered = Callable[[bytes | None], None]
"""Called with the answer, or with None if none arrived. The outcome of the request is then unknown."""


class Unreachable(Exception):
    """The node cannot be reached now; the text contains the reason."""


Find = Callable[[NodeId], str]
"""Returns host:port of a node's data port. May block. Raises Unreachable."""


class StatusPages:
    """Lookup of data ports. The directory has the address of a node's status page; the page contains the data port."""

    def __init__(self, state: Callable[[], ClusterState], trust: Callable[[], Trust] = current) -> None:
        self._state = state
        self._trust = trust

    def __call__(self, node: NodeId) -> str:
        """Return host:port of the node's data port. Raises Unreachable."""
        state = self._state()
        found = state.nodes.get(node)
        if found is None:
            raise Unreachable(f"the directory does not contain node {node}")
        # This import is slow, and many processes with peers never look up a node.
        import httpx

        try:
            page = asyncio.run(_status_page(found.address, node, self._trust()))
        except TimeoutError as late:
            raise Unreachable(f"{found.address} did not report its status within {LOOKUP_S:g} s") from late
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
            raise Unreachable(f"{found.address} does not report its data port: {error}") from error
        try:
            port = decode_status(page, node, state.cluster_id)
        except ValueError as error:
            raise Unreachable(f"{found.address} {error}") from error
        return f"{found.address.rpartition(':')[0]}:{port}"


def decode_status(page: bytes, node: NodeId, cluster_id: str) -> int:
    """Return the data port in the status page of ``node``. Raises ValueError.

    A node that has not read the log yet does not know its cluster.
    """
    try:
        status = json.loads(page)
        reported, port = (status["node"], status["cluster_id"] or cluster_id), status["data_port"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"does not report its data port: {error}") from error
    if reported != (node, cluster_id):
        raise ValueError(f"is node {reported[0]!s:.40} of cluster {reported[1]!s:.40}, not {node}")
    if type(port) is not int or not 0 < port <= PORT_MAX:
        raise ValueError(f"reports {port!r:.40} as its data port")
    return port


async def _status_page(address: str, node: NodeId, trust: Trust) -> bytes:
    """Fetch the body of a node's status page. Raises TimeoutError, httpx.HTTPError, OSError, ValueError."""
    import httpx

    url, headers = trust.url(f"{address}/v1/status"), {"Accept-Encoding": "identity"} | trust.headers()
    async with (
        asyncio.timeout(LOOKUP_S),
        httpx.AsyncClient(trust_env=False, timeout=None, verify=trust.client or False) as http,
        http.stream("GET", url, headers=headers, extensions={"sni_hostname": name_of_node(node)}) as answer,
    ):
        answer.raise_for_status()
        body = b""
        async for part in answer.aiter_raw():
            body += part
            if len(body) > STATUS_BYTES_MAX:
                raise ValueError(f"more than {STATUS_BYTES_MAX} bytes")
        return body


class Peers:
    """Channels to nodes. Thread-safe. ``trust``: returns the current certificates; a change replaces the channels."""

    def __init__(self, find: Find, trust: Callable[[], Trust] = current) -> None:
        self._find = find
        self._trust = trust
        self._lock = threading.Lock()
        self._channels: dict[NodeId, tuple[tuple[str, Trust], grpc.Channel]] = {}
        self._doubted: set[NodeId] = set()
        self._calls: set[Any] = set()
        self._looking = ThreadPoolExecutor(LOOKUPS_MAX, thread_name_prefix="peers")
        self._closed = False

    def close(self) -> None:
        """Cancel all calls; their answers are None."""
        with self._lock:
            self._closed = True
            channels, self._channels = self._channels, {}
        for _, channel in channels.values():
            channel.close()
        self._looking.shutdown(wait=True, cancel_futures=True)

    def call(self, node: NodeId, method: str, data: bytes, timeout_s: float, answered: Answered) -> None:
        """Send a request. ``answered`` is called once, in a thread of this class or of the caller."""
        channel = self._cached_channel(node)
        if channel is not None:
            self._send(node, channel, method, data, timeout_s, answered)
            return

        def looked_up(found: Future[grpc.Channel]) -> None:
            if found.cancelled() or found.exception() is not None:
                answered(None)
            else:
                self._send(node, found.result(), method, data, timeout_s, answered)

        try:
            self._looking.submit(self.channel, node).add_done_callback(looked_up)
        # The executor was shut down by ``close``.
        except RuntimeError:
            answered(None)

    def stream(self, node: NodeId, method: str, data: bytes, timeout_s: float) -> Iterator[bytes]:
        """Return the messages of a stream. Raises Unreachable, grpc.RpcError."""
        channel = self._cached_channel(node) or self.channel(node)
        messages: Iterator[bytes] = channel.unary_stream(f"/{SERVICE}/{method}")(data, timeout=timeout_s)
        return messages

    def forget(self, node: NodeId) -> None:
        """Look up the node again before the next call."""
        with self._lock:
            self._doubted.add(node)

    def channel(self, node: NodeId) -> grpc.Channel:
        """Return the channel to a node, after a lookup if necessary; the lookup blocks. Raises Unreachable."""
        target = self._find(node), self._trust()
        with self._lock:
            if self._closed:
                raise Unreachable("closed")
            self._doubted.discard(node)
            have = self._channels.get(node)
            if have is not None and have[0] == target:
                return have[1]
            channel = channel_to(target[0], name_of_node(node), target[1], OPTIONS)
            self._channels[node] = (target, channel)
        if have is not None:
            # Never close a channel in one of its own threads: ``close`` waits for that thread.
            have[1].close()
        return channel

    def _cached_channel(self, node: NodeId) -> grpc.Channel | None:
        trust = self._trust()
        with self._lock:
            found = None if node in self._doubted else self._channels.get(node)
        return None if found is None or found[0][1] is not trust else found[1]

    def _send(
        self, node: NodeId, channel: grpc.Channel, method: str, data: bytes, timeout_s: float, answered: Answered
    ) -> None:
        try:
            call = channel.unary_unary(f"/{SERVICE}/{method}").future(data, timeout=timeout_s)
        # The channel was closed after it was returned from the cache.
        except ValueError:
            answered(None)
            return
        with self._lock:
            # gRPC cancels a call that is garbage collected, so keep a reference until it ends.
            self._calls.add(call)

        def ended(done: Any) -> None:
            with self._lock:
                self._calls.discard(done)
            if done.cancelled() or done.exception() is not None:
                if not done.cancelled() and done.code() is grpc.StatusCode.UNAVAILABLE:
                    self.forget(node)
                answered(None)
            else:
                answered(done.result())

        call.add_done_callback(ended)
