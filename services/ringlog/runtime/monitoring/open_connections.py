"""Bounds on the connections that a server holds open, and on the open files of the process.

A connection counts from its acceptance: before TLS, before the first byte. Any peer can open connections, so a server
must neither run out of file descriptors nor let idle peers keep others out.

Invariants: at most ``most`` connections stay open. A connection that has no request in progress is closed ``request_s``
after it was opened or after its last response. When the table is full, the address with the most connections loses its
oldest idle one; if no connection is idle, the new one is closed.
"""

from __future__ import annotations

import errno
import resource
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Self

REQUEST_S: Final = 5.0
"""Time for the TLS handshake and a request, or until the next request."""
HTTP_OPEN_MAX: Final = 128
GRPC_OPEN_MAX: Final = 16_384
FILES_RESERVED: Final = 384
"""File descriptors for disk, broker and peers, which no incoming connection may use up."""
NO_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE})

Peer = tuple[Any, ...]


def raise_file_limit() -> int:
    """Raise the soft limit of open files to the hard limit, for this process and its children. Return the limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return _file_limit()


def grpc_open_max() -> int:
    """Return how many connections a gRPC port may hold open within the limit of open files."""
    return max(16, min(GRPC_OPEN_MAX, _file_limit() - FILES_RESERVED - HTTP_OPEN_MAX))


def grpc_options() -> tuple[tuple[str, int], ...]:
    """Return gRPC server options that bound the connections of a port and the time of a handshake."""
    return (
        ("grpc.max_allowed_incoming_connections", grpc_open_max()),
        ("grpc.server_handshake_timeout_ms", int(REQUEST_S * 1000)),
    )


def _file_limit() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return GRPC_OPEN_MAX + FILES_RESERVED + HTTP_OPEN_MAX if soft == resource.RLIM_INFINITY else soft


@dataclass(slots=True)
class _Open:
    connection: socket.socket
    since: float
    is_busy: bool = False


class OpenConnections:
    """The open connections of one server, by peer address (host, port, ...). Safe from threads."""

    def __init__(
        self, most: int = HTTP_OPEN_MAX, request_s: float = REQUEST_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most = most
        self._request_s = request_s
        self._clock = clock
        self._lock = threading.Lock()
        self._open: dict[Peer, _Open] = {}

    def __len__(self) -> int:
        """Return the number of open connections."""
        return len(self._open)

    def opened(self, connection: socket.socket, peer: Peer) -> None:
        """Count a connection. If that is one too many, shut down an idle connection, or this one."""
        with self._lock:
            if len(self._open) >= self._most and not self._evict():
                _shut(connection)
            self._open[peer] = _Open(connection, self._clock())

    def closed(self, connection: socket.socket, peer: Peer) -> None:
        """Stop counting a connection, unless the peer's port already has another one."""
        with self._lock:
            if (found := self._open.get(peer)) is not None and found.connection is connection:
                del self._open[peer]

    def busy(self, peer: Peer, is_busy: bool) -> None:
        """Record the start or end of a request. The time limit restarts at its end."""
        with self._lock:
            if found := self._open.get(peer):
                found.is_busy, found.since = is_busy, self._clock()

    def close_overdue(self) -> None:
        """Shut down each idle connection whose time is over. Call it about once a second."""
        with self._lock:
            until = self._clock() - self._request_s
            for peer in [peer for peer, each in self._open.items() if not each.is_busy and each.since <= until]:
                _shut(self._open.pop(peer).connection)

    def evict(self) -> bool:
        """Shut down an idle connection, since the process lacks descriptors. Return False if there is none."""
        with self._lock:
            return self._evict()

    def _evict(self) -> bool:
        idle = [(peer, each) for peer, each in self._open.items() if not each.is_busy]
        if not idle:
            return False
        per_host = Counter(peer[0] for peer in self._open)
        peer, found = min(idle, key=lambda one: (-per_host[one[0][0]], one[1].since))
        del self._open[peer]
        _shut(found.connection)
        return True


def _shut(connection: socket.socket) -> None:
    """End a connection whose owner, another thread or an event loop, then closes it."""
    with suppress(OSError):
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


class BoundedListener(socket.socket):
    """A listening socket that counts the connections it accepts in ``connections``."""

    connections: OpenConnections

    @classmethod
    def of(cls, listening: socket.socket, connections: OpenConnections) -> Self:
        """Return a listener on a duplicate of a socket's descriptor."""
        made = cls(listening.family, listening.type, listening.proto, fileno=listening.dup().detach())
        made.connections = connections
        return made

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection. Without free descriptors, close an idle connection first."""
        try:
            accepted, peer = super().accept()
        except OSError as error:
            if error.errno in NO_DESCRIPTORS and self.connections.evict():
                raise BlockingIOError(error.errno, error.strerror) from error
            raise
        counted = _Counted(accepted.family, accepted.type, accepted.proto, fileno=accepted.detach())
        counted.peer, counted.connections = peer[:2], self.connections
        self.connections.opened(counted, counted.peer)
        return counted, peer


class _Counted(socket.socket):
    """An accepted connection that stops to be counted when it is closed."""

    peer: Peer
    connections: OpenConnections

    def close(self) -> None:
        super().close()
        self.connections.closed(self, self.peer)
