"""Answers to peers that ask for log entries after an epoch.

A member of the metadata service answers from its own copy of the log (``ringlog.node.log.log_copy``), even while the
broker is unavailable. Other nodes answer from the entries that they applied last (``ringlog.log.replicas.recent``). If
the copy begins after the peer's epoch, the node sends the copy's initial snapshot chunk by chunk, then the entries that
follow it. A node that has neither the entries nor a snapshot answers ``gap``.

Invariant: a node sends only entries that it read from the log itself. Entries that it learned from a peer are never
forwarded, so an invalid claim cannot spread beyond one node.

Source: CEP-21, "Catching up"; decision 31.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from ringlog.kernel.history import contradicts
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Epoch, NodeId
from ringlog.log.folding import Start
from ringlog.log.replicas.recent import RecentEntries
from ringlog.log.snapshots import encode_snapshot
from ringlog.node.checks import entries_refusal
from ringlog.wire.data import BEHIND, BUSY, GAP, OTHER_HISTORY, PAGE_BYTES_MAX, EntriesReply, EntriesRequest
from ringlog.wire.records import encode_snapshot_record

PEERS_AT_ONCE = 2
"""The limit of requests answered concurrently. Further requests are refused with ``BUSY``."""


class LogOnDisk(Protocol):
    """A thread-safe copy of the log on disk."""

    @property
    def base(self) -> Start:
        """The state before the first entry of the copy."""
        ...

    def after(self, epoch: Epoch, page_bytes: int) -> tuple[bytes, ...] | None:
        """Return entries after ``epoch``; see ``RecentEntries``."""
        ...


class EntryServer:
    """The server side of log requests for one node. Thread-safe.

    Args:
        state: Returns the newest state that the node folded from the log.
        recent: Returns the entries that the node applied last.
        copy: Returns the copy of the log on disk, or None if the node is not a member.
        page_bytes: Size limit of the entries in one reply.
    """

    def __init__(
        self,
        node: NodeId,
        state: Callable[[], ClusterState],
        recent: Callable[[], RecentEntries],
        copy: Callable[[], LogOnDisk | None],
        page_bytes: int = PAGE_BYTES_MAX,
    ) -> None:
        self._node = node
        self._state = state
        self._recent = recent
        self._copy = copy
        self._page_bytes = page_bytes
        self._slots = threading.BoundedSemaphore(PEERS_AT_ONCE)
        self._chunk_cache: tuple[Start, tuple[bytes, ...]] | None = None

    def answer(self, request: EntriesRequest) -> EntriesReply:
        """Return the reply to a request that is addressed to this node and cluster."""
        if not self._slots.acquire(blocking=False):
            return EntriesReply(self._node, self._state().epoch, BUSY)
        try:
            return self._answer(request)
        finally:
            self._slots.release()

    def _answer(self, request: EntriesRequest) -> EntriesReply:
        copy, state = self._copy(), self._state()
        head = self._node, state.epoch
        if refused := entries_refusal(request):
            return EntriesReply(*head, refused)
        if state.epoch < request.epoch:
            return EntriesReply(*head, BEHIND, state.state_id)
        if contradicts(state, request.epoch, request.state_id):
            return EntriesReply(*head, OTHER_HISTORY, state.state_id)
        found = None if copy is None else copy.after(request.epoch, self._page_bytes)
        found = found or self._recent().after(request.epoch, self._page_bytes)
        if found or state.epoch == request.epoch:
            # The copy may contain entries that the node has not folded yet.
            shown = (found or ())[: state.epoch - request.epoch]
            return EntriesReply(*head, "", state.state_id, shown)
        if copy is None or copy.base.state.epoch <= request.epoch:
            return EntriesReply(*head, GAP, state.state_id)
        base = copy.base
        # The copy may have been rewritten with a newer snapshot since the last chunk. Chunks of different snapshots do
        # not fit together, so start again with the first chunk.
        is_going_on = request.snapshot == base.state.epoch
        return EntriesReply(*head, "", state.state_id, (), self._chunk(base, request.chunk if is_going_on else 0))

    def _chunk(self, base: Start, number: int) -> tuple[bytes, ...]:
        """Return the head of the snapshot, and the chunk with this number if it exists."""
        chunk_cache = self._chunk_cache
        # Splitting the state is expensive and a peer asks once per chunk, so keep the chunks of the current snapshot.
        if chunk_cache is None or chunk_cache[0] is not base:
            head, chunks = encode_snapshot(base, "", self._node, 0, base.state.state_id)
            records = encode_snapshot_record(head), *map(encode_snapshot_record, chunks)
            chunk_cache = self._chunk_cache = base, records
        return chunk_cache[1][:1] + chunk_cache[1][number + 1 : number + 2]
