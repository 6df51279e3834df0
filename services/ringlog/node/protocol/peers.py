"""How a node that is behind asks its peers: the log first, then one peer after the other, seldom.

======================  ==============================================================================================
it waits                until a message names an epoch that is not here, or for ``LOOK``
the log is asked        what answers in time needs no hint, and says of each hint whether it is true
peers are asked         members of the metadata service first, in an order by chance, ``PEERS_MAX`` in a round; each
                        page by page, until it has no more, what it gives is refused, or the named epoch is there
it rests                from ``REST`` on, twice as long after each round that brought nothing, at most ``REST_MAX``
======================  ==============================================================================================

However many messages name later epochs meanwhile, there is one round; and an epoch that nobody has is forgotten with
the round that did not find it. What is learned are hints (``ringlog.node.hints``): nobody serves or keeps a state for
them. While the broker is away a node goes on serving at its epoch, and knows how far its peers are.

Source: CEP-21, "Catching up"; decision 89.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ringlog.kernel.service import read_group
from ringlog.kernel.state import ClusterState
from ringlog.kernel.values import Epoch, Micros, NodeId
from ringlog.node.hints import EntryAt, PeerHints
from ringlog.node.protocol.turn import Rest
from ringlog.protocol.draw import Draw
from ringlog.protocol.effects import Steps
from ringlog.wire.data import OTHER_HISTORY, EntriesReply, EntriesRequest

LOOK: Final[Micros] = 2_000_000
REST: Final[Micros] = 250_000
REST_MAX: Final[Micros] = 8_000_000
PATIENCE: Final[Micros] = 1_000_000
"""How long the log has to answer, and to be read."""
ANSWER: Final[Micros] = 3_000_000
"""How long a peer has to answer."""
PEERS_MAX: Final = 3
PAGES_MAX: Final = 64
"""Pages that one peer is asked for in a round."""
UNANSWERED: Final = "unanswered"


@dataclass(frozen=True, slots=True)
class AwaitBehind:
    """Wait until a message has named an epoch that is not here, or so long. Outcome: the greatest one; 0: none."""

    patience: Micros


@dataclass(frozen=True, slots=True)
class AskLog:
    """Outcome: a state that has all that was in the log when this was asked; None if that takes longer."""

    patience: Micros


@dataclass(frozen=True, slots=True)
class AskPeer:
    """Outcome: what the peer answers, or None."""

    request: EntriesRequest


@dataclass(frozen=True, slots=True)
class PeerHeard:
    """What became of an answer: ``code`` says why nothing of it was taken, empty if all was. ``known``: see there."""

    request: EntriesRequest
    reply: EntriesReply | None
    code: str
    known: Epoch


@dataclass(frozen=True, slots=True)
class PeerRefuted:
    """The log has something else than this peer has shown."""

    peer: NodeId


def ask_peers(
    node: NodeId, own: Callable[[], ClusterState], hints: PeerHints, entry_at: EntryAt, draw: Draw
) -> Steps[None]:
    """For ever. ``own``: the newest state that the own log has shown."""
    rest, look = REST, LOOK
    while True:
        wanted: Epoch = yield AwaitBehind(look)
        if wanted:
            yield Rest(REST)  # most epochs are here by then
            if wanted <= own().epoch:
                continue
        yield from _compared(hints, own(), entry_at)
        seen: ClusterState | None = yield AskLog(PATIENCE)
        if seen is not None:
            yield from _compared(hints, seen, entry_at, ended=True)
            rest, look = REST, LOOK
            continue
        before = hints.newest(own()).epoch
        if not wanted or wanted > before:
            yield from _round(node, own, hints, entry_at, draw, wanted)
        rest = REST if hints.newest(own()).epoch > before else min(2 * rest, REST_MAX)
        yield Rest(rest)
        look = rest


def _round(
    node: NodeId, own: Callable[[], ClusterState], hints: PeerHints, entry_at: EntryAt, draw: Draw, wanted: Epoch
) -> Steps[None]:
    for peer in order_of(own(), node, hints.refuted, draw)[:PEERS_MAX]:
        for _ in range(PAGES_MAX):
            yield from _compared(hints, own(), entry_at)
            if hints.is_full:
                return
            state = own()
            request = hints.request(peer, state)
            reply: EntriesReply | None = yield AskPeer(request)
            code = UNANSWERED if reply is None else hints.take(peer, reply)
            yield PeerHeard(request, reply, code, hints.known)
            if code == OTHER_HISTORY and request.epoch > state.epoch:
                hints.forget()  # two peers differ: this one is asked from the own log on
                continue
            if code or reply is None or hints.newest(own()).epoch >= reply.epoch:
                break
        if wanted and hints.newest(own()).epoch >= wanted:
            return


def _compared(hints: PeerHints, own: ClusterState, entry_at: EntryAt, ended: bool = False) -> Steps[None]:
    if refuted := hints.compare(own, entry_at, ended):
        yield PeerRefuted(refuted)


def order_of(state: ClusterState, node: NodeId, refuted: set[NodeId], draw: Draw) -> list[NodeId]:
    """Whom to ask, in this order: members, then others that may be up."""
    others = {one.id for one in state.nodes.values() if one.state != "left" and not one.down}
    others -= {node, *refuted}
    members = others.intersection(read_group(state))
    return [*_shuffled(members, draw), *_shuffled(others - members, draw)]


def _shuffled(nodes: set[NodeId], draw: Draw) -> list[NodeId]:
    return [name for _, name in sorted((draw.take(8), name) for name in sorted(nodes))]
