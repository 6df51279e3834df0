"""Requests of a node that is behind to its peers, for the log entries that it lacks.

======================  ==============================================================================================
Wait                    Until a message names an epoch that the node does not have, or for ``POLL_INTERVAL``.
Ask the log             If it answers in time, peers are not needed, and earlier claims of peers can be verified.
Ask peers               Up to ``PEERS_MAX`` peers in random order, members of the metadata service first. Each is asked
                        page by page, until it has no more entries, a page is refused, or the named epoch is reached.
Pause                   Starting with ``REST``, doubled after each round without progress, at most ``REST_MAX``.
======================  ==============================================================================================

There is one round at a time, regardless of the number of messages. If a round does not find the named epoch, the epoch
is forgotten.

Invariant: results are claims (``ringlog.node.protocol.peer_log_claims``). A node never serves or stores a state that it
learned from peers. While the broker is unavailable, a node serves its own epoch and knows how far its peers are.

Source: CEP-21, "Catching up"; decision 31.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.service import read_group
from ringlog.kernel.values import Epoch, Micros, NodeId, Value
from ringlog.node.protocol.mutation_loop import Sleep
from ringlog.node.protocol.peer_log_claims import EntryAt, PeerLogClaims
from ringlog.protocol.effects import Draw, Effect
from ringlog.wire.data import OTHER_HISTORY, EntriesReply, EntriesRequest

POLL_INTERVAL: Final[Micros] = 2_000_000
REST: Final[Micros] = 250_000
REST_MAX: Final[Micros] = 8_000_000
LOG_TIMEOUT: Final[Micros] = 1_000_000
"""How long the log has to answer and to be read, in microseconds."""
ANSWER_TIMEOUT: Final[Micros] = 3_000_000
"""How long a peer has to answer, in microseconds."""
PEERS_MAX: Final = 3
PAGES_MAX: Final = 64
"""Pages requested from one peer in a round."""
UNANSWERED: Final = "unanswered"


class AwaitBehind(Effect[Epoch], Value):
    """Wait until a message names an epoch that the node does not have. Outcome: the greatest one, or 0 if none came."""

    timeout: Micros


class AskLog(Effect[ClusterState | None], Value):
    """Read the log up to its present end. Outcome: the resulting state, or None after ``timeout``."""

    timeout: Micros


class AskPeer(Effect[EntriesReply | None], Value):
    """Send a request to a peer. Outcome: its reply, or None."""

    request: EntriesRequest


class PeerAnswered(Effect[None], Value):
    """Report the result of a request to a peer.

    Attributes:
        code: The reason for rejecting the reply; empty if it was accepted.
        newest_epoch: See ``PeerLogClaims``.
    """

    request: EntriesRequest
    reply: EntriesReply | None
    code: str
    newest_epoch: Epoch


class PeerRefuted(Effect[None], Value):
    """Report a peer whose claim contradicts the log."""

    peer: NodeId


async def ask_peers(
    node: NodeId, own: Callable[[], ClusterState], claims: PeerLogClaims, entry_at: EntryAt, draw: Draw
) -> None:
    """Ask peers for log entries whenever the node is behind, without end.

    Args:
        own: Returns the newest state that the node folded from the log.
        entry_at: Returns the log's own entry of an epoch.
    """
    rest, next_check = REST, POLL_INTERVAL
    while True:
        wanted = await AwaitBehind(next_check)
        if wanted:
            await Sleep(REST)  # Usually the node's own log delivers the epoch during this pause.
            if wanted <= own().epoch:
                continue
        await _compared(claims, own(), entry_at)
        seen = await AskLog(LOG_TIMEOUT)
        if seen is not None:
            await _compared(claims, seen, entry_at, ended=True)
            rest, next_check = REST, POLL_INTERVAL
            continue
        # The log does not answer: only now are peers asked.
        before = claims.newest(own()).epoch
        if not wanted or wanted > before:
            await _round(node, own, claims, entry_at, draw, wanted)
        rest = REST if claims.newest(own()).epoch > before else min(2 * rest, REST_MAX)
        await Sleep(rest)
        next_check = rest


async def _round(
    node: NodeId, own: Callable[[], ClusterState], claims: PeerLogClaims, entry_at: EntryAt, draw: Draw, wanted: Epoch
) -> None:
    for peer in order_of(own(), node, claims.refuted, draw)[:PEERS_MAX]:
        for _ in range(PAGES_MAX):
            await _compared(claims, own(), entry_at)
            if claims.is_full:
                return
            state = own()
            request = claims.request(peer, state)
            reply = await AskPeer(request)
            code = UNANSWERED if reply is None else claims.take(peer, reply)
            await PeerAnswered(request, reply, code, claims.newest_epoch)
            if code == OTHER_HISTORY and request.epoch > state.epoch:
                # Two peers disagree. Drop the claims and ask this peer for everything after the node's own log.
                claims.forget()
                continue
            if code or reply is None or claims.newest(own()).epoch >= reply.epoch:
                break
        if wanted and claims.newest(own()).epoch >= wanted:
            return


async def _compared(claims: PeerLogClaims, own: ClusterState, entry_at: EntryAt, ended: bool = False) -> None:
    if refuted := claims.compare(own, entry_at, ended):
        await PeerRefuted(refuted)


def order_of(state: ClusterState, node: NodeId, refuted: set[NodeId], draw: Draw) -> list[NodeId]:
    """Return the peers to ask, in order: members of the metadata service, then other nodes that may be up."""
    others = {one.id for one in state.nodes.values() if one.state != "left" and not one.down}
    others -= {node, *refuted}
    members = others.intersection(read_group(state))
    return [*_shuffled(members, draw), *_shuffled(others - members, draw)]


def _shuffled(nodes: set[NodeId], draw: Draw) -> list[NodeId]:
    return [name for _, name in sorted((draw.take(8), name) for name in sorted(nodes))]
