"""How a node that is behind asks its peers: the log first, then one peer after the other, seldom.

======================  ==============================================================================================
it waits                until a message names an epoch that is not here, or for ``POLL_INTERVAL``
the log is asked        what answers in time needs no hint, and says of each hint whether it is true
peers are asked         members of the metadata service first, in an order by chance, ``PEERS_MAX`` in a round; each
                        page by page, until it has no more, what it gives is refused, or the named epoch is there
it rests                from ``REST`` on, twice as long after each round that brought nothing, at most ``REST_MAX``
======================  ==============================================================================================

However many messages name later epochs meanwhile, there is one round; and an epoch that nobody has is forgotten with
the round that did not find it. What is learned are hints (``ringlog.node.protocol.peer_log_claims``): nobody serves or
keeps a state for them. While the broker is away a node goes on serving at its epoch, and knows how far its peers are.

Source: CEP-21, "Catching up"; decision 31.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.service import read_group
from ringlog.kernel.values import Epoch, Micros, NodeId
from ringlog.node.protocol.peer_log_claims import EntryAt, PeerLogClaims
from ringlog.node.protocol.turn import Rest
from ringlog.protocol.effects import Draw, Steps
from ringlog.wire.data import OTHER_HISTORY, EntriesReply, EntriesRequest

POLL_INTERVAL: Final[Micros] = 2_000_000
REST: Final[Micros] = 250_000
REST_MAX: Final[Micros] = 8_000_000
LOG_TIMEOUT: Final[Micros] = 1_000_000
"""How long the log has to answer, and to be read."""
ANSWER_TIMEOUT: Final[Micros] = 3_000_000
"""How long a peer has to answer."""
PEERS_MAX: Final = 3
PAGES_MAX: Final = 64
"""Pages that one peer is asked for in a round."""
UNANSWERED: Final = "unanswered"


@dataclass(frozen=True, slots=True)
class AwaitBehind:
    """Wait until a message has named an epoch that is not here, or so long. Outcome: the greatest one; 0: none."""

    timeout: Micros


@dataclass(frozen=True, slots=True)
class AskLog:
    """Outcome: a state that has all that was in the log when this was asked; None if that takes longer."""

    timeout: Micros


@dataclass(frozen=True, slots=True)
class AskPeer:
    """Outcome: what the peer answers, or None."""

    request: EntriesRequest


@dataclass(frozen=True, slots=True)
class PeerAnswered:
    """Report the result of a request to a peer. ``code``: why the answer was rejected, empty if it was accepted.
    ``newest_epoch``: see there.
    """

    request: EntriesRequest
    reply: EntriesReply | None
    code: str
    newest_epoch: Epoch


@dataclass(frozen=True, slots=True)
class PeerRefuted:
    """The log has something else than this peer has shown."""

    peer: NodeId


def ask_peers(
    node: NodeId, own: Callable[[], ClusterState], claims: PeerLogClaims, entry_at: EntryAt, draw: Draw
) -> Steps[None]:
    """For ever. ``own``: the newest state that the own log has shown."""
    rest, next_check = REST, POLL_INTERVAL
    while True:
        wanted: Epoch = yield AwaitBehind(next_check)
        if wanted:
            yield Rest(REST)  # most epochs are here by then
            if wanted <= own().epoch:
                continue
        yield from _compared(claims, own(), entry_at)
        seen: ClusterState | None = yield AskLog(LOG_TIMEOUT)
        if seen is not None:
            yield from _compared(claims, seen, entry_at, ended=True)
            rest, next_check = REST, POLL_INTERVAL
            continue
        before = claims.newest(own()).epoch
        if not wanted or wanted > before:
            yield from _round(node, own, claims, entry_at, draw, wanted)
        rest = REST if claims.newest(own()).epoch > before else min(2 * rest, REST_MAX)
        yield Rest(rest)
        next_check = rest


def _round(
    node: NodeId, own: Callable[[], ClusterState], claims: PeerLogClaims, entry_at: EntryAt, draw: Draw, wanted: Epoch
) -> Steps[None]:
    for peer in order_of(own(), node, claims.refuted, draw)[:PEERS_MAX]:
        for _ in range(PAGES_MAX):
            yield from _compared(claims, own(), entry_at)
            if claims.is_full:
                return
            state = own()
            request = claims.request(peer, state)
            reply: EntriesReply | None = yield AskPeer(request)
            code = UNANSWERED if reply is None else claims.take(peer, reply)
            yield PeerAnswered(request, reply, code, claims.newest_epoch)
            if code == OTHER_HISTORY and request.epoch > state.epoch:
                claims.forget()  # two peers differ: this one is asked from the own log on
                continue
            if code or reply is None or claims.newest(own()).epoch >= reply.epoch:
                break
        if wanted and claims.newest(own()).epoch >= wanted:
            return


def _compared(claims: PeerLogClaims, own: ClusterState, entry_at: EntryAt, ended: bool = False) -> Steps[None]:
    if refuted := claims.compare(own, entry_at, ended):
        yield PeerRefuted(refuted)


def order_of(state: ClusterState, node: NodeId, refuted: set[NodeId], draw: Draw) -> list[NodeId]:
    """Return the peers to ask, in order: members, then other nodes that may be up."""
    others = {one.id for one in state.nodes.values() if one.state != "left" and not one.down}
    others -= {node, *refuted}
    members = others.intersection(read_group(state))
    return [*_shuffled(members, draw), *_shuffled(others - members, draw)]


def _shuffled(nodes: set[NodeId], draw: Draw) -> list[NodeId]:
    return [name for _, name in sorted((draw.take(8), name) for name in sorted(nodes))]
