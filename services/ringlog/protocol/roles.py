"""The roles of agents: a line each. Agents, supervisor, simulator, demo, status and clean-up take them from here.

A role's protocol is a module of this room. One whose effects are those that every role has is ``plain``: its row names
the protocol, and threads and simulator perform it as they are. The others have a shell of their name in
``agents.shells``, and a worker in the simulator.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ringlog.kernel.changes import CHANGE_TOPICS, EPOCHS
from ringlog.protocol import balancer
from ringlog.protocol.effects import Steps


@dataclass(frozen=True, slots=True)
class Role:
    """What an agent of a role needs.

    ``source``: the topic whose partition says which instance tries to act; ``reset``: where a new group begins to read
    it; ``uses``: the other topics that the role cannot do without; ``plain``: its protocol, if it has no shell of its
    own. ``is_idle``: it changes nothing yet, and simulated clusters have it only where a script asks for it.
    """

    name: str
    source: str
    reset: str = "latest"
    uses: tuple[str, ...] = ()
    plain: Callable[[], Steps[None]] | None = None
    is_idle: bool = False


_ROWS: Final = (
    Role("validator", "requests", "earliest", ("results",)),
    Role("coordinator", "acks", "earliest", ("requests", "results", EPOCHS)),
    Role("publisher", "metadata", uses=("schemas", *CHANGE_TOPICS)),
    Role("keeper", "metadata"),
    Role("balancer", "metadata", plain=balancer.balance, is_idle=True),
)

ROLES: Final = {role.name: role for role in _ROWS}
"""By name, in the order in which they are started."""
