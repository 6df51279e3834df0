"""The process of the console: a client of the cluster, a reader of reports, and a web server."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ringlog.client.client import Client
from ringlog.console.access import users_of
from ringlog.console.app import Console, make_app
from ringlog.console.hub import EpochHub
from ringlog.console.live import LiveReader
from ringlog.extras import require
from ringlog.log.opening import open_snapshots
from ringlog.node.servers.http_server import HttpServer
from ringlog.operator.errors import Refused
from ringlog.runtime.clock import SystemClock
from ringlog.runtime.context import ClusterContext
from ringlog.runtime.monitoring.open_connections import OpenConnections
from ringlog.runtime.monitoring.scrape import with_port
from ringlog.runtime.trust import ON_BEHALF_VARIABLE, current, is_loopback

if TYPE_CHECKING:
    from ringlog.console.oidc import Provider

CONNECTIONS_MAX: Final = 256
IDLE_S: Final = 30.0
"""Seconds until an idle connection is closed."""
FILL_S: Final = 10.0
"""Seconds that the start waits for records before the newest snapshot."""
SUBMITTER: Final = "console"


def check_safe(host: str, *, has_login: bool, allows_changes: bool) -> None:
    """Refuse an address or a mode without the protection that it needs. Raises Refused."""
    if not is_loopback(host) and not (has_login and current().encrypts):
        raise Refused(
            "unguarded_address",
            f"other machines can reach {host}: pass --tokens or --oidc, and --trust-config with tls.ca, "
            "tls.certificate, tls.key",
        )
    if allows_changes and not has_login:
        raise Refused("bad_usage", "--allow-changes needs --tokens or --oidc: each change names its user")


def provider_of(path: Path) -> Provider:
    """Return the identity provider of a file. Raises ExtraMissing and BadTrustConfig."""
    require("oidc")
    from ringlog.console.oidc import Provider, read_oidc  # These libraries are an extra.

    return Provider(read_oidc(path))


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host.strip("[]"), port))
        found.listen()
    except BaseException:
        found.close()
        raise
    return found


def serve(
    client: Client,
    context: ClusterContext,
    listening: socket.socket,
    host: str,
    tokens: Path | None,
    oidc: Path | None,
    stopping: threading.Event,
    report: Callable[[str], None],
    *,
    allows_changes: bool = False,
) -> None:
    """Serve until ``stopping`` is set.

    Args:
        client: A started client of the cluster.
        tokens: The file of users and tokens.
        oidc: The file of the identity provider (``console.oidc``).
        report: Gets the address.
    """
    place = context.bootstrap, context.cluster
    hub = EpochHub(client, partial(open_snapshots, *place))
    live = LiveReader(context, client.replica)

    def open_client(person: str) -> Client:
        on_behalf = person or os.environ.get(ON_BEHALF_VARIABLE, "")
        return Client(*place, SUBMITTER, replica=client.replica, on_behalf=on_behalf)

    app = make_app(
        Console(
            hub=hub,
            place=f"{context.cluster} at {context.bootstrap}",
            live=lambda: live.reports,
            now=SystemClock().now_us,
            open_client=open_client if allows_changes else None,
            users=users_of(tokens) if tokens else dict if oidc else None,
            provider=provider_of(oidc) if oidc else None,
            has_tokens=tokens is not None,
            hosts=(host,),
        )
    )
    live.start()
    filling = threading.Thread(target=hub.fill, name="fill", daemon=True)
    filling.start()
    filling.join(FILL_S)
    server = HttpServer(
        app, listening, connections=OpenConnections(CONNECTIONS_MAX, IDLE_S), requests_certificate=False
    )
    try:
        server.start()
        scheme = "https" if current().encrypts else "http"
        report(f"{scheme}://{with_port(host, listening.getsockname()[1])}/")
        while not stopping.wait(1.0) and server.alive():
            pass
    finally:
        hub.close()
        server.stop()
        live.stop()
        listening.close()
