"""An HTTP server for ``/metrics`` and ``/health``, with its own threads, for a process that has no other server.

Invariant: the work of the process never depends on it. If the port is in use, the server logs this once and retries:
the previous instance may be about to end.

A connection has a few seconds for handshake, request and response together, at any sending rate. If too many are open,
the server closes the oldest connection of the address with the most, so silent peers cannot block others.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from typing import Any, Final, Protocol

from ringlog.runtime.logs import get_logger
from ringlog.runtime.monitoring.health import WatchedProcess
from ringlog.runtime.monitoring.open_connections import NO_DESCRIPTORS, OpenConnections
from ringlog.runtime.monitoring.scrape import CHALLENGE, JSON, REFUSAL, HttpAnswer, answer, is_admitted, is_own
from ringlog.runtime.trust import Trust, current, server_context

AGAIN_S: Final = 5.0
"""Seconds between two attempts to listen on a port in use."""
POLL_S: Final = 0.1
SLOW_S: Final = 5.0
"""Seconds for one connection."""
AT_ONCE_MAX: Final = 32
"""Maximum number of open connections."""

log = get_logger(__name__)


class PathAnswers(Protocol):
    """A function that responds to a GET of a path."""

    def __call__(self, path: str, *, is_admitted: bool) -> HttpAnswer:
        """See ``ringlog.runtime.monitoring.scrape.answer``."""
        ...


class WatchServer:
    """A server for the metrics and health of ``watched``, for clients with a token of ``trust``.

    ``start`` once, ``stop`` once. With port 0 it chooses a free port, which ``port`` then contains.
    """

    def __init__(
        self,
        watched: WatchedProcess,
        host: str,
        port: int,
        again_s: float = AGAIN_S,
        trust: Callable[[], Trust] = current,
    ) -> None:
        self._watched = watched
        self._host = host
        self.port = port
        self._again_s = again_s
        self._trust = trust
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watched", daemon=True)

    def start(self) -> None:
        """Start the server and return at once."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the server."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        answers = partial(answer, watched=self._watched)
        shown_token = False
        while not self._stopping.is_set():
            try:
                server = MetricsServer(self._host, self.port, answers, self._trust)
            except OSError as error:
                if not shown_token:
                    log.warning("not_watched", host=self._host, port=self.port, why=str(error), again_s=self._again_s)
                shown_token = True
                self._stopping.wait(self._again_s)
                continue
            with server:
                self.port = server.server_address[1]
                log.info("watched", host=self._host, port=self.port)
                thread = threading.Thread(target=partial(server.serve_forever, POLL_S), name="watched", daemon=True)
                thread.start()
                self._stopping.wait()
                server.shutdown()
                thread.join()


class MetricsServer(ThreadingTCPServer):
    """An HTTP server that responds with ``answers``. Raises OSError if the port is in use.

    Run ``serve_forever`` in a thread; then call ``shutdown`` and ``server_close``.
    """

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False

    def __init__(self, host: str, port: int, answers: PathAnswers, trust: Callable[[], Trust] = current) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.answers = answers
        self.host = host
        self.trust = trust
        self._tls = server_context(trust)
        self._open = OpenConnections(AT_ONCE_MAX, SLOW_S)
        super().__init__((host, port), _Handler)

    def get_request(self) -> tuple[Any, Any]:
        """Accept a connection. Its own thread performs the TLS handshake."""
        try:
            request, peer = super().get_request()
        except OSError as error:
            if error.errno in NO_DESCRIPTORS and not self._open.evict():
                time.sleep(POLL_S)  # without a pause, the caller's loop would retry at once
            raise
        if self._tls is not None:
            request = self._tls.wrap_socket(request, server_side=True, do_handshake_on_connect=False)
        self._open.opened(request, peer)
        return request, peer

    def service_actions(self) -> None:
        """Close overdue connections. The server's loop calls this regularly."""
        self._open.close_overdue()

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Handle one connection and stop counting it."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._open.closed(request, client_address)

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Handle one connection from the handshake on."""
        request.settimeout(SLOW_S)
        if self._tls is not None:
            request.do_handshake()
        super().finish_request(request, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors of a connection, such as a client that disconnects."""


class _Handler(BaseHTTPRequestHandler):
    """A handler of one GET."""

    timeout = SLOW_S
    server: MetricsServer

    def do_GET(self) -> None:
        """Respond if the request uses one of the server's names and a valid token."""
        if is_own(self.headers.get_all("Host", []), self.server.host):
            admitted = is_admitted(self.headers.get_all("Authorization", []), self.server.trust().monitoring_tokens)
            found = self._answered(self.path.partition("?")[0], admitted)
        else:
            found = HttpAnswer(403, JSON, REFUSAL)
        self.send_response(found.status)
        self.send_header("Content-Type", found.media_type)
        self.send_header("Content-Length", str(len(found.body)))
        if found.status == HTTPStatus.UNAUTHORIZED:
            self.send_header("WWW-Authenticate", CHALLENGE)
        self.end_headers()
        self.wfile.write(found.body)

    def _answered(self, path: str, admitted: bool) -> HttpAnswer:
        try:
            return self.server.answers(path, is_admitted=admitted)
        except Exception:
            log.exception("not_shown", path=path)
            return HttpAnswer(500, JSON, b'{"detail": "a defect: see the log of the process"}\n')

    def version_string(self) -> str:
        """Hide the Python version."""
        return "ringlog"

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing for a request."""
