"""``ringlog console``: web pages and an HTTP API of a cluster."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Annotated

import typer

from ringlog.cli.shared.connection import Bootstrap, Cluster, connect, fail, out, resolve
from ringlog.extras import require
from ringlog.files import private_process
from ringlog.operator.errors import Refused
from ringlog.runtime.monitoring.open_connections import raise_file_limit
from ringlog.runtime.process import stop_on_signals

LISTEN = "127.0.0.1:8080"


def console(
    address: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Address to listen on. Port 0: a free one.")
    ] = LISTEN,
    tokens: Annotated[
        Path | None,
        typer.Option("--tokens", metavar="FILE", help="Users who may log in: a file with NAME TOKEN on each line."),
    ] = None,
    oidc: Annotated[
        Path | None,
        typer.Option("--oidc", metavar="FILE", help="Identity provider that users log in at: a file of its options."),
    ] = None,
    allow_changes: Annotated[
        bool, typer.Option("--allow-changes", help="Let users submit commands. Needs --tokens or --oidc.")
    ] = False,
    bootstrap: Bootstrap = None,
    cluster: Cluster = None,
) -> None:
    """Run a web console and an HTTP API of the cluster.

    The pages show health, nodes, operations and the log, also of past epochs. Without --allow-changes they change
    nothing. Other addresses than the loopback interface need --tokens or --oidc, and certificates in
    --trust-config.
    """
    require("console")
    from ringlog.console import server  # These libraries are slow to load, and an extra.

    host, port = _host_and_port(address)
    private_process()
    raise_file_limit()
    try:
        server.check_safe(host, has_login=bool(tokens or oidc), allows_changes=allow_changes)
    except Refused as refused:
        fail(refused.code, str(refused), 2)
    context = resolve(bootstrap, cluster)
    stopping = threading.Event()
    stop_on_signals(stopping)
    try:
        listening = server.listen(host, port)
    except OSError as error:
        fail("address_unusable", f"{address}: {error.strerror or error}. Pass another one: --listen {host}:0")
    with connect(context, server.SUBMITTER) as client:
        server.serve(
            client,
            context,
            listening,
            host,
            tokens,
            oidc,
            stopping,
            lambda url: out.print(url, markup=False),
            allows_changes=allow_changes,
        )


def _host_and_port(address: str) -> tuple[str, int]:
    """Return host and port of an address; exit status 2 if it is not one."""
    host, _, port = address.rpartition(":")
    if not host or not port.isascii() or not port.isdecimal() or int(port) > 65_535:
        fail("bad_option", f"--listen: {address[:80]!r} is not HOST:PORT", 2)
    return host, int(port)
