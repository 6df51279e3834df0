"""The roles of agents: a line each. Agents, supervisor, simulator, demo, status and clean-up take them from here.

A role's protocol is a module of this room. It has a shell of its name in ``agents.shells``, and a worker in the
simulator.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ringlog.kernel.changes import CHANGE_TOPICS, EPOCHS


@dataclass(frozen=True, slots=True)
class Role:
    """What an agent of a role needs.

    ``source``: the topic whose partition says which instance tries to act; ``reset``: where a new group begins to read
    it; ``uses``: the other topics that the role cannot do without. ``is_optional``: a cluster goes on without it, and
    simulated ones have it only where a script asks for it.
    """

    name: str
    source: str
    reset: str = "latest"
    uses: tuple[str, ...] = ()
    is_optional: bool = False


_ROWS: Final = (
    Role("validator", "requests", "earliest", ("results",)),
    Role("coordinator", "acks", "earliest", ("requests", "results", EPOCHS)),
    Role("publisher", "metadata", uses=("schemas", *CHANGE_TOPICS)),
    Role("keeper", "metadata"),
    Role("balancer", "load", "earliest", ("requests", "results"), is_optional=True),
    Role("rebalancer", "acks", "earliest", ("requests", "results"), is_optional=True),
)

ROLES: Final = {role.name: role for role in _ROWS}
"""By name, in the order in which they are started."""
