"""Claims of peers about the log beyond the node's own log: checked as they come, and never served.

A page follows on the newest state that is known here, the own one or what peers have shown beyond it. Each entry is
folded onto that, and must be applied: so ids chain, the cluster is this one, and nothing is passed over. A snapshot
must give the digests that its head says, be of this cluster, and know the own epoch by the own state's id, if its
history reaches back that far. A page with anything else is refused whole, with a code.

The ids of a chain can be copied beside another command. So each entry is remembered by its digest, and when the own log
comes to its epoch, its bytes must be the same. Who has shown something else, or something that the log does not have
where it ends, is not asked again, and all that was shown beyond is forgotten. An entry that the log confirms was folded
already, on the same state: that is all that a hint is good for, beside that operators see how far others are.

Source: CEP-21, "Catching up"; decision 31.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256

from ringlog.kernel.history import contradicts
from ringlog.kernel.model.outcome import Folded, OutcomeKind
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Epoch, NodeId
from ringlog.log.errors import SnapshotRefused
from ringlog.log.snapshots import restored
from ringlog.wire.data import (
    BAD_ENTRIES,
    ENTRIES_BYTES_MAX,
    FOREIGN_CLUSTER,
    OTHER_HISTORY,
    SNAPSHOT_BYTES_MAX,
    TOO_LARGE,
    WRONG_NODE,
    EntriesReply,
    EntriesRequest,
)
from ringlog.wire.errors import WireError
from ringlog.wire.records import SnapshotChunk, StoredSnapshot, decode_snapshot_record

SHOWN_MAX = 10_000
"""Epochs beyond the own one that a node remembers digests of; it learns no more until its log follows."""

FoldOn = Callable[[ClusterState, bytes], Folded]
"""Folds the bytes of an entry into a state."""
EntryAt = Callable[[Epoch], bytes | None]
"""The entry of the own log that made an epoch, None if it is not held."""


@dataclass(frozen=True, slots=True)
class ShownEpoch:
    """By whom an epoch was shown, the id of its state, and the digest of its entry; empty for that of a snapshot."""

    peer: NodeId
    state_id: str
    digest: bytes


@dataclass(frozen=True, slots=True)
class PartialSnapshot:
    """The received chunks of a snapshot of ``peer``."""

    peer: NodeId
    head: StoredSnapshot
    chunks: tuple[SnapshotChunk, ...]


class PeerLogClaims:
    """Those of a node, over one life of it, for one thread; ``newest_epoch`` for any."""

    def __init__(self, fold_on: FoldOn) -> None:
        self._fold_on = fold_on
        self._asked = ClusterState()
        self._state: ClusterState | None = None
        self._shown: dict[Epoch, ShownEpoch] = {}
        self._partial: PartialSnapshot | None = None
        self.refuted: set[NodeId] = set()

    @property
    def newest_epoch(self) -> Epoch:
        """The newest epoch that a peer has shown and the own log has not; 0: none."""
        state = self._state
        return 0 if state is None else state.epoch

    @property
    def is_full(self) -> bool:
        """True if nothing more is to be asked for."""
        return len(self._shown) >= SHOWN_MAX

    def newest(self, own: ClusterState) -> ClusterState:
        """The newest state that is known, by the own log or by what peers have shown on it."""
        state = self._state
        return own if state is None or state.epoch <= own.epoch else state

    def request(self, peer: NodeId, own: ClusterState) -> EntriesRequest:
        """Return the next request to the peer."""
        after, partial = self.newest(own), self._partial
        self._asked = after
        after_state = own.cluster_id, peer, after.epoch, after.state_id
        if partial is None or partial.peer != peer:
            return EntriesRequest(*after_state)
        return EntriesRequest(*after_state, partial.head.epoch, len(partial.chunks))

    def forget(self) -> None:
        """All of it."""
        self._state, self._partial = None, None
        self._shown.clear()

    # ---------------------------------------------------------------------------------------------- pages

    def take(self, peer: NodeId, reply: EntriesReply) -> str:
        """Know what the peer shows on what was asked last; or the code for which nothing of it is taken."""
        if reply.node != peer:
            return WRONG_NODE
        if reply.refused:
            return reply.refused
        if sum(map(len, (*reply.entries, *reply.snapshot))) > ENTRIES_BYTES_MAX:
            return TOO_LARGE
        if reply.snapshot:
            return self._take_chunk(peer, reply.snapshot)
        if not reply.entries and reply.epoch > self._asked.epoch:
            return BAD_ENTRIES
        return self._take_entries(peer, reply)

    def _take_entries(self, peer: NodeId, reply: EntriesReply) -> str:
        state, shown = self._asked, dict[Epoch, ShownEpoch]()
        for data in reply.entries:
            made = self._fold_on(state, data)
            if made.outcome.kind is OutcomeKind.FOREIGN:
                return FOREIGN_CLUSTER
            if made.outcome.kind is not OutcomeKind.APPLIED:
                return BAD_ENTRIES
            state = made.state
            shown[state.epoch] = ShownEpoch(peer, state.state_id, sha256(data).digest())
        if state.epoch > reply.epoch or (state.epoch == reply.epoch and state.state_id != reply.state_id):
            return BAD_ENTRIES
        if shown:
            self._shown |= shown
            self._state = state
        return ""

    def _take_chunk(self, peer: NodeId, snapshot: tuple[bytes, ...]) -> str:
        asked, partial, self._partial = self._asked, self._partial, None
        try:
            head, *chunks = map(decode_snapshot_record, snapshot)
        except WireError:
            return BAD_ENTRIES
        if not isinstance(head, StoredSnapshot) or head.epoch <= asked.epoch:
            return BAD_ENTRIES
        if head.cluster_id != asked.cluster_id:
            return FOREIGN_CLUSTER
        size = sum(max(part.size, 0) for part in head.parts)
        if size > SNAPSHOT_BYTES_MAX:
            return TOO_LARGE
        if partial is None or (partial.peer, partial.head) != (peer, head):
            partial = PartialSnapshot(peer, head, ())
        found = tuple(one for one in chunks if isinstance(one, SnapshotChunk))
        if len(found) != 1 or (found[0].id, found[0].number) != (head.id, len(partial.chunks)):
            return BAD_ENTRIES
        partial = PartialSnapshot(peer, head, (*partial.chunks, *found))
        if not found[0].data or sum(len(one.data) for one in partial.chunks) > size:
            return BAD_ENTRIES
        if len(partial.chunks) < len(head.chunks):
            self._partial = partial
            return ""
        try:
            state = restored(head, partial.chunks)
        except SnapshotRefused:
            return BAD_ENTRIES
        if contradicts(state, asked.epoch, asked.state_id):
            return OTHER_HISTORY
        self._shown[state.epoch] = ShownEpoch(peer, state.state_id, b"")
        self._state = state
        return ""

    # -------------------------------------------------------------------------------------------- the log

    def compare(self, own: ClusterState, entry_at: EntryAt, ended: bool = False) -> NodeId:
        """Compare what was shown with the own log as far as that is; who has shown something else, empty: nobody.

        ``ended``: the log has nothing beyond, and had nothing when it was last asked for.
        """
        for epoch in sorted(self._shown):
            one = self._shown[epoch]
            if epoch > own.epoch:
                if ended:
                    return self._refute(one.peer)
                break
            data = entry_at(epoch)
            if (data is not None and one.digest and sha256(data).digest() != one.digest) or contradicts(
                own, epoch, one.state_id
            ):
                return self._refute(one.peer)
            del self._shown[epoch]
        if self._state is not None and self._state.epoch <= own.epoch:
            self._state = None
        return ""

    def _refute(self, peer: NodeId) -> NodeId:
        self.refuted.add(peer)
        self.forget()
        return peer
