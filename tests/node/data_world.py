"""Data sides of nodes in one process: a log in memory, real gRPC, no broker.

The coordinator agent decides each stage from the acknowledgements of the nodes' registers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from ringlog.client.creation.creation import found
from ringlog.client.data.coordinator import Coordinator
from ringlog.client.data.peers import Peers, Unreachable
from ringlog.client.direct import DirectAuthor
from ringlog.client.participant.stream_attempts import StreamAttempts
from ringlog.kernel.commands.schema.keyspaces import CreateKeyspace
from ringlog.kernel.commands.topology.movements import Join
from ringlog.kernel.history import state_id_at
from ringlog.kernel.model.state import ClusterState, Operation
from ringlog.kernel.operations.stages import in_flight
from ringlog.kernel.values import Command, Epoch, Replication, StreamReport
from ringlog.log.memory import MemoryLog
from ringlog.log.replicas.replica import LogReplica
from ringlog.node.hosts.register_host import RegisterHost
from ringlog.node.rows.replica import RowReplica
from ringlog.node.servers.data_server import DataServer
from ringlog.node.streams.pull import Puller
from ringlog.protocol.coordinator.core import CoordinatorView, propose
from ringlog.protocol.submission.results import AppliedResult
from ringlog.runtime.clock import SystemClock
from ringlog.runtime.trust import Trust, current
from ringlog.wire.data import PAGE_BYTES_MAX
from ringlog.wire.records import NodeAck
from tests import waiting
from tests.kernel.entries import node, uuid

until = partial(waiting.until, deadline_s=60, look_s=0.005)
"""Wait for the threads of this process."""


class DataNode:
    """The data side of node ``number``; a thread follows the log while ``is_following``.

    ``named``: the epochs that requests waited for. ``hurries``: the number of urgent reads of the log, done and
    pending.
    """

    def __init__(self, world: DataWorld, number: int, folder: Path) -> None:
        self.world = world
        self.number = number
        self.id = uuid(number, space=2)
        self.folder = folder
        self.is_following = True
        self.begin()

    def begin(self) -> None:
        self.host = RegisterHost(self.id, self.folder)
        self.row_replica = RowReplica(self.id)
        trust = self.world.trust_of(self.number)
        self.named: list[Epoch] = []
        self.hurries = [0, 0]
        self.server = DataServer(
            self.host,
            self.row_replica,
            lambda: self.world.state.cluster_id,
            "127.0.0.1",
            0,
            self.world.page_bytes,
            trust=trust,
            named=self.named.append,
            urgent=self.urgent,
        )
        self.tries = StreamAttempts()
        self.peers = Peers(self.world.find, trust)
        self.puller = Puller(self.host, self.peers, self.tries, SystemClock(), threading.Event())
        self.server.start()
        self.is_up = True
        self.follow()

    @contextmanager
    def urgent(self) -> Iterator[None]:
        self.hurries = [self.hurries[0] + 1, self.hurries[1] + 1]
        yield
        self.hurries[1] -= 1

    def follow(self) -> None:
        """Adopt the newest state while ``is_following``."""
        if self.is_up and self.is_following:
            self.host.adopt(self.world.state)
            self.puller.start()

    def stop(self) -> None:
        if self.is_up:
            self.is_up = False
            self.server.stop(0.1)
            self.puller.stop()
            self.host.close()

    def ack(self) -> NodeAck:
        """Return the acknowledgement that the node would publish."""
        epoch = self.host.acknowledgeable()
        reports = tuple(StreamReport(self.id, name, 0, "00") for name in self.host.value.received)
        tries, state_id = self.tries.failed_tries(), state_id_at(self.world.state, epoch)
        return NodeAck(self.world.state.cluster_id, self.id, "i", epoch, epoch, reports, 0, 0, tries, state_id)


class DataWorld:
    """A cluster that creates the keyspace ``ks`` with ``factor`` replicas once it has enough nodes.

    ``trust_of``: the certificates of each node.
    """

    def __init__(
        self,
        folder: Path,
        factor: int,
        page_bytes: int = PAGE_BYTES_MAX,
        trust_of: Callable[[int], Callable[[], Trust]] = lambda _: current,
    ) -> None:
        self.folder = folder
        self.trust_of = trust_of
        self.factor = factor
        self.page_bytes = page_bytes
        self.nodes: dict[int, DataNode] = {}
        self.log = MemoryLog("tests.metadata")
        self.replica = LogReplica(self.log).start()
        found(self.log, self.replica, "tests")
        self.author = DirectAuthor(self.log, self.replica, "tester")
        self.coordinator = Coordinator(self.replica, "dc1", self.find)
        self.clock_us = 1_700_000_000_000_000

    def close(self) -> None:
        self.coordinator.close()
        for each in self.nodes.values():
            each.stop()
        self.replica.stop()

    @property
    def state(self) -> ClusterState:
        return self.replica.state

    def find(self, node_id: str) -> str:
        for each in self.nodes.values():
            if each.id == node_id and each.is_up:
                return f"127.0.0.1:{each.server.port}"
        raise Unreachable("it is down")

    def submit(self, command: Command) -> None:
        answer = self.author.submit(command)
        assert isinstance(answer, AppliedResult), answer
        for each in self.nodes.values():
            each.follow()

    def begin(self, number: int, datacenter: str = "dc1") -> DataNode:
        """Register node ``number`` and start it."""
        made = self.nodes[number] = DataNode(self, number, self.folder / f"n{number}")
        self.submit(node(number, datacenter=datacenter))
        return made

    def ask_join(self, number: int, *tokens: int) -> str:
        """Request a join and return the id of the operation."""
        self.submit(Join(uuid(number, space=2), tokens, bytes(range(16))))
        return f"join-{self.state.epoch}"

    def join(self, number: int, *tokens: int, datacenter: str = "dc1") -> DataNode:
        made = self.begin(number, datacenter)
        self.drive(self.ask_join(number, *tokens), "finished")
        if "ks" not in self.state.keyspaces and len(self.nodes) == self.factor:
            self.submit(CreateKeyspace("ks", Replication("simple", self.factor)))
        return made

    def step(self) -> None:
        """Apply the coordinator's next decisions to the current acknowledgements."""
        self.clock_us += 60_000_000
        acks = {each.id: each.ack() for each in self.nodes.values() if each.is_up}
        for proposal in propose(CoordinatorView(self.state, acks, self.state.epoch, self.clock_us)):
            self.author.submit(proposal.command)
        for each in self.nodes.values():
            each.follow()

    def drive(self, operation: str, stage: str) -> Operation:
        """Run the operation until it reaches ``stage``."""

        def reached() -> bool:
            if self.state.operations[operation].stage != stage:
                self.step()
            return self.state.operations[operation].stage == stage

        until(reached, f"{operation} to reach {stage}")
        return self.state.operations[operation]

    def in_flight(self) -> tuple[Operation, ...]:
        return in_flight(self.state)
