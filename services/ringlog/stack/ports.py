"""Free ports of 127.0.0.1 that stay the same from one start to the next.

They are drawn from below the range that the kernel gives to outgoing connections: a port from inside that range would
now and then be somebody's connection when the stack comes back for it.
"""

from __future__ import annotations

import random
import socket

from ringlog.stack.errors import StackError
from ringlog.stack.processes import wait_until

HOST = "127.0.0.1"
FIRST, LAST = 20_000, 32_000
_DRAWS_MAX = 200
_PATIENCE_S = 1.0


def is_free(port: int) -> bool:
    """Could a server listen here now? (A port of closed connections is free, as it is for the servers themselves.)"""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
            probe.listen(1)
        except OSError:
            return False
    return True


def becomes_free(port: int) -> bool:
    """The same, with a moment's patience for a server that is just ending."""
    return wait_until(lambda: is_free(port), _PATIENCE_S)


def choose(count: int, *, avoid: frozenset[int] = frozenset()) -> tuple[int, ...]:
    """``count`` different free ports; raises StackError ``no_free_port``."""
    chosen: list[int] = []
    for _ in range(_DRAWS_MAX):
        if len(chosen) == count:
            break
        port = random.randint(FIRST, LAST)
        if port not in avoid and port not in chosen and is_free(port):
            chosen.append(port)
    if len(chosen) < count:
        raise StackError("no_free_port", f"No free port of {HOST} between {FIRST} and {LAST}.")
    return tuple(chosen)
