"""Requests to peers while the node's own log is behind: ``ringlog.node.protocol.peers`` on a thread and gRPC."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, Final

from ringlog.client.data.peers import Peers
from ringlog.client.participant.retry import Stopped
from ringlog.kernel.fold import fold
from ringlog.kernel.model.outcome import Folded, UnreadableEntry
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Epoch, NodeId
from ringlog.log.errors import LogUnavailable, TopicMissing, WaitTimedOut
from ringlog.log.replicas.replica import LogReplica
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
from ringlog.runtime.logs import RateLimitedWarnings, get_logger
from ringlog.wire.data import FOREIGN_CLUSTER, WRONG_NODE, EntriesReply, EntriesRequest, pack, unpack
from ringlog.wire.entries import EncodedEntry, decode_entry
from ringlog.wire.errors import WireError

POLL_INTERVAL_S: Final = 0.5

log = get_logger("ringlog.node")


class ClaimedEpochs:
    """The greatest epoch that messages have named since the last call of ``take_greatest``. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._greatest: Epoch = 0

    def report_epoch(self, epoch: Epoch) -> None:
        """Record an epoch that a message named and this node does not have."""
        with self._changed:
            if epoch > self._greatest:
                self._greatest = epoch
                self._changed.notify_all()

    def take_greatest(self, timeout_s: float) -> Epoch:
        """Wait for a named epoch, return the greatest one and reset it. Return 0 after the timeout."""
        with self._changed:
            self._changed.wait_for(lambda: self._greatest, timeout_s)
            found, self._greatest = self._greatest, 0
            return found


class PeerRequests:
    """The client side of log requests for one node. ``newest_epoch`` is thread-safe.

    Args:
        own: The node's replica of the log.
    """

    def __init__(self, node: NodeId, own: LogReplica, peers: Peers, stopping: threading.Event) -> None:
        self.named = ClaimedEpochs()
        self._node = node
        self._own = own
        self._peers = peers
        self._stopping = stopping
        self._claims = PeerLogClaims(self._fold_entry)
        self._warnings = RateLimitedWarnings(log)
        self.handlers: dict[type, Callable[[Any], Any]] = {
            AwaitBehind: lambda effect: self._await_claimed_epoch(effect.timeout / 1e6),
            AskLog: lambda effect: self._ask_log(effect.timeout / 1e6),
            AskPeer: lambda effect: self._ask_peer(effect.request),
            PeerAnswered: self._report_peer,
            PeerRefuted: lambda effect: log.error("peer_refuted", peer=effect.peer, epoch=self._own.state.epoch),
        }

    @property
    def newest_epoch(self) -> Epoch:
        """The newest epoch that the own log or a peer has shown."""
        return max(self._own.state.epoch, self._claims.newest_epoch)

    def steps(self, draw: Draw) -> Steps[None]:
        """Return the steps to perform with ``handlers`` in a dedicated thread."""
        return ask_peers(self._node, lambda: self._own.state, self._claims, self._own.recent.at, draw)

    def _fold_entry(self, state: ClusterState, data: bytes) -> Folded:
        """Fold an entry of a peer. The replica reuses the result if the log delivers the same bytes."""
        item = decode_entry(data)
        if isinstance(item, UnreadableEntry):
            return fold(state, item)
        return self._own.read_ahead.fold(state, EncodedEntry(item, data))

    def _await_claimed_epoch(self, timeout_s: float) -> Epoch:
        until = time.monotonic() + timeout_s
        while not self._stopping.is_set():
            left = until - time.monotonic()
            found = self.named.take_greatest(max(min(left, POLL_INTERVAL_S), 0))
            if found or left <= POLL_INTERVAL_S:
                return found
        raise Stopped

    def _ask_log(self, timeout_s: float) -> ClusterState | None:
        try:
            return self._own.read_barrier(timeout_s)
        except (LogUnavailable, TopicMissing, WaitTimedOut):
            return None

    def _ask_peer(self, request: EntriesRequest) -> EntriesReply | None:
        answer = Future[bytes | None]()
        self._peers.call(request.node, "Entries", pack(request), ANSWER_TIMEOUT / 1e6, answer.set_result)
        while not answer.done():  # The call has a deadline of its own.
            if self._stopping.is_set():
                raise Stopped
            wait((answer,), POLL_INTERVAL_S)
        data = answer.result()
        try:
            reply = None if data is None else unpack(EntriesReply, data)
        except WireError:
            return None
        if reply is not None and reply.refused in (WRONG_NODE, FOREIGN_CLUSTER):
            # Another node answers at this address: the connection is stale.
            self._peers.forget(request.node)
        return reply

    def _report_peer(self, effect: PeerAnswered) -> None:
        about = {"peer": effect.request.node, "after": effect.request.epoch}
        if effect.code:
            self._warnings.warn("peer_asked_in_vain", code=effect.code, **about)
        elif effect.newest_epoch > self._own.state.epoch:
            log.info("peer_is_ahead", newest_epoch=effect.newest_epoch, **about)
