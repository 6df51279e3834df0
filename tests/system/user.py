"""A user at a shell who knows only the commands."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from tests import fork_server
from tests.system.agents_world import until

ADMITTED = re.compile(r"join admitted +epoch=(\d+)")


class User:
    """A user at a shell, and all output there."""

    def __init__(self, home: Path) -> None:
        self._home = home
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("RINGLOG_", "XDG_"))}
        self._environment = kept | {
            "XDG_STATE_HOME": str(home),
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        }
        self._running: list[fork_server.ForkedProcess] = []
        self._typed: list[str] = []
        self.told = ""

    def set(self, name: str, value: str) -> None:
        """Set a variable of the shell."""
        self._environment[name] = value

    def variable(self, name: str) -> str:
        """Return a variable of the shell."""
        return self._environment.get(name, "")

    def run(self, *words: str, status: int = 0) -> str:
        """Run a command to its end; return its standard output."""
        self._typed += words
        ended = fork_server.run(["-m", "ringlog.cli", *words], self._environment, self._home)
        self.told += ended.stdout + ended.stderr
        assert ended.returncode == status, (words, ended.stdout, ended.stderr)
        return ended.stdout

    def begin(self, *words: str) -> fork_server.ForkedProcess:
        """Start a command that continues to run; return its process."""
        self._typed += words
        with (self._home / f"{words[0]}.log").open("ab") as log:
            command = ["-m", "ringlog.cli", *words]
            self._running.append(fork_server.start(command, self._environment, self._home, log=log.fileno()))
        return self._running[-1]

    def join_node(self, *options: str) -> None:
        """Start the node n1 and return when it is normal. No polling by commands meanwhile: each is a process."""
        log = self._home / "node.log"
        before = log.stat().st_size if log.exists() else 0
        self.begin("node", "run", "n1", "--join", *options)
        admitted = until(lambda: ADMITTED.search(log.read_bytes()[before:].decode()), "the join to be admitted")
        self.run("operation", "list", f"join-{admitted[1]}", "--watch")
        assert [node["state"] for node in json.loads(self.run("node", "list", "--json"))] == ["normal"]

    def command_lines(self) -> str:
        """Return the arguments of all commands, and those of all running processes: commands start more of them."""
        found = subprocess.run(["ps", "-ww", "-eo", "args"], capture_output=True, text=True, check=True)
        return "\n".join([*self._typed, found.stdout])

    def logs(self) -> str:
        return "".join(path.read_text(errors="replace") for path in self._home.glob("*.log"))

    def end(self) -> None:
        for process in self._running:
            process.terminate()
        for process in self._running:
            process.wait(60)
        self._running.clear()
