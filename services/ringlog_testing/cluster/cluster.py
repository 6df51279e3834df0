"""A whole cluster in one process: logs in memory, the real decisions of every role, and virtual time.

    cluster = FakeCluster()
    with cluster.client("my-program") as client:
        client.submit(commands.create_keyspace("ks", 2))

Invariants:

- Validator, coordinator, balancer and zone rebalancer run the functions and controllers of ``ringlog.protocol``. This
  module only performs their effects.
- The thread that sends a request also decides it. ``Client.submit`` needs no other call.
- The other roles and the nodes act in ``step`` only. The clock moves in ``advance`` and ``settle`` only. Ids are drawn
  from ``seed``. The same calls of one thread therefore write the same log, except ids that the caller draws.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

from ringlog import commands
from ringlog.client.client import Client, Logs
from ringlog.client.fields import command_of
from ringlog.kernel.commands.cluster.cluster import InitializeCluster, TakeOver
from ringlog.kernel.encoding.encoder import digest
from ringlog.kernel.model.outcome import Entry
from ringlog.kernel.model.state import EMPTY_STATE, ClusterState
from ringlog.kernel.values import Command
from ringlog.log.author import Author
from ringlog.log.delays.control import MemoryDelays
from ringlog.log.delays.delayable import DelayableLog
from ringlog.log.delays.rules import COMMIT, HOLD, PROPAGATION, Match, Rule
from ringlog.log.errors import WaitTimedOut
from ringlog.log.folding import follow
from ringlog.log.memory import MemoryLog
from ringlog.log.port import completed_future
from ringlog.operator.history.log_lines import read_dump
from ringlog.protocol.balancer.balancer import BalancerController, NewLoads, ReadLoads
from ringlog.protocol.controller import Controller, RoundPlan, Wait
from ringlog.protocol.coordinator.ack_book import NewAcks, ReadAcks
from ringlog.protocol.coordinator.coordinator import (
    CoordinatorController,
    DeleteAcks,
    PublishedEpoch,
    UnstoredBytes,
)
from ringlog.protocol.effects import Newest, Steps, WallClock
from ringlog.protocol.rebalancer.rebalancer import RebalancerController
from ringlog.protocol.submission.submission import encoded_request
from ringlog.runtime.clock import ManualClock
from ringlog.runtime.draw import SeededDraw, draw_uuid
from ringlog.wire.records import APPLIED, NodeAck, Result
from ringlog_testing.cluster.decisions import Decisions
from ringlog_testing.cluster.nodes import FakeNode, FakeTopics

T = TypeVar("T")
HELD_S = 0.2
"""Real seconds that a sender waits for a commit that a rule holds."""
ROUNDS_MAX = 10_000
"""The most steps without an advance of the clock. More show that two rules undo each other."""


class _Requests(MemoryLog):
    """The requests topic. ``decide`` runs after each append, in the same thread."""

    def __init__(self) -> None:
        super().__init__("memory.requests")
        self.decide: Callable[[], None] = lambda: None

    def append(self, records: Sequence[bytes]) -> None:
        super().append(records)
        self.decide()

    def append_async(self, records: Sequence[bytes]) -> Future[None]:
        return completed_future(lambda: self.append(records))


class _Role:
    """A controller and the acknowledgements that it has not read."""

    def __init__(self, name: str, controller: Controller) -> None:
        self.name = name
        self.controller = controller
        self.unread: list[tuple[int, NodeAck]] = []
        self.is_started = False


class FakeCluster:
    """A cluster in memory. Thread-safe. It needs no ``close``; its clients do.

    Args:
        name: Name of the cluster.
        seed: Seed of ids that the cluster draws.
        log: A log that already contains a cluster. See ``replay``.
    """

    def __init__(self, name: str = "tests", *, seed: int = 0, log: MemoryLog | None = None) -> None:
        self.name = name
        self.clock = ManualClock()
        self.delays = MemoryDelays()
        """The rules that hold, delay or drop entries (``ringlog.log.delays.rules``)."""
        self._lock = threading.RLock()
        self._draw = SeededDraw(seed.to_bytes(8, "big", signed=True))
        self._author = Author("fake", self.clock, self._draw)
        self._metadata, self._requests, self._results = log or MemoryLog(), _Requests(), MemoryLog("memory.results")
        self._tail, self._state, self._last_at = self._metadata.tail(0), EMPTY_STATE, 0
        self._nodes: dict[str, FakeNode] = {}
        self._acks = 0
        controllers: Iterable[tuple[str, Controller]] = (
            ("coordinator", CoordinatorController()),
            ("balancer", BalancerController()),
            ("rebalancer", RebalancerController()),
        )
        self._roles = [_Role(*one) for one in controllers]
        if log is None:
            first = self._author.entry(EMPTY_STATE, InitializeCluster(name, ()), since_epoch=0)
            self._metadata.append([first.data])
        self._terms = {
            role: self.state.terms[role].term + 1 if role in self.state.terms else 1
            for role in ("validator", *(role.name for role in self._roles))
        }
        self.clock.advance(max(self._last_at - self.clock.now_us(), 0) / 1e6)
        for found in self.state.nodes.values():
            self._nodes[found.name] = FakeNode(found.id, self._view(f"node-{found.name}"))
        self._decisions = Decisions(
            self._view("validator"),
            self._requests,
            self._results,
            lambda: self.state,
            self.clock,
            self._draw,
            self._terms["validator"],
        )
        self._requests.decide = self._decide

    # ------------------------------------------------------------------------------------------- use

    @property
    def state(self) -> ClusterState:
        """The state at the end of the log."""
        with self._lock:
            while records := self._tail.poll(0.0):
                for made in follow(records, self._state):
                    self._state = made.after
                    if isinstance(made.item, Entry):
                        self._last_at = max(self._last_at, made.item.at)
            return self._state

    @property
    def digest(self) -> str:
        """The digest of the state, to compare two releases or two runs."""
        return digest(self.state)

    def client(self, name: str = "client", **options: Any) -> Client:
        """Return a started client. Rules refer to it by ``name``. ``options``: see ``Client``."""
        logs = Logs(self._view(name), self._requests, self._results)
        return Client("", self.name, name, logs=logs, clock=self.clock, keys=tuple, **options).start()

    def add_nodes(self, count: int, *, tokens: int = 4, **options: Any) -> tuple[str, ...]:
        """Add nodes n1, n2, … that acknowledge every state, and return their names after all have joined.

        ``options``: see ``ringlog.commands.register_node``. ``tokens`` 0: do not join.
        """
        names = []
        for number in range(len(self._nodes) + 1, len(self._nodes) + count + 1):
            name = f"n{number}"
            names.append(name)
            made = commands.register_node(
                name, f"127.0.0.1:{7000 + number}", **{"id": draw_uuid(self._draw), **options}
            )
            self._require(made)
            with self._lock:
                self._nodes[name] = FakeNode(made.id, self._view(f"node-{name}"))
            if tokens:
                self._require(command_of(commands.join(name, tokens), self.state, self._draw))
                self.settle(lambda state, node=made.id: state.nodes[node].state == "normal")  # type: ignore[misc]
        return tuple(names)

    def topics(self) -> FakeTopics:
        """Return the topics for a participant of this cluster. Its load reports are ignored."""
        return FakeTopics(self.acknowledge)

    def acknowledge(self, ack: NodeAck) -> None:
        """Give the roles an acknowledgement, as a node does that writes to the topic ``acks``."""
        with self._lock:
            for role in self._roles:
                role.unread.append((self._acks, ack))
            self._acks += 1

    # ------------------------------------------------------------------------------------------ time

    def step(self) -> tuple[str, ...]:
        """Let each node and each role act once. Return the kinds of commands that were applied."""
        with self._lock:
            self._decide()
            for node in self._nodes.values():
                if (ack := node.acknowledge(self.clock.now_us())) is not None:
                    self.acknowledge(ack)
            return tuple(kind for role in self._roles for kind in self._round(role))

    def settle(self, until: Callable[[ClusterState], T | None] | None = None, *, within: float = 600.0) -> ClusterState:
        """Step, and advance the clock while nothing happens, until a state fulfils ``until``.

        Args:
            until: A predicate. Default: until no role and no node has anything to do now.
            within: The most seconds of virtual time.

        Raises WaitTimedOut.
        """
        end = self.clock.monotonic() + within
        for _ in range(ROUNDS_MAX):
            if until is not None and until(self.state):
                return self.state
            epoch = self.state.epoch
            if self.step() or self.state.epoch != epoch:
                continue
            if until is None:
                return self.state
            if self.clock.monotonic() >= end:
                break
            self.clock.advance(1.0)
        raise WaitTimedOut("a state that the test expects", within, "print the operations of cluster.state")

    def advance(self, seconds: float) -> ClusterState:
        """Advance the clock by ``seconds``, with a step in each second, and return the state."""
        end = self.clock.monotonic() + seconds
        while (left := end - self.clock.monotonic()) > 1e-6:
            self.clock.advance(min(left, 1.0))
            self.step()
        return self.state

    # ----------------------------------------------------------------------------------------- rules

    def hold(self, participant: str = "", *, commit: bool = False, name: str = "held", **match: Any) -> Rule:
        """Hold matching entries until ``release``.

        Args:
            participant: Shell pattern of the readers that do not see them, such as ``node-n1``. Empty: all.
            commit: Keep them out of the log instead.
            match: Fields of ``ringlog.log.delays.rules.Match``, for example ``kind="Join"``.
        """
        participants = (participant,) if participant else ()
        return self.delays.put(Rule(name, HOLD, COMMIT if commit else PROPAGATION, participants, Match(**match)))

    def release(self, name: str = "held") -> None:
        """Remove a rule, and commit the entries that it kept out of the log. Raises UnknownRule."""
        self.delays.release(name)
        self._decide()

    # ---------------------------------------------------------------------------------------- replay

    @classmethod
    def replay(cls, file: Path) -> FakeCluster:
        """Return a cluster that continues after a recorded log, a file of ``ringlog log --dump``.

        This code folds all entries again: compare ``state`` or ``digest``. Raises Refused for an unreadable file.
        """
        log = MemoryLog()
        for record in read_dump(file):
            log.gap(record.offset - log.end_offset())
            log.append([record.data])
        return cls(log=log)

    # -------------------------------------------------------------------------------------- internal

    def _view(self, participant: str) -> DelayableLog:
        return DelayableLog(self._metadata, self.delays, participant, clock=self.clock, timeout_s=HELD_S)

    def _decide(self) -> None:
        """Decide what waits. The roles take over first, so that a cluster that was only replayed has no new entries."""
        with self._lock:
            terms, self._terms = self._terms, {}
            for role, term in terms.items():
                self._submit(TakeOver(role, "fake", term))
            self._decisions.decide()

    def _submit(self, command: Command, request_id: str = "", since: int | None = None) -> Result | None:
        """Return the answer, or None while a rule holds the entry."""
        asked, since = request_id or self._author.new_request_id(), self.state.epoch if since is None else since
        self._requests.append([encoded_request(command, asked, since, "fake").data])
        return self._decisions.answers.get(asked)

    def _require(self, command: Command) -> None:
        answer = self._submit(command)
        if answer is None or answer.outcome != APPLIED:
            why = f"{answer.code}: {answer.detail}" if answer else "a rule holds it"
            raise AssertionError(f"{type(command).__name__}: {why}")

    def _round(self, role: _Role) -> list[str]:
        if not role.is_started:
            self._run(role, role.controller.start())
            role.is_started = True
        self._run(role, role.controller.update(Wait.NOTHING))
        plan: RoundPlan | None = self._run(role, role.controller.plan())
        done = []
        for proposal in plan.proposals if plan is not None else ():
            answer = self._submit(proposal.command, proposal.request_id, proposal.since_epoch)
            if answer is not None and answer.outcome == APPLIED:
                done.append(type(proposal.command).__name__)
            else:
                role.controller.forget_inputs()
        return done

    def _run(self, role: _Role, steps: Steps[T]) -> T:
        """Perform the effects of a controller. None of them waits here."""
        outcome: Any = None
        try:
            while True:
                match steps.send(outcome):
                    case Newest():
                        outcome = self.state
                    case WallClock():
                        outcome = self.clock.now_us()
                    case ReadAcks() | NewAcks():
                        outcome, role.unread = role.unread, []
                    case ReadLoads() | NewLoads():
                        outcome = ()
                    case PublishedEpoch():
                        outcome = self.state.epoch
                    case UnstoredBytes():
                        outcome = 0
                    case DeleteAcks():
                        outcome = None
                    case other:
                        raise AssertionError(f"a fake cluster does not perform {other}")
        except StopIteration as done:
            found: T = done.value
            return found
