"""The nodes' requests to peers about the log: ``ringlog.node.protocol.peers`` on virtual time.

Planted bugs that trust a peer's claim are here and in ``registers``. Production cannot have them at this place, because
the client and the server of claims are two threads that share only the replica.

Some nodes have a few entries and no copy, so they have gaps. Others have a copy that begins equally late. In some runs
a node answers with a wrong log for a while (``ringlog_sim.stories.peer_logs``). The checks get its correct answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ringlog.kernel.values import Epoch, NodeId
from ringlog.log.errors import WaitTimedOut
from ringlog.log.folding import Start
from ringlog.log.replicas.recent import RecentEntries
from ringlog.node.log.entries import EntryServer
from ringlog.node.protocol.peer_log_claims import PeerLogClaims
from ringlog.node.protocol.peers import (
    ANSWER_TIMEOUT,
    AskLog,
    AskPeer,
    AwaitBehind,
    PeerAnswered,
    PeerRefuted,
    ask_peers,
)
from ringlog.protocol.effects import Draw, Steps
from ringlog.wire.data import EntriesReply, EntriesRequest
from ringlog_sim.devices.world import Chance, Signal, Unanswered
from ringlog_sim.replica import Performers, SimReplica, Step
from ringlog_sim.stories.peer_logs import false_answer

if TYPE_CHECKING:
    from ringlog_sim.simulation import Simulation

PAGE_BYTES = 1_200
"""A few entries, so there are many pages."""


class SimLogOnDisk:
    """A member's copy that begins with the first entry that the node has."""

    def __init__(self, sim: Simulation, recent: RecentEntries) -> None:
        self._sim = sim
        self._recent = recent
        self._base = Start(sim.log.states[0])

    @property
    def base(self) -> Start:
        """Return the start of the copy, as in ``LogOnDisk``."""
        epoch = self._recent.before
        if self._base.state.epoch != epoch:
            self._base = Start(self._sim.log.states[epoch], 1)
        return self._base

    def after(self, epoch: Epoch, page_bytes: int) -> tuple[bytes, ...] | None:
        """Return entries after an epoch, as in ``LogOnDisk``."""
        return self._recent.after(epoch, page_bytes)


class SimPeers:
    """One node among its peers, between two restarts. ``lie``: its current kind of wrong answer, or empty."""

    def __init__(self, sim: Simulation, node: NodeId, replica: SimReplica, lie: Callable[[], str]) -> None:
        self.sim = sim
        self.node = node
        self.claims = PeerLogClaims(sim.folding)
        self._lie = lie
        self._replica = replica
        self._named: Epoch = 0
        self._behind = Signal()
        self._chance = Chance(sim.world.seed, f"peers/{replica.name}")
        recent = replica.recent = RecentEntries(self._chance.pick([1_000, 4_000, 1_000_000]))
        copy = SimLogOnDisk(sim, recent) if self._chance.happens(0.5) else None
        self._side = EntryServer(node, lambda: replica.state, lambda: recent, lambda: copy, PAGE_BYTES)
        self.at_once: dict[type, Callable[[Any], Any]] = {PeerAnswered: self._heard, PeerRefuted: self._refuted}
        self.in_time: Performers = {AwaitBehind: self._await, AskLog: self._ask_log, AskPeer: self._ask}

    def steps(self, draw: Draw) -> Steps[None]:
        """Return the steps that the node performs."""
        replica = self._replica
        return ask_peers(self.node, lambda: replica.state, self.claims, self.entry_at, draw)

    def entry_at(self, epoch: Epoch) -> bytes | None:
        """Return the own log's entry that made an epoch, or None."""
        return self._replica.recent.at(epoch)

    def named(self, epoch: Epoch) -> None:
        """Record that a message names an epoch that this node does not have."""
        self._named = max(epoch, self._named)
        self._behind.fire()

    def answered(self, request: EntriesRequest) -> EntriesReply:
        """Answer a request as a peer."""
        reply = self._side.answer(request)
        for check in self.sim.on_gave:
            check.gave(self.node, request, reply)
        lie = self._lie()
        return false_answer(reply, lie, self._replica.state, self._chance) if lie else reply

    def _await(self, effect: AwaitBehind) -> Step:
        if not self._named:
            yield self._behind, effect.timeout
        found, self._named = self._named, 0
        return found

    def _ask_log(self, effect: AskLog) -> Step:
        try:
            return (yield from self._replica.barrier(effect.timeout))
        except WaitTimedOut:
            return None

    def _ask(self, effect: AskPeer) -> Step:
        request = effect.request
        peer = self.sim.shared["nodes"].get(request.node)
        if peer is None:
            return None  # a client has registered a node that never starts

        def ask(answer: Callable[[Any], None]) -> None:
            if peer.peers is not None:
                answer(peer.peers.answered(request))

        try:
            return (yield from self.sim.world.call(self._replica.host, peer.host, ask, ANSWER_TIMEOUT))
        except Unanswered:
            return None

    def _heard(self, effect: PeerAnswered) -> None:
        self._count(effect)
        for check in self.sim.on_peer_answer:
            check.peer_answer(self.node, effect)

    def _count(self, effect: PeerAnswered) -> None:
        taken = "chunk" if effect.reply is not None and effect.reply.snapshot else "entries"
        self.sim.did["peers", effect.code or taken] += 1

    def _refuted(self, effect: PeerRefuted) -> None:
        self.sim.did["peers", "refuted"] += 1
        self.sim.world.tell(self._replica.name, f"does not ask {effect.peer} again")
