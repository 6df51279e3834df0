"""Applications that read and write registers of real nodes, each with its own log replica and connections.

Each register has one writer with increasing timestamps; all applications read all registers. Requests and answers are
recorded as a history with one line per event, for checkers.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from ringlog.client.client import Client
from ringlog.client.data.coordinator import Coordinator
from ringlog.client.data.plans import counts, meets_needs, plan
from ringlog.client.data.registers import RegisterResult
from ringlog.client.errors import RequestTimedOut
from ringlog.stack import StackInfo
from ringlog.stack.artifacts import cache_root
from ringlog_testing.histories.check import check
from ringlog_testing.histories.events import Op
from ringlog_testing.histories.operations import read
from ringlog_testing.histories.porcupine import Unavailable, ask, build
from ringlog_testing.histories.recorder import FileSink, Recorder
from ringlog_testing.histories.verdict import Linearizability

KEYSPACE = "shop"
REGISTERS_EACH = 6
TIMEOUT_S = 4.0
PAUSE_S = 0.01
"""The average pause of an application between two operations; without it movements would lack processor time."""


class Application:
    """One application, in its own thread once it is started."""

    def __init__(self, load: Load, number: int, client: Client, coordinator: Coordinator) -> None:
        self._load = load
        self._name = f"app{number}"
        self._own = [f"app{number}-{register}" for register in range(REGISTERS_EACH)]
        self._client, self._coordinator = client, coordinator
        self._draw = random.Random(number)
        self.thread = threading.Thread(target=self._run, name=self._name, daemon=True)

    def _run(self) -> None:
        try:
            while not self._load.is_over.wait(self._draw.uniform(0, 2 * PAUSE_S)):
                if self._draw.random() < 0.5:
                    self._write(self._draw.choice(self._own))
                else:
                    self._read(self._draw.choice(self._load.registers))
        except BaseException as failure:
            self._load.failures.append(failure)

    def _write(self, register: str) -> None:
        load = self._load
        timestamp = load.written.get(register, 0) + 1
        load.written[register] = timestamp
        with load.recorder.operation(self._name, Op.WRITE, register, timestamp) as call:
            try:
                told = self._coordinator.write(
                    load.space, register.encode(), b"%d" % timestamp, timestamp=timestamp, timeout_s=TIMEOUT_S
                )
            except RequestTimedOut:
                load.told["write", "timed out"] += 1
                return
            call.ok()
        load.done[register] = timestamp
        load.told["write", "ok"] += 1
        load.verify(self._client, told)

    def _read(self, register: str) -> None:
        load = self._load
        with load.recorder.operation(self._name, Op.READ, register) as call:
            try:
                told = self._coordinator.read(load.space, register.encode(), timeout_s=TIMEOUT_S)
            except RequestTimedOut:
                load.told["read", "timed out"] += 1
                return
            call.ok(value_of(told))
        load.told["read", "ok"] += 1
        load.told["read", "repaired"] += told.repair is not None
        load.verify(self._client, told)


class Load:
    """Several applications on a cluster, and the history of their operations. A context manager.

    ``space``: the keyspace of their registers, or their table in tablets. ``written``, ``done``: by register, the last
    attempted and the last acknowledged timestamp.
    """

    def __init__(
        self, stack: StackInfo, cluster: str, folder: Path, applications: int = 3, space: str = KEYSPACE
    ) -> None:
        self.space = space
        self.history = folder / "history.jsonl"
        self.is_over = threading.Event()
        self.failures: list[BaseException] = []
        self.told: Counter[tuple[str, str]] = Counter()
        self.written: dict[str, int] = {}
        self.done: dict[str, int] = {}
        self._opened = ExitStack()
        sink = self._opened.enter_context(FileSink(self.history))
        self.recorder = Recorder(sink, lambda: time.time_ns() // 1_000)
        self.applications = []
        for number in range(applications):
            client = self._opened.enter_context(Client(stack.bootstrap_servers, cluster, f"app{number}"))
            coordinator = self._opened.enter_context(Coordinator(client.replica, "dc1"))
            self.applications.append(Application(self, number, client, coordinator))
        self.registers = [f"app{a}-{r}" for a in range(applications) for r in range(REGISTERS_EACH)]

    def __enter__(self) -> Load:
        for application in self.applications:
            application.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._opened.close()

    def stop(self) -> None:
        """Wait until all applications have finished their current operation."""
        self.is_over.set()
        for application in self.applications:
            application.thread.join(60)
            assert not application.thread.is_alive(), "an application does not end"

    def total(self) -> int:
        """The number of successful operations."""
        return self.told["write", "ok"] + self.told["read", "ok"]

    def timed_out(self) -> int:
        """The number of operations with an unknown outcome."""
        return self.told["write", "timed out"] + self.told["read", "timed out"]

    def verify(self, client: Client, told: RegisterResult) -> None:
        """Check each success again from its own data, on the state that it names."""
        state = client.replica.state
        if state.epoch == told.epoch:
            now = plan(state, told.plan.request)
            assert all(counts(now, answer) for answer in told.answers)
            assert meets_needs(now.needs, {answer.node for answer in told.answers})
            self.told["success", "verified"] += 1

    def check(self, coordinator: Coordinator) -> None:
        """Check, after ``stop``, that no acknowledged write is lost and that one order explains all answers."""
        assert not self.failures, self.failures
        for register in self.registers:
            with self.recorder.operation("end", Op.READ, register) as call:
                found = value_of(coordinator.read(self.space, register.encode(), timeout_s=60))
                call.ok(found)
            assert (found or 0) >= self.done.get(register, 0), f"{register}: an acknowledged write is lost"
            assert (found or 0) <= self.written.get(register, 0), f"{register}: no application wrote that"
        report = check(read(self.history))
        assert report.verdict is Linearizability.LINEARIZABLE, report.counterexample
        try:
            opinion = ask(build(cache_root()), self.history)
        except Unavailable as missing:
            print(f"no second opinion: {missing}")
        else:
            assert opinion.verdict is Linearizability.LINEARIZABLE


def value_of(told: RegisterResult) -> int | None:
    """Return the value of a register."""
    return None if told.cell is None or told.cell.deleted else int(told.cell.value)
