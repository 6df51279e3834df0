"""A process that has folded entries that the log does not have, because the log lost them or they were invented.

Its requests are planned on that state, slightly ahead of the nodes. ``planned`` represents any data in a message that
could make a node accept that state. No process may act on it. Its entries never enter the log. The log itself ensures
that authors on a lost history cannot append.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ringlog.kernel.commands.cluster.cluster import Noop
from ringlog.kernel.commands.schema.keyspaces import DropKeyspace
from ringlog.kernel.fold import fold
from ringlog.kernel.model.outcome import Entry
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Command, Micros, NodeId, Value
from ringlog.wire.data import BEHIND, Key, ReadReply, ReadRequest, RegisterCell, WriteReply, WriteRequest
from ringlog.wire.entries import author_entry
from ringlog.wire.ids import ENTROPY_BYTES, new_request_id, new_state_id
from ringlog_sim.actors.nodes.registers import Message
from ringlog_sim.devices.world import MS, SECOND, Chance, SimHost
from ringlog_sim.replica import Step

if TYPE_CHECKING:
    from ringlog_sim.simulation import Simulation

TIMES = 4
GIVE_UP_US, AGAIN_US = 2 * SECOND, 250 * MS
NEVER_WRITTEN = 10**9
"""The timestamp of its writes. It would win over every other write."""


class OutsiderRequest(Value):
    """A request to a node; a read if ``cell`` is None. It is not repeated after ``until``."""

    node: NodeId
    key: Key
    cell: RegisterCell | None
    planned: ClusterState
    until: Micros


class SimOutsider:
    """The process, on its own host, which has no faults."""

    def __init__(self, sim: Simulation, host: SimHost) -> None:
        self.sim = sim
        self.host = host
        self._chance = Chance(sim.world.seed, "outsider")

    def start(self, keys: tuple[Key, ...]) -> None:
        """Start, with these registers as targets."""
        self.sim.world.spawn(self.host, self.host.name, self._work(keys))

    def _work(self, keys: tuple[Key, ...]) -> Step:
        for _ in range(TIMES):
            yield self._chance.between(100, 2_500) * MS
            key, node = self._chance.pick(keys), self._chance.pick(sorted(self.sim.shared["nodes"]))
            if not self.sim.log.state.epoch:
                continue  # no entry can follow, because the cluster does not exist yet
            planned = self._lost(key.keyspace)
            if planned is not self.sim.log.state:
                cell = RegisterCell(NEVER_WRITTEN, b"%d" % NEVER_WRITTEN)
                until = self.sim.world.now + GIVE_UP_US
                self._send(OutsiderRequest(node, key, None, planned, until))
                self._send(OutsiderRequest(node, key, cell, planned, until))

    def _lost(self, keyspace: str) -> ClusterState:
        """Return a state that follows the log in its own history."""
        state = self.sim.log.state
        commands: list[Command] = [DropKeyspace(keyspace), *[Noop()] * self._chance.below(6)]
        if self._chance.happens(0.5):
            commands.reverse()
        for command in commands:
            state = fold(state, self._entry(state, command)).state
        return state

    def _entry(self, state: ClusterState, command: Command) -> Entry:
        now = self.sim.world.clock(self.host)
        made = author_entry(
            cluster_id=state.cluster_id,
            state_id=new_state_id(state.state_id, now, self._chance.take(ENTROPY_BYTES)),
            prev_state_id=state.state_id,
            request_id=new_request_id(now, self._chance.take(ENTROPY_BYTES)),
            since_epoch=state.epoch,
            submitter=self.host.name,
            at=now,
            command=command,
        )
        return made.entry

    def _send(self, asked: OutsiderRequest) -> None:
        target, planned, key, cell = self.sim.shared["nodes"][asked.node], asked.planned, asked.key, asked.cell
        newest = planned.epoch, planned.state_id
        head = planned.cluster_id, asked.node, *newest, key
        request = ReadRequest(*head, False, *newest) if cell is None else WriteRequest(*head, cell, *newest)
        message = Message(request, planned, self.host, partial(self._hear, asked))
        self.sim.did["outsider", "write" if cell is not None else "read"] += 1
        self.sim.world.send(self.host, target.host, target.registers.take, message)

    def _hear(self, asked: OutsiderRequest, reply: ReadReply | WriteReply) -> None:
        if reply.refused == BEHIND:
            self._again(asked)

    def _again(self, asked: OutsiderRequest) -> None:
        """Repeat the request when the node is no longer behind."""
        if self.sim.shared["nodes"][asked.node].own_epoch >= asked.planned.epoch:
            self._send(asked)
        elif self.sim.world.now < asked.until:
            self.sim.world.on(self.host, AGAIN_US, self._again, asked)
