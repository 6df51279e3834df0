"""Answers to a peer that is behind: the entries that follow on an epoch, as its own log has shown them.

A member of the metadata service answers from its copy of the log (``ringlog.node.log.log_copy``), also while the broker
is away; others from the entries that they applied last (``ringlog.log.replicas.recent``). Where the copy begins later
than the peer is, the snapshot that it begins with is given chunk by chunk, and then what follows on it. Who has neither
says ``gap``. What peers have shown this node is passed on to nobody: a rumour goes no further than one step.

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
from ringlog.log.snapshots import cut
from ringlog.node.checks import entries_refusal
from ringlog.wire.data import BEHIND, BUSY, GAP, OTHER_HISTORY, PAGE_BYTES_MAX, EntriesReply, EntriesRequest
from ringlog.wire.records import encode_snapshot_record

PEERS_AT_ONCE = 2
"""Requests that are answered at once; one more is refused, and asks another node, or again."""


class LogOnDisk(Protocol):
    """A copy of the log, in any thread."""

    @property
    def base(self) -> Start:
        """The state that it begins with."""
        ...

    def after(self, epoch: Epoch, page_bytes: int) -> tuple[bytes, ...] | None:
        """See ``RecentEntries``."""
        ...


class EntriesSide:
    """Answers of one node. ``state``: the newest that its own log has shown; ``copy``: of a member, else None.

    Safe from threads.
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
        self._free = threading.BoundedSemaphore(PEERS_AT_ONCE)
        self._cut: tuple[Start, tuple[bytes, ...]] | None = None

    def answered(self, request: EntriesRequest) -> EntriesReply:
        """The answer to a request for this node of this cluster."""
        if not self._free.acquire(blocking=False):
            return EntriesReply(self._node, self._state().epoch, BUSY)
        try:
            return self._answered(request)
        finally:
            self._free.release()

    def _answered(self, request: EntriesRequest) -> EntriesReply:
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
            shown = (found or ())[: state.epoch - request.epoch]  # a copy may be ahead of what the node has folded
            return EntriesReply(*head, "", state.state_id, shown)
        if copy is None or copy.base.state.epoch <= request.epoch:
            return EntriesReply(*head, GAP, state.state_id)
        base = copy.base
        is_going_on = request.snapshot == base.state.epoch
        return EntriesReply(*head, "", state.state_id, (), self._chunk(base, request.chunk if is_going_on else 0))

    def _chunk(self, base: Start, number: int) -> tuple[bytes, ...]:
        """The head of the snapshot, and the chunk of that number, if it has one."""
        chunk_cache = self._cut
        if chunk_cache is None or chunk_cache[0] is not base:
            head, chunks = cut(base, "", self._node, 0, base.state.state_id)
            records = encode_snapshot_record(head), *map(encode_snapshot_record, chunks)
            chunk_cache = self._cut = base, records
        return chunk_cache[1][:1] + chunk_cache[1][number + 1 : number + 2]
