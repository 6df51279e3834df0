"""The command line on a log in memory, without agents: each submitted command is decided at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from typer.testing import CliRunner

from ringlog.cli.main import app
from ringlog.cli.shared import options as verbs
from ringlog.cli.shared import submitting
from ringlog.client.client import Client, Logs
from ringlog.client.creation.creation import found
from ringlog.kernel.values import Command
from ringlog.log.memory import MemoryLog
from ringlog.log.replicas.replica import LogReplica
from ringlog.protocol.submission.results import Submitted


class Authoring(Client):
    """A client that decides its submitted commands, because no agents run here."""

    def submit(self, command: Command, **_: Any) -> Submitted:
        return self.direct.submit(command)


@contextmanager
def authoring(monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """Return the client of an empty cluster, for the command line."""
    metadata = MemoryLog("tests.metadata")
    with LogReplica(metadata) as replica:
        found(metadata, replica, "tests", {})
    logs = Logs(metadata, MemoryLog("tests.requests"), MemoryLog("tests.results"))
    with Authoring("", "tests", "cli", logs=logs) as client:

        @contextmanager
        def connected(_: object) -> Iterator[Client]:
            yield client

        monkeypatch.setattr(submitting, "connect", connected)
        monkeypatch.setattr(verbs, "open_metadata", lambda *_: metadata)
        monkeypatch.setattr(verbs, "start_point_finder", lambda *_, **__: None)
        yield client


def run(*words: str) -> tuple[int, str, str]:
    """Return (exit status, standard output, standard error) of ``ringlog`` with these arguments."""
    ended = CliRunner().invoke(app, [*words, "--bootstrap", "b:1", "--cluster", "tests"])
    assert ended.exception is None or isinstance(ended.exception, SystemExit), ended.exception
    return ended.exit_code, ended.stdout, ended.stderr
