"""The peers' claims about the log: their pages form one chain, and no node serves or stores them before the log does.

The rule of the chain is implemented here by ids alone. Served and acknowledged epochs are compared with the epochs that
the node's own replica has folded.
"""

from __future__ import annotations

from ringlog.kernel.model.outcome import Entry
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Epoch
from ringlog.node.protocol.peers import PeerAnswered
from ringlog.wire.data import OTHER_HISTORY, EntriesReply, EntriesRequest
from ringlog.wire.entries import decode_entry
from ringlog.wire.records import NodeAck
from ringlog_sim.checks.base import Check
from ringlog_sim.simulation import Simulation


class PeersCheck(Check):
    """An honest peer returns entries of the log, after the requested epoch. The requesting node accepts nothing else.

    If a chain was false all the same, the log refutes the peer by the end of the run.
    """

    def __init__(self, sim: Simulation) -> None:
        super().__init__(sim)
        self._false: dict[str, set[Epoch]] = {}

    def began(self, node: str) -> None:
        """Forget the answers of peers after a restart."""
        self._false[node] = set()

    def gave(self, node: str, request: EntriesRequest, reply: EntriesReply) -> None:
        """Check a peer's answer before it is falsified."""
        entries = self.sim.log.entries
        for epoch, data in enumerate(reply.entries, request.epoch + 1):
            item, logged = decode_entry(data), entries[epoch] if epoch < len(entries) else None
            if not isinstance(item, Entry) or logged is None or item.state_id != logged.state_id:
                self.sim.broken("gap_unsaid", f"{node} returns a different entry for epoch {epoch}")

    def peer_answer(self, node: str, answer: PeerAnswered) -> None:
        """Check an answer that a node accepted."""
        reply, before, entries = answer.reply, answer.request.state_id, self.sim.log.entries
        if answer.code == OTHER_HISTORY:
            self.began(node)  # two peers differ, so the node forgets their entries
        if reply is None or answer.code:
            return
        for epoch, data in enumerate(reply.entries, answer.request.epoch + 1):
            item = decode_entry(data)
            if epoch >= len(entries) or entries[epoch] != item:
                self._false[node].add(epoch)
            if not isinstance(item, Entry) or (item.prev_state_id, item.cluster_id) != (before, self._cluster()):
                self.sim.broken("peer_believed", f"{node} accepts an entry of {reply.node} that does not follow")
                return
            before = item.state_id

    def adopted(self, node: str, state: ClusterState) -> None:
        """Check the epoch of served rows."""
        self._shown_by_the_log(node, state.epoch, "serves rows at")

    def serves(self, node: str, state: ClusterState) -> None:
        """Check the epoch of served registers, which is on the disk."""
        self._shown_by_the_log(node, state.epoch, "serves registers at")

    def acked(self, ack: NodeAck) -> None:
        """Check an acknowledged epoch."""
        self._shown_by_the_log(ack.node, ack.applied, "acknowledges")

    def quiet(self) -> None:
        """Check that false entries have been refuted."""
        for node, epochs in sorted(self._false.items()):
            peers = self.sim.shared["nodes"][node].peers
            if not peers.claims.refuted and any(peers.entry_at(epoch) is not None for epoch in epochs):
                self.sim.broken("lie_believed", f"{node} got false entries of {sorted(epochs)}, but rejected no peer")

    def _shown_by_the_log(self, node: str, epoch: Epoch, does: str) -> None:
        if self.sim.shared["asks"] and epoch > (own := self.sim.shared["nodes"][node].own_epoch):
            self.sim.broken("peers_word", f"{node} {does} epoch {epoch}, but has only read {own} from the log")

    def _cluster(self) -> str:
        return self.sim.log.state.cluster_id
