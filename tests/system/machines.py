"""Separate machines for test processes: network namespaces, each with a cable to one switch, on a private network.

The network of this machine does not change. A namespace lives as long as its holder process, which ends with the test
process, so nothing remains after any end of the test.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import BinaryIO

from tests.system.agents_world import until

CLONE_NEWNET = 0x4000_0000


def why_none() -> str:
    """Return why such machines are impossible here; empty if they are possible."""
    lacking = [name for name in ("unshare", "nsenter", "ip") if shutil.which(name) is None]
    if lacking:
        return f"no {', '.join(lacking)} here"
    tried = "unshare -n ip link add name sw type bridge"
    ended = subprocess.run(tried.split(), capture_output=True, text=True, check=False)
    return f"network namespaces are not allowed here: {ended.stderr.strip()}" if ended.returncode else ""


class Machines:
    """``count`` machines, numbered from 1. Call ``close`` once."""

    def __init__(self, count: int) -> None:
        self._switch, *self._holders = [_namespace() for _ in range(count + 1)]
        _in(self._switch, "ip link add name sw type bridge")
        _in(self._switch, "ip link set sw up")
        for number in range(1, count + 1):
            inside = self._holders[number - 1]
            cable = f"ip link add eth0 netns {inside.pid} type veth peer name p{number} netns {self._switch.pid}"
            subprocess.run(cable.split(), check=True)
            for command in ("lo up", "eth0 up"):
                _in(inside, f"ip link set {command}")
            _in(inside, f"ip addr add {self.address(number)}/24 dev eth0")
            _in(self._switch, f"ip link set p{number} master sw up")

    def close(self) -> None:
        """End the machines; their remaining processes lose the network."""
        for holder in (self._switch, *self._holders):
            holder.communicate()

    def address(self, number: int) -> str:
        """Return the network address of a machine."""
        return f"10.0.0.{number}"

    def on(self, number: int) -> tuple[str, ...]:
        """Return the prefix of a command that runs on a machine."""
        return "nsenter", "-t", str(self._holders[number - 1].pid), "-n"

    def network(self, number: int) -> str:
        """Return the file of a machine's network namespace."""
        return f"/proc/{self._holders[number - 1].pid}/ns/net"

    def cable(self, number: int, *, plugged: bool) -> None:
        """Unplug a machine's cable from the switch, or plug it in: packets are lost without an error."""
        _in(self._switch, f"ip link set p{number} {'up' if plugged else 'down'}")

    def listen(self, number: int, port: int) -> socket.socket:
        """Return a socket of this process that listens on 127.0.0.1 of that machine."""

        def listening() -> socket.socket:
            with open(self.network(number), "rb") as there:
                _enter(there)
            return socket.create_server(("127.0.0.1", port))

        with ThreadPoolExecutor(1) as pool:  # a namespace belongs to a thread
            return pool.submit(listening).result()

    @contextmanager
    def inside(self, number: int) -> Iterator[None]:
        """Move the calling thread, and all threads and processes that it starts, to that machine."""
        with open("/proc/thread-self/ns/net", "rb") as before, open(self.network(number), "rb") as there:
            _enter(there)
            try:
                yield
            finally:
                _enter(before)


def _enter(namespace: BinaryIO) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")


def _namespace() -> subprocess.Popen[bytes]:
    """Start the process that holds a namespace until it, or the pipe to it, is closed."""
    held = subprocess.Popen(["unshare", "-n", "cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    ours = os.readlink("/proc/self/ns/net")
    until(lambda: os.readlink(f"/proc/{held.pid}/ns/net") != ours, "a network namespace")
    return held


def _in(holder: subprocess.Popen[bytes], command: str) -> None:
    subprocess.run(["nsenter", "-t", str(holder.pid), "-n", *command.split()], check=True)
