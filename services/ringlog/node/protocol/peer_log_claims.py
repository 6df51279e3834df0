"""Claims of peers about the log beyond the node's own log: verified on receipt, and never served.

A page continues the newest known state, either the node's own or one that peers have shown. Each entry is folded into
that state and must be applied. This proves that state ids chain, that the cluster is the same and that no entry is
missing. A snapshot must match the digests in its head and belong to this cluster. If its history reaches back far
enough, it must also contain the node's own epoch with the same state id. A page that fails any check is refused as a
whole, with a code.

State ids alone do not prove a command, because a peer could copy the ids of a chain. So the digest of each entry is
remembered and compared when the node's own log reaches its epoch. A peer that has shown a different entry is refuted,
and so is a peer that has shown an entry beyond the log's end. It is not asked again, and all claims are forgotten.

Claims have two uses: an entry that the log confirms is already folded, and operators see how far other nodes are.

Source: CEP-21, "Catching up"; decision 31.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256

from ringlog.kernel.history import contradicts
from ringlog.kernel.model.outcome import Folded, OutcomeKind
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Epoch, NodeId, Value
from ringlog.log.errors import SnapshotRefused
from ringlog.log.snapshots import decode_snapshot
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
"""The limit of remembered digests. Beyond it the node asks for nothing until its own log follows."""

FoldOn = Callable[[ClusterState, bytes], Folded]
"""Folds the encoded entry into a state."""
EntryAt = Callable[[Epoch], bytes | None]
"""Returns the entry of the node's own log that created an epoch, or None if it is no longer available."""


class ShownEpoch(Value):
    """A claimed epoch: the peer, the state id, and the digest of its entry. A snapshot has an empty digest."""

    peer: NodeId
    state_id: str
    digest: bytes


class PartialSnapshot(Value):
    """The chunks of a peer's snapshot received so far."""

    peer: NodeId
    head: StoredSnapshot
    chunks: tuple[SnapshotChunk, ...]


class PeerLogClaims:
    """The claims that one node has received since its start. Not thread-safe, except ``newest_epoch``."""

    def __init__(self, fold_on: FoldOn) -> None:
        self._fold_on = fold_on
        self._asked = ClusterState()
        self._state: ClusterState | None = None
        self._shown: dict[Epoch, ShownEpoch] = {}
        self._partial: PartialSnapshot | None = None
        self.refuted: set[NodeId] = set()

    @property
    def newest_epoch(self) -> Epoch:
        """The newest epoch that a peer has shown beyond the node's own log, or 0."""
        state = self._state
        return 0 if state is None else state.epoch

    @property
    def is_full(self) -> bool:
        """True if the node should request nothing more."""
        return len(self._shown) >= SHOWN_MAX

    def newest(self, own: ClusterState) -> ClusterState:
        """Return the newest known state: ``own``, or a state that peers have shown beyond it."""
        state = self._state
        return own if state is None or state.epoch <= own.epoch else state

    def request(self, peer: NodeId, own: ClusterState) -> EntriesRequest:
        """Return the next request to ``peer``."""
        after, partial = self.newest(own), self._partial
        self._asked = after
        after_state = own.cluster_id, peer, after.epoch, after.state_id
        if partial is None or partial.peer != peer:
            return EntriesRequest(*after_state)
        return EntriesRequest(*after_state, partial.head.epoch, len(partial.chunks))

    def forget(self) -> None:
        """Discard all claims."""
        self._state, self._partial = None, None
        self._shown.clear()

    # ---------------------------------------------------------------------------------------------- pages

    def take(self, peer: NodeId, reply: EntriesReply) -> str:
        """Verify and store the reply to the last request. Return an empty string, or the code that refuses it."""
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
        # Collect the whole page before storing any of it: one bad entry refuses all.
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
        # Bound the memory that a peer can claim before its digests can be verified.
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
            state = decode_snapshot(head, partial.chunks)
        except SnapshotRefused:
            return BAD_ENTRIES
        if contradicts(state, asked.epoch, asked.state_id):
            return OTHER_HISTORY
        self._shown[state.epoch] = ShownEpoch(peer, state.state_id, b"")
        self._state = state
        return ""

    # -------------------------------------------------------------------------------------------- the log

    def compare(self, own: ClusterState, entry_at: EntryAt, ended: bool = False) -> NodeId:
        """Verify the claims against the node's own log. Return the refuted peer, or an empty string.

        Args:
            ended: True if the log was read to its end, so that claims beyond ``own`` are false.
        """
        for epoch in sorted(self._shown):
            one = self._shown[epoch]
            if epoch > own.epoch:
                if ended:
                    return self._refute(one.peer)
                break
            data = entry_at(epoch)
            # Compare bytes if the entry is available, and state ids otherwise.
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
