"""A real broker and Redis behind proxies: each party reaches them over a link that a test can disturb.

The broker has one extra listener per link. Each listener has its own port but advertises the port of its proxy, so a
client that bootstraps over the proxy never learns the direct port. Tests use the plain listener for their own reads.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

from ringlog.stack import Stack, StackInfo
from ringlog.stack.broker import new_cluster_id
from ringlog.stack.layout import StackLayout, StackSettings, write_settings
from ringlog.stack.processes import HOST, choose
from tests.stopping import stop

from .processes import signal_to
from .proxy import Proxy
from .waiting import until

LINKS = ("agents", "data", "clients")
"""The parties of each link: the agents; nodes and Spark; clients and producers."""


class Broker:
    """A stack in a folder, with its links. Agents reach Redis over ``links["redis"]``."""

    def __init__(self, folder: Path, settings: dict[str, str] | None = None) -> None:
        self._stack = Stack(folder)
        folder.mkdir(parents=True, exist_ok=True)
        plain, controller, *links = choose(2 + 2 * len(LINKS) + 1)
        layout = StackLayout(folder)
        write_settings(layout, StackSettings(new_cluster_id(), plain, controller, profile="quick", request=0))
        inner, outer, cache = links[: len(LINKS)], links[len(LINKS) : -1], links[-1]
        own = {**_listeners(plain, controller, inner, outer), **(settings or {})}
        layout.own_properties.write_text("".join(f"{name}={value}\n" for name, value in own.items()), encoding="utf-8")
        self.links = {name: Proxy(port, to) for name, port, to in zip(LINKS, outer, inner, strict=True)}
        self.links["redis"] = Proxy(cache, layout.redis_socket)
        for link in self.links.values():
            link.start()
        try:
            self.info: StackInfo = self._stack.up()
        except BaseException:
            self._end()
            raise

    @property
    def bootstrap(self) -> str:
        """The address of the plain listener, which bypasses all links."""
        return self.info.bootstrap_servers

    def over(self, link: str) -> str:
        """Return the bootstrap address for parties of a link."""
        return f"{HOST}:{self.links[link].port}"

    def redis_over_link(self) -> str:
        """The Redis address for the agents."""
        return f"redis://{HOST}:{self.links['redis'].port}/0"

    def up(self) -> None:
        """Start the stopped servers."""
        self.info = self._stack.up()

    def runs(self, name: str) -> bool:
        """Return True if ``broker`` or ``redis`` runs."""
        status = self._stack.status()
        child = status.broker if name == "broker" else status.redis
        return child is not None and child.running

    def kill(self, name: str) -> None:
        """Send SIGKILL to ``broker`` or ``redis`` and wait until the stack reports its end."""
        os.kill(self._pid(name), signal.SIGKILL)
        until("the test", f"{name} to be gone", lambda: not self.runs(name))

    def stop(self, name: str) -> None:
        """Send SIGSTOP."""
        stop(self._pid(name))

    def go_on(self, name: str) -> None:
        """Send SIGCONT."""
        signal_to(self._pid(name), signal.SIGCONT)

    def log(self) -> str:
        """Return the broker's log output."""
        return self._stack.logs("broker").read_text(encoding="utf-8", errors="replace")

    def close(self) -> None:
        """Stop all servers and proxies."""
        for name in ("broker", "redis"):
            signal_to(self._pid(name), signal.SIGCONT)
        self._end()

    def _end(self) -> None:
        self._stack.down()
        for link in self.links.values():
            link.close()

    def _pid(self, name: str) -> int:
        return self.info.broker_pid if name == "broker" else self.info.redis_pid


def _listeners(plain: int, controller: int, inner: list[int], outer: list[int]) -> dict[str, str]:
    names = [name.upper() for name in LINKS]
    ours = [f"PLAINTEXT://{HOST}:{plain}", f"CONTROLLER://{HOST}:{controller}"]
    listening = [f"{name}://{HOST}:{port}" for name, port in zip(names, inner, strict=True)]
    advertised = [f"{name}://{HOST}:{port}" for name, port in zip(names, outer, strict=True)]
    return {
        "listeners": ",".join([*ours, *listening]),
        "advertised.listeners": ",".join([ours[0], *advertised]),
        "listener.security.protocol.map": ",".join(f"{name}:PLAINTEXT" for name in ("PLAINTEXT", "CONTROLLER", *names)),
        "inter.broker.listener.name": "PLAINTEXT",
    }
