"""A load on registers of real nodes (``ringlog_testing.load``), which checks each success on the state that it names.

Each client of the load has its own log replica and connections.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack
from pathlib import Path

from ringlog.client.client import Client
from ringlog.client.data.coordinator import Coordinator
from ringlog.client.data.plans import counts, meets_needs, plan
from ringlog.client.data.registers import RegisterResult
from ringlog.stack import StackInfo
from ringlog.stack.artifacts import cache_root
from ringlog_testing.histories.events import Type
from ringlog_testing.histories.porcupine import Unavailable, ask, build
from ringlog_testing.histories.recorder import FileSink
from ringlog_testing.histories.verdict import Linearizability
from ringlog_testing.load.driver import CheckedLoad, LoadOptions
from ringlog_testing.load.judge import judge
from ringlog_testing.load.stores import Answered, LoadRegisters

KEYSPACE = "shop"
REGISTERS = 18
TIMEOUT_S = 4.0
EVER_S = 1e6
RATE = 300.0
"""The most operations per second: without it movements would lack processor time."""


class VerifiedRegisters(LoadRegisters):
    """Registers whose successes are checked again from their own data, on the state that they name."""

    def __init__(self, load: Load, client: Client, coordinator: Coordinator) -> None:
        super().__init__(coordinator, load.space, lambda: client.state)
        self._load, self._client = load, client

    def answered(self, done: RegisterResult) -> Answered:
        state = self._client.replica.state
        if state.epoch == done.epoch:
            now = plan(state, done.plan.request)
            assert all(counts(now, answer) for answer in done.answers)
            assert meets_needs(now.needs, {answer.node for answer in done.answers})
            self._load.verified += 1
        return super().answered(done)


class Load:
    """Several clients on a cluster, and the history of their operations. A context manager.

    ``space``: the keyspace of their registers, or their table in tablets.
    """

    def __init__(
        self, stack: StackInfo, cluster: str, folder: Path, applications: int = 3, space: str = KEYSPACE
    ) -> None:
        self.space = space
        self.history = folder / "history.jsonl"
        self.verified = 0
        self._opened = ExitStack()
        sink = self._opened.enter_context(FileSink(self.history))
        stores = []
        for number in range(applications):
            client = self._opened.enter_context(Client(stack.bootstrap_servers, cluster, f"app{number}"))
            coordinator = self._opened.enter_context(Coordinator(client.replica, "dc1"))
            stores.append([VerifiedRegisters(self, client, coordinator)])
        self._load = CheckedLoad(stores, sink, LoadOptions("t", applications, REGISTERS, 0, RATE, TIMEOUT_S))
        self._thread = threading.Thread(target=self._load.run, args=(EVER_S,), name="load", daemon=True)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._opened.close()

    @property
    def failures(self) -> list[BaseException]:
        """The error that ended the load."""
        return [] if self._load.failure is None else [self._load.failure]

    def stop(self) -> None:
        """Wait until all clients have finished their current operation, and each register was read once more."""
        self._load.stop()
        self._thread.join(180)
        assert not self._thread.is_alive(), "a client does not end"

    def total(self) -> int:
        """The number of successful operations."""
        return self._load.figures.total(Type.OK)

    def timed_out(self) -> int:
        """The number of operations with an unknown outcome."""
        return self._load.figures.total(Type.INFO)

    def check(self) -> None:
        """Check, after ``stop``, that no acknowledged write is lost and that one order explains all answers."""
        assert not self.failures, self.failures
        assert self._load.figures.unread == 0
        verdict = judge(self.history, 10**7)
        assert verdict.violations == ()
        assert verdict.linearizable is Linearizability.LINEARIZABLE
        print(dict(self._load.figures.outcomes), f"{self.verified} verified", flush=True)
        try:
            opinion = ask(build(cache_root()), self.history)
        except Unavailable as missing:
            print(f"no second opinion: {missing}")
        else:
            assert opinion.verdict is Linearizability.LINEARIZABLE
