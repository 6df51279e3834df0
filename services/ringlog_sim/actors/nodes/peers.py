"""What nodes ask and answer of the log on the simulated world: ``ringlog.node.protocol.peers`` on virtual time.

Bugs that believe a peer's word are planted here and in ``registers``: what ships has hints and what serves in two
threads that share nothing but the replica, so there is no place for them.

Some nodes hold a few entries and no copy, so they have gaps; others have a copy that begins as late. In some runs a
node gives for a while what is not the log (``ringlog_sim.stories.peer_logs``); what it would have given goes to the
checks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ringlog.kernel.values import Epoch, NodeId
from ringlog.log.errors import WaitTimedOut
from ringlog.log.folding import Start
from ringlog.log.replicas.recent import RecentEntries
from ringlog.node.log.entries import EntriesSide
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
from ringlog_sim.stories.peer_logs import bent

if TYPE_CHECKING:
    from ringlog_sim.simulation import Simulation

PAGE_BYTES = 1_200
"""A few entries, so that pages are many."""


class SimLogOnDisk:
    """A member's copy that begins where the entries begin that the node holds."""

    def __init__(self, sim: Simulation, recent: RecentEntries) -> None:
        self._sim = sim
        self._recent = recent
        self._base = Start(sim.log.states[0])

    @property
    def base(self) -> Start:
        """See ``LogOnDisk``."""
        epoch = self._recent.before
        if self._base.state.epoch != epoch:
            self._base = Start(self._sim.log.states[epoch], 1)
        return self._base

    def after(self, epoch: Epoch, page_bytes: int) -> tuple[bytes, ...] | None:
        """See ``LogOnDisk``."""
        return self._recent.after(epoch, page_bytes)


class SimPeers:
    """One node among its peers, for one life of it. ``lie``: how it lies at the moment; empty: not at all."""

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
        self._side = EntriesSide(node, lambda: replica.state, lambda: recent, lambda: copy, PAGE_BYTES)
        self.at_once: dict[type, Callable[[Any], Any]] = {PeerAnswered: self._heard, PeerRefuted: self._refuted}
        self.in_time: Performers = {AwaitBehind: self._await, AskLog: self._ask_log, AskPeer: self._ask}

    def steps(self, draw: Draw) -> Steps[None]:
        """As the node performs them."""
        replica = self._replica
        return ask_peers(self.node, lambda: replica.state, self.claims, self.entry_at, draw)

    def entry_at(self, epoch: Epoch) -> bytes | None:
        """The entry of the own log that made an epoch, if it is held."""
        return self._replica.recent.at(epoch)

    def named(self, epoch: Epoch) -> None:
        """A message names an epoch that is not here."""
        self._named = max(epoch, self._named)
        self._behind.fire()

    def answered(self, request: EntriesRequest) -> EntriesReply:
        """This node as a peer."""
        reply = self._side.answered(request)
        for check in self.sim.on_gave:
            check.gave(self.node, request, reply)
        lie = self._lie()
        return bent(reply, lie, self._replica.state, self._chance) if lie else reply

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
            return None  # somebody has registered a node that nobody ever starts

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
