"""The roles of agents: a line each. Agents, supervisor, simulator, demo, status and clean-up take them from here.

A role's protocol is a module of this room. One that hears acknowledgements and asks the validator needs nothing else.
One with effects of its own has a shell of its name in ``agents.roles``, and a worker in the simulator.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ringlog.kernel.changes import CHANGE_TOPICS, EPOCHS
from ringlog.protocol.effects import Steps


@dataclass(frozen=True, slots=True)
class Role:
    """What an agent of a role needs.

    ``source``: the topic whose partition says which instance tries to act; ``reset``: where a new group begins to read
    it; ``uses``: the other topics that the role cannot do without. ``is_optional``: a cluster goes on without it, and
    simulated ones have it only where a script asks for it. ``steps``: the generator in
    ``ringlog.protocol.<name>.<name>`` of a role that hears acknowledgements and asks the validator, and needs no other
    effect; empty: it has a shell. ``stores``: it stores snapshots, archives the log, and keeps the cache; ``confirms``:
    it says of each snapshot whether its own fold gives the same.
    """

    name: str
    source: str
    reset: str = "latest"
    uses: tuple[str, ...] = ()
    is_optional: bool = False
    steps: str = ""
    stores: bool = False
    confirms: bool = False

    def protocol(self) -> Callable[[], Steps[None]]:
        """The steps of a role that has no shell, one term long."""
        assert self.steps, f"{self.name} has a shell"
        module = importlib.import_module(f"ringlog.protocol.{self.name}.{self.name}")
        made: Callable[[], Steps[None]] = getattr(module, self.steps)
        return made


_ROWS: Final = (
    Role("validator", "requests", "earliest", ("results",)),
    Role("coordinator", "acks", "earliest", ("requests", "results", EPOCHS), confirms=True),
    Role("publisher", "metadata", uses=("schemas", *CHANGE_TOPICS), confirms=True),
    Role("keeper", "metadata", stores=True),
    Role("balancer", "load", "earliest", ("requests", "results"), is_optional=True),
    Role("rebalancer", "acks", "earliest", ("requests", "results"), is_optional=True, steps="rebalance"),
)

ROLES: Final = {role.name: role for role in _ROWS}
"""By name, in the order in which they are started."""
