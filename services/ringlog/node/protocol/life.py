"""A node's life, from its start: what is done before its first turn, and in which order.

=====================  ===============================================================================================
the log is followed    from here on the newest state has all that the log had when the process began
the disk is compared   what it says was acknowledged and adopted the log must have; the folder must be the newest one
the node registers     before anybody could hear of it otherwise
registers are served   they follow the log at a pace of their own
mutations are opened   where the rows end; where the topic ended then is what the node has to catch up with
turns                  and beside them acknowledgements, loads, questions to peers (``ringlog.node.protocol.peers``),
                       what an earlier validator did not know and, if that is wished, the way into the cluster
=====================  ===============================================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ringlog.kernel.commands.nodes import RegisterNode
from ringlog.kernel.state import ClusterState
from ringlog.kernel.values import Command
from ringlog.node.holder import Holder
from ringlog.node.protocol.joining import announce, join, register
from ringlog.node.protocol.loads import report_loads
from ringlog.node.protocol.turn import Beside, Turns
from ringlog.protocol.draw import Draw
from ringlog.protocol.effects import Steps

PEERS = "peers"
"""What the steps that ask peers are called."""


@dataclass(frozen=True, slots=True)
class FollowLog:
    """Begin to fold the log, for as long as it takes. Outcome: a state that has all that was in it."""


@dataclass(frozen=True, slots=True)
class CompareDisk:
    """The driver raises if the disk has what the log, of which this is the state, does not have, or has no more."""

    state: ClusterState


@dataclass(frozen=True, slots=True)
class ServeRegisters:
    """Have the registers follow the log, beside these steps, and answer."""


@dataclass(frozen=True, slots=True)
class OpenedMutations:
    """Offsets of the mutations topic by partition: where it begins, and where it ended when it was opened."""

    begin: Mapping[int, int]
    ends: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class OpenMutations:
    """Read the mutations topic from where the node's rows end. Outcome: OpenedMutations."""


def live(
    me: RegisterNode,
    holder: Holder,
    draw: Draw,
    acks: Steps[None],
    peers: Steps[None],
    wish: Callable[[ClusterState], Steps[Command]] | None,
) -> Steps[None]:
    """From the start on, for ever. ``acks``, ``peers``: steps of the modules of these names; ``wish``: with what the
    node joins, if it is to. Raises NodeFailed.
    """
    yield CompareDisk((yield FollowLog()))
    is_known = yield from register(me, draw)
    yield ServeRegisters()
    opened: OpenedMutations = yield OpenMutations()
    yield Beside("acks", acks)
    yield Beside("load", report_loads(holder))
    yield Beside(PEERS, peers)
    if not is_known:
        yield Beside("release", announce(me, draw))
    if wish is not None:
        yield Beside("join", join(me.id, wish, draw))
    yield from Turns(holder, draw, opened.begin, opened.ends).run()
